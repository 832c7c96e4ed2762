//! Chains: which entry follows which, and how each was used. Only the policy `density` needs this.
//!
//! The keys of one batch, in their order, are a chain: each is of use only with those before it, as the blocks of a
//! prompt are. An entry knows the one before it, and how many in memory follow it. So what has no successor is found
//! without a walk, and what has one is *covered* in the books of its segments.
//!
//! ```text
//!   batch [a, b, c]  and  [a, b, d]:    a ◄── b ◄── c        evicted first: c or d, whichever is worth less,
//!                                             ▲              then the other, then b, then a
//!                                             └──── d
//! ```
//!
//! What must stay true:
//! * No entry is before itself, however many steps away: otherwise it could go only where no leaf can.
//!   [`Chains::may_follow`].
//! * An entry that follows another one has a replica in memory that is not on its way out. Once it has none, it is
//!   taken off its chain.
//! * The number of an entry that is gone is used again only when nothing follows it any more. Until then its link says
//!   why it went: what follows something *lost* is worth nothing; what follows something that somebody removed is the
//!   head of a chain of its own.

use super::objects::EntryId;
use super::segments::NOBODY;
use crate::chunked::Chunked;
use crate::evict::{AGE_END, Density, Usage, Use, requests_per_step};
use crate::ids::ObjectId;
use crate::time::Now;
use std::collections::VecDeque;
use std::time::Duration;

/// What readers hold is no candidate for so long: as long as a segment rests in which everything is in use.
const REST: Duration = Duration::from_millis(10);
/// Those that one call wakes.
const WAKE_MAX: usize = 256;
/// Keys that were missed behind one that was found, and are expected to be put.
const EXPECTED: usize = 4096;

/// Entries that are looked at to find the head of a chain.
const CLIMB_MAX: usize = 32;

/// A last use that is older than so many steps of the clock is set to this age, one of the last bin.
const OLDEST: u32 = 7 << 17;
/// Steps of the clock in which the hand looks at all links; at most twice as many while their number grows.
const PASS: u32 = 1 << 15;

const _: () =
    assert!(OLDEST + 2 * PASS < AGE_END, "no age leaves its range before the hand comes by");

/// The value is gone, by nobody's wish.
const LOST: u32 = 1 << 31;
/// Somebody has removed or replaced it.
const REMOVED: u32 = 1 << 30;
/// Its owner met readers a moment ago.
const RESTS: u32 = 1 << 29;
/// It has a lease, or had one: its entry says when that ends. An eviction that finds it ended takes the mark off.
const LEASED: u32 = 1 << 28;
/// Where the size stands, in eight steps per power of two; below it the depth.
const SIZE_SHIFT: u32 = 20;
const SIZE_MASK: u32 = LEASED - (1 << SIZE_SHIFT);
const DEPTH_MASK: u32 = (1 << SIZE_SHIFT) - 1;

/// What is known of one entry.
#[derive(Clone, Copy, Debug)]
struct Link {
    usage: Usage,
    /// The entry before this one; [`NOBODY`] for the head of a chain.
    before: EntryId,
    /// Entries in memory that follow this one.
    behind: u32,
    /// Its distance from the head, its size, and marks.
    depth: u32,
}

const _: () = assert!(size_of::<Link>() == 16, "the budget per entry");

const HEAD: Link = Link { usage: Usage::from_bits(0), before: NOBODY, behind: 0, depth: 0 };

impl Link {
    /// Whether there is no value here any more.
    const fn is_gone(self) -> bool {
        self.depth & (LOST | REMOVED) != 0
    }

    /// About so many bytes, or a few less.
    fn set_size(&mut self, bytes: u64) {
        let bytes = bytes.clamp(8, 1 << 38);
        let power = bytes.ilog2() - 3;
        // The highest bit of the size is bit 3 of these.
        let steps = (power << 3) + (bytes >> power) as u32 - 8;
        self.depth = self.depth & !SIZE_MASK | steps.min(255) << SIZE_SHIFT;
    }

    /// What [`Link::set_size`] was told, about.
    fn size(self) -> f32 {
        let steps = (self.depth & SIZE_MASK) >> SIZE_SHIFT;
        // A float of this exponent, and three bits of its fraction.
        f32::from_bits(((steps >> 3) + 127 + 3) << 23 | (steps & 7) << 20)
    }

    fn set_depth(&mut self, depth: usize) {
        self.depth = self.depth & !DEPTH_MASK | (depth as u32).min(DEPTH_MASK);
    }
}

