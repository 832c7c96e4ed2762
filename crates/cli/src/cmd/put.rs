//! `put`: a value from a file, from stdin or from the command line.

use super::{connect, failed, typed_key};
use crate::args::{Put, Wishes};
use crate::config::Settings;
use crate::failure::Failure;
use crate::progress;
use crate::render::{Output, bytes};
use mooncrate::{PutConfig, Stored};
use mooncrate_core::GroupId;
use mooncrate_core::limits::VALUE_BYTES_MAX;
use mooncrate_core::plan::Keep;
use std::fs::File;
use std::io::{IsTerminal, Read, stdin};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

pub(super) fn run(args: &Put, settings: &Settings, out: Output) -> Result<(), Failure> {
    let key = typed_key(&args.key, args.keys)?;
    let value = value(args)?;
    let store = connect(settings)?;
    let len = value.len() as u64;
    let waiting = progress::spinner(format!("storing {}", bytes(len)), len);
    let stored = store.put_parts(&key, &[&value], &wishes(store.put_config(), &args.wishes));
    waiting.finish_and_clear();
    out.put(&key, len, matches!(stored.map_err(failed)?, Stored::New))
}

fn wishes(plain: PutConfig, args: &Wishes) -> PutConfig {
    let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let keep = match args.soft_pin {
        Some(time) => Keep::Soft { ttl_ms: ms(time) },
        None if args.hard_pin => Keep::Hard,
        None => Keep::Normal,
    };
    let group = args.group.as_ref().map(|name| GroupId::named(name.as_bytes()));
    PutConfig {
        replicas: args.replicas,
        best_effort: args.best_effort,
        upsert: args.upsert,
        keep,
        group: group.unwrap_or_default(),
        expire_ms: args.expire.map_or(0, ms),
        ..plain
    }
}

fn value(args: &Put) -> Result<Vec<u8>, Failure> {
    if let Some(text) = &args.value {
        return Ok(text.as_bytes().to_vec());
    }
    match args.file.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let named = |error| Failure::failed(format!("cannot read {}: {error}", path.display()));
            let mut file = File::open(path).map_err(named)?;
            let expected = file.metadata().map_err(named)?.len();
            read(&mut file, expected).map_err(named)?.ok_or_else(too_large)
        }
        None if args.file.is_none() && stdin().is_terminal() => {
            let message = "no value was given, and a terminal is a slow place to type one";
            Err(Failure::usage(message).hint("name a FILE, write --value TEXT, or - for stdin"))
        }
        None => {
            let named = |error| Failure::failed(format!("cannot read stdin: {error}"));
            read(&mut stdin().lock(), 0).map_err(named)?.ok_or_else(too_large)
        }
    }
}

fn read(from: &mut impl Read, expected: u64) -> std::io::Result<Option<Vec<u8>>> {
    if expected > VALUE_BYTES_MAX {
        return Ok(None);
    }
    progress::read_all(from, expected, VALUE_BYTES_MAX)
}

fn too_large() -> Failure {
    Failure::failed(format!("the value is over the limit of {}", bytes(VALUE_BYTES_MAX)))
        .hint("store it in parts, each under a key of its own")
}
