//! One fault: begun, held for its time, ended. What ends it is decided when it begins, so that nothing
//! is left behind.

use crate::chaos::dice::{Dice, now};
use crate::chaos::etcd::MEMBERS;
use crate::chaos::fleet::{CLIENTS, Fleet, NODES};
use crate::chaos::flood::flood;
use crate::chaos::kinds::{Act, Kind, On};
use crate::chaos::net::{Host, Net};
use crate::chaos::proxy::{Mode, Proxy};
use crate::chaos::server::{Server, end};
use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Port of a proxy beside the server that it stands in front of.
const PROXY_PORT: u16 = 7499;
/// Bytes that one fault flips, of 24 MiB.
const FLIPS: u64 = 64;
const LEAVE_MAX: Duration = Duration::from_secs(10);

/// A fault that is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) kind: Kind,
    /// Which node or client. Which master is known only when the fault begins: see `aim`.
    pub(crate) target: usize,
    /// Which peer, where there is one.
    pub(crate) peer: usize,
    /// When in its round it begins.
    pub(crate) begins: Duration,
    pub(crate) lasts: Duration,
}

impl Planned {
    /// Draws where, when and how long.
    pub(crate) fn draw(kind: Kind, dice: &mut Dice) -> Self {
        let (least, most) = kind.ms;
        let drawn = dice.below(if kind.on == On::Client { CLIENTS } else { NODES } as u64) as usize;
        Self {
            kind,
            // Nobody maps the memory of the last node: who looks at a view of it has verified a copy.
            target: if kind.act == Act::Flip { NODES - 1 } else { drawn },
            peer: dice.below(CLIENTS as u64) as usize,
            begins: Duration::from_millis(dice.below(300)),
            lasts: Duration::from_millis(least + dice.below(most - least + 1)),
        }
    }

    /// Whether both hit the same process, or both one of those that decide who leads: of these at most
    /// one is in trouble at a time, or nobody could lead and nothing would be tested.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        let (on, with) = (self.kind.on, other.kind.on);
        (on.governs() && with.governs()) || (on == with && self.target == other.target)
    }

    /// Turns who leads, or does not, into the number of a master.
    fn aim(&mut self, fleet: &Fleet) {
        let count = fleet.masters.len();
        // If nobody leads just now, one is as good as the other.
        let leader = || fleet.leader().unwrap_or(self.target % count);
        match self.kind.on {
            On::Master => self.target = leader(),
            On::Standby => self.target = (leader() + 1 + self.target % (count - 1)) % count,
            On::Node | On::Client | On::Etcd | On::EtcdMember => {}
        }
    }
}

/// How a fault is ended.
#[derive(Debug)]
enum Undo {
    Start,
    /// The same; the start after it has the right time again.
    StartShifted,
    Continue,
    /// A start with its disk.
    Disk,
    /// Nothing; what was done.
    Nothing(Effect),
    /// The forerunner of a remounted node.
    KillForerunner(Child),
    /// The descriptor limit as it was.
    Limit(Rlimit),
    Flood(Arc<AtomicBool>, JoinHandle<u64>),
    /// A proxy in front of a port, and the rules that lead there.
    Unproxy(Proxy),
    /// The standing proxy.
    Pass,
    ClearRules,
}

/// A fault that has begun.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) planned: Planned,
    pub(crate) ends: Instant,
    undo: Undo,
}

/// What a fault did, in a few words for its line.
pub(crate) type Effect = String;

impl Active {
    pub(crate) fn begin(mut planned: Planned, fleet: &mut Fleet, seed: u64) -> Result<Self> {
        planned.aim(fleet);
        let undo = begin(planned, fleet, seed)
            .with_context(|| format!("{} could not begin", planned.kind.name))?;
        Ok(Self { planned, ends: now() + planned.lasts, undo })
    }

    /// Ends it; what it did.
    pub(crate) fn end(self, fleet: &mut Fleet) -> Result<Effect> {
        let Planned { kind, target, .. } = self.planned;
        let mut effect = String::new();
        match self.undo {
            Undo::Start => start(kind.on, target, fleet)?,
            Undo::StartShifted => {
                start(kind.on, target, fleet)?;
                let servers = fleet.masters.iter_mut().chain(&mut fleet.nodes);
                servers.for_each(|server| server.clock = 0);
            }
            Undo::Continue => signal(kind.on, target, fleet, Signal::CONT),
            Undo::Disk => {
                fleet.nodes[target].kill();
                fleet.start_node(target)?;
            }
            Undo::Nothing(done) => effect = done,
            Undo::KillForerunner(child) => end(child),
            Undo::Limit(limit) => {
                if let Some(child) = &fleet.nodes[target].child {
                    prlimit(Some(Pid::from_child(child)), Resource::Nofile, limit)?;
                }
            }
            Undo::Flood(stop, thread) => {
                stop.store(true, Ordering::Relaxed);
                let made = thread.join().unwrap_or(0);
                effect = format!("{made} connections");
            }
            Undo::Unproxy(proxy) => {
                fleet.net.clear(host(kind.on, target, fleet))?;
                effect = format!("{} reads spoiled", proxy.spoiled());
            }
            Undo::Pass => {
                if let Some(proxy) = &fleet.control {
                    proxy.set(Mode::Pass);
                    proxy.cut();
                }
            }
            Undo::ClearRules => fleet.net.clear(host(kind.on, target, fleet))?,
        }
        Ok(effect)
    }
}

