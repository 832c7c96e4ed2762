//! Room for replicas: ask placement, take ranges, all or none; or order evictions where the next try
//! would look.

use super::objects::{Part, PartState, SegmentIndex};
use super::segments::NOBODY;
use super::{Catalog, evict};
use crate::alloc::Allocation;
use crate::canary::{self, Canary};
use crate::error::PutError;
use crate::ids::{NodeId, TenantId};
use crate::lease;
use crate::place::Ask;
use crate::plan::{Medium, PutConfig, Striping};
use crate::seal;
use crate::time::Now;

/// Segments that placement may propose for one replica before the put counts as short of room.
const PICKS_MAX: usize = 8;
/// Hint for a caller while owners free room.
const RECLAIM_MS: u32 = 1;

/// A replica that was reserved.
pub(super) struct Reserved {
    pub part: Part,
    pub allocation: Allocation,
}

/// What placement is asked for one replica.
fn ask<'a>(
    tenant: TenantId,
    bytes: u64,
    medium: Option<Medium>,
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
        copies: u32,
        config: &PutConfig,
    ) -> Result<Vec<Reserved>, PutError> {
        let stripes = striping.stripes();
        let mut reserved: Vec<Reserved> = Vec::with_capacity(stripes * copies as usize);
        for stripe in 0..stripes as u8 {
            let bytes = seal::extent_bytes(striping.stripe_len(stripe));
            let mut nodes: Vec<NodeId> = Vec::with_capacity(copies as usize);
            for copy in 0..copies {
                let medium = config.medium(copy);
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
        medium: Option<Medium>,
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
        medium: Option<Medium>,
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
                        0 => PutError::NoSegments,
                        nodes => PutError::TooFewNodes { wanted: config.memory_copies(), nodes },
                    };
                }
                break;
            };
            match self.reclaim(now, pick as SegmentIndex, bytes) {
                evict::Reclaim::Ordered => return PutError::Reclaiming { after_ms: RECLAIM_MS },
                evict::Reclaim::InUse => tried[picks] = pick,
            }
        }
        self.counters.busy += 1;
        PutError::Busy {
            after_ms: evict::BUSY_HINT_MS.max(lease::left_ms(now, self.grace_until).min(1000)),
        }
    }
}
