//! From texts to settings: `config.yaml`, over it `dynamic.yaml`, over both the environment.

use serde_json::{Map, Value, json};

use crate::check::{Scope, check_value, checked};
use crate::document::parse_yaml;
use crate::keys::{KEYS, Key, Kind, NOT_SERVED};
use crate::{Config, Document, Error, Settings};

/// A configuration that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// What the connector runs on.
    pub settings: Settings,
    /// What a person should look at though it stops nothing; one line each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// The effective configuration as YAML, as `--print-config` shows it. It can be read back.
    pub fn to_yaml(&self) -> Result<String, Error> {
        serde_saphyr::to_string(&self.settings.to_config())
            .map_err(|error| Error::new("configuration", "", error.to_string()))
    }
}

/// Puts the layers together and checks them.
///
/// Without `config` the connector works at once: STOMP and the admin port on 127.0.0.1. With it a listener
/// runs when its section stands in the file (or the environment sets a key of it). `variables` may be the
/// whole environment: only names that start with `BERTH_` are looked at.
///
/// # Errors
/// The first thing that is wrong, with the file or variable and the key.
pub fn load(
    config: Option<Document<'_>>,
    dynamic: Option<Document<'_>>,
    variables: impl IntoIterator<Item = (String, String)>,
    host_name: &str,
) -> Result<Loaded, Error> {
    let mut tree = match config {
        Some(document) => Value::Object(checked(document, Scope::Start)?),
        None => json!({ "stomp": {}, "admin": {} }),
    };
    if let Some(document) = dynamic {
        overlay(&mut tree, Value::Object(checked(document, Scope::Dynamic)?));
    }
    let mut warnings = Vec::new();
    let mut origins = Vec::new();
    for (name, text) in variables {
        if !name.starts_with("BERTH_") {
            continue;
        }
        match variable(&name, &text)? {
            Some((key, value)) => {
                overlay(&mut tree, nested(key.path, value));
                origins.push((key.path, name));
            }
            None => warnings.push(format!("{name}: this variable is not one of ours and is not read")),
        }
    }
    warnings.sort();
    let file_name = config.map_or("configuration", |document| document.name);
    let settings = resolve(tree, host_name).map_err(|error| {
        let variable = origins.iter().find(|(path, _)| *path == error.key).map(|(_, name)| name.clone());
        Error { origin: variable.unwrap_or_else(|| file_name.into()), ..error }
    })?;
    Ok(Loaded { settings, warnings })
}

fn resolve(tree: Value, host_name: &str) -> Result<Settings, Error> {
    let config: Config = serde_path_to_error::deserialize(tree).map_err(|error| {
        let key = error.path().to_string();
        Error::new("", &key, error.into_inner().to_string())
    })?;
    let settings = Settings::resolve(&config, host_name)?;
    if settings.stomp.is_none() {
        return Err(Error::new("", "stomp", "no listener is configured; add `stomp: {}`"));
    }
    Ok(settings)
}

/// What a `BERTH_` variable sets; none: it is not one of ours.
///
/// A name with `__` in it is meant for us, and so is one that names a key; Kubernetes makes others
/// (`BERTH_PORT`, ...) for a Service that is called berth.
fn variable(name: &str, text: &str) -> Result<Option<(&'static Key, Value)>, Error> {
    let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
        if !name.contains("__") {
            return Ok(None);
        }
        return Err(Error::new(name, "", unknown_variable(name)));
    };
    let value = match key.kind {
        Kind::Text(_) | Kind::Size(_) | Kind::Choice(..) => Value::String(text.into()),
        Kind::Integer { .. } | Kind::Switch => {
            parse_yaml(text).map_err(|problem| Error::new(name, key.path, problem))?
        }
    };
    check_value(name, key, &value)?;
    if value.is_null() {
        return Err(Error::new(name, key.path, "a value is expected, found nothing; unset the variable"));
    }
    Ok(Some((key, value)))
}

fn unknown_variable(name: &str) -> String {
    let path = path_of(name);
    let is_planned = |planned: &&str| {
        path == **planned || path.strip_prefix(*planned).is_some_and(|rest| rest.starts_with('.'))
    };
    match NOT_SERVED.iter().find(|planned| is_planned(planned)) {
        Some(planned) => format!("{planned}: not supported by this version; unset the variable"),
        None => format!("{path}: unknown key; unset the variable or correct its name"),
    }
}

