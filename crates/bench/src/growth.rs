//! Control calls on a small and on a large master: what a caller notices of ten million objects.

use crate::effort::Effort;
use crate::fleet::{PaperNode, VALUE_BYTES};
use crate::index::{growth_columns, growth_row};
use crate::measure::{Lap, Series, take_turns};
use crate::peer::{Peer, patient, until_the_end};
use crate::render::{count, note};
use crate::report::Table;
use crate::workload::{BenchKey, key};
use anyhow::{Context, Result, ensure};
use mooncrate::{Address, MasterOptions, run_master};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::PutConfig;
use mooncrate_core::rng::Rng;
use mooncrate_core::time::Deadline;
use mooncrate_core::{LeaderEpoch, Seal, TenantId};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::{Announce, Mount, PutEndItem, PutItem, SealList};
use mooncrate_wire::{Hello, LinkKind, LinkPool, MasterApi, MasterLink, NodeApi, PoolConfig, Role};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest time of one call.
const CALL_TIME: Duration = Duration::from_secs(10);
/// Keys of a large call.
const MANY: usize = 128;
/// Numbers of keys that no index has.
const FRESH: u64 = 1 << 40;

/// A client of a master that listens at `address`.
pub(crate) fn master_at(address: &str) -> Result<MasterLink> {
    let address: Address = address.parse().map_err(anyhow::Error::msg)?;
    let hello = Hello::new(Role::Client, LinkKind::Control, "bench");
    Ok(MasterLink::new(LinkPool::new(address, hello, PoolConfig::default())))
}

/// The end of a call that starts now.
pub(crate) fn soon() -> Deadline {
    boottime().deadline_in(CALL_TIME)
}

/// A master with so many objects.
struct Target {
    link: MasterLink,
    objects: u64,
    rng: Rng,
    next: u64,
    _peer: Peer,
}

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let objects = effort.index_objects;
    let ends = [objects[0], objects[objects.len() - 1]];
    // Nothing hides what the size adds.
    let together = effort.cores.together();
    together.enter()?;
    let start = |objects: u64| -> Result<Target> {
        note(&format!("growth: filling a master with {} objects", count(objects)));
        let peer =
            Peer::start(&together, &["master-for-bench", "--objects", &objects.to_string()])?;
        let link = master_at(peer.said())?;
        Ok(Target { link, objects, rng: Rng::new(objects), next: FRESH, _peer: peer })
    };
    let (mut small, mut large) = (start(ends[0])?, start(ends[1])?);
    note("growth: calls over a socket");
    let mut rows = Vec::new();
    for (call, keys, name) in [
        (Call::Exist, 1, "exist, 1 key"),
        (Call::Locate, 1, "locate, 1 key"),
        (Call::Locate, MANY, "locate, 128 keys"),
        (Call::PutRemove, 1, "put_start, put_end, remove, 1 key"),
    ] {
        let series: [Series; 2] = take_turns(
            effort,
            [&mut |lap: &mut Lap| small.lap(call, keys, lap), &mut |lap: &mut Lap| {
                large.lap(call, keys, lap)
            }],
        )?;
        rows.push(growth_row(name, &ends, &series));
    }
    Ok(vec![Table {
        name: "growth",
        title: "Cost per call as the index grows: control calls over TCP, one thread",
        notes: vec![
            "Random keys, one master in a process of its own per size; the node behind it exists \
             on paper only and obeys at once. Caller and master share a core, unless --any-core was \
             given: that is where a call is cheapest and its growth shows most."
                .to_owned(),
        ],
        columns: growth_columns(&ends),
        rows,
    }])
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
enum Call {
    Exist,
    Locate,
    /// Three calls, which leave the index as it was.
    PutRemove,
}

impl Target {
    fn lap(&mut self, call: Call, keys: usize, lap: &mut Lap) -> Result<()> {
        while lap.going() {
            let owned: Vec<BenchKey> =
                (0..keys).map(|_| key(self.rng.below(self.objects))).collect();
            let keys: Vec<&[u8]> = owned.iter().map(|key| &key[..]).collect();
            match call {
                Call::Exist => {
                    let found = lap.time(|| self.link.exist(&keys, soon()))?;
                    ensure!(found.iter().all(|one| *one == Ok(true)), "an object is gone");
                }
                Call::Locate => {
                    let found = lap.time(|| self.link.locate(0, &keys, soon()))?;
                    ensure!(found.iter().all(Result::is_ok), "an object is gone");
                }
                Call::PutRemove => {
                    self.next += 1;
                    let key = key(self.next);
                    lap.time(|| {
                        put(&self.link, &[&key])?;
                        let removed = self.link.remove(false, &[&key], soon())?;
                        ensure!(removed == [Ok(())], "a remove failed: {removed:?}");
                        Ok(())
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Puts objects of which only the index knows.
fn put(master: &impl MasterApi, keys: &[&[u8]]) -> Result<()> {
    let items: Vec<PutItem<'_>> = keys.iter().map(|key| PutItem::new(key, VALUE_BYTES)).collect();
    let plans = master.put_start(&PutConfig::default(), &items, soon())?;
    let seals = SealList::encode(&[Seal(1)]);
    let mut ends = Vec::with_capacity(keys.len());
    for (key, plan) in keys.iter().zip(plans) {
        ends.push(PutEndItem { key, token: plan?.token, seals: SealList::of(&seals) });
    }
    for ended in master.put_end(&ends, soon())? {
        ended?;
    }
    Ok(())
}

/// The peer: a master with so many objects, and a node on paper behind it.
pub(crate) fn serve_master(objects: u64) -> Result<()> {
    let options = MasterOptions {
        listen: Address::Tcp("127.0.0.1:0".into()),
        catalog: patient(),
        ..MasterOptions::default()
    };
    let running = run_master(options)?;
    let master = running.master().context("it was just started")?;
    let paper = Arc::new(PaperNode::new(objects));
    let api: Weak<dyn NodeApi> = Arc::downgrade(&(Arc::clone(&paper) as Arc<dyn NodeApi>));
    master.set_local_node(paper.node(), api);
    let scope = master.scope(TenantId::DEFAULT);
    let (info, offers) = (paper.info(), paper.offers.clone());
    let mount = Mount { info, seen: LeaderEpoch(0), offers, fence_ms: None, draining: Vec::new() };
    let epoch = scope.mount(&mount, soon())??.epoch;
    for offer in &paper.offers {
        let (segment, incarnation) = (offer.segment, offer.incarnation);
        let empty = Announce { epoch, segment, incarnation, page: Vec::new(), last: true };
        scope.announce(empty, soon())??;
    }
    let mut number = 0;
    while number < objects {
        let end = objects.min(number + BATCH_ITEMS_MAX as u64);
        let keys: Vec<BenchKey> = (number..end).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        put(&*scope, &keys)?;
        number = end;
    }
    let address = running.master_address().context("it runs a master")?;
    until_the_end(&address.to_string())
}
