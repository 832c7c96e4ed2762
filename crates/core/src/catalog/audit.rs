//! Every byte accounted for (G8). Linear: for tests, the simulator and `stat --audit`.

use super::Catalog;
use super::objects::{EntryId, PartState, Stage};
use super::segments::{NOBODY, Payer};
use crate::extent::Extent;
use crate::ids::{Generation, SegmentId, Slot, TenantId};
use std::collections::BTreeMap;

/// What does not add up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Free, used and ending bytes are not the capacity.
    #[error("segment {segment}: live {live} + ending {ending} + free {free} is not {capacity}")]
    Bytes {
        /// Where.
        segment: SegmentId,
        /// Bytes that entries own.
        live: u64,
        /// Bytes on their way out.
        ending: u64,
        /// Bytes of the allocator.
        free: u64,
        /// Bytes there are.
        capacity: u64,
    },
    /// Two owners of one byte.
    #[error("segment {segment}: {a} and {b} overlap")]
    Overlap {
        /// Where.
        segment: SegmentId,
        /// One.
        a: Extent,
        /// The other.
        b: Extent,
    },
    /// A slot is neither free nor used nor ending.
    #[error("segment {segment}: {lost} slots are lost")]
    Slots {
        /// Where.
        segment: SegmentId,
        /// How many.
        lost: usize,
    },
    /// A tenant is charged for other bytes than it has.
    #[error("tenant {tenant}: {counted} bytes are in use, {booked} are charged")]
    Charge {
        /// Who.
        tenant: TenantId,
        /// Found by walking.
        counted: u64,
        /// Booked.
        booked: u64,
    },
    /// Memory is held that is on nobody's account.
    #[error("{held} bytes of memory are held, {booked} are on accounts")]
    Accounts {
        /// By allocators, but for what has no name.
        held: u64,
        /// By all tenants.
        booked: u64,
    },
    /// The chains are not what their links say.
    #[error("{counted} entries follow entry {entry}, {booked} are booked")]
    Chain {
        /// Which one.
        entry: u32,
        /// Found by walking.
        counted: u32,
        /// Booked.
        booked: u32,
    },
    /// A slot is a candidate of another kind than its entry says, or a link is wrong.
    #[error("the link of entry {entry} is wrong: {what}")]
    Link {
        /// Which one.
        entry: u32,
        /// In which way.
        what: &'static str,
    },
    /// The number of open puts is wrong.
    #[error("{counted} puts are open, {booked} are booked")]
    OpenPuts {
        /// Found by walking.
        counted: usize,
        /// Booked.
        booked: usize,
    },
}

impl Catalog {
    /// Walks everything and says what does not add up.
    pub fn audit(&self) -> Result<(), AuditError> {
        let mut open: BTreeMap<TenantId, usize> = BTreeMap::new();
        let mut charges: BTreeMap<TenantId, u64> = BTreeMap::new();
        let mut ranges: Vec<Vec<Extent>> = vec![Vec::new(); self.segments.loads.len()];
        for id in 0..self.objects.positions() {
            let Some(entry) = self.objects.get(id) else { continue };
            if entry.stage == Stage::Writing {
                *open.entry(entry.tenant).or_default() += 1;
            }
            *charges.entry(entry.tenant).or_default() += self.charge_of(entry).total();
            for part in entry.parts.as_slice() {
                if part.state != PartState::Evicting {
                    ranges[part.segment as usize].push(entry.extent(part));
                }
            }
        }
        // What ends is paid for until it is free, by whoever had it (G16).
        for ending in self.segments.iter().flat_map(|(_, book)| book.ending.values()) {
            if let Payer::Tenant(tenant) = ending.payer {
                *charges.entry(tenant).or_default() += ending.allocation.extent.len();
            }
        }
        let booked = self.booked_open().iter().map(|(tenant, of)| (*tenant, of.puts));
        if open != booked.collect() {
            let (counted, booked) = (open.values().sum(), self.open.len());
            return Err(AuditError::OpenPuts { counted, booked });
        }
        for (tenant, known) in self.tenants() {
            let counted = charges.remove(&tenant).unwrap_or(0);
            if counted != known.used {
                return Err(AuditError::Charge { tenant, counted, booked: known.used });
            }
        }
        if let Some((tenant, counted)) = charges.into_iter().find(|(_, bytes)| *bytes > 0) {
            return Err(AuditError::Charge { tenant, counted, booked: 0 });
        }
        self.audit_accounts().and_then(|()| self.audit_chains())?;
        for (index, book) in self.segments.iter() {
            if !book.takes_orders() {
                continue;
            }
            let segment = book.offer.segment;
            debug_assert!(book.awaits_its_endings(), "segment {segment}: awaited orders");
            let ranges = &mut ranges[index as usize];
            let live: u64 = ranges.iter().map(|extent| extent.len()).sum();
            ranges.extend(book.ending.values().map(|ending| ending.allocation.extent));
            ranges.sort();
            // Bytes of a disk have no place.
            let mut pairs = ranges.windows(2).filter(|_| !book.is_disk());
            if let Some(pair) = pairs.find(|pair| pair[0].overlaps(pair[1])) {
                return Err(AuditError::Overlap { segment, a: pair[0], b: pair[1] });
            }
            let (ending, free) = (book.ending_bytes, book.allocator.free_bytes());
            let capacity = book.offer.bytes;
            // A disk may hold more than it offers, after somebody has made it smaller.
            let taken = capacity.max(book.allocator.used_bytes()) - free;
            if live + ending != taken {
                return Err(AuditError::Bytes { segment, live, ending, free, capacity });
            }
            let used = (0..book.slots.len())
                .filter(|slot| {
                    let slot = Slot(*slot);
                    let known = book.slots[slot.0];
                    let used_up = known.generation == Generation::MAX;
                    known.entry != NOBODY || book.ending.contains_key(&slot) || used_up
                })
                .count();
            let accounted = used + book.free_slots.len();
            let lost = book.slots.len() as usize - accounted.min(book.slots.len() as usize);
            if accounted != book.slots.len() as usize {
                return Err(AuditError::Slots { segment, lost });
            }
        }
        Ok(())
    }

