//! `failover`: three masters on a real etcd lose their leader again and again, by SIGKILL and by
//! SIGSTOP; how long until a put is accepted, and what happens to readers meanwhile.
//!
//! ```text
//!   round:  settle ─ signal the leader ─ put_start until one is accepted ─ read every key
//!              │            └ readers with remembered locators, over shared memory and TCP ┘
//!              └ SIGSTOP: requests wait in the sockets of the stopped leader; it is woken and asked
//! ```
//!
//! What must stay true: the processes are the real ones; the clock starts before the signal; an
//! answer of an old leader counts as accepted unless it says "not the leader".

mod cluster;

use crate::machine::Machine;
use crate::render;
use anyhow::{Context, Result, bail};
use cluster::{Cluster, KEYS, key, value};
use hdrhistogram::Histogram;
use mooncrate::Store;
use mooncrate_core::LeaderEpoch;
use mooncrate_core::plan::PutConfig;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Locate, PutItem, PutRevokeItem, PutStart, Remove, Reply, Request};
use mooncrate_wire::{
    Address, Hello, Link, LinkConfig, LinkKind, MasterApi, MasterLink, MasterPools, PoolConfig,
    RefusalCode, Role,
};
use rustix::process::Signal;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest wait for a new leader; beyond, the round has failed.
const ROUND_MAX: Duration = Duration::from_mins(1);
/// Deadline of each `put_start`, as a client has it.
const CALL: Duration = Duration::from_secs(5);
/// How long a woken leader is asked, and how often.
const ASKS: u32 = 50;
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// What the rounds of one kind showed.
struct Tally {
    kind: &'static str,
    times: Histogram<u64>,
    /// Answers of an old leader that were not refusals, and how many it gave.
    accepted: u64,
    asked: u64,
    reads: Reads,
    readable: u64,
    keys: u64,
}

#[derive(Default)]
struct Reads {
    good: AtomicU64,
    failed: AtomicU64,
    wrong: AtomicU64,
}

/// Runs the rounds and prints the table.
pub(crate) fn run(rounds: u32) -> Result<()> {
    let mut cluster = Cluster::start()?;
    let stores = [cluster.connect(true)?, cluster.connect(false)?];
    for n in 0..KEYS {
        cluster::patiently("a put", || stores[0].put(&key(n), &value(n)))?;
    }
    let mut tallies = Vec::new();
    for (kind, signal) in [("SIGKILL", Signal::KILL), ("SIGSTOP", Signal::STOP)] {
        let mut tally = Tally::new(kind)?;
        for round in 1..=rounds {
            cluster.settle()?;
            let took = one_round(&mut cluster, &stores, signal, &mut tally)
                .with_context(|| format!("{kind}, round {round}"))?;
            tally.times.record(took.as_micros() as u64)?;
            render::note(&format!("{kind} {round}/{rounds}: {} ms", took.as_millis()));
        }
        tallies.push(tally);
    }
    render::say(&Machine::read().line())?;
    for tally in &tallies {
        render::say(&tally.line())?;
    }
    let wrong: u64 = tallies.iter().map(|tally| tally.accepted + tally.reads.wrong()).sum();
    if wrong > 0 {
        bail!("{wrong} answers of an old leader were accepted, or reads were wrong");
    }
    Ok(())
}

fn one_round(
    cluster: &mut Cluster,
    stores: &[Store; 2],
    signal: Signal,
    tally: &mut Tally,
) -> Result<Duration> {
    for store in stores {
        // Locators that are live when the leader goes.
        read_all(store, &Reads::default());
    }
    let (old, epoch) = cluster.leader()?;
    let address = cluster.addresses.all()[old].clone();
    let prober = prober(cluster);
    // A link at rest to the leader that is about to go, as every client has one.
    prober.ping(boottime().deadline_in(CALL))?;
    let mut queued = mutations().iter().map(|_| link(&address)).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let began = boottime();
    cluster.signal(old, signal)?;
    let took = std::thread::scope(|scope| {
        for store in stores {
            let (stop, reads) = (&stop, &tally.reads);
            scope.spawn(move || read_until(store, reads, stop));
        }
        let accepted = first_put(&prober, epoch);
        // Relaxed: a flag that orders nothing.
        stop.store(true, Ordering::Relaxed);
        accepted.map(|()| boottime().since(began))
    })?;
    if signal == Signal::STOP {
        let deadline = boottime().deadline_in(ROUND_MAX);
        for (link, request) in queued.iter_mut().zip(&mutations()) {
            link.send(request, deadline)?;
        }
        cluster.signal(old, Signal::CONT)?;
        for link in &mut queued {
            tally.judge(&link.recv(deadline)?.1, epoch);
        }
        ask_the_old(&address, epoch, tally)?;
    } else {
        cluster.restart(old)?;
    }
    let fresh = cluster.connect(false)?;
    for n in 0..KEYS {
        let found = cluster::patiently("a key", || fresh.get(&key(n)))?;
        tally.readable += u64::from(found.as_deref() == Some(&value(n)[..]));
        tally.keys += 1;
    }
    Ok(took)
}