/// `BERTH_STOMP__TLS_PORT` is `stomp.tlsPort`.
fn path_of(variable: &str) -> String {
    let mut path = String::new();
    for level in variable.trim_start_matches("BERTH_").split("__") {
        if !path.is_empty() {
            path.push('.');
        }
        for (index, word) in level.split('_').enumerate() {
            let mut letters = word.chars().map(|c| c.to_ascii_lowercase());
            if index > 0 {
                path.extend(letters.next().map(|c| c.to_ascii_uppercase()));
            }
            path.extend(letters);
        }
    }
    path
}

/// `{ a: { b: value } }` for the path `a.b`.
fn nested(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, name| Value::Object(Map::from_iter([(String::from(name), inner)])))
}

/// Puts `upper` over `lower`: sections are merged, everything else is replaced.
fn overlay(lower: &mut Value, upper: Value) {
    match (lower, upper) {
        (Value::Object(lower), Value::Object(upper)) => {
            for (name, value) in upper {
                overlay(lower.entry(name).or_insert(Value::Null), value);
            }
        }
        (lower, upper) => *lower = upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DefaultPattern, Fsync, LogLevel};
    use proptest::prelude::*;

    fn file(text: &str) -> Option<Document<'_>> {
        Some(Document { name: "config.yaml", text })
    }

    fn with_variables(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, Error> {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        load(file(text), None, variables.collect::<Vec<_>>(), "host-1")
    }

    #[test]
    fn works_without_a_file() {
        let settings = load(None, None, [], "host-1").unwrap().settings;
        assert_eq!(settings.node, "host-1");
        assert_eq!(settings.admin.unwrap().to_string(), "127.0.0.1:9090");
        assert_eq!(settings.stomp.unwrap().listen.to_string(), "127.0.0.1:61613");
        assert_eq!(settings.fsync, Fsync::Always);
        assert_eq!(settings.data_dir.to_str(), Some("./berth-data"));
    }

    #[test]
    fn a_listener_runs_when_its_section_stands() {
        assert_eq!(with_variables("stomp: {}", &[]).unwrap().settings.admin, None);
        let error = with_variables("admin: {}", &[]).unwrap_err();
        assert_eq!(error.to_string(), "config.yaml: stomp: no listener is configured; add `stomp: {}`");
        let settings = with_variables("", &[("BERTH_STOMP__PORT", "61700")]).unwrap().settings;
        assert_eq!(settings.stomp.unwrap().listen.port(), 61700);
    }

    #[test]
    fn the_environment_wins_over_the_dynamic_file_and_that_over_the_first() {
        let config = file("{ stomp: {}, logging: { level: error, format: json } }");
        let dynamic = Some(Document { name: "dynamic.yaml", text: "logging: { level: debug }" });
        let level = |variables: Vec<(String, String)>| {
            load(config, dynamic, variables, "h").unwrap().settings.logging.level
        };
        assert_eq!(level(vec![]), LogLevel::Debug);
        assert_eq!(level(vec![("BERTH_LOGGING__LEVEL".into(), "trace".into())]), LogLevel::Trace);
    }

    #[test]
    fn every_key_can_be_set_by_a_variable() {
        for key in KEYS {
            let (name, value) = (key.variable(), changed(key));
            let loaded = with_variables("{ stomp: {}, admin: {} }", &[(&name, &value)]).unwrap();
            let plain = with_variables("{ stomp: {}, admin: {} }", &[]).unwrap();
            assert_ne!(loaded.settings, plain.settings, "{name}={value} changes nothing");
        }
    }

    /// A good value that is not the default.
    fn changed(key: &Key) -> String {
        match key.kind {
            Kind::Integer { min, max, default } => if default == max { min } else { max }.to_string(),
            Kind::Switch => "true".into(),
            Kind::Size(_) => "64Mi".into(),
            Kind::Choice(words, _) => words.iter().find(|w| **w != key.default).unwrap().to_string(),
            Kind::Text(_) if key.path == "admin.address" => "[::]:7".into(),
            Kind::Text(_) => "::1".into(),
        }
        .replace("::1", if key.path == "stomp.address" { "::1" } else { "other" })
    }

    #[test]
    fn errors_name_the_variable() {
        for (name, value, message) in [
            (
                "BERTH_STOMP__PORT",
                "high",
                "BERTH_STOMP__PORT: stomp.port: a whole number from 0 to 65535 is expected, found the text \
                 \"high\"",
            ),
            (
                "BERTH_STOMP__ADDRESS",
                "here",
                "BERTH_STOMP__ADDRESS: stomp.address: an IP address is expected, like 127.0.0.1 or [::]",
            ),
            (
                "BERTH_STOMP__PRT",
                "1",
                "BERTH_STOMP__PRT: stomp.prt: unknown key; unset the variable or correct its name",
            ),
            (
                "BERTH_STOMP__TLS_PORT",
                "1",
                "BERTH_STOMP__TLS_PORT: stomp.tlsPort: not supported by this version; unset the variable",
            ),
            (
                "BERTH_AMQP__PORT",
                "1",
                "BERTH_AMQP__PORT: amqp: not supported by this version; unset the variable",
            ),
            (
                "BERTH_STOMP__PORT",
                "",
                "BERTH_STOMP__PORT: stomp.port: a value is expected, found nothing; unset the variable",
            ),
        ] {
            assert_eq!(with_variables("stomp: {}", &[(name, value)]).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_size_may_be_a_number_or_text() {
        for text in ["67108864", "64Mi", "'64Mi'", "\"65536Ki\""] {
            let text = format!("{{ stomp: {{}}, limits: {{ maxMemory: {text} }} }}");
            assert_eq!(with_variables(&text, &[]).unwrap().settings.memory_max, Some(64 << 20), "{text}");
        }
        assert_eq!(with_variables("stomp: {}", &[]).unwrap().settings.memory_max, None);
    }

    #[test]
    fn variables_of_kubernetes_are_warnings() {
        let loaded = with_variables(
            "stomp: {}",
            &[("BERTH_STOMP_PORT", "tcp://10.0.0.1:61613"), ("BERTH_SERVICE_HOST", "10.0.0.1"), ("PATH", "")],
        );
        let warnings = loaded.unwrap().warnings;
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].starts_with("BERTH_SERVICE_HOST: "), "{warnings:?}");
    }

    #[test]
    fn a_text_variable_stays_text() {
        assert_eq!(with_variables("stomp: {}", &[("BERTH_NODE", "1234")]).unwrap().settings.node, "1234");
    }

    #[test]
    fn the_printed_configuration_reads_back_the_same() {
        let text =
            "{ node: a-0, admin: { address: '[::]:1' }, stomp: { address: '[::]', defaultPattern: queues } }";
        let loaded = with_variables(text, &[]).unwrap();
        assert_eq!(loaded.settings.stomp.as_ref().unwrap().default_pattern, DefaultPattern::Queues);
        let yaml = loaded.to_yaml().unwrap();
        assert_eq!(with_variables(&yaml, &[]).unwrap(), loaded, "{yaml}");
        let config = loaded.settings.to_config();
        let tree = serde_json::to_value(&config).unwrap();
        for key in KEYS {
            let pointer = format!("/{}", key.path.replace('.', "/"));
            assert!(tree.pointer(&pointer).is_some(), "{} is not printed", key.path);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn any_text_ends_in_settings_or_one_line(text in "\\PC{0,200}|[-a-z:{}\\[\\],&*!|>'\"#%@ \
         \n\t0-9.]{0,200}") {
            check_any(&text);
        }

        #[test]
        fn any_bytes_end_in_settings_or_one_line(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            check_any(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn any_value_of_any_key_ends_in_settings_or_one_line(index in 0..KEYS.len(), value in "\\PC{0,40}") {
            let key = KEYS[index];
            check_any(&nested(key.path, Value::String(value.clone())).to_string());
            if let Err(error) = with_variables("stomp: {}", &[(&key.variable(), &value)]) {
                prop_assert!(error.to_string().contains(key.path), "{error}");
            }
        }
    }

    fn check_any(text: &str) {
        let dynamic = Some(Document { name: "dynamic.yaml", text });
        for result in [with_variables(text, &[]), load(None, dynamic, [], "h")] {
            if let Err(error) = result {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
}