fn begin(planned: Planned, fleet: &mut Fleet, seed: u64) -> Result<Undo> {
    let Planned { kind: Kind { on, act, .. }, target, peer, .. } = planned;
    Ok(match act {
        Act::Kill => {
            kill(on, target, fleet);
            Undo::Start
        }
        Act::Clock(seconds) => {
            kill(on, target, fleet);
            for server in servers(on, target, fleet) {
                server.clock = seconds;
            }
            Undo::StartShifted
        }
        Act::Stop => {
            signal(on, target, fleet, Signal::STOP);
            Undo::Continue
        }
        Act::Leave => {
            let mut bad = Vec::new();
            for server in servers(on, target, fleet) {
                if !server.leave(LEAVE_MAX) {
                    bad.push(format!("{} did not end well on SIGTERM", server.host.name));
                }
            }
            fleet.findings.extend(bad);
            Undo::Start
        }
        Act::DiskOut | Act::Forget => lose(planned, fleet)?,
        Act::Flip => Undo::Nothing(flip(fleet, planned.target, seed)?),
        Act::Remount => {
            let forerunner = fleet.nodes[target].child.take().context("the node runs")?;
            fleet.other_port(target)?;
            fleet.start_node_with(target, None)?;
            Undo::KillForerunner(forerunner)
        }
        Act::Descriptors => {
            let child = fleet.nodes[target].child.as_ref().context("the node runs")?;
            let open = std::fs::read_dir(format!("/proc/{}/fd", child.id()))?.count() as u64;
            let pid = Some(Pid::from_child(child));
            let old = rustix::process::getrlimit(Resource::Nofile);
            let low = Rlimit { current: Some(open + 1), maximum: old.maximum };
            Undo::Limit(prlimit(pid, Resource::Nofile, low)?)
        }
        Act::Flood { hello } => {
            let target = address(on, target, fleet);
            let from = fleet.clients[peer].host.clone();
            let stop = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&stop);
            let thread = Builder::new()
                .name("flood".into())
                .spawn(move || Net::inside(&from, || flood(target, hello, &told)).unwrap_or(0))?;
            Undo::Flood(stop, thread)
        }
        Act::Proxy(mode) => proxy(on, target, fleet, mode, seed)?,
        Act::Cut { .. } | Act::HalfOpen | Act::Loss | Act::Slow | Act::Reset => {
            let there = host(on, target, fleet);
            if act == Act::Slow {
                fleet.net.slow(there, "1mbit")?;
            } else {
                fleet.net.rules(there, &rules(planned, fleet))?;
            }
            Undo::ClearRules
        }
    })
}

/// A process loses what outlives it: a node its disk, the master its state.
fn lose(planned: Planned, fleet: &mut Fleet) -> Result<Undo> {
    let Planned { kind: Kind { on, act, .. }, target, .. } = planned;
    kill(on, target, fleet);
    if act == Act::Forget {
        std::fs::remove_file(fleet.state()).context("the state of the master")?;
        return Ok(Undo::Start);
    }
    fleet.start_node_with(target, None)?;
    Ok(Undo::Disk)
}

/// Flips a bit in each of many bytes of a node's memory.
fn flip(fleet: &Fleet, target: usize, seed: u64) -> Result<Effect> {
    let child = fleet.nodes[target].child.as_ref().context("the node runs")?;
    let mut dice = Dice::new(seed ^ u64::from(child.id()));
    let mut flipped = 0;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", child.id()))? {
        let path = entry?.path();
        let target = std::fs::read_link(&path).unwrap_or_default();
        if !target.to_string_lossy().contains("mooncrate-payload") {
            continue;
        }
        // Some of its descriptors can only be read.
        let Ok(memory) = File::options().read(true).write(true).open(&path) else { continue };
        let len = memory.metadata()?.len();
        for _ in 0..FLIPS {
            let (at, byte) = (dice.below(len), &mut [0]);
            memory.read_exact_at(byte, at)?;
            memory.write_all_at(&[byte[0] ^ (1 << dice.below(8))], at)?;
            flipped += 1;
        }
        break;
    }
    Ok(format!("{flipped} bytes flipped"))
}

