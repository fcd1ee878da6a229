//! Where the configuration comes from: the files and the environment, read into memory for `berth-config`.

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
    /// A file that is named and cannot be read.
    pub(crate) fn read(config: Option<&Path>, dynamic: Option<&Path>) -> Result<Self, Error> {
        let text = config.map(|path| Ok((path.to_owned(), read(path)?))).transpose()?;
        let beside = config.map(|path| path.with_file_name("dynamic.yaml"));
        // Names and values that are no UTF-8 cannot be ours: ours are written in ASCII.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("BERTH_"))
            .collect();
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
