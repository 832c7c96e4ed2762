//! What harm can cost, by the file that it hits. Which file is for what, a backend says.

use mooncrate_ssd::disk::sim::{Fault, Harm, Span};
use std::path::Path;

/// What a file is for, as far as harm is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It holds records: harm is theirs.
    Records,
    /// It says again what files of records say. Without it those are read.
    Table,
    /// It says what was removed, in blocks each of which has a copy behind it. Without both, that may come back.
    Log,
    /// It says what the directory is. Without it and its copy nothing can be read.
    Identity,
}

/// What harm can do to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Weak {
    /// What a file is for; the same before and after it gets its last name.
    pub role: fn(&Path) -> Role,
    /// Harm may hide what lies behind it in its file, until the next opening and for good.
    pub shadows: bool,
    /// A removal is bytes over the record.
    pub overwrites: bool,
}

impl Default for Weak {
    /// A file for each record, and no other ones.
    fn default() -> Self {
        Self { role: |_| Role::Records, shadows: false, overwrites: false }
    }
}

/// What failed, on what kind of file, and where; nowhere: on a directory.
pub(super) type Failed = (Fault, Role, Option<Span>);

/// Whether bytes lie at others in the same file, or behind them.
pub(super) fn behind(spans: &[Span], other: &Span) -> bool {
    spans.iter().any(|span| span.file == other.file && span.end > other.start)
}

pub(super) fn meets(spans: &[Span], other: &Span) -> bool {
    spans.iter().any(|span| span.meets(other))
}

/// Whether an operation that failed can have made an opening let go of the record with these bytes. Without metadata
/// a bucket is read from head to head: what cannot be read hides what lies behind it. A bucket that cannot be cut,
/// or whose bad records do not get into the log, goes as a whole.
pub(super) fn failed_for(failures: &[Failed], buckets: bool, spans: &[Span]) -> bool {
    failures.iter().any(|(fault, role, span)| {
        let reads = matches!(fault, Fault::ReadError | Fault::Stale);
        match (role, span) {
            (_, None) | (Role::Log | Role::Identity, _) => buckets && !reads,
            (Role::Table, _) => false,
            (Role::Records, Some(span)) if buckets => behind(spans, span),
            (Role::Records, Some(span)) => reads && meets(spans, span),
        }
    })
}

/// It concerns one read, and not what is on the disk.
pub(super) fn is_stale(harm: &Harm) -> bool {
    harm.fault == Fault::Stale
}
