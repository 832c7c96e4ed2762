//! Who is woken by mail, counted; and that nobody waits for it in vain.

use super::*;
use crate::admin::tests::mount_of;
use crate::{Master, MasterConfig, MasterHandler};
use mooncrate_core::error::MountError;
use mooncrate_core::plan::{Action, Notice, OrderResult, PutConfig};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Generation, Incarnation, Seal, SegmentId, Slot, TenantId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Orders, PutEndItem, PutItem, Role, SealList};
use mooncrate_wire::{Answer, Caller, Handler, MasterApi, Peer, Reply, Request};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

const NEVER: Deadline = Deadline::NEVER;
const INCARNATION: Incarnation = Incarnation(7);
/// Longer than anybody waits for a test: a wake-up that was lost is not made up for in time.
const LONG_MS: u32 = 600_000;

fn segment(node: NodeId) -> SegmentId {
    SegmentId::of(node, 0)
}

/// A master and so many nodes that exist on paper, each with one segment.
fn cluster(nodes: u64) -> (Arc<Master>, Vec<NodeId>) {
    let config = MasterConfig::default();
    let master = Master::new(config, LeaderEpoch(3)).unwrap();
    let nodes: Vec<NodeId> = (1..=nodes).map(NodeId).collect();
    for &node in &nodes {
        mount(&master, node);
    }
    (master, nodes)
}

fn mount(master: &Arc<Master>, node: NodeId) {
    let mount = mount_of(node, INCARNATION);
    master.scope(TenantId::DEFAULT).mount(&mount, NEVER).unwrap().unwrap();
    master.open_segment(segment(node), INCARNATION).unwrap();
}

fn put(master: &Arc<Master>, node: NodeId, key: &[u8]) {
    let scope = master.scope(TenantId::DEFAULT);
    let config = PutConfig { preferred: vec![segment(node)], ..PutConfig::default() };
    let plans = scope.put_start(&config, &[PutItem::new(key, 100)], NEVER).unwrap();
    let plan = plans[0].as_ref().unwrap();
    assert_eq!(plan.replicas[0].segment, segment(node));
    let seals = SealList::encode(&[Seal::default()]);
    let end = PutEndItem { key, token: plan.token, seals: SealList::of(&seals) };
    scope.put_end(&[end], NEVER).unwrap().remove(0).unwrap();
}

/// What an owner says that has done as it was told.
fn freed(order: &Order) -> Notice {
    let Order { segment, incarnation, slot, generation, .. } = *order;
    let next = generation.next().unwrap();
    Notice { segment, incarnation, slot, generation, result: OrderResult::Freed { next } }
}

fn ask(node: NodeId, notices: Vec<Notice>) -> Orders {
    Orders { node, notices, copied: Vec::new(), wait_ms: LONG_MS }
}

/// A poll as it comes over a socket.
fn poll(master: &Arc<Master>, node: NodeId, notices: Vec<Notice>) -> Answer {
    let peer =
        Peer { connection: 1, role: Role::Node, tenant: TenantId::DEFAULT, name: String::new() };
    let caller = Caller { peer: &peer, arrived: boottime(), deadline: NEVER };
    MasterHandler(Arc::clone(master)).handle(Request::Orders(ask(node, notices)), caller)
}

/// Counts how often its task is woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A poll that waits, driven by hand: its timers never fire, so whatever wakes it is counted.
struct Waiting {
    reply: Pin<Box<dyn Future<Output = Reply> + Send>>,
    wakes: Arc<Counter>,
}

impl Waiting {
    fn at(master: &Arc<Master>, node: NodeId) -> Self {
        let Answer::Later(reply) = poll(master, node, Vec::new()) else { panic!("it has mail") };
        let mut waiting = Self { reply, wakes: Arc::default() };
        assert!(waiting.look().is_none());
        waiting
    }

    fn look(&mut self) -> Option<OrderBatch> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.reply.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Reply::Orders(batch)) => Some(batch.unwrap()),
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => None,
        }
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

/// The story: each order woke the polls of all nodes, and so did each word of an owner: with 200 nodes
/// that were 200 tasks for one remove.
#[test]
fn an_order_wakes_the_poll_of_its_node_and_no_other() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _timers = runtime.enter();
    for count in [1, 20, 200] {
        let (master, nodes) = cluster(count);
        let owner = nodes[nodes.len() / 2];
        put(&master, owner, b"key");
        let mut polls: Vec<Waiting> =
            nodes.iter().map(|node| Waiting::at(&master, *node)).collect();
        let wakes = |polls: &[Waiting]| polls.iter().map(Waiting::wakes).sum::<usize>();
        let mut waiting = Vec::new();
        master.start_remove(TenantId::DEFAULT, false, &[b"key"], &mut waiting);
        assert_eq!(waiting.len(), 1);
        assert_eq!(wakes(&polls), 1, "{count} nodes");
        let at = nodes.iter().position(|node| *node == owner).unwrap();
        assert_eq!(polls[at].wakes(), 1);
        let batch = polls[at].look().expect("its order is there");
        assert_eq!(batch.orders.len(), 1);
        assert!(matches!(batch.orders[0].action, Action::Retire { .. }));
        // The owner's word comes with its next poll, and is for whoever waits for the remove.
        polls.remove(at);
        let Answer::Later(_next) = poll(&master, owner, vec![freed(&batch.orders[0])]) else {
            panic!("it has mail")
        };
        assert!(master.check_removed::<()>(&mut waiting, &mut [Ok(())]));
        assert_eq!(wakes(&polls), 0, "{count} nodes");
    }
}

