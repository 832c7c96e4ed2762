//! `drain` and `undrain`: empty a node while it serves, and say how that goes.

use super::{connect_as, failed};
use crate::args::{Drain, Undrain};
use crate::config::Settings;
use crate::failure::Failure;
use crate::progress;
use crate::render::Output;
use mooncrate::{DrainMode, DrainStat, Store};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_wire::clock::boottime;
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn run(args: &Drain, settings: &Settings, out: Output) -> Result<(), Failure> {
    let store = connect_as(settings, true)?;
    let (node, segment) = place(&args.node, args.segment);
    let mode = if args.drop { DrainMode::Drop } else { DrainMode::Move };
    let begun = store.drain(node, segment, mode).map_err(failed)?;
    let mut stat = begun.ok_or_else(|| no_such_node(&args.node))?;
    let before = boottime();
    if args.wait {
        stat = wait(&store, node, segment, stat)?;
    }
    out.drained(&args.node, &stat, boottime().since(before))?;
    if args.wait && !stat.drained() {
        return Err(Failure::failed(format!("{} was not drained", args.node))
            .hint("its drain was ended, or its master is a new one: drain it again"));
    }
    Ok(())
}

pub(super) fn undo(args: &Undrain, settings: &Settings, out: Output) -> Result<(), Failure> {
    let (node, segment) = place(&args.node, args.segment);
    let ended = connect_as(settings, true)?.undrain(node, segment).map_err(failed)?;
    let stat = ended.ok_or_else(|| no_such_node(&args.node))?;
    out.drained(&args.node, &stat, Duration::ZERO)
}

fn place(node: &str, index: Option<u16>) -> (NodeId, Option<SegmentId>) {
    let node = NodeId::named(node);
    (node, index.map(|index| SegmentId::of(node, index)))
}

/// Follows a drain to its end; the last that was seen of it.
fn wait(
    store: &Store,
    node: NodeId,
    segment: Option<SegmentId>,
    mut last: DrainStat,
) -> Result<DrainStat, Failure> {
    let bar = progress::bar("draining", last.start_bytes);
    for stat in store.drain_progress(node, segment, LOOK) {
        last = stat.map_err(failed)?;
        bar.set_position(last.start_bytes.saturating_sub(last.left_bytes));
        if last.stuck > 0 {
            bar.set_message(format!(
                "draining ({} stuck: no room elsewhere, or leased)",
                last.stuck
            ));
        }
    }
    bar.finish_and_clear();
    Ok(last)
}

fn no_such_node(name: &str) -> Failure {
    Failure::failed(format!("no node `{name}` is mounted, or not that segment of it"))
        .hint("`mooncrate stat` shows what is; the name is the one given by --node-name")
}
