//! put: reserve all or nothing, hand out a plan, make it visible at the end.

use super::Catalog;
use super::follow::InBatch;
use super::objects::{Entry, EntryId, Extra, Part, Parts, Stage};
use super::open::Writer;
use super::remove::DEFERRED_MS;
use super::reserve::{Reserved, Spread};
use crate::canary::{self, Canary};
use crate::error::PutError;
use crate::ids::{GroupId, ObjectId, PutToken, SegmentId, TenantId};
use crate::key::{self, Name};
use crate::lease;
use crate::limits::{REPLICAS_MAX, SLICE_BYTES, STRIPES_MAX, VALUE_BYTES_MAX};
use crate::plan::{Action, Keep, Medium, PutConfig, Striping, WritePlan};
use crate::seal::{self, Seal};
use crate::time::Now;

/// Hint for a caller that meets another put of its key.
const IN_PROGRESS_MS: u32 = 5;
/// Hint for a caller whose key waits until the durable list is written without its owner, or until other owners have
/// let go of their parts.
const UNLISTED_MS: u32 = 20;
/// Hint for a tenant whose quota is full of what it has let go of and is not free yet.
const ENDING_MS: u32 = 5;
/// Hint for a caller whose upsert waits for the owners of the old value.
const REPLACING_MS: u32 = 5;

/// How far the end of a put is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Visible, and nothing else under this key is.
    Done,
    /// Visible; the value it replaced is not yet gone for readers that kept a locator. Ask
    /// [`Catalog::removed`] after the notices came in.
    Replacing(ObjectId),
}