fn prober(cluster: &Cluster) -> MasterLink {
    let hello = Hello::new(Role::Client, LinkKind::Control, "failover");
    MasterLink::new(MasterPools::new(&cluster.addresses, &hello, &PoolConfig::default()))
}

/// Asks for room until somebody other than the leader of `old` grants it.
fn first_put(prober: &MasterLink, old: LeaderEpoch) -> Result<()> {
    let end = boottime().deadline_in(ROUND_MAX);
    for attempt in 0_u64.. {
        // Another name each time: an attempt whose answer was lost is not in the way of the next.
        let name = format!("probe/{}/{attempt}", end.0);
        let item = PutItem::new(name.as_bytes(), 1000);
        let now = boottime();
        let asked = prober.put_start(&PutConfig::default(), &[item], now.deadline_in(CALL));
        match asked.map(|mut plans| plans.pop()) {
            Ok(Some(Ok(plan))) if plan.epoch > old => {
                let revoke = PutRevokeItem { key: name.as_bytes(), token: plan.token };
                let _ = prober.put_revoke(&[revoke], boottime().deadline_in(CALL));
                return Ok(());
            }
            // Granted before the signal arrived.
            Ok(Some(Ok(_))) => {}
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
        if end.passed(boottime()) {
            break;
        }
    }
    bail!("no put was accepted in {ROUND_MAX:?}")
}

fn read_until(store: &Store, reads: &Reads, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        read_all(store, reads);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read_all(store: &Store, reads: &Reads) {
    for n in 0..KEYS {
        let counter = match store.get(&key(n)) {
            Ok(Some(found)) if found == value(n) => &reads.good,
            Ok(Some(_)) => &reads.wrong,
            Ok(None) | Err(_) => &reads.failed,
        };
        // Relaxed: counters order nothing.
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What an old leader must not do any more: reserve, remove, lease.
fn mutations() -> Vec<Request<'static>> {
    let put = PutItem::new(b"zombie", 10);
    vec![
        Request::PutStart(PutStart {
            config: Cow::Owned(PutConfig::default()),
            items: Cow::Owned(vec![put]),
        }),
        Request::Remove(Remove { force: true, keys: Cow::Owned(vec![&b"nobody"[..]]) }),
        Request::Locate(Locate { lease_ms: 5000, keys: Cow::Owned(vec![&b"failover/1"[..]]) }),
    ]
}

fn link(address: &Address) -> Result<Link> {
    let hello = Hello::new(Role::Client, LinkKind::Control, "failover");
    Ok(Link::connect(address, &hello, &LinkConfig::default(), boottime().deadline_in(CALL))?)
}

/// Goes on asking a woken leader for a second.
fn ask_the_old(address: &Address, epoch: LeaderEpoch, tally: &mut Tally) -> Result<()> {
    let mut link = link(address)?;
    for _ in 0..ASKS {
        for request in &mutations() {
            let deadline = boottime().deadline_in(CALL);
            link.send(request, deadline)?;
            tally.judge(&link.recv(deadline)?.1, epoch);
        }
        std::thread::sleep(ASK_PAUSE);
    }
    Ok(())
}

impl Tally {
    fn new(kind: &'static str) -> Result<Self> {
        Ok(Self {
            kind,
            times: Histogram::new(3)?,
            accepted: 0,
            asked: 0,
            reads: Reads::default(),
            readable: 0,
            keys: 0,
        })
    }

    /// Counts an answer of the old leader. A plan under a later epoch is that of a leader who was
    /// elected again, which is no old one.
    fn judge(&mut self, reply: &Reply, old: LeaderEpoch) {
        self.asked += 1;
        let refused = match reply {
            Reply::Refuse(refusal) => refusal.code == RefusalCode::NotLeader,
            Reply::PutStart(plans) => {
                plans.iter().all(|plan| plan.as_ref().is_ok_and(|plan| plan.epoch > old))
            }
            _ => false,
        };
        self.accepted += u64::from(!refused);
    }

    fn line(&self) -> String {
        let ms = |quantile: f64| self.times.value_at_quantile(quantile) / 1000;
        let Reads { good, failed, .. } = &self.reads;
        let (good, failed) = (good.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
        let wrong = self.reads.wrong();
        let total = good + failed + wrong;
        format!(
            "{}: {} rounds; first accepted put p50 {} ms, p99 {} ms, max {} ms; old leader accepted \
             {} of {} requests; reads meanwhile {good} of {total} good ({} %), {wrong} wrong; \
             keys readable afterwards {} of {}",
            self.kind,
            self.times.len(),
            ms(0.5),
            ms(0.99),
            self.times.max() / 1000,
            self.accepted,
            self.asked,
            percent(good, total),
            self.readable,
            self.keys,
        )
    }
}

/// Rounded down, so that one failure in a million is not called 100 %.
fn percent(part: u64, whole: u64) -> String {
    let thousandths = part * 100_000 / whole.max(1);
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

impl Reads {
    fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }
}
