//! `rm`: removes keys, and says which were not there.

use super::{connect, failed, typed_bytes, typed_key};
use crate::args::Rm;
use crate::config::Settings;
use crate::failure::Failure;
use crate::render::Output;
use mooncrate_core::key;

pub(super) fn run(args: &Rm, settings: &Settings, out: Output) -> Result<(), Failure> {
    if args.prefix.is_some() || args.regex.is_some() {
        return matching(args, settings, out);
    }
    let mut keys = Vec::new();
    for name in &args.names {
        keys.push(typed_key(name, args.keys)?);
    }
    let store = connect(settings)?;
    let mut results = Vec::new();
    let mut failure = None;
    for key in keys {
        match store.remove(&key, args.force) {
            Ok(there) => results.push((key, there)),
            Err(error) => {
                let why = failed(error);
                let message = format!("{}: {}", key::show(&key), why.message);
                failure = Some(Failure { message, ..why });
                break;
            }
        }
    }
    // What was done is told even when the rest failed.
    out.removed(&results)?;
    let absent: Vec<String> = results
        .iter()
        .filter(|(_, there)| !there)
        .map(|(key, _)| key::show(key).to_string())
        .collect();
    match failure {
        Some(failure) => Err(failure),
        None if absent.is_empty() => Ok(()),
        None => Err(Failure::no_such_key(format!("no such key: {}", absent.join(", ")))),
    }
}

/// Everything that matches, in steps.
fn matching(args: &Rm, settings: &Settings, out: Output) -> Result<(), Failure> {
    let store = connect(settings)?;
    let removed = match (&args.regex, &args.prefix) {
        (Some(regex), _) => store.remove_regex(regex, args.force),
        (None, prefix) => {
            let prefix = typed_bytes(prefix.as_deref().unwrap_or_default(), args.keys)?;
            store.remove_prefix(&prefix, args.force)
        }
    };
    out.removed_matching(&removed.map_err(failed)?)
}
