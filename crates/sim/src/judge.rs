//! The judge: every accepted get goes to the oracle, every byte is accounted for, and what cannot be
//! explained ends the run.

use crate::ctx::Ctx;
use crate::master::Master;
use crate::node::{Node, Store};
use mooncrate_check::{Event, What, audit};
use mooncrate_core::catalog::Catalog;
use mooncrate_core::plan::Announced;
use mooncrate_core::{Extent, Key, Locator, Medium, Now, ObjectId, Slot, TenantId};
use std::collections::BTreeMap;
use std::fmt;

/// Slots told per page when a node is audited.
const PAGE: usize = 4096;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its code in `docs/invariants.md`, or the word that `docs/testing.md` has for it.
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

    /// A leader plans a replica: in VRAM only what somebody asked VRAM for (M14).
    pub fn judge_medium(&mut self, object: ObjectId, at: &Locator) {
        if at.segment.medium() == Medium::Vram && !self.in_vram.contains(&object) {
            self.fail("M14", None, format!("{object} shall lie in VRAM, and nobody asked: {at:?}"));
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

/// What an owner holds and its leader has not booked: nobody would pay for it. Of what is booked the catalog's
/// own audit knows who pays.
fn unbooked(leader: &Catalog, store: &Store, live: &[Extent]) -> Option<String> {
    let spec = store.segment.spec();
    if !leader.takes_part(spec.segment, spec.incarnation) {
        return None;
    }
    let stats = leader.segments();
    let stat = stats.iter().find(|stat| stat.offer.segment == spec.segment && stat.open)?;
    let held: u64 = live.iter().map(|extent| extent.len()).sum();
    let booked = stat.used + stat.ending;
    (held > booked).then(|| format!("{} holds {held} bytes, {booked} are booked", spec.segment))
}

/// Looks at everything that can be looked at while the run goes on.
pub fn audit_all(ctx: &mut Ctx, masters: &[Master], nodes: &[Node]) {
    let leads = |master: &&Master| ctx.election.leader == Some(master.ix);
    let catalog = masters.iter().find(leads).and_then(|master| master.catalog.as_ref());
    let mut wrong = None;
    if let Some(Err(error)) = catalog.map(Catalog::audit) {
        wrong = Some(("G8", format!("the leader: {error}")));
    }
    if let Some((tenant, used)) = masters.iter().find(leads).and_then(Master::over_quota) {
        wrong = Some(("G16", format!("{tenant} uses {used} bytes, more than its quota")));
    }
    // An upsert that was cut short leaves two values, and the newer one wins.
    let one_value = ctx.swarm.load.upsert == 0;
    if one_value && catalog.is_some_and(|leader| leader.counters().announced_dropped > 0) {
        wrong = Some(("M9", "two nodes announced different values of one key".to_owned()));
    }
    let index = catalog.map(|catalog| indexed(ctx, catalog)).unwrap_or_default();
    for node in nodes.iter().filter(|node| node.up) {
        for store in &node.stores {
            let (slots, _) = store.segment.announce(Slot(0), PAGE);
            let live: Vec<Extent> =
                slots.iter().filter_map(|slot| Some(slot.life.as_ref()?.extent)).collect();
            if let Some(text) = catalog.and_then(|leader| unbooked(leader, store, &live)) {
                wrong = Some(("G16", format!("node {}: {text}", node.ix)));
            }
            if let Err(error) = audit::disjoint(&live) {
                wrong = Some(("G3", format!("node {}: {error}", node.ix)));
            }
            if store.segment.serving(ctx.mono(node.host)).is_ok()
                && let Some(text) = second_value(ctx, &index, &slots)
            {
                wrong = Some(("C2", format!("node {}: {text}", node.ix)));
            }
        }
        if let (Some(disk), Some(leader)) = (&node.disk, catalog)
            && disk.serves(ctx.mono(node.host))
            // Of what another leader has turned away nobody has a locator either, and this one does not
            // know it yet.
            && leader.takes_part(disk.segment, disk.incarnation)
        {
            let (mut slots, _) = disk.announce(Slot(0), PAGE);
            slots.retain(|slot| !leader.turned_away(disk.segment, disk.incarnation, slot.slot));
            if let Some(text) = second_value(ctx, &index, &slots) {
                wrong = Some(("C2", format!("disk of node {}: {text}", node.ix)));
            }
        }
    }
    if let Some((rule, text)) = wrong {
        ctx.fail(rule, None, text);
    }
}

/// What the leader gives out, by tenant and key: the object and its readable copies.
type Index = BTreeMap<(TenantId, Key), (ObjectId, u8)>;

fn indexed(ctx: &Ctx, catalog: &Catalog) -> Index {
    let tenants = (0..ctx.swarm.tenants).map(|tenant| TenantId(tenant.into()));
    let listed = tenants.flat_map(|tenant| {
        let page = catalog.list(tenant, |_| true, 0, u32::MAX);
        page.entries.into_iter().map(move |entry| (tenant, entry))
    });
    listed.map(|(tenant, one)| ((tenant, one.key), (one.object, one.replicas))).collect()
}

/// Whether the leader gives out what the owners hold, and nothing else (M10, M11). Says what differs.
/// Holds at some moment soon after the faults have stopped, not at every moment.
pub fn agree(ctx: &Ctx, masters: &[Master], nodes: &[Node], leader: u8) -> Result<(), String> {
    let Some(catalog) = &masters[usize::from(leader)].catalog else {
        return Err("nobody leads".into());
    };
    if catalog.rebuilding() {
        return Err("the index is being rebuilt".into());
    }
    let mut held = Held::new();
    for node in nodes {
        for store in &node.stores {
            let spec = store.segment.spec();
            if !catalog.takes_part(spec.segment, spec.incarnation) {
                return Err(format!("segment {} does not take part", spec.segment));
            }
            let (slots, _) = store.segment.announce(Slot(0), PAGE);
            count_held(&mut held, &slots);
        }
        if let Some(disk) = &node.disk {
            if !catalog.takes_part(disk.segment, disk.incarnation) {
                return Err(format!("disk {} does not take part", disk.segment));
            }
            count_held(&mut held, &disk.announce(Slot(0), PAGE).0);
        }
    }
    let index = indexed(ctx, catalog);
    for ((tenant, key), (object, replicas)) in &index {
        let (parts, stripes) = held.remove(&(*tenant, key.clone(), *object)).unwrap_or((0, 1));
        let found = parts / stripes;
        if found != usize::from(*replicas) {
            return Err(format!("{key} of {tenant}: {replicas} copies known, {found} held"));
        }
    }
    match held.first_key_value() {
        Some(((tenant, key, object), _)) => {
            Err(format!("{key} of {tenant}: {object} is held, and unknown to the leader"))
        }
        None => Ok(()),
    }
}

/// Parts of an object that owners hold, and its stripes.
type Held = BTreeMap<(TenantId, Key, ObjectId), (usize, usize)>;

fn count_held(held: &mut Held, slots: &[Announced]) {
    for told in slots.iter().filter_map(|slot| slot.life.as_ref()?.object.as_ref()) {
        let whole = (told.label.tenant, told.label.key.clone(), told.object);
        let stripes = told.label.stripe.map_or(1, |of| of.striping.stripes());
        held.entry(whole).or_insert((0, stripes)).0 += 1;
    }
}

/// A finished object that can be read, although the leader gives out another one under its key. (A copy
/// whose put was never finished may be published for a moment before its abort arrives: no locator of
/// it exists.)
fn second_value(ctx: &Ctx, index: &Index, slots: &[Announced]) -> Option<String> {
    slots.iter().find_map(|slot| {
        let told = slot.life.as_ref()?.object.as_ref()?;
        let (key, other) = (&told.label.key, told.object);
        let (given_out, _) = index.get(&(told.label.tenant, key.clone()))?;
        // While an upsert has no answer both may be read.
        if *given_out == other || !ctx.finished.contains(given_out) {
            return None;
        }
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
    if let Some((tenant, left)) = catalog.tenants().find(|(_, tenant)| tenant.used > 0) {
        return Err(format!("{tenant} is charged {} bytes", left.used));
    }
    let segments = catalog.segments();
    let expected: usize = nodes.iter().map(|node| node.stores.len()).sum();
    let expected = expected + nodes.iter().filter(|node| node.disk.is_some()).count();
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
        if node.disk.as_ref().is_some_and(|disk| !disk.is_empty()) {
            return Err(format!("the disk of node {} is not empty", node.ix));
        }
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
