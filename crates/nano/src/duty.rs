//! The threads of a rank: one for heartbeats, one for orders and for what waits to be freed.

use crate::cache::{MOUNT, Shared, node_name, segment_of};
use crate::error::NanoError;
use mooncrate_core::plan::{Evidence, SegmentOffer};
use mooncrate_core::{HostId, NodeId, ZoneId};
use mooncrate_heap::{Rank, Ranks};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::{Announce, Heartbeat, Mount, NodeInfo, Orders, Unmount};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a call to the master may take beyond what it waits there.
const CALL_TIME: Duration = Duration::from_secs(2);
/// Pause after a master that did not answer.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Duty {
    stopping: Arc<Stopping>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stopping {
    set: AtomicBool,
    nap: Mutex<()>,
    wake: Condvar,
}

impl Stopping {
    fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    fn rest(&self, pause: Duration) {
        let mut nap = self.nap.lock();
        if !self.is_set() {
            let _ = self.wake.wait_for(&mut nap, pause);
        }
    }
}

impl Duty {
    /// Mounts the rank's heap and starts its threads.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, NanoError> {
        mount(shared)?;
        let stopping = Arc::<Stopping>::default();
        let mut duty = Self { stopping: Arc::clone(&stopping), threads: Vec::new() };
        for (name, work) in [("nano-heart", beat as fn(&Shared, &Stopping)), ("nano-hands", obey)] {
            let (shared, stopping) = (Arc::clone(shared), Arc::clone(&stopping));
            let thread = Builder::new().name(name.into()).spawn(move || {
                work(&shared, &stopping);
                if name == "nano-hands" {
                    unmount(&shared, shared.reach.heap().rank());
                }
            });
            duty.threads.push(thread.map_err(NanoError::Thread)?);
        }
        Ok(duty)
    }

    /// Ends the threads. Again, it does nothing.
    pub(crate) fn end(&mut self) {
        self.stopping.set.store(true, Ordering::Release);
        drop(self.stopping.nap.lock());
        self.stopping.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.end();
    }
}

fn node(shared: &Shared) -> NodeId {
    NodeId::named(&node_name(shared.reach.heap().rank()))
}

/// Offers the heap, empty.
fn mount(shared: &Shared) -> Result<(), NanoError> {
    let (rank, medium) = (shared.reach.heap().rank(), shared.reach.medium());
    let (host, zone) = (HostId(0), ZoneId(0));
    let name = node_name(rank);
    let info =
        NodeInfo { node: node(shared), name, tcp: String::new(), unix: String::new(), host, zone };
    let segment = segment_of(medium, rank);
    let offer = SegmentOffer {
        segment,
        incarnation: MOUNT,
        node: info.node,
        medium,
        bytes: shared.layout.payload().len(),
        slots: shared.layout.slots(),
        host,
        zone,
        tenant: None,
        evidence: Evidence::default(),
    };
    let mount = Mount {
        info,
        seen: mooncrate_core::LeaderEpoch(0),
        offers: vec![offer],
        fence_ms: None,
        draining: Vec::new(),
    };
    let mounted = shared.master.mount(&mount, shared.deadline())??;
    let (epoch, page) = (mounted.epoch, Vec::new());
    let all = Announce { epoch, segment, incarnation: MOUNT, page, last: true };
    shared.master.announce(all, shared.deadline())??;
    Ok(())
}

/// Takes the heap of a rank out of the cluster: its own, or that of one whose process has ended.
fn unmount(shared: &Shared, rank: Rank) {
    let segment = segment_of(shared.reach.medium(), rank);
    let unmount =
        Unmount { node: NodeId::named(&node_name(rank)), segments: vec![(segment, MOUNT)] };
    let _ = shared.master.unmount(&unmount, boottime().deadline_in(CALL_TIME));
}

/// Heartbeats, for as long as the rank lives.
fn beat(shared: &Shared, stopping: &Stopping) {
    let heartbeat = Heartbeat { node: node(shared), incarnation: MOUNT };
    while !stopping.is_set() {
        match shared.master.heartbeat(&heartbeat, boottime().deadline_in(CALL_TIME)) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the master refuses this rank"),
            Err(error) => tracing::warn!(%error, "no heartbeat"),
        }
        stopping.rest(shared.config.heartbeat);
    }
}

/// Orders, and what waits to be freed.
fn obey(shared: &Shared, stopping: &Stopping) {
    let (mut notices, mut ended) = (Vec::new(), Ranks::default());
    while !stopping.is_set() {
        let gone = (shared.gone)();
        if shared.reach.heap().rank() == Rank::HUB {
            // The master waits for a rank that is stopped, so somebody tells it of one that is dead.
            gone.without(ended).iter().for_each(|rank| unmount(shared, rank));
            ended = gone;
        }
        // With nothing that waits, orders may take their time; they come as soon as they are there.
        let waiting = shared.owner.waiting() > 0 || !notices.is_empty();
        let wait = if waiting { Duration::ZERO } else { shared.config.heartbeat / 5 };
        let ask = Orders {
            node: node(shared),
            notices: std::mem::take(&mut notices),
            copied: Vec::new(),
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
        };
        let until = boottime().deadline_in(wait + CALL_TIME);
        let Ok(Ok(batch)) = shared.master.orders(&ask, until) else {
            // The notices are lost without harm: the master repeats its orders, and the answers repeat.
            stopping.rest(PAUSE);
            continue;
        };
        let done = shared.owner.execute(boottime(), batch.epoch, &batch.orders);
        let ticked = shared.owner.tick(boottime(), gone);
        for told in [done, ticked] {
            match told {
                Ok(told) => notices.extend(told),
                Err(error) => tracing::error!(%error, "orders could not be carried out"),
            }
        }
        shared.tend_late();
        if waiting && notices.is_empty() {
            stopping.rest(shared.config.tick);
        }
    }
}
