//! `ls`: keys, page by page until the limit.

use super::{connect, failed, typed_bytes};
use crate::args::Ls;
use crate::config::Settings;
use crate::failure::Failure;
use crate::render::Output;

/// Keys of one page.
const PAGE: usize = 1000;

pub(super) fn run(args: &Ls, settings: &Settings, out: Output) -> Result<(), Failure> {
    let prefix = typed_bytes(args.prefix.as_deref().unwrap_or_default(), args.keys)?;
    if args.limit == 0 {
        return Err(Failure::usage("--limit: 0 keys are no list"));
    }
    let store = connect(settings)?;
    let mut entries = Vec::new();
    let mut next = Some(0);
    while let Some(cursor) = next.filter(|_| entries.len() < args.limit) {
        let limit = (args.limit - entries.len()).min(PAGE) as u32;
        let page = match &args.regex {
            Some(regex) => store.list_regex(regex, cursor, limit),
            None => store.list(&prefix, cursor, limit),
        };
        let page = page.map_err(failed)?;
        entries.extend(page.entries);
        next = page.next;
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    out.listing(&entries, next.is_some())
}