/// Unmounts its nodes when it is dropped, so that whoever obeys for them ends, however the test does: a scope
/// waits for its threads before it tells of a failure.
struct Farewell<'a>(&'a Arc<Master>, &'a [NodeId]);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        for &node in self.1 {
            // Its poll ends, although there is no mail: the node is gone.
            self.0.unmount_segments(node, &[(segment(node), INCARNATION)]);
        }
    }
}

/// Orders, their answers and the looks of polls meet in every order here; a wake-up that were lost would
/// leave its remove waiting for ten minutes.
#[test]
fn nobody_waits_for_mail_in_vain() {
    let (master, nodes) = cluster(4);
    std::thread::scope(|scope| {
        let _farewell = Farewell(&master, &nodes);
        for (n, &node) in nodes.iter().enumerate() {
            let master = &master;
            // Once as threads beside the master, once as tasks behind a socket.
            if n % 2 == 0 {
                scope.spawn(move || obey(master, node));
            } else {
                scope.spawn(move || obey_in_a_task(master, node));
            }
        }
        let limit = boottime().deadline_in(Duration::from_mins(1));
        let api = master.scope(TenantId::DEFAULT);
        for n in 0..400_usize {
            let (key, node) = (n.to_le_bytes(), nodes[n % nodes.len()]);
            put(&master, node, &key);
            let removed = api.remove(false, &[&key], limit).unwrap();
            assert_eq!(removed, [Ok(())], "remove {n}");
        }
    });
    master.audit().unwrap();
}

fn obey(master: &Arc<Master>, node: NodeId) {
    let (api, mut notices) = (master.scope(TenantId::DEFAULT), Vec::new());
    while let Ok(batch) = api.orders(&ask(node, notices), NEVER).unwrap() {
        notices = batch.orders.iter().map(freed).collect();
    }
}

fn obey_in_a_task(master: &Arc<Master>, node: NodeId) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut notices = Vec::new();
    loop {
        let reply = match poll(master, node, notices) {
            Answer::Now(reply) => reply,
            Answer::Later(reply) => runtime.block_on(reply),
        };
        let Reply::Orders(polled) = reply else { panic!("{reply:?}") };
        let Ok(batch) = polled else { return };
        notices = batch.orders.iter().map(freed).collect();
    }
}

/// The story that must not come true: a node mounts again while its last poll waits, its box is made anew,
/// and the poll waits at a bell that nobody rings any more.
#[test]
fn a_poll_is_rung_after_its_node_has_mounted_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _timers = runtime.enter();
    let (master, nodes) = cluster(2);
    let mut waiting = Waiting::at(&master, nodes[0]);
    mount(&master, nodes[0]);
    assert_eq!((waiting.wakes(), waiting.look().is_some()), (0, false));
    put(&master, nodes[0], b"key");
    master.start_remove(TenantId::DEFAULT, false, &[b"key"], &mut Vec::new());
    assert_eq!(waiting.wakes(), 1);
    assert_eq!(waiting.look().expect("its order is there").orders.len(), 1);
}

/// The story: only a farewell emptied the box of a node. One that fell silent left its box, and whoever waited at
/// its bell waited on.
#[test]
fn a_node_that_lapses_is_forgotten_and_its_poll_hears_so() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _timers = runtime.enter();
    let (master, nodes) = cluster(2);
    let [silent, alive] = nodes[..] else { panic!("{nodes:?}") };
    let (mut waiting, other) = (Waiting::at(&master, silent), Waiting::at(&master, alive));
    let mut now = boottime();
    while master.mind().catalog.knows(silent) {
        // Steps that the master does not take for a stall of its own.
        now = now.plus(Duration::from_millis(500));
        master.mind().catalog.heartbeat(now, alive).unwrap();
        master.tick_at(now);
    }
    assert_eq!((waiting.wakes(), other.wakes()), (1, 0));
    let waker = Waker::noop();
    let reply = waiting.reply.as_mut().poll(&mut Context::from_waker(waker));
    let Poll::Ready(Reply::Orders(Err(MountError::UnknownNode))) = reply else {
        panic!("{reply:?}")
    };
    let listed: Vec<NodeId> = master.node_entries().iter().map(|entry| entry.info.node).collect();
    assert_eq!(listed, [alive]);
    master.mind().mail.add_command(silent, NodeCommand::Unmount { index: 0 });
    assert!(master.mind().mail.boxes.keys().eq(&[alive]), "a late order makes no box");
}

#[test]
fn a_full_box_is_handed_out_in_parts_and_rings_once() {
    let (mut mail, node) = (Mail::default(), NodeId(1));
    let order = |slot: usize| Order {
        segment: segment(node),
        incarnation: INCARNATION,
        slot: Slot(slot as u32),
        generation: Generation(1),
        action: Action::Evict,
    };
    let (nothing, bell) = mail.take(node, LeaderEpoch(1));
    assert!(nothing.orders.is_empty());
    for slot in 0..=ORDERS_WAITING_MAX {
        mail.add_order(node, order(slot));
    }
    assert_eq!(bell.of.version(), bell.seen + 1);
    let mut next = 0;
    loop {
        let (batch, _) = mail.take(node, LeaderEpoch(1));
        if batch.orders.is_empty() {
            break;
        }
        assert!(batch.orders.len() <= ORDERS_MAX);
        for told in batch.orders {
            assert_eq!(told, order(next));
            next += 1;
        }
    }
    assert_eq!(next, ORDERS_WAITING_MAX, "one was too many");
    mail.add_order(node, order(0));
    assert_eq!(bell.of.version(), bell.seen + 2, "it was empty again");
}
