//! Room for replicas of puts and for copies: ask placement, take ranges, all or none; or order evictions
//! where the next try would look.

use super::copy::{NoCopy, Purpose};
use super::evict::{FOR_PUT, Reclaim};
use super::objects::{EntryId, Part, PartState, SegmentIndex};
use super::put::no_segments;
use super::segments::NOBODY;
use super::{Catalog, evict};
use crate::alloc::Allocation;
use crate::canary::{self, Canary};
use crate::error::PutError;
use crate::ids::{NodeId, SegmentId, TenantId};
use crate::lease;
use crate::place::Ask;
use crate::plan::{Medium, PutConfig, Striping};
use crate::seal;
use crate::time::Now;

/// Segments that placement may propose for one replica before the put counts as short of room.
const PICKS_MAX: usize = 8;
/// Hint for a caller while owners free room.
const RECLAIM_MS: u32 = 1;

/// Copies that are written to each medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    /// To VRAM, because its writer asks for it.
    pub vram: u32,
    /// To memory of hosts.
    pub dram: u32,
}

impl Spread {
    /// What a put asks for.
    pub(super) fn of(config: &PutConfig) -> Self {
        let vram = config.vram_copies();
        Self { vram, dram: config.memory_copies() - vram }
    }

    /// All of them.
    pub(super) const fn total(self) -> u32 {
        self.vram + self.dram
    }

    /// The media that get any, and how many.
    pub(super) fn each(self) -> impl Iterator<Item = (Medium, u32)> {
        let all = [(Medium::Vram, self.vram), (Medium::Dram, self.dram)];
        all.into_iter().filter(|(_, copies)| *copies > 0)
    }
}

/// A replica that was reserved.
pub(super) struct Reserved {
    pub part: Part,
    pub allocation: Allocation,
}

/// What placement is asked for one replica.
fn ask<'a>(
    tenant: TenantId,
    bytes: u64,
    medium: Medium,
    config: &'a PutConfig,
    avoid_nodes: &'a [NodeId],
    tried: &'a [usize],
    need_free: bool,
) -> Ask<'a> {
    let PutConfig { preferred, avoid, host, zone, .. } = config;
    let (host, zone) = (*host, *zone);
    Ask { bytes, preferred, host, zone, tenant, medium, avoid_nodes, avoid, tried, need_free }
}

impl Catalog {
    /// A range per stripe and copy, the copies of a stripe on distinct nodes; or none at all (M2).
    pub(super) fn reserve(
        &mut self,
        now: Now,
        tenant: TenantId,
        striping: Striping,
        spread: Spread,
        config: &PutConfig,
    ) -> Result<Vec<Reserved>, PutError> {
        let stripes = striping.stripes();
        let copies = spread.total() as usize;
        // What fewer nodes can take is placed first, or a node of theirs would be taken by the rest.
        let mut media = [(Medium::Vram, spread.vram), (Medium::Dram, spread.dram)];
        media.sort_by_key(|(medium, _)| self.segments.open_on(*medium).nodes);
        let mut reserved: Vec<Reserved> = Vec::with_capacity(stripes * copies);
        for stripe in 0..stripes as u8 {
            let bytes = seal::extent_bytes(striping.stripe_len(stripe));
            let mut nodes: Vec<NodeId> = Vec::with_capacity(copies);
            let each =
                media.iter().flat_map(|(medium, n)| std::iter::repeat_n(*medium, *n as usize));
            for medium in each {
                let found = self.reserve_one(tenant, bytes, stripe, medium, config, &nodes);
                let Some(one) = found else {
                    self.unreserve(reserved);
                    return Err(self.reclaim_for_put(now, tenant, bytes, medium, config, &nodes));
                };
                nodes.push(self.segments.book(one.part.segment).offer.node);
                reserved.push(one);
            }
        }
        Ok(reserved)
    }

    /// Gives ranges back that nobody was told of.
    pub(super) fn unreserve(&mut self, reserved: Vec<Reserved>) {
        let mut undo = reserved.into_iter();
        if canary::on(Canary::LeakOnFailedReserve) {
            undo.next();
        }
        for Reserved { part, allocation } in undo {
            self.segments.book_mut(part.segment).unreserve(part.slot, allocation);
            self.segments.refresh(part.segment);
        }
    }

    pub(super) fn reserve_one(
        &mut self,
        tenant: TenantId,
        bytes: u64,
        stripe: u8,
        medium: Medium,
        config: &PutConfig,
        avoid_nodes: &[NodeId],
    ) -> Option<Reserved> {
        let mut tried = [0_usize; PICKS_MAX];
        for picks in 0..PICKS_MAX {
            let ask = ask(tenant, bytes, medium, config, avoid_nodes, &tried[..picks], true);
            let pick = self.placement.pick(&self.segments.loads, &ask)?;
            let segment = pick as SegmentIndex;
            let book = self.segments.book_mut(segment);
            if let Some((slot, generation, allocation)) = book.reserve(bytes, NOBODY) {
                self.segments.refresh(segment);
                let part = Part {
                    offset: allocation.extent.offset(),
                    slot,
                    generation,
                    handle: allocation.handle,
                    segment,
                    stripe,
                    state: PartState::Here,
                };
                return Some(Reserved { part, allocation });
            }
            tried[picks] = pick;
        }
        None
    }

