//! The judge: every accepted get goes to the oracle, every byte is accounted for, and what cannot be
//! explained ends the run.

use crate::ctx::Ctx;
use crate::master::Master;
use crate::node::Node;
use mooncrate_check::{Event, What, audit};
use mooncrate_core::catalog::Catalog;
use mooncrate_core::plan::Announced;
use mooncrate_core::{Extent, Key, Now, ObjectId, Slot};
use std::collections::BTreeMap;
use std::fmt;

/// Slots told per page when a node is audited.
const PAGE: usize = 4096;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which one, by its name in the reliability reference.
    pub rule: String,
    /// What happened.
    pub text: String,
    /// The key it happened to.
    pub key: Option<u16>,
    /// Operations begun until then.
    pub op: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken at operation {}: {}", self.rule, self.op, self.text)
    }
}

impl Ctx {
    /// Tells the oracle what happened to a key, and listens to its verdict.
    pub fn observe(&mut self, key: u16, what: What) {
        let event = Event { at: Now(self.now), key: self.keys[usize::from(key)].hash, what };
        self.trace.say(self.now, || format!("k{key} history {event}"));
        if let Err(violation) = self.oracle.observe(&event) {
            self.fail(&format!("{:?}", violation.rule), Some(key), violation.to_string());
        }
    }

    /// A rule is broken: the run ends.
    pub fn fail(&mut self, rule: &str, key: Option<u16>, text: String) {
        self.trace.say(self.now, || format!("FAILED {rule}: {text}"));
        if self.failure.is_none() {
            self.failure = Some(Failure { rule: rule.to_owned(), text, key, op: self.stats.ops });
        }
    }
}

/// Looks at everything that can be looked at while the run goes on.
pub fn audit_all(ctx: &mut Ctx, masters: &[Master], nodes: &[Node]) {
    let leads = |master: &&Master| ctx.election.leader == Some(master.ix);
    let catalog = masters.iter().find(leads).and_then(|master| master.catalog.as_ref());
    let mut wrong = None;
    if let Some(Err(error)) = catalog.map(Catalog::audit) {
        wrong = Some(("G8", format!("the leader: {error}")));
    }
    if catalog.is_some_and(|catalog| catalog.counters().announced_dropped > 0) {
        wrong = Some(("M9", "two nodes announced different values of one key".to_owned()));
    }
    let index = catalog.map(indexed).unwrap_or_default();
    for node in nodes.iter().filter(|node| node.up) {
        for store in &node.stores {
            let (slots, _) = store.segment.announce(Slot(0), PAGE);
            let live: Vec<Extent> =
                slots.iter().filter_map(|slot| Some(slot.life.as_ref()?.extent)).collect();
            if let Err(error) = audit::disjoint(&live) {
                wrong = Some(("G3", format!("node {}: {error}", node.ix)));
            }
            if store.segment.serving(ctx.mono(node.host)).is_ok()
                && let Some(text) = second_value(ctx, &index, &slots)
            {
                wrong = Some(("C2", format!("node {}: {text}", node.ix)));
            }
        }
    }
    if let Some((rule, text)) = wrong {
        ctx.fail(rule, None, text);
    }
}

fn indexed(catalog: &Catalog) -> BTreeMap<Key, ObjectId> {
    let page = catalog.list(mooncrate_core::TenantId::DEFAULT, |_| true, 0, u32::MAX);
    page.entries.into_iter().map(|entry| (entry.key, entry.object)).collect()
}

/// A finished object that can be read, although the leader gives out another one under its key. (A copy
/// whose put was never finished may be published for a moment before its abort arrives: no locator of
/// it exists.)
fn second_value(ctx: &Ctx, index: &BTreeMap<Key, ObjectId>, slots: &[Announced]) -> Option<String> {
    slots.iter().find_map(|slot| {
        let told = slot.life.as_ref()?.object.as_ref()?;
        let (key, other) = (&told.label.key, told.object);
        let given_out = index.get(key).filter(|given_out| **given_out != other)?;
        let text = || format!("{key} is {given_out} for the leader, but {other} can still be read");
        ctx.finished.contains(&other).then(text)
    })
}

/// After the drain nothing may be left anywhere (G8). Says what still is.
pub fn drained(masters: &[Master], nodes: &[Node], leader: u8) -> Result<(), String> {
    let master = &masters[usize::from(leader)];
    let Some(catalog) = &master.catalog else { return Err("nobody leads".into()) };
    if catalog.rebuilding() {
        return Err("the index is being rebuilt".into());
    }
    if !catalog.is_empty() || catalog.open_puts() > 0 {
        let (objects, open) = (catalog.len(), catalog.open_puts());
        return Err(format!("{objects} objects are indexed, {open} puts are open"));
    }
    let segments = catalog.segments();
    let expected: usize = nodes.iter().map(|node| node.stores.len()).sum();
    if segments.len() != expected {
        return Err(format!("{} segments are mounted, not {expected}", segments.len()));
    }
    for stat in segments {
        if stat.used != 0 || stat.free != stat.offer.bytes || !stat.open {
            let (used, ending, free) = (stat.used, stat.ending, stat.free);
            let of = stat.offer.bytes;
            let segment = stat.offer.segment;
            return Err(format!(
                "segment {segment}: {used} used, {ending} ending, {free} free of {of}, open: {}",
                stat.open
            ));
        }
    }
    for node in nodes {
        for store in &node.stores {
            let stats = store.segment.stats();
            let (pins, busy) = (store.segment.pins(), stats.ready + stats.retiring + stats.failed);
            if pins + busy + stats.writing > 0 {
                return Err(format!("node {}: {pins} pins, {stats:?}", node.ix));
            }
        }
    }
    Ok(())
}
