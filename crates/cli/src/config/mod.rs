//! Configuration: default < file < environment < flag. Read once, here, before anything starts.
//!
//! Every value is checked in the layer that gives it, also when a later one replaces it. Flags and files
//! are written for us, so a name that does not exist is an error there. Variables may be somebody else's:
//! a Kubernetes Service named mooncrate puts `MOONCRATE_PORT` and its like into every pod beside it. One
//! that is no setting is told in a warning. Each value remembers where it came from.

mod aliases;
mod file;
mod keys;
mod settings;

pub(crate) use keys::{count, size, span};
pub(crate) use settings::{Grpc, Mooncake, Settings, StateFile};

use crate::failure::Failure;
use keys::{KEYS, Spec};
use mooncrate_wire::files::read_small;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// What our variables begin with.
const PREFIX: &str = "MOONCRATE_";
/// The variable that names the file.
const CONFIG_VARIABLE: &str = "MOONCRATE_CONFIG";
/// The file that is read when nobody names one.
const CONFIG_FILE: &str = "mooncrate.toml";

/// Nobody writes more than this by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody said anything.
    Default,
    /// This line of this file.
    File(PathBuf, usize),
    /// This variable.
    Variable(String),
    /// This flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A flag that was given: its spelling, the setting it sets, and the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// As it was typed.
    pub(crate) flag: &'static str,
    /// The setting.
    pub(crate) key: &'static str,
    /// Its value.
    pub(crate) value: String,
}

/// All settings as text, each with its origin.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    values: BTreeMap<&'static str, (String, Origin)>,
    /// What to say about variables that are no settings, in one line.
    warning: Option<String>,
}

impl Layers {
    /// Reads all layers. `file` is what `--config` named.
    pub(crate) fn read(
        file: Option<PathBuf>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: Vec<Given>,
    ) -> Result<Self, Failure> {
        let defaults = KEYS.iter().map(|k| (k.name, (k.default.to_owned(), Origin::Default)));
        let mut layers = Self { values: defaults.collect(), warning: None };
        let environment: Vec<(OsString, OsString)> = environment.into_iter().collect();
        let foreign = foreign(&environment);
        let Variables { file: named, settings: variables, unknown } = variables(environment)?;
        layers.warning = warning(&unknown);
        if let Some(path) = file.or(named) {
            layers.take_file(&path, true)?;
        } else {
            layers.take_file(Path::new(CONFIG_FILE), false)?;
        }
        for (key, value, name) in aliases::settings(&foreign) {
            let spec = keys::find(key).expect("aliases name settings; a test reads them");
            layers.take(spec, value, Origin::Variable(name.to_owned()))?;
        }
        for (spec, name, value) in variables {
            layers.take(spec, value, Origin::Variable(name))?;
        }
        for Given { flag, key, value } in flags {
            let spec = keys::find(key).expect("every flag names a setting; a test reads them all");
            layers.take(spec, value, Origin::Flag(flag))?;
        }
        Ok(layers)
    }

    fn take(&mut self, spec: &'static Spec, value: String, origin: Origin) -> Result<(), Failure> {
        if let Err(why) = spec.check(&value) {
            // A flag names its setting already.
            let place = match &origin {
                Origin::Flag(flag) => (*flag).to_owned(),
                origin => format!("{origin}: {}", spec.name),
            };
            return Err(Failure::usage(format!("{place}: {why}")));
        }
        self.values.insert(spec.name, (value, origin));
        Ok(())
    }

    fn take_file(&mut self, path: &Path, must_be_there: bool) -> Result<(), Failure> {
        let text = match read_small(path, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_be_there => {
                return Ok(());
            }
            Err(error) => {
                let message = format!("cannot read the configuration {}: {error}", path.display());
                return Err(Failure::usage(message));
            }
        };
        for entry in file::parse(path, &text)? {
            self.take(entry.spec, entry.value, Origin::File(path.to_owned(), entry.line))?;
        }
        Ok(())
    }

    /// The value of a setting.
    fn value(&self, name: &str) -> &str {
        &self.values.get(name).unwrap_or_else(|| panic!("{name} is a setting")).0
    }

    /// What to say before anything starts.
    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Name, value and origin of all, in the order of the table.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'static str, &str, &Origin)> {
        KEYS.iter().map(|spec| {
            let (value, origin) = &self.values[spec.name];
            (spec.name, value.as_str(), origin)
        })
    }
}

/// Variables of others that say something about our settings.
fn foreign(environment: &[(OsString, OsString)]) -> BTreeMap<String, String> {
    let text = |(name, value): &(OsString, OsString)| {
        let name = name.to_str().filter(|name| name.starts_with("MOONCAKE_"))?;
        Some((name.to_owned(), value.to_str()?.to_owned()))
    };
    environment.iter().filter_map(text).collect()
}

/// Ours among the variables.
#[derive(Default)]
struct Variables {
    /// The file that they name.
    file: Option<PathBuf>,
    /// Setting, name and value.
    settings: Vec<(&'static Spec, String, String)>,
    /// Names like ours that are no settings.
    unknown: Vec<String>,
}

fn variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Variables, Failure> {
    let mut found = Variables::default();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if name == CONFIG_VARIABLE {
            found.file = Some(PathBuf::from(value));
            continue;
        }
        let Some(spec) = KEYS.iter().find(|spec| spec.variable() == name) else {
            found.unknown.push(name.to_owned());
            continue;
        };
        let value = value
            .into_string()
            .map_err(|_| Failure::usage(format!("${name} is not UTF-8 text")))?;
        found.settings.push((spec, name.to_owned(), value));
    }
    found.unknown.sort();
    Ok(found)
}

