//! `stat`: the cluster in numbers, or one value: its size and where its copies are.

use super::look::Look;
use super::{connect, failed, typed_key};
use crate::args::Stat;
use crate::config::Settings;
use crate::failure::Failure;
use crate::render::Output;
use mooncrate::Looked;
use mooncrate_core::key;

pub(super) fn run(args: &Stat, settings: &Settings, out: Output) -> Result<(), Failure> {
    let key = args.key.as_ref().map(|typed| typed_key(typed, args.keys)).transpose()?;
    let store = connect(settings)?;
    let Some(key) = key else { return out.stat(&Look::take(&store).map_err(failed)?) };
    let mut looked = store.look(&[&key], false, true).map_err(failed)?;
    let looked = looked.pop().expect("one result per key").map_err(failed)?;
    if looked == Looked::Missing {
        return Err(Failure::no_such_key(format!("no such key: {}", key::show(&key))));
    }
    out.value(&key, &looked, &Look::take(&store).map_err(failed)?)
}
