//! What a node measures. The data server and the duties count while they work; all else is read off
//! the segments and the node's standing when somebody asks.
//!
//! What must stay true: no key and no part of one is ever a label; `docs/metrics.md` lists every
//! family. Reads of processes that map the memory, and of this process itself, are not seen here:
//! their clients count them.

mod disks;
mod vram;

use crate::duty::Node;
use mooncrate_admin::{Collector, DescriptorEncoder, Page, Shown};
use mooncrate_core::tally::Count;
use mooncrate_core::{Medium, Now};
use mooncrate_mem::SegmentStats;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{DataTally, Refusals};
use std::fmt;
use std::sync::Arc;

/// What a node counts.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The data server's.
    pub(crate) data: Arc<DataTally>,
    /// Orders of the master that were carried out.
    pub(crate) orders: Count,
    /// Orders of a replaced leader, or for an earlier mount.
    pub(crate) orders_refused: Count,
    /// Heartbeats that no master answered.
    pub(crate) heartbeats_failed: Count,
    /// Times that the node dropped everything and started over.
    pub(crate) given_up: Count,
}

impl Tally {
    pub(crate) fn new(data: Arc<DataTally>) -> Self {
        Self {
            data,
            orders: Count::default(),
            orders_refused: Count::default(),
            heartbeats_failed: Count::default(),
            given_up: Count::default(),
        }
    }
}

/// The numbers of a node, for a registry.
#[derive(Debug)]
pub struct NodeMetrics(pub Arc<Node>);

impl Collector for NodeMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let tally = self.0.tally();
        data(&mut page, &tally.data)?;
        refusals(&mut page, &tally.data.refused)?;
        duties(&mut page, tally)?;
        standing(&mut page, &self.0)?;
        slots(&mut page, &self.0)?;
        disks::show(&mut page, &self.0)?;
        vram::show(&mut page, &self.0)
    }
}

fn data(page: &mut Page<'_>, data: &DataTally) -> fmt::Result {
    let spread = |spread: &mooncrate_core::tally::Spread| Shown::Spread(spread.now());
    let count = |count: &Count| Shown::Count(count.value());
    for (name, help, value) in [
        (
            "mooncrate_node_read_seconds",
            "Reads over sockets, from the request to the last byte.",
            spread(&data.reads),
        ),
        (
            "mooncrate_node_write_seconds",
            "Values taken off sockets, from the request to the last byte.",
            spread(&data.writes),
        ),
        ("mooncrate_node_read_bytes", "Bytes sent to readers.", count(&data.read_bytes)),
        (
            "mooncrate_node_published_replicas",
            "Replicas published over sockets and in shared memory.",
            count(&data.published),
        ),
        (
            "mooncrate_node_published_bytes",
            "Bytes of published replicas.",
            count(&data.published_bytes),
        ),
        (
            "mooncrate_node_connections",
            "Data connections that are open.",
            Shown::level(data.connections.value()),
        ),
        ("mooncrate_node_pins", "Pins that connections hold.", Shown::level(data.pins.value())),
        (
            "mooncrate_node_staged_values",
            "Values that were loaded from disks for connections.",
            count(&data.staged),
        ),
        (
            "mooncrate_node_staged_bytes",
            "Bytes that are loaded for connections now.",
            Shown::level(data.staged_bytes.value()),
        ),
    ] {
        page.one(name, help, &value)?;
    }
    Ok(())
}

fn refusals(page: &mut Page<'_>, refused: &Refusals) -> fmt::Result {
    let rows = [
        ("epoch", &refused.epoch),
        ("stale", &refused.stale),
        ("checksum", &refused.checksum),
        ("fenced", &refused.fenced),
        ("busy", &refused.busy),
        ("other", &refused.other),
    ]
    .map(|(reason, count)| ([("reason", reason)], Shown::Count(count.value())));
    page.many("mooncrate_node_refusals", "Data requests refused, by reason.", &rows)
}

fn duties(page: &mut Page<'_>, tally: &Tally) -> fmt::Result {
    for (name, help, count) in [
        ("mooncrate_node_orders", "Orders of the master carried out.", &tally.orders),
        (
            "mooncrate_node_refused_orders",
            "Orders of a replaced leader, or for an earlier mount.",
            &tally.orders_refused,
        ),
        (
            "mooncrate_node_failed_heartbeats",
            "Heartbeats that no master answered.",
            &tally.heartbeats_failed,
        ),
        (
            "mooncrate_node_restarts",
            "Times the node was cut off for too long and started over, empty.",
            &tally.given_up,
        ),
    ] {
        page.one(name, help, &Shown::Count(count.value()))?;
    }
    Ok(())
}

fn standing(page: &mut Page<'_>, node: &Node) -> fmt::Result {
    let health = Health::of(node);
    for (name, help, value) in [
        (
            "mooncrate_node_mounted",
            "1 when the master knows all that this node holds.",
            f64::from(u8::from(health.mounted)),
        ),
        (
            "mooncrate_node_heartbeat_age_seconds",
            "Since the last heartbeat that was answered was sent.",
            health.heartbeat_age,
        ),
        (
            "mooncrate_node_serve_left_seconds",
            "How long readers of memory may still be served without another heartbeat.",
            health.serve_left,
        ),
    ] {
        page.one(name, help, &Shown::Level(value))?;
    }
    Ok(())
}

fn slots(page: &mut Page<'_>, node: &Node) -> fmt::Result {
    let mut rows = Vec::new();
    let mut found_bad = 0;
    for segment in node.segments().all() {
        let SegmentStats { writing, ready, retiring, failed, bad, .. } = segment.stats();
        found_bad += bad;
        let states =
            [("writing", writing), ("ready", ready), ("retiring", retiring), ("failed", failed)];
        for (state, count) in states {
            let labels =
                [("segment", segment.spec().segment.to_string()), ("state", state.to_owned())];
            rows.push((labels, Shown::level(count)));
        }
    }
    page.one(
        "mooncrate_node_bad_replicas",
        "Replicas in memory whose bytes were found not to be those that were sealed.",
        &Shown::Count(found_bad),
    )?;
    page.many("mooncrate_node_slots", "Slots of a segment, by state.", &rows)
}

/// How a node stands with its master.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) mounted: bool,
    pub(crate) heartbeat_age: f64,
    pub(crate) serve_left: f64,
}

impl Health {
    pub(crate) fn of(node: &Node) -> Self {
        let now = boottime();
        // Of memory: a disk that is still being told is not served yet, which may take minutes.
        let segments = node.segments().all();
        let memory = segments.iter().filter(|one| one.spec().segment.medium() != Medium::Ssd);
        let until = memory.map(|segment| segment.serve_until()).min();
        let standing = node.standing().lock();
        Self {
            mounted: standing.mounted.is_some(),
            heartbeat_age: now.since(standing.acknowledged).as_secs_f64(),
            serve_left: until.unwrap_or(Now(0)).since(now).as_secs_f64(),
        }
    }
}