/// A key that was missed behind an entry.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    hash: u64,
    after: EntryId,
    object: ObjectId,
}

/// A batch of keys that is read: what was found of each, and how far its entries are known to be one chain.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    found: &'a [Option<EntryId>],
    /// The key that is looked at.
    pub at: usize,
    /// The last one that counted as read.
    last: Option<(usize, EntryId)>,
    /// Everything before that one in its chain stands in this batch, each as deep as its place here.
    whole: bool,
    missed: bool,
}

impl<'a> Batch<'a> {
    pub(super) const fn new(found: &'a [Option<EntryId>]) -> Self {
        Self { found, at: 0, last: None, whole: false, missed: false }
    }

    /// The key before this one, if it counted as read.
    fn before(&self) -> Option<EntryId> {
        self.last.filter(|(at, _)| at + 1 == self.at).map(|(_, id)| id)
    }

    /// The entry that a miss follows; only for the first miss.
    pub(super) fn missed(&mut self) -> Option<EntryId> {
        (!std::mem::replace(&mut self.missed, true)).then(|| self.before()).flatten()
    }
}

/// The chains of all entries, and what was learned from their uses.
#[derive(Debug)]
pub(super) struct Chains {
    density: Density,
    /// By entry.
    links: Chunked<Link>,
    /// The clock: steps, and requests since the last one.
    now: u32,
    requests: u64,
    /// The next link whose age is looked at.
    hand: EntryId,
    /// Entries when the capacity of the density was last set.
    entries: u64,
    /// What readers held, until when it is left alone.
    resting: VecDeque<(Now, EntryId)>,
    /// The entry before the one that is being put: the last choice of an eviction.
    kept: EntryId,
    /// By the hash of the key.
    expected: Box<[Expected]>,
}

impl Chains {
    pub(super) fn new() -> Self {
        Self {
            density: Density::new(1),
            links: Chunked::new(),
            now: 1,
            requests: 0,
            hand: 0,
            entries: 1,
            resting: VecDeque::new(),
            kept: NOBODY,
            expected: vec![Expected::default(); EXPECTED].into_boxed_slice(),
        }
    }

    /// A request begins, and there are so many entries. A step of the clock is several requests where there are many.
    pub(super) fn request(&mut self, entries: u64) {
        self.requests += 1;
        if self.requests >= requests_per_step(entries) {
            self.requests = 0;
            self.now = self.now.wrapping_add(1);
            self.bound_ages();
        }
        let entries = entries.max(1);
        if entries >= self.entries * 2 || entries <= self.entries / 4 {
            self.entries = entries;
            // For as many as there will be when their number has doubled.
            self.density.set_blocks(entries * 2);
        }
    }

    /// A step of the clock: looks at the next links, and bounds their ages. An age has 21 bits, and a busy store counts
    /// two million requests in minutes.
    fn bound_ages(&mut self) {
        for _ in 0..=self.links.len() / PASS {
            let Some(link) = self.links.get_mut(self.hand) else {
                self.hand = 0;
                continue;
            };
            if link.usage.age(self.now) > OLDEST {
                link.usage = link.usage.used_at(self.now.wrapping_sub(OLDEST));
            }
            self.hand += 1;
        }
    }

    /// A new entry of so many bytes, or one that takes the number of one that is forgotten.
    pub(super) fn insert(&mut self, id: EntryId, bytes: u64) {
        self.links.grow(id + 1, &HEAD);
        // The last use of an announced object is not known: it counts as used now.
        self.links[id] = Link { usage: HEAD.usage.used_at(self.now), ..HEAD };
        self.links[id].set_size(bytes);
    }

    /// It has a lease.
    pub(super) fn lease(&mut self, id: EntryId) {
        self.links[id].depth |= LEASED;
    }

    /// That lease has ended.
    pub(super) fn end_lease(&mut self, id: EntryId) {
        self.links[id].depth &= !LEASED;
    }

    /// Whether it has a lease, or had one that may have ended.
    pub(super) fn was_leased(&self, id: EntryId) -> bool {
        self.links[id].depth & LEASED != 0
    }

    /// The entry before this one, which may be gone.
    pub(super) fn before(&self, id: EntryId) -> Option<EntryId> {
        Some(self.links[id].before).filter(|before| *before != NOBODY)
    }

    /// The same if its value is there.
    fn live_before(&self, id: EntryId) -> Option<EntryId> {
        self.before(id).filter(|before| !self.links[*before].is_gone())
    }