impl Catalog {
    /// Reserves room for a value and returns the plan to write it, or says why not. `Reclaiming`:
    /// evict orders are out; carry them out and call again.
    pub fn put_start<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        len: u64,
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        self.put_start_by(now, Writer::UNSEEN, name, len, config)
    }

    /// The same for a writer whose end the caller sees: [`Catalog::writer_gone`].
    pub fn put_start_by<'a>(
        &mut self,
        now: Now,
        writer: Writer,
        name: impl Into<Name<'a>>,
        len: u64,
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        self.put_start_in(now, writer, InBatch::ALONE, name, len, config)
    }

    /// The same for a key of a batch.
    pub fn put_start_in<'a>(
        &mut self,
        now: Now,
        writer: Writer,
        batch: InBatch<'_>,
        name: impl Into<Name<'a>>,
        len: u64,
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        let name = name.into();
        let after = self.chain_start(name, batch);
        let started = self.start(now, writer, (batch, after), name, len, config);
        self.chain_started();
        started
    }

    fn start(
        &mut self,
        now: Now,
        writer: Writer,
        (batch, after): (InBatch<'_>, Option<EntryId>),
        name: Name<'_>,
        len: u64,
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        let mut checked = self.check_put(now, name, len, config);
        if matches!(checked, Err(PutError::InProgress { .. })) && self.free_cut_off(now, name)? {
            checked = self.check_put(now, name, len, config);
        }
        if let (Err(PutError::Exists), Some(id)) = (&checked, self.objects.find(name)) {
            self.chain_existing(id, after, batch);
        }
        let hidden = checked?;
        let striping = self.cut(len, Spread::of(config));
        let spread = self.check_room(name, striping, config)?;
        let reserved = self.reserve(now, name.tenant, striping, spread, config)?;

        self.sequence += 1;
        let object = ObjectId { epoch: self.epoch, sequence: self.sequence };
        let entry = Entry {
            key: name.key.into(),
            hash: name.hash().0,
            object,
            len,
            seal: Seal::default(),
            lease_end: Now(0),
            held_until: Now(0),
            parts: Parts::new(reserved.iter().map(|r| r.part).collect()),
            tenant: name.tenant,
            stage: Stage::Writing,
            hidden,
            saved: false,
            extra: extra(striping, config),
        };
        let id = self.objects.insert(entry);
        self.chain_new(id);
        self.chain_put(id, after, batch);
        if hidden {
            self.upserts.insert(name.hash().0, id);
        }
        self.charge(id, self.charge_of(self.objects.entry(id)));
        self.open_put_of(now, id, writer);
        Ok(self.plan(now, id, &reserved))
    }

    /// Copies that failed their writer are given up and planned anew elsewhere; the plan names the
    /// new ones only. The object stays the same one, so a copy that was written after all is only a
    /// copy more; the key is not free before its owner has answered for it.
    pub fn put_replan<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        token: PutToken,
        failed: &[SegmentId],
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        let id = self.open_put(name.into(), token)?;
        let entry = self.objects.entry(id);
        if entry.stage != Stage::Writing {
            return Err(PutError::NoSuchPut);
        }
        let (tenant, striping) = (entry.tenant, entry.striping());
        let is_failed =
            |part: &&Part| failed.contains(&self.segments.book(part.segment).offer.segment);
        let parts = entry.parts.as_slice();
        let (lost, kept): (Vec<Part>, Vec<Part>) = parts.iter().partition(is_failed);
        // What is given up is paid for until it is free, so a plan anew takes a value more than the quota at
        // most, and the next one waits for that.
        self.check_quota(tenant, 0)?;
        self.check_open_again(tenant)?;
        let mut fresh: Vec<Reserved> = Vec::with_capacity(lost.len());
        for part in &lost {
            let stays = kept.iter().chain(fresh.iter().map(|r| &r.part));
            let nodes = stays
                .filter(|other| other.stripe == part.stripe)
                .map(|other| self.segments.book(other.segment).offer.node)
                .collect::<Vec<_>>();
            let bytes = seal::extent_bytes(striping.stripe_len(part.stripe));
            // What lost its place in VRAM may go to memory of a host rather than nowhere, never the other
            // way round: its writer did not ask for that.
            let media = match self.segments.medium(part.segment) {
                Medium::Vram => &[Medium::Vram, Medium::Dram][..],
                _ => &[Medium::Dram],
            };
            let mut picks = media.iter().filter_map(|medium| {
                self.reserve_one(tenant, bytes, part.stripe, *medium, config, &nodes)
            });
            match picks.next() {
                Some(one) => fresh.push(one),
                // Fewer copies are better than none; one of each stripe there must be.
                None if !nodes.is_empty() => {}
                None => {
                    self.unreserve(fresh);
                    let host = Medium::Dram;
                    return Err(self.reclaim_for_put(now, tenant, bytes, host, config, &nodes));
                }
            }
        }
        self.counters.replanned += lost.len() as u64;
        let before = self.charge_of(self.objects.entry(id));
        self.discharge(id, before);
        let parts = kept.into_iter().chain(fresh.iter().map(|r| r.part)).collect();
        self.objects.entry_mut(id).parts = Parts::new(parts);
        self.charge(id, self.charge_of(self.objects.entry(id)));
        for part in &lost {
            let extent = self.objects.entry(id).extent(part);
            if self.segments.book(part.segment).is_open() {
                self.objects.entry_mut(id).extra_mut().orphans += 1;
                self.end_life(now, part, extent, Action::Abort, id);
            } else {
                // Leaving: `sweep` finds nobody there, and nobody can read it from then on.
                let book = self.segments.book_mut(part.segment);
                book.slots[part.slot.0].entry = super::segments::NOBODY;
                book.live -= 1;
            }
        }
        Ok(self.plan(now, id, &fresh))
    }

    fn plan(&mut self, now: Now, id: EntryId, reserved: &[Reserved]) -> WritePlan {
        let entry = self.objects.entry(id);
        let object = entry.object;
        let striping = entry.striping();
        let replicas = reserved
            .iter()
            .map(|r| {
                let book = self.segments.book_mut(r.part.segment);
                book.slots[r.part.slot.0].entry = id;
                entry.locator(&r.part, book)
            })
            .collect();
        for r in reserved {
            self.evict_above_high(now, r.part.segment);
        }
        WritePlan { object, token: self.token(object), epoch: self.epoch, striping, replicas }
    }

    /// The value is written and published on every replica: makes it visible. One seal per stripe.
    /// Idempotent.
    pub fn put_end<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        token: PutToken,
        seals: &[Seal],
    ) -> Result<Ended, PutError> {
        let id = self.open_put(name.into(), token)?;
        let entry = self.objects.entry(id);
        if entry.stage == Stage::Ready {
            self.check_told(now, id)?;
            return Ok(self.ended(id));
        }
        let stripes = entry.stripes();
        if seals.len() != stripes {
            let (stripes, seals) = (stripes as u32, seals.len() as u32);
            return Err(PutError::BadSeals { stripes, seals });
        }
        let mut parts = entry.parts.as_slice().iter();
        if !parts.all(|part| self.segments.book(part.segment).is_open()) {
            // A copy left with its node: the plan cannot be kept.
            self.abort_put(now, id);
            return Err(PutError::NoSuchPut);
        }
        let entry = self.objects.entry(id);
        let old = self.objects.find(entry.name()).filter(|_| entry.hidden);
        if old.is_some_and(|old| self.is_announcing(old)) {
            // Memory that came late tells of the value to be replaced, and takes no orders yet.
            self.abort_put(now, id);
            return Err(PutError::Rebuilding { after_ms: DEFERRED_MS });
        }
        let entry = self.objects.entry_mut(id);
        entry.stage = Stage::Ready;
        entry.seal = seals[0];
        if stripes > 1 {
            entry.extra_mut().more_seals = seals[1..].into();
        }
        let hidden = entry.hidden;
        self.settle(now, id);
        self.strike(self.objects.entry(id).hash);
        self.offload_ended(id);
        self.counters.puts += 1;
        self.close_put(self.objects.entry(id).object);
        if hidden {
            self.replace(now, id);
        }
        Ok(self.ended(id))
    }

    /// A value of an earlier leader may have replaced another one: that one must be told, and gone.
    fn check_told(&self, now: Now, id: EntryId) -> Result<(), PutError> {
        let entry = self.objects.entry(id);
        if entry.object.epoch == self.epoch {
            return Ok(());
        }
        if let Some(rebuild) = &self.rebuild {
            return Err(PutError::Rebuilding { after_ms: rebuild.left_ms(now) });
        }
        if entry.orphans() > 0 { Err(replacing()) } else { Ok(()) }
    }

    /// An upsert takes its key over; what was there is retired (R12).
    fn replace(&mut self, now: Now, id: EntryId) {
        let entry = self.objects.entry(id);
        self.upserts.remove(&entry.hash);
        if let Some(old) = self.objects.find(entry.name()) {
            let replaced = self.objects.entry(old).object;
            self.objects.hide(old);
            if !canary::on(Canary::EarlierUpsertForgotten) {
                self.hold_key(old, id);
            }
            self.chain_removed(old);
            if self.objects.entry(old).stage == Stage::Ready {
                self.counters.replaced += 1;
                self.retire(now, old);
            }
            self.objects.entry_mut(id).extra_mut().replaces = Some(replaced);
        }
        self.objects.show(id);
    }

    fn ended(&self, id: EntryId) -> Ended {
        let replaces = self.objects.entry(id).extra.as_ref().and_then(|extra| extra.replaces);
        match replaces {
            Some(_) if canary::on(Canary::UpsertKeepsOld) => Ended::Done,
            Some(old) if !self.removed(old) => Ended::Replacing(old),
            _ => Ended::Done,
        }
    }

    /// Gives up a put: the key can be put again when the owners have confirmed it, the ranges return
    /// when the writer is fenced.
    pub fn put_revoke<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        token: PutToken,
    ) -> Result<(), PutError> {
        let id = self.open_put(name.into(), token)?;
        if self.objects.entry(id).stage != Stage::Writing {
            self.counters.stale_tokens += 1;
            return Err(PutError::NoSuchPut);
        }
        self.abort_put(now, id);
        Ok(())
    }

    /// Ends an open put without a value. Its key stays taken until every owner has said that no copy
    /// can be published any more: otherwise the key could get another value, and a copy that was
    /// published meanwhile could come back as a second one when a new leader asks the nodes (C2).
    pub(super) fn abort_put(&mut self, now: Now, id: EntryId) {
        let charge = self.charge_of(self.objects.entry(id));
        self.discharge(id, charge);
        let entry = self.objects.entry_mut(id);
        let parts = std::mem::replace(&mut entry.parts, Parts::new(Vec::new()));
        let left = parts.as_slice().len() as u16 + entry.orphans();
        entry.stage = Stage::Removing(left);
        let object = entry.object;
        self.chain_removed(id);
        self.chain_shrunk(id);
        for part in parts.as_slice() {
            let extent = self.objects.entry(id).extent(part);
            // A segment that is leaving answers for its copy when it is fenced: `sweep`.
            if self.segments.book(part.segment).is_open() {
                self.end_life(now, part, extent, Action::Abort, id);
            }
        }
        if left == 0 {
            self.forget(id);
        }
        self.close_put(object);
    }

    /// The entry of the put that this token belongs to.
    fn open_put(&mut self, name: Name<'_>, token: PutToken) -> Result<EntryId, PutError> {
        key::check(name.key)?;
        let upsert = self.upserts.get(&name.hash().0).copied();
        let upsert = upsert.filter(|&id| self.objects.entry(id).name() == name);
        let candidates = upsert.into_iter().chain(self.objects.find(name));
        let found = candidates.into_iter().find(|&id| {
            let entry = self.objects.entry(id);
            let ours = self.token(entry.object) == token || canary::on(Canary::NoTokenCheck);
            ours && !matches!(entry.stage, Stage::Removing(_))
        });
        if found.is_none() {
            self.counters.stale_tokens += 1;
        }
        found.ok_or(PutError::NoSuchPut)
    }

    /// Whether the key may be put; and if so, whether its new value stays hidden until the end,
    /// because it has one already.
    fn check_put(
        &self,
        now: Now,
        name: Name<'_>,
        len: u64,
        config: &PutConfig,
    ) -> Result<bool, PutError> {
        key::check(name.key)?;
        if len > VALUE_BYTES_MAX {
            return Err(PutError::TooLarge { len });
        }
        let wanted = config.copies();
        if wanted == 0 || wanted as usize > REPLICAS_MAX {
            return Err(PutError::BadReplicas { wanted });
        }
        let known = self.objects.find(name).map(|id| self.objects.entry(id));
        let replaces = match known {
            Some(entry) if entry.stage == Stage::Ready && self.readable(entry) => {
                if !config.upsert {
                    return Err(PutError::Exists);
                }
                true
            }
            Some(entry) => return Err(self.occupied(now, entry)),
            None => false,
        };
        if self.upserts.contains_key(&name.hash().0) {
            return Err(PutError::InProgress { after_ms: IN_PROGRESS_MS });
        }
        if let Some(rebuild) = &self.rebuild {
            // M9: the key may live on a node that has not announced yet.
            return Err(PutError::Rebuilding { after_ms: rebuild.left_ms(now) });
        }
        if self.objects.find(name).is_some_and(|old| self.is_announcing(old)) {
            return Err(PutError::Rebuilding { after_ms: DEFERRED_MS });
        }
        Ok(replaces)
    }

    /// How a value is cut: not at all where one stripe holds it or one segment is all there is.
    fn cut(&self, len: u64, spread: Spread) -> Striping {
        let unit = self.config.stripe_bytes;
        let open = |(medium, _)| self.segments.open_on(medium).segments.len();
        if len <= unit || spread.each().map(open).min().unwrap_or(0) < 2 {
            return Striping::whole(len);
        }
        let stripes = len.div_ceil(unit).min(STRIPES_MAX as u64);
        let stripe_bytes = len.div_ceil(stripes).next_multiple_of(unit.min(SLICE_BYTES));
        Striping::checked(len, stripe_bytes).unwrap_or(Striping::whole(len))
    }

    /// Whether there could be room at all; the copies that the put gets. Each medium is judged by its own
    /// segments.
    fn check_room(
        &self,
        name: Name<'_>,
        striping: Striping,
        config: &PutConfig,
    ) -> Result<Spread, PutError> {
        let bytes = seal::extent_bytes(striping.stripe_len(0));
        for (medium, _) in Spread::of(config).each() {
            let largest = self.segments.open_on(medium).largest;
            if largest == 0 {
                return Err(no_segments(medium));
            }
            if bytes > largest {
                return Err(PutError::LargerThanAnySegment { wanted: bytes, largest });
            }
        }
        let spread = self.check_nodes(config)?;
        let each: u64 = (0..striping.stripes() as u8)
            .map(|stripe| seal::extent_bytes(striping.stripe_len(stripe)))
            .sum();
        let wanted = each * u64::from(spread.total());
        self.check_quota(name.tenant, wanted)?;
        let slots = striping.stripes() as u64;
        self.check_open(name.tenant, wanted, slots * u64::from(spread.total()))?;
        for (medium, copies) in spread.each().filter(|_| config.keep == Keep::Hard) {
            let copies = u64::from(copies);
            self.check_hard(medium, each * copies, slots * copies)?;
        }
        Ok(spread)
    }

    /// Whether a tenant may have so many bytes more.
    fn check_quota(&self, tenant: TenantId, wanted: u64) -> Result<(), PutError> {
        let tenant = self.tenant(tenant);
        let total = tenant.used.saturating_add(wanted);
        let Some(quota) = tenant.quota.filter(|quota| total > *quota) else { return Ok(()) };
        // What it has let go of counts until it is free, and then there is room.
        let room_comes = total - tenant.ending <= quota;
        let coming = PutError::Reclaiming { after_ms: ENDING_MS };
        Err(if room_comes { coming } else { PutError::Quota { quota, total } })
    }

    /// Whether there are nodes enough; the copies that the put gets.
    fn check_nodes(&self, config: &PutConfig) -> Result<Spread, PutError> {
        let wanted = Spread::of(config);
        let nodes = |medium| self.segments.open_on(medium).nodes;
        let vram = wanted.vram.min(nodes(Medium::Vram));
        let most = nodes(Medium::Dram).min(self.segments.memory_nodes.saturating_sub(vram));
        let spread = Spread { vram, dram: wanted.dram.min(most) };
        if spread == wanted || config.best_effort && spread.total() > 0 {
            return Ok(spread);
        }
        let (wanted, nodes) =
            if vram < wanted.vram { (wanted.vram, vram) } else { (wanted.total(), spread.total()) };
        Err(PutError::TooFewNodes { wanted, nodes })
    }

    /// Gives up the value of a key that is cut off; whether it was one.
    fn free_cut_off(&mut self, now: Now, name: Name<'_>) -> Result<bool, PutError> {
        let found = self.objects.find(name).filter(|id| self.is_cut_off(*id));
        let Some(id) = found else { return Ok(false) };
        if self.give_up(now, id) { Ok(true) } else { Err(PutError::Held { after_ms: UNLISTED_MS }) }
    }

    /// Why a key that cannot be read cannot be put either.
    fn occupied(&self, now: Now, entry: &Entry) -> PutError {
        let parts = entry.parts.as_slice().iter();
        let held = parts.filter_map(|part| self.segments.book(part.segment).fenced_at()).max();
        let ready = entry.stage == Stage::Ready;
        match (held, &self.rebuild) {
            (Some(fenced_at), _) if ready => {
                PutError::Held { after_ms: lease::left_ms(now, fenced_at).max(IN_PROGRESS_MS) }
            }
            // Another owner may still announce what it lacks.
            (None, Some(rebuild)) if ready => {
                PutError::Rebuilding { after_ms: rebuild.left_ms(now) }
            }
            _ if entry.extra.as_ref().is_some_and(|extra| extra.given_up) => {
                PutError::Held { after_ms: UNLISTED_MS }
            }
            _ => PutError::InProgress { after_ms: IN_PROGRESS_MS },
        }
    }
}

/// Why a put that needs a medium is refused where nobody has it. Whoever puts without a wish waits for
/// nodes to register.
pub(super) const fn no_segments(medium: Medium) -> PutError {
    match medium {
        Medium::Dram => PutError::NoSegments,
        medium => PutError::NoMedium { medium },
    }
}

/// Why an upsert that waited is not done.
pub const fn replacing() -> PutError {
    PutError::Replacing { after_ms: REPLACING_MS }
}

/// What most objects have not.
fn extra(striping: Striping, config: &PutConfig) -> Option<Box<Extra>> {
    let copies = config.memory_copies() as u8;
    let on_disk = config.disk_copies() as u8;
    let plain = config.keep == Keep::Normal
        && config.group == GroupId(0)
        && config.expire_ms == 0
        && copies == 1
        && on_disk == 0;
    let more = striping.stripes() - 1;
    if plain && more == 0 {
        return None;
    }
    Some(Box::new(Extra {
        stripe_bytes: striping.stripe_bytes,
        more_seals: vec![Seal::default(); more].into(),
        keep: config.keep,
        group: config.group,
        expire_ms: config.expire_ms,
        copies,
        in_vram: Some(config.vram_copies() as u8),
        on_disk,
        ..Extra::default()
    }))
}
