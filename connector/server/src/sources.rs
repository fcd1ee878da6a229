//! Where the configuration comes from: the files and the environment, read into memory for `berth-config`.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use berth_config::{DOCUMENT_BYTES_MAX, Document, Error, Loaded};

/// The texts of one start; `dynamic.yaml` is read again later.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    config: Option<(PathBuf, String)>,
    dynamic: Option<PathBuf>,
    variables: Vec<(String, String)>,
    host_name: String,
}

impl Sources {
    /// Reads the files that the command line names, and the environment.
    ///
    /// # Errors
    /// A file that is named and cannot be read; a variable of ours that is no text.
    pub(crate) fn read(config: Option<&Path>, dynamic: Option<&Path>) -> Result<Self, Error> {
        let text = config.map(|path| Ok((path.to_owned(), read(path)?))).transpose()?;
        let beside = config.map(|path| path.with_file_name("dynamic.yaml"));
        let variables = ours(std::env::vars_os())?;
        let dynamic = dynamic.map(Path::to_owned).or(beside);
        Ok(Self { config: text, dynamic, variables, host_name: crate::process::host_name() })
    }

    /// The text of `dynamic.yaml` as it is now; none when there is no such file.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub(crate) fn read_dynamic(&self) -> Result<Option<String>, Error> {
        match &self.dynamic {
            Some(path) if path.exists() => read(path).map(Some),
            Some(_) | None => Ok(None),
        }
    }

    /// The settings with this `dynamic.yaml`.
    ///
    /// # Errors
    /// See [`berth_config::load`].
    pub(crate) fn load(&self, dynamic: Option<&str>) -> Result<Loaded, Error> {
        let config_name = self.config.as_ref().map(|(path, _)| path.display().to_string());
        let config = self.config.as_ref().zip(config_name.as_ref());
        let config = config.map(|((_, text), name)| Document { name, text });
        let dynamic_name = self.dynamic.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let dynamic = dynamic.map(|text| Document { name: &dynamic_name, text });
        berth_config::load(config, dynamic, self.variables.iter().cloned(), &self.host_name)
    }

    /// The name of `config.yaml`'s content.
    pub(crate) fn config_hash(&self) -> Option<String> {
        self.config.as_ref().map(|(_, text)| berth_config::hash(text.as_bytes()))
    }
}

/// The variables that are ours by their name.
fn ours(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, Error> {
    variables
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"BERTH_"))
        .map(|(name, value)| {
            let shown = name.to_string_lossy().into_owned();
            name.into_string().and_then(|name| Ok((name, value.into_string()?))).map_err(|_| Error {
                origin: shown,
                key: String::new(),
                problem: String::from("its name and its value must be UTF-8; correct or unset the variable"),
            })
        })
        .collect()
}

fn read(path: &Path) -> Result<String, Error> {
    let failed = |problem: String| Error {
        origin: path.display().to_string(),
        key: String::new(),
        problem: format!("cannot be read: {problem}"),
    };
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    let limit = DOCUMENT_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn variables_that_are_no_text_are_refused_when_they_are_ours() {
        let variable = |name: &[u8], value: &[u8]| {
            (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()))
        };
        let good = [variable(b"BERTH_NODE", b"a"), variable(b"PATH\xff", b"b"), variable(b"HOME", b"\xff")];
        let ours_only = ours(good.into_iter()).unwrap();
        assert_eq!(ours_only, [(String::from("BERTH_NODE"), String::from("a"))]);
        for (name, value, shown) in
            [(&b"BERTH_NODE"[..], &b"\xff"[..], "BERTH_NODE: "), (b"BERTH_N\xff", b"a", "BERTH_N\u{fffd}: ")]
        {
            let error = ours([variable(name, value)].into_iter()).unwrap_err().to_string();
            assert!(error.starts_with(shown) && !error.contains('\n'), "{error}");
        }
    }
}