    /// Entries in memory that follow this one.
    pub(super) fn behind(&self, id: EntryId) -> u32 {
        self.links[id].behind
    }

    /// Whether `id` may follow `after`, which has a value, without a circle. An entry that nothing follows may follow
    /// any other one. Another one only where all before `after` is known: `known` says who stands in which depth, or a
    /// short walk to the head of the chain does not meet it.
    ///
    /// An entry that follows another value already stays there, unless all before `after` is known and that chain is
    /// longer. A client asks only for keys whose places it does not remember, so a batch may be a part of a prompt, and
    /// a later batch of the whole prompt corrects its links. A part never replaces a link of the whole.
    pub(super) fn may_follow(
        &self,
        id: EntryId,
        after: EntryId,
        known: Option<&[Option<EntryId>]>,
    ) -> bool {
        if id == after || self.links[after].is_gone() {
            return false;
        }
        if let Some(before) = self.live_before(id) {
            let depth = (self.links[before].depth & DEPTH_MASK) as usize + 1;
            if before == after || known.is_none_or(|known| known.len() <= depth) {
                return false;
            }
        }
        let link = self.links[id];
        if link.behind == 0 {
            return true;
        }
        if let Some(known) = known {
            let depth = (link.depth & DEPTH_MASK) as usize;
            return known.get(depth).copied().flatten() != Some(id);
        }
        let mut chain = std::iter::successors(Some(after), |at| self.before(*at));
        chain.by_ref().take(CLIMB_MAX).all(|at| at != id) && chain.next().is_none()
    }

    /// `id`, which follows nobody, follows `after`; whether it is the first that does.
    pub(super) fn attach(&mut self, id: EntryId, after: EntryId) -> bool {
        debug_assert_eq!(self.links[id].before, NOBODY, "it follows one entry");
        self.links[id].before = after;
        let after = &mut self.links[after];
        after.behind += 1;
        after.behind == 1
    }

    /// `id` follows nobody any more. The one that it followed, if it was the last that did, and whether that one is
    /// gone and forgotten, too.
    pub(super) fn detach(&mut self, id: EntryId) -> Option<EntryId> {
        let before = std::mem::replace(&mut self.links[id].before, NOBODY);
        if before == NOBODY {
            return None;
        }
        let link = &mut self.links[before];
        link.behind -= 1;
        (link.behind == 0).then_some(before)
    }

    /// Somebody wants it to be gone: what follows it is not lost by that.
    pub(super) fn removed(&mut self, id: EntryId) {
        self.links[id].depth |= REMOVED;
    }

    /// Its value is gone, which is a loss unless somebody wanted it. Whether something follows it, for which its link
    /// has to stay.
    pub(super) fn forget(&mut self, id: EntryId) -> bool {
        let link = &mut self.links[id];
        if !link.is_gone() {
            link.depth |= LOST;
        }
        link.behind > 0
    }

    /// How deep `id` stands, which is the key at `at` of a batch.
    fn find_depth(&mut self, id: EntryId, at: usize) -> usize {
        let before = self.live_before(id).map(|before| self.links[before].depth & DEPTH_MASK);
        let depth = before.map_or(at, |depth| at.max(depth as usize + 1));
        self.links[id].set_depth(depth);
        depth
    }

    /// A put of a batch of `len` keys brings the entry: its key is the one at `at`.
    pub(super) fn put(&mut self, id: EntryId, hash: u64, (at, len): (usize, usize)) {
        let depth = self.find_depth(id, at);
        let of = Use { key: hash, depth, blocks: depth + len.saturating_sub(at), now: self.now };
        self.links[id].usage = self.density.touch(of, None);
    }

    /// A batch reads the entry. `follows`: it follows the key before it.
    pub(super) fn read(&mut self, id: EntryId, hash: u64, batch: &mut Batch<'_>) {
        let before = self.before(id);
        batch.whole = match batch.before() {
            Some(last) if before == Some(last) => batch.whole,
            _ => self.live_before(id).is_none(),
        };
        batch.last = Some((batch.at, id));
        let depth = self.find_depth(id, batch.at);
        batch.whole &= depth == batch.at;
        let left = batch.found.len() - batch.at;
        let of = Use { key: hash, depth, blocks: depth + left, now: self.now };
        let usage = &mut self.links[id].usage;
        *usage = self.density.touch(of, Some(*usage));
    }

