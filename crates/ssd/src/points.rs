//! Named points before and after each step that makes something durable. A test sets a hook and stops the
//! process there, or looks at the disk; nobody else does, and then a point is one load of a word.

use std::sync::OnceLock;

/// What a test does at a point.
pub type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// All points, in the order of the steps. `docs/testing.md` says what each is about.
pub const POINTS: &[&str] = &[
    "format.before_write",
    "format.written",
    "format.synced",
    "format.renamed",
    "format.dir_synced",
    "bucket.reused",
    "bucket.created",
    "bucket.before_write",
    "bucket.data_written",
    "bucket.data_synced",
    "bucket.dir_synced",
    "bucket.indexed",
    "meta.before_write",
    "meta.written",
    "removed.hidden",
    "removed.before_write",
    "removed.written",
    "removed.synced",
    "removed.rewritten",
    "removed.renamed",
    "removed.dir_synced",
    "removed.old_deleted",
    "evict.unlinked",
    "evict.drained",
    "evict.spared",
    "evict.data_deleted",
    "evict.meta_deleted",
    "evict.dir_synced",
    "evict.orphan_marked",
    "per_key.created",
    "per_key.written",
    "per_key.synced",
    "per_key.renamed",
    "per_key.dir_synced",
    "per_key.deleted",
    "per_key.delete_synced",
    "offset.before_write",
    "offset.value_written",
    "offset.value_synced",
    "offset.head_written",
    "offset.head_synced",
    "offset.before_dead",
    "offset.dead_written",
    "offset.dead_synced",
];

/// Sets what happens at each point, once per process. Says whether it was set.
pub fn set_hook(hook: Hook) -> bool {
    HOOK.set(hook).is_ok()
}

/// A point is passed.
#[inline]
pub(crate) fn point(name: &'static str) {
    if let Some(hook) = HOOK.get() {
        debug_assert!(POINTS.contains(&name), "{name} is not in the list of points");
        hook(name);
    }
}
