//! The file layer: flat TOML, one line per setting.
//!
//! Numbers and truth values may stand without quotes; they are turned back into the text that the
//! other layers use, so that one parser judges them all.

use super::keys::{self, KEYS, Spec};
use crate::failure::Failure;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// One line that sets something.
#[derive(Debug)]
pub(super) struct Entry {
    /// The setting.
    pub(super) spec: &'static Spec,
    /// Its value as text.
    pub(super) value: String,
    /// Where it stands.
    pub(super) line: usize,
}

/// All settings of a file, in the order in which they stand. Values are not judged yet.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        let message = error.message();
        Failure::usage(format!("{}:{line}: this is not TOML: {message}", path.display()))
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.into_inner() {
        let name: &str = key.get_ref();
        let line = line_of(text, key.span().start);
        let place = format!("{}:{line}", path.display());
        let Some(spec) = keys::find(name) else { return Err(unknown(&place, name)) };
        let value = match value.into_inner() {
            DeValue::String(value) => value.into_owned(),
            DeValue::Integer(value) => value.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            _ => {
                let why = format!("{place}: {name}: a text, a number, true or false is wanted");
                return Err(Failure::usage(why));
            }
        };
        entries.push(Entry { spec, value, line });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn unknown(place: &str, name: &str) -> Failure {
    let hint = match keys::nearest(name, KEYS.iter().map(|spec| spec.name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`mooncrate serve --print-config` lists all settings".to_owned(),
    };
    Failure::usage(format!("{place}: there is no setting `{name}`")).hint(hint)
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(Path::new("m.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn texts_numbers_and_truth_values_are_read() {
        let text = "# all\nzone = \"z\"\n\nslots = 1_000\nhuge_pages = true\n";
        let entries = parse(Path::new("m.toml"), text).unwrap();
        let got: Vec<_> = entries.iter().map(|e| (e.spec.name, e.value.as_str(), e.line)).collect();
        assert_eq!(got, [("zone", "z", 2), ("slots", "1000", 4), ("huge_pages", "true", 5)]);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest() {
        assert_eq!(
            error("zone = \"z\"\nsegmentsize = 5"),
            "m.toml:2: there is no setting `segmentsize`; did you mean `segment_size`?"
        );
        assert!(error("[frobnicate]\nx = 1").contains("--print-config"));
    }

    #[test]
    fn what_is_no_toml_and_what_is_no_value_says_where() {
        assert!(error("zone = \"z\"\nslots == 5").starts_with("m.toml:2: this is not TOML"));
        assert!(error("slots = [1]").starts_with("m.toml:1: slots: a text"));
        assert!(error("zone = \"a\"\nzone = \"b\"").contains("not TOML"));
    }
}
