//! One fault: begun, held for its time, ended. What ends it is decided when it begins, so that nothing
//! is left behind.

use crate::chaos::dice::{Dice, now};
use crate::chaos::fleet::{CLIENTS, Fleet, NODES, end};
use crate::chaos::flood::flood;
use crate::chaos::kinds::{Act, Kind, On};
use crate::chaos::net::{Host, Net};
use crate::chaos::proxy::{Mode, Proxy};
use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::net::SocketAddr;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Port of a proxy beside the server that it stands in front of.
const PROXY_PORT: u16 = 7499;
const LEAVE_MAX: Duration = Duration::from_secs(10);

/// A fault that is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) kind: Kind,
    /// Which node or client.
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
        Self {
            kind,
            target: dice.below(if kind.on == On::Client { CLIENTS } else { NODES } as u64) as usize,
            peer: dice.below(CLIENTS as u64) as usize,
            begins: Duration::from_millis(dice.below(300)),
            lasts: Duration::from_millis(least + dice.below(most - least + 1)),
        }
    }

    /// Whether both hit the same process.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        self.kind.on == other.kind.on && (self.kind.on == On::Master || self.target == other.target)
    }
}

/// How a fault is ended.
#[derive(Debug)]
enum Undo {
    Start,
    /// The same; the start after it has the right time again.
    StartShifted,
    Continue,
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
    pub(crate) fn begin(planned: Planned, fleet: &mut Fleet, seed: u64) -> Result<Self> {
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
                fleet.master.clock = 0;
                fleet.nodes.iter_mut().for_each(|node| node.clock = 0);
            }
            Undo::Continue => signal(kind.on, target, fleet, Signal::CONT),
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
            let server =
                if on == On::Master { &mut fleet.master } else { &mut fleet.nodes[target] };
            server.clock = seconds;
            Undo::StartShifted
        }
        Act::Stop => {
            signal(on, target, fleet, Signal::STOP);
            Undo::Continue
        }
        Act::Leave => {
            let server =
                if on == On::Master { &mut fleet.master } else { &mut fleet.nodes[target] };
            if !server.leave(LEAVE_MAX) {
                let what = format!("{} did not end well on SIGTERM", server.host.name);
                fleet.findings.push(what);
            }
            Undo::Start
        }
        Act::Remount => {
            let forerunner = fleet.nodes[target].child.take().context("the node runs")?;
            fleet.other_port(target)?;
            fleet.start_node(target)?;
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

/// The rules of a fault in the packet filter of its host.
fn rules(planned: Planned, fleet: &Fleet) -> Vec<String> {
    let Planned { kind: Kind { on, act, .. }, target, peer, .. } = planned;
    let port = address(on, target, fleet).port();
    match act {
        Act::Cut { peer: with, from_peer, to_peer } => {
            let other = match with {
                On::Client => fleet.clients[peer].host.address,
                _ => fleet.master.host.address,
            };
            let from = from_peer.then(|| format!("in ip saddr {other} drop"));
            let to = to_peer.then(|| format!("out ip daddr {other} drop"));
            from.into_iter().chain(to).collect()
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
        On::Master => &fleet.master.host,
    }
}

fn address(on: On, target: usize, fleet: &Fleet) -> SocketAddr {
    let server = if on == On::Node { &fleet.nodes[target] } else { &fleet.master };
    SocketAddr::from((server.host.address, server.port))
}

fn kill(on: On, target: usize, fleet: &mut Fleet) {
    match on {
        On::Node => fleet.nodes[target].kill(),
        On::Master => fleet.master.kill(),
        On::Client => {
            let client = &mut fleet.clients[target];
            client.kill();
            let last = client.seen().line;
            fleet.departed.push(last);
        }
    }
}

fn start(on: On, target: usize, fleet: &mut Fleet) -> Result<()> {
    match on {
        On::Node => fleet.start_node(target),
        On::Master => fleet.start_master(),
        On::Client => {
            fleet.clients[target] = fleet.new_client(target)?;
            Ok(())
        }
    }
}

fn signal(on: On, target: usize, fleet: &Fleet, signal: Signal) {
    match on {
        On::Node => fleet.nodes[target].signal(signal),
        On::Master => fleet.master.signal(signal),
        On::Client => fleet.clients[target].signal(signal),
    }
}