    /// The key that a batch reads next may follow this entry; if it is known, with all that stands before that.
    pub(super) fn behind_last<'a>(
        batch: &Batch<'a>,
    ) -> Option<(EntryId, Option<&'a [Option<EntryId>]>)> {
        let last = batch.before()?;
        Some((last, batch.whole.then(|| &batch.found[..batch.at])))
    }

    /// It was read, and nothing is known of the batch.
    pub(super) fn read_again(&mut self, id: EntryId, hash: u64) {
        let usage = &mut self.links[id].usage;
        *usage = self.density.touch_again(hash, self.now, *usage);
    }

    /// What each byte of it is worth; the lowest goes first. `None`: it cannot go now. An eviction asks this of two dozen
    /// entries: all it needs stands in the link.
    pub(super) fn worth(&self, id: EntryId) -> Option<u64> {
        let link = self.links[id];
        if link.depth & RESTS != 0 {
            return None;
        }
        let worth = self.density.learned().worth(link.usage, self.now);
        let age = worth & u64::from(u32::MAX);
        if link.before != NOBODY && self.links[link.before].depth & LOST != 0 {
            return Some(age);
        }
        let density = f32::from_bits((worth >> 32) as u32);
        let per_byte = density / link.size();
        Some(u64::from(per_byte.to_bits()) << 32 | age)
    }

    /// The entry before the one that is being put. Without it the new value is of little use, so it is evicted for
    /// that put only where nothing else can be.
    pub(super) fn keep(&mut self, id: Option<EntryId>) {
        self.kept = id.unwrap_or(NOBODY);
    }

    /// That entry. It may be forgotten by now.
    pub(super) fn kept(&self) -> Option<EntryId> {
        Some(self.kept).filter(|kept| *kept != NOBODY)
    }

    /// An eviction met readers.
    pub(super) fn rest(&mut self, now: Now, id: EntryId) {
        self.links[id].depth |= RESTS;
        self.resting.push_back((now.plus(REST), id));
    }

    /// What has rested long enough is a candidate again.
    pub(super) fn wake(&mut self, now: Now) {
        for _ in 0..WAKE_MAX {
            let Some(&(until, id)) = self.resting.front() else { return };
            if until > now {
                return;
            }
            self.resting.pop_front();
            self.links[id].depth &= !RESTS;
        }
    }

    /// A key was missed behind an entry. Whoever puts it will not say so, where a put names only what is missing.
    pub(super) fn expect(&mut self, hash: u64, after: EntryId, object: ObjectId) {
        self.expected[hash as usize % EXPECTED] = Expected { hash, after, object };
    }

    /// The entry behind which a key was missed.
    pub(super) fn expected(&self, hash: u64) -> Option<(EntryId, ObjectId)> {
        let expected = &self.expected[hash as usize % EXPECTED];
        (expected.hash == hash).then_some((expected.after, expected.object))
    }

    /// Each entry with the one that it follows, also those that are gone and followed.
    pub(super) fn all(&self) -> impl Iterator<Item = (EntryId, Option<EntryId>, u32)> + '_ {
        (0..self.links.len()).map(|id| (id, self.before(id), self.behind(id)))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.links.heap_bytes()
            + self.density.heap_bytes()
            + size_of_val(&*self.expected)
            + self.resting.capacity() * size_of::<(Now, EntryId)>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Catalog, Config, Start, Writer};
    use super::*;
    use crate::evict::PolicyKind;
    use crate::plan::{Evidence, Medium, PutConfig, SegmentOffer};
    use crate::{HostId, Incarnation, LeaderEpoch, NodeId, Seal, SegmentId, ZoneId, seal};

    const VALUES: u8 = 4;

    /// A catalog that evicts by density, full of values of 1,000 bytes with the keys 0, 1, ….
    fn full(now: Now) -> Catalog {
        let (policy, high_permille, low_permille) = (PolicyKind::Density, 1000, 1000);
        let config = Config { high_permille, low_permille, policy, ..Config::default() };
        let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, now);
        let offer = SegmentOffer {
            segment: SegmentId(0),
            incarnation: Incarnation(1),
            node: NodeId(0),
            medium: Medium::Dram,
            bytes: u64::from(VALUES) * seal::extent_bytes(1000),
            slots: VALUES.into(),
            host: HostId(0),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence::default(),
        };
        catalog.mount(now, NodeId(0), std::slice::from_ref(&offer)).unwrap();
        catalog.announce(now, offer.segment, offer.incarnation, &[], true).unwrap();
        for key in 0..VALUES {
            let config = PutConfig::default();
            let plan = catalog.put_start_by(now, Writer::UNSEEN, &[key][..], 1000, &config);
            let token = plan.unwrap().token;
            catalog.put_end(now, &[key][..], token, &[Seal(1)]).unwrap();
        }
        catalog
    }

    /// An old value does not look young when the clock has run through the range of ages.
    #[test]
    fn an_age_only_grows_however_long_the_clock_runs() {
        let mut chains = Chains::new();
        let entries = 100_000;
        (0..entries).for_each(|id| chains.insert(id, 1000));
        for steps in 1..AGE_END * 3 {
            chains.request(entries.into());
            if steps % (1 << 18) == 0 {
                let ages = chains.links.iter().map(|link| link.usage.age(chains.now));
                let (youngest, oldest) = ages.fold((u32::MAX, 0), |(youngest, oldest), age| {
                    (youngest.min(age), oldest.max(age))
                });
                let range = steps.min(OLDEST)..AGE_END;
                assert!(
                    range.contains(&youngest) && range.contains(&oldest),
                    "after {steps} steps"
                );
            }
        }
        // One that comes now is the youngest.
        chains.insert(7, 1000);
        assert!(chains.worth(7) > chains.worth(8));
    }

    #[test]
    fn a_report_of_reads_is_no_request() {
        let mut catalog = full(Now(1_000_000_000));
        let clock = |catalog: &Catalog| catalog.chains.as_ref().unwrap().now;
        let before = clock(&catalog);
        for ms in 0..100 {
            catalog.report_heard(Now(1_000_000_000 + ms * 1_000_000));
        }
        assert_eq!(clock(&catalog), before);
        let _ = catalog.locate(Now(2_000_000_000), &[0][..], 0);
        assert_eq!(clock(&catalog), before + 1);
    }

    /// Evictions load an entry for its lease only until one of them has found that it has ended.
    #[test]
    fn an_eviction_takes_the_mark_of_an_ended_lease_off() {
        let now = Now(1_000_000_000);
        let mut catalog = full(now);
        for (key, lease_ms) in (0..VALUES).zip([60_000, 60_000, 1000, 1000]) {
            catalog.locate(now, &[key][..], lease_ms).unwrap();
        }
        let marked = |catalog: &Catalog| {
            let links = catalog.chains.as_ref().unwrap().links.iter();
            links.filter(|link| link.depth & LEASED != 0).count()
        };
        assert_eq!(marked(&catalog), 4);
        // The end of a lease has a margin for clocks that differ.
        let later = now.plus(Duration::from_secs(10));
        let used = catalog.segments()[0].used;
        catalog.evict_below(later, SegmentId(0), used - 1);
        assert_eq!(catalog.take_orders().len(), 1, "a value whose lease has ended");
        assert_eq!(marked(&catalog), 2);
    }

    /// Keys of a thousand that are sampled.
    fn sampled(chains: &Chains) -> usize {
        let of = |key| Use { key, depth: 0, blocks: 1, now: 1 };
        (0..1000).filter(|key| chains.density.learned().touch(&of(*key), None).is_none()).count()
    }

    #[test]
    fn the_sample_follows_the_number_of_entries_in_both_directions() {
        let mut chains = Chains::new();
        chains.request(100_000);
        assert!((10..60).contains(&sampled(&chains)), "{} of 1,000", sampled(&chains));
        chains.request(30_000);
        assert!(sampled(&chains) < 60, "not a quarter yet");
        chains.request(1000);
        assert_eq!(sampled(&chains), 1000);
        chains.request(0);
        chains.request(100_000);
        assert!((10..60).contains(&sampled(&chains)), "{} of 1,000", sampled(&chains));
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "an eighth is allowed")]
    fn a_size_is_kept_to_an_eighth() {
        for bytes in (8..5000).chain([1 << 20, (1 << 30) - 1, 1 << 30, (1 << 34) - 1]) {
            let mut link = Link { depth: RESTS | 0x4d, ..HEAD };
            link.set_size(bytes);
            let (size, told) = (link.size(), bytes as f32);
            assert!(size <= told && told < size * 1.125, "{bytes} bytes as {size}");
            assert_eq!(link.depth & !SIZE_MASK, RESTS | 0x4d);
        }
        let mut link = HEAD;
        link.set_size(0);
        assert!((link.size() - 8.0).abs() < f32::EPSILON);
    }
}