/// One line about variables that are no settings, with what may have been meant.
fn warning(unknown: &[String]) -> Option<String> {
    // Without what all of them begin with, or everything would be near.
    let known = || KEYS.iter().map(|spec| spec.name.to_ascii_uppercase());
    let one = |name: &String| match name
        .strip_prefix(PREFIX)
        .and_then(|rest| keys::nearest(rest, known()))
    {
        Some(near) => format!("${name} (did you mean ${PREFIX}{near}?)"),
        None => format!("${name}"),
    };
    let all: Vec<String> = unknown.iter().map(one).collect();
    let (verb, rest) = match all.len() {
        0 => return None,
        1 => ("is no setting of mooncrate and", "has"),
        _ => ("are no settings of mooncrate and", "have"),
    };
    Some(format!("{} {verb} {rest} no effect", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn flag(key: &'static str, value: &str) -> Given {
        Given { flag: "--zone", key, value: value.to_owned() }
    }

    #[test]
    fn a_later_layer_wins_and_each_value_knows_where_it_came_from() {
        let text = "slots = 10\nhost = \"a\"\nzone = \"a\"\n";
        let (_folder, path) = written(text);
        let vars = env(&[("MOONCRATE_HOST", "b"), ("MOONCRATE_ZONE", "b"), ("HOME", "x")]);
        let layers = Layers::read(Some(path.clone()), vars, vec![flag("zone", "c")]).unwrap();
        let find = |name| layers.rows().find(|row| row.0 == name).unwrap();
        assert_eq!(find("segment_size"), ("segment_size", "256MiB", &Origin::Default));
        assert_eq!(find("slots"), ("slots", "10", &Origin::File(path, 1)));
        assert_eq!(find("host"), ("host", "b", &Origin::Variable("MOONCRATE_HOST".into())));
        assert_eq!(find("zone"), ("zone", "c", &Origin::Flag("--zone")));
    }

    #[test]
    fn the_variable_names_a_file_and_the_flag_names_another() {
        let (_first, first) = written("zone = \"first\"");
        let (_second, second) = written("zone = \"second\"");
        let vars = env(&[("MOONCRATE_CONFIG", first.to_str().unwrap())]);
        let layers = Layers::read(None, vars.clone(), vec![]).unwrap();
        assert_eq!(layers.value("zone"), "first");
        let layers = Layers::read(Some(second), vars, vec![]).unwrap();
        assert_eq!(layers.value("zone"), "second");
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let error = Layers::read(Some("no/such.toml".into()), env(&[]), vec![]).unwrap_err();
        assert!(error.to_string().contains("no/such.toml"), "{error}");
    }

    /// A Kubernetes Service named mooncrate puts such variables into every pod of its namespace, and none of
    /// them started.
    #[test]
    fn unknown_variables_are_told_in_one_line_and_refuse_nothing() {
        let read = |pairs: &[(&str, &str)]| Layers::read(None, env(pairs), vec![]).unwrap();
        assert_eq!(read(&[("MOONCRATE_ZONE", "a")]).warning(), None);
        let layers = read(&[
            ("MOONCRATE_ZONE", "a"),
            ("MOONCRATE_SERVICE_HOST", "10.0.0.1"),
            ("MOONCRATE_PORT_50051_TCP_PROTO", "tcp"),
        ]);
        assert_eq!(layers.value("zone"), "a");
        let said = "$MOONCRATE_PORT_50051_TCP_PROTO, $MOONCRATE_SERVICE_HOST are no settings of mooncrate and have no effect";
        assert_eq!(layers.warning(), Some(said));
        let layers = read(&[("MOONCRATE_SLOT", "1")]);
        let said = "$MOONCRATE_SLOT (did you mean $MOONCRATE_SLOTS?) is no setting of mooncrate and has no effect";
        assert_eq!(layers.warning(), Some(said));
        let strange = vec![("MOONCRATE_ODD".into(), OsString::from_vec(vec![0xff]))];
        assert!(Layers::read(None, strange, vec![]).unwrap().warning().is_some());
    }

    #[test]
    fn a_bad_value_is_an_error_even_when_a_later_layer_replaces_it() {
        let vars = env(&[("MOONCRATE_ZONE", "")]);
        let error = Layers::read(None, vars, vec![flag("zone", "c")]).unwrap_err();
        assert_eq!(error.to_string(), "$MOONCRATE_ZONE: zone: it is empty");
        let error = Layers::read(None, env(&[]), vec![flag("zone", "")]).unwrap_err();
        assert_eq!(error.to_string(), "--zone: it is empty");
        let bytes = vec![("MOONCRATE_HOST".into(), OsString::from_vec(vec![0xff]))];
        let error = Layers::read(None, bytes, vec![]).unwrap_err();
        assert!(error.to_string().contains("UTF-8"), "{error}");
    }
}