/// The rules of a fault in the packet filter of its host.
fn rules(planned: Planned, fleet: &Fleet) -> Vec<String> {
    let Planned { kind: Kind { on, act, .. }, target, peer, .. } = planned;
    let port = address(on, target, fleet).port();
    match act {
        Act::Cut { peer: with, from_peer, to_peer } => {
            let others: Vec<&Host> = match with {
                On::Client => vec![&fleet.clients[peer].host],
                On::Node => fleet.nodes.iter().map(|node| &node.host).collect(),
                On::Master | On::Standby => fleet.masters.iter().map(|one| &one.host).collect(),
                On::Etcd | On::EtcdMember => {
                    let etcd = fleet.etcd.iter().flat_map(|etcd| &etcd.members);
                    etcd.map(|member| &member.host).collect()
                }
            };
            let rules = others.into_iter().flat_map(|other| {
                let address = other.address;
                let from = from_peer.then(|| format!("in ip saddr {address} drop"));
                let to = to_peer.then(|| format!("out ip daddr {address} drop"));
                from.into_iter().chain(to)
            });
            rules.collect()
        }
        Act::HalfOpen => vec![format!("in tcp dport {port} ct state established drop")],
        Act::Loss => vec!["in numgen random mod 100 < 30 drop".to_owned()],
        Act::Reset => vec![format!("in tcp dport {port} reject with tcp reset")],
        _ => Vec::new(),
    }
}

/// Puts a proxy in front of a port; in a namespace by redirection, else the standing one takes over.
fn proxy(on: On, target: usize, fleet: &Fleet, mode: Mode, seed: u64) -> Result<Undo> {
    if let Some(standing) = &fleet.control {
        standing.set(mode);
        return Ok(Undo::Pass);
    }
    let (there, server) = (host(on, target, fleet), address(on, target, fleet));
    let listen = SocketAddr::from((there.address, PROXY_PORT));
    let proxy = Net::inside(there, || Proxy::start(listen, server, seed))??;
    proxy.set(mode);
    let port = server.port();
    fleet.net.rules(there, &[format!("nat tcp dport {port} redirect to :{PROXY_PORT}")])?;
    // What is connected already would pass by the proxy.
    fleet.net.hang_up(there, port)?;
    Ok(Undo::Unproxy(proxy))
}

fn host(on: On, target: usize, fleet: &Fleet) -> &Host {
    match on {
        On::Node => &fleet.nodes[target].host,
        On::Client => &fleet.clients[target].host,
        On::Master | On::Standby => &fleet.masters[target].host,
        On::Etcd | On::EtcdMember => unreachable!("no fault works in the network of etcd"),
    }
}

fn address(on: On, target: usize, fleet: &Fleet) -> SocketAddr {
    match on {
        On::Node => fleet.nodes[target].address(),
        // Its own port is of no interest.
        On::Client => SocketAddr::from((fleet.clients[target].host.address, 0)),
        _ => fleet.masters[target].address(),
    }
}

/// The servers that a fault hits.
fn servers(on: On, target: usize, fleet: &mut Fleet) -> Vec<&mut Server> {
    match on {
        On::Client => Vec::new(),
        On::Node => vec![&mut fleet.nodes[target]],
        On::Master | On::Standby => vec![&mut fleet.masters[target]],
        On::Etcd => fleet.etcd.iter_mut().flat_map(|etcd| &mut etcd.members).collect(),
        On::EtcdMember => fleet.etcd.iter_mut().map(|etcd| &mut etcd.members[target]).collect(),
    }
}

fn kill(on: On, target: usize, fleet: &mut Fleet) {
    if on == On::Client {
        let client = &mut fleet.clients[target];
        client.kill();
        let last = client.seen().line;
        fleet.departed.push(last);
    }
    for server in servers(on, target, fleet) {
        server.kill();
    }
}

fn start(on: On, target: usize, fleet: &mut Fleet) -> Result<()> {
    match on {
        On::Node => fleet.start_node(target),
        On::Master | On::Standby => fleet.start_master(target),
        On::Etcd => (0..MEMBERS).try_for_each(|member| fleet.start_etcd(member)),
        On::EtcdMember => fleet.start_etcd(target),
        On::Client => {
            fleet.clients[target] = fleet.new_client(target)?;
            Ok(())
        }
    }
}

fn signal(on: On, target: usize, fleet: &mut Fleet, signal: Signal) {
    if on == On::Client {
        fleet.clients[target].signal(signal);
    }
    for server in servers(on, target, fleet) {
        server.signal(signal);
    }
}