    /// Successors are as many as are counted, none is behind itself, and what has one is covered in memory of hosts.
    fn audit_chains(&self) -> Result<(), AuditError> {
        let Some(chains) = &self.chains else { return Ok(()) };
        let mut counts: BTreeMap<EntryId, u32> = BTreeMap::new();
        // By entry: which walk towards the head came by first.
        let mut walks = vec![EntryId::MAX; self.objects.positions() as usize];
        for (entry, before, _) in chains.all() {
            let wrong = |what| Err(AuditError::Link { entry, what });
            let Some(before) = before else { continue };
            if self.objects.get(entry).is_none() || !self.in_memory(entry) {
                return wrong("it follows another one, and is not in memory");
            }
            *counts.entry(before).or_default() += 1;
            let mut chain = std::iter::successors(Some(entry), |id| chains.before(*id));
            let met = chain.find_map(|id| {
                let walk = &mut walks[id as usize];
                if *walk == EntryId::MAX {
                    *walk = entry;
                    return None;
                }
                Some(*walk)
            });
            if met == Some(entry) {
                return wrong("it is behind itself");
            }
        }
        for (entry, _, booked) in chains.all() {
            let counted = counts.get(&entry).copied().unwrap_or(0);
            if counted != booked {
                return Err(AuditError::Chain { entry, counted, booked });
            }
            let parts = self.objects.get(entry).map_or(&[][..], |entry| entry.parts.as_slice());
            for part in parts {
                let book = self.segments.book(part.segment);
                let wanted = self.is_covered(part.segment, entry);
                let told = book.policy.covers(part.slot).or(book.soft.covers(part.slot));
                if told.is_some_and(|told| told != wanted) {
                    return Err(AuditError::Link { entry, what: "covered" });
                }
            }
        }
        Ok(())
    }

    /// All memory that is not free is on somebody's account, by the allocators and not by the entries (G16).
    /// While a segment comes or goes its ranges are known to one side only.
    fn audit_accounts(&self) -> Result<(), AuditError> {
        let memory = || self.segments.iter().map(|(_, book)| book).filter(|book| !book.is_disk());
        if memory().any(|book| !book.is_open()) {
            return Ok(());
        }
        let taken: u64 = memory().map(|book| book.allocator.used_bytes()).sum();
        let ending = memory().flat_map(|book| book.ending.values());
        let unnamed = ending.filter(|ending| ending.payer == Payer::Unnamed);
        let unnamed: u64 = unnamed.map(|ending| ending.allocation.extent.len()).sum();
        let (held, booked) = (taken - unnamed, self.tenants().map(|(_, of)| of.used).sum());
        if held != booked {
            return Err(AuditError::Accounts { held, booked });
        }
        Ok(())
    }
}