    /// No room: order evictions where placement would have put the replica, and say what to expect.
    pub(super) fn reclaim_for_put(
        &mut self,
        now: Now,
        tenant: TenantId,
        bytes: u64,
        medium: Medium,
        config: &PutConfig,
        avoid_nodes: &[NodeId],
    ) -> PutError {
        let mut tried = [0_usize; PICKS_MAX];
        for picks in 0..PICKS_MAX {
            let ask = ask(tenant, bytes, medium, config, avoid_nodes, &tried[..picks], false);
            let Some(pick) = self.placement.pick(&self.segments.loads, &ask) else {
                if picks == 0 {
                    // Nobody could ever take it: of this medium, for this tenant, on another node.
                    let nodes = avoid_nodes.len() as u32;
                    return match nodes {
                        0 => no_segments(medium),
                        nodes => PutError::TooFewNodes { wanted: config.memory_copies(), nodes },
                    };
                }
                break;
            };
            match self.reclaim(now, pick as SegmentIndex, bytes, FOR_PUT) {
                Reclaim::Ordered => return PutError::Reclaiming { after_ms: RECLAIM_MS },
                Reclaim::InUse => tried[picks] = pick,
            }
        }
        self.counters.busy += 1;
        PutError::Busy {
            after_ms: evict::BUSY_HINT_MS.max(lease::left_ms(now, self.grace_until).min(1000)),
        }
    }

    /// A range for a copy, on a node that has no other copy of the stripe.
    pub(super) fn reserve_copy(
        &mut self,
        now: Now,
        id: EntryId,
        stripe: u8,
        others: &[Part],
        purpose: Purpose,
    ) -> Result<Part, NoCopy> {
        let entry = self.objects.entry(id);
        let (tenant, bytes) = (entry.tenant, entry.extent_bytes(stripe));
        let node = |part: &Part| self.segments.book(part.segment).offer.node;
        let mut avoid: Vec<NodeId> = others.iter().map(node).collect();
        let medium = if purpose.vram { Medium::Vram } else { Medium::Dram };
        let held = avoid.len();
        avoid.extend(self.busy_nodes(bytes));
        let config = PutConfig::default();
        let Some(one) = self.reserve_one(tenant, bytes, stripe, medium, &config, &avoid) else {
            if avoid.len() > held {
                return Err(NoCopy::Later);
            }
            if !purpose.make_room {
                return Err(NoCopy::NoRoom);
            }
            let refused = self.reclaim_for_put(now, tenant, bytes, medium, &config, &avoid);
            let coming = matches!(refused, PutError::Reclaiming { .. });
            return Err(if coming { NoCopy::Later } else { NoCopy::NoRoom });
        };
        let book = self.segments.book(one.part.segment);
        let low = u128::from(book.offer.bytes) * u128::from(self.config.low_permille) / 1000;
        if purpose.spare_room && u128::from(book.used_bytes()) > low {
            self.segments.book_mut(one.part.segment).unreserve(one.part.slot, one.allocation);
            self.segments.refresh(one.part.segment);
            return Err(NoCopy::NoRoom);
        }
        Ok(Part { state: PartState::Copying, ..one.part })
    }

    /// A range for a copy in one segment and no other.
    pub(super) fn reserve_at(
        &mut self,
        now: Now,
        id: EntryId,
        stripe: u8,
        others: &[Part],
        (to, make_room): (SegmentId, bool),
    ) -> Result<Part, NoCopy> {
        let entry = self.objects.entry(id);
        let bytes = entry.extent_bytes(stripe);
        let segment = self.segments.find(to).ok_or(NoCopy::NoRoom)?;
        let load = self.segments.loads[usize::from(segment)];
        let held = others.iter().any(|o| self.segments.book(o.segment).offer.node == load.node);
        let foreign = load.tenant.is_some_and(|tenant| tenant != entry.tenant);
        if !load.open || held || foreign || load.capacity < bytes {
            return Err(NoCopy::NoRoom);
        }
        if load.medium == Medium::Ssd {
            self.takes(now, segment, Some(entry.tenant), bytes)?;
        } else if self.busy_nodes(bytes).contains(&load.node) {
            return Err(NoCopy::Later);
        }
        let book = self.segments.book_mut(segment);
        let Some((slot, generation, allocation)) = book.reserve(bytes, NOBODY) else {
            if !make_room || load.medium == Medium::Ssd {
                return Err(NoCopy::NoRoom);
            }
            return Err(match self.reclaim(now, segment, bytes, FOR_PUT) {
                Reclaim::Ordered => NoCopy::Later,
                Reclaim::InUse => NoCopy::NoRoom,
            });
        };
        self.segments.refresh(segment);
        Ok(Part::copying(segment, slot, generation, allocation, stripe))
    }

    /// Nodes that fetch as much as they may.
    fn busy_nodes(&self, bytes: u64) -> Vec<NodeId> {
        let (most, most_bytes) =
            (self.config.copies_per_node_max, self.config.copy_bytes_per_node_max);
        let busy = self.copies.by_node.iter().filter(|(_, (count, sum))| {
            *count >= most || *count > 0 && sum.saturating_add(bytes) > most_bytes
        });
        busy.map(|(node, _)| *node).collect()
    }
}
