//! The kinds of faults, as a table: what is hit, for how long, and what it needs.

use crate::chaos::proxy::Mode;
use std::time::Duration;

/// What a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Node,
    Client,
    /// The master; of several, the one that leads when the fault begins.
    Master,
    /// One of those that do not.
    Standby,
    /// All members of etcd.
    Etcd,
    /// One of them.
    EtcdMember,
}

impl On {
    /// Whether it is of those that decide who leads.
    pub(crate) fn governs(self) -> bool {
        !matches!(self, Self::Node | Self::Client)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// kill -9, and a new start when the fault ends.
    Kill,
    /// kill -9, and a new start with a wall clock that is so many seconds off.
    Clock(i32),
    /// SIGSTOP, and SIGCONT when the fault ends.
    Stop,
    /// SIGTERM, and a new start.
    Leave,
    /// kill -9, a start without its disk, and another one with it when the fault ends.
    DiskOut,
    /// kill -9, and a new start without the state that it had written.
    Forget,
    /// Bytes change in its memory.
    Flip,
    /// A second process of the same name mounts while the first still serves.
    Remount,
    /// No file descriptor is left to it.
    Descriptors,
    /// Ten thousand connections; with half a hello, or without.
    Flood { hello: bool },
    /// What passes its port is spoiled.
    Proxy(Mode),
    /// Packets vanish between it and a peer.
    Cut { peer: On, from_peer: bool, to_peer: bool },
    /// Connections are made and then nothing arrives.
    HalfOpen,
    /// Thirty packets of a hundred vanish.
    Loss,
    /// It sends one megabit a second.
    Slow,
    /// Every packet to its port is answered with a reset.
    Reset,
}

/// What a machine and a run allow, and a kind of fault needs.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "five facts that have nothing to do with each other"
)]
pub(crate) struct Means {
    /// Network namespaces.
    pub(crate) private: bool,
    /// libfaketime.
    pub(crate) clock: bool,
    /// Several masters.
    pub(crate) several: bool,
    /// One master.
    pub(crate) alone: bool,
    /// Time for faults that outlast a registration, so they come seldom.
    pub(crate) long: bool,
}

impl Means {
    pub(crate) const NONE: Self =
        Self { private: false, clock: false, several: false, alone: false, long: false };
}

/// One kind of fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) on: On,
    pub(crate) act: Act,
    /// Shortest and longest time, in milliseconds.
    pub(crate) ms: (u64, u64),
    pub(crate) needs: Means,
}

const fn kind(name: &'static str, on: On, act: Act, ms: (u64, u64)) -> Kind {
    Kind { name, on, act, ms, needs: Means::NONE }
}

const fn clock(name: &'static str, on: On, seconds: i32) -> Kind {
    let needs = Means { clock: true, ..Means::NONE };
    Kind { needs, ..kind(name, on, Act::Clock(seconds), (200, 1500)) }
}

const fn private(name: &'static str, on: On, act: Act, ms: (u64, u64)) -> Kind {
    Kind { needs: Means { private: true, ..Means::NONE }, ..kind(name, on, act, ms) }
}

const fn several(kind: Kind) -> Kind {
    Kind { needs: Means { several: true, ..kind.needs }, ..kind }
}

const fn alone(kind: Kind) -> Kind {
    Kind { needs: Means { alone: true, ..kind.needs }, ..kind }
}

const fn long(kind: Kind) -> Kind {
    Kind { needs: Means { long: true, ..kind.needs }, ..kind }
}

const fn cut(peer: On, from_peer: bool, to_peer: bool) -> Act {
    Act::Cut { peer, from_peer, to_peer }
}

/// Long enough that a master gives a silent node up: 20 s and the guard.
const LONG: (u64, u64) = (23_000, 25_000);
/// As long as a machine takes to start again.
const AWAY: (u64, u64) = (60_000, 62_000);
const SHORT: (u64, u64) = (500, 2500);
/// Longer than the lease of a leader in etcd (2 s), so that another one is elected.
const DEPOSED: (u64, u64) = (3000, 6000);
const DELAY: Mode = Mode::Delay(Duration::from_millis(60));

/// All kinds.
pub(crate) const KINDS: &[Kind] = &[
    kind("kill-node", On::Node, Act::Kill, (200, 1500)),
    kind("kill-client", On::Client, Act::Kill, (100, 500)),
    kind("kill-master", On::Master, Act::Kill, (200, 1500)),
    kind("stop-node", On::Node, Act::Stop, (500, 3000)),
    long(kind("stop-node-long", On::Node, Act::Stop, LONG)),
    kind("stop-client", On::Client, Act::Stop, (1500, 4000)),
    kind("stop-master", On::Master, Act::Stop, (500, 3000)),
    kind("leave-node", On::Node, Act::Leave, (100, 500)),
    kind("leave-master", On::Master, Act::Leave, (100, 500)),
    kind("remount-node", On::Node, Act::Remount, (500, 1500)),
    kind("disk-out-node", On::Node, Act::DiskOut, (2000, 5000)),
    kind("flip-node", On::Node, Act::Flip, SHORT),
    long(alone(kind("forget-master", On::Master, Act::Forget, (200, 1500)))),
    long(alone(kind("away-master-long", On::Master, Act::Kill, AWAY))),
    clock("clock-back-node", On::Node, -3600),
    clock("clock-ahead-node", On::Node, 3600),
    clock("clock-back-master", On::Master, -3600),
    kind("descriptors-node", On::Node, Act::Descriptors, (1000, 2500)),
    kind("flood-node", On::Node, Act::Flood { hello: false }, (4000, 6000)),
    kind("flood-master", On::Master, Act::Flood { hello: true }, (4000, 6000)),
    kind("control-delay", On::Master, Act::Proxy(DELAY), SHORT),
    kind("control-flip", On::Master, Act::Proxy(Mode::Flip(20)), SHORT),
    kind("control-truncate", On::Master, Act::Proxy(Mode::Truncate(50)), SHORT),
    kind("control-repeat", On::Master, Act::Proxy(Mode::Repeat(50)), SHORT),
    kind("control-silence", On::Master, Act::Proxy(Mode::Silence), SHORT),
    kind("control-no-replies", On::Master, Act::Proxy(Mode::SilenceReplies), SHORT),
    private("data-delay", On::Node, Act::Proxy(DELAY), SHORT),
    private("data-flip", On::Node, Act::Proxy(Mode::Flip(4)), SHORT),
    private("data-truncate", On::Node, Act::Proxy(Mode::Truncate(10)), SHORT),
    private("data-repeat", On::Node, Act::Proxy(Mode::Repeat(10)), SHORT),
    private("data-slow", On::Node, Act::Proxy(Mode::Slow(1 << 20)), SHORT),
    private("data-no-replies", On::Node, Act::Proxy(Mode::SilenceReplies), SHORT),
    private("cut-client-node", On::Node, cut(On::Client, true, true), SHORT),
    private("cut-client-to-node", On::Node, cut(On::Client, true, false), SHORT),
    private("cut-node-to-client", On::Node, cut(On::Client, false, true), SHORT),
    private("cut-node-master", On::Node, cut(On::Master, true, true), SHORT),
    private("cut-node-to-master", On::Node, cut(On::Master, false, true), SHORT),
    private("cut-master-to-node", On::Node, cut(On::Master, true, false), SHORT),
    private("cut-client-master", On::Client, cut(On::Master, true, true), SHORT),
    private("cut-client-to-master", On::Client, cut(On::Master, false, true), SHORT),
    private("cut-master-to-client", On::Client, cut(On::Master, true, false), SHORT),
    long(private("cut-node-master-long", On::Node, cut(On::Master, true, true), LONG)),
    private("half-open-node", On::Node, Act::HalfOpen, SHORT),
    private("half-open-master", On::Master, Act::HalfOpen, SHORT),
    private("loss-node", On::Node, Act::Loss, SHORT),
    private("loss-master", On::Master, Act::Loss, SHORT),
    private("slow-node", On::Node, Act::Slow, SHORT),
    private("reset-node", On::Node, Act::Reset, SHORT),
    several(kind("stop-leader", On::Master, Act::Stop, DEPOSED)),
    several(kind("kill-standby", On::Standby, Act::Kill, (200, 1500))),
    several(kind("stop-standby", On::Standby, Act::Stop, (500, 3000))),
    several(kind("kill-etcd", On::Etcd, Act::Kill, (500, 4000))),
    several(kind("stop-etcd", On::Etcd, Act::Stop, DEPOSED)),
    several(kind("kill-etcd-member", On::EtcdMember, Act::Kill, (500, 3000))),
    several(kind("stop-etcd-member", On::EtcdMember, Act::Stop, (500, 3000))),
    several(private("cut-leader-etcd", On::Master, cut(On::Etcd, true, true), DEPOSED)),
    several(private("cut-leader-to-etcd", On::Master, cut(On::Etcd, false, true), DEPOSED)),
    several(private("cut-etcd-to-leader", On::Master, cut(On::Etcd, true, false), DEPOSED)),
    several(private("cut-standby-etcd", On::Standby, cut(On::Etcd, true, true), DEPOSED)),
];

/// The kinds that are possible and wanted; an unknown name is an error.
pub(crate) fn choose(wanted: &[String], means: Means) -> anyhow::Result<Vec<Kind>> {
    for name in wanted {
        if !KINDS.iter().any(|kind| kind.name == name) {
            let all: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            anyhow::bail!("no kind '{name}'; there are: {}", all.join(" "));
        }
    }
    let asked = |kind: &Kind| wanted.iter().any(|name| name == kind.name);
    let able = |kind: &Kind| {
        // Several masters on loopback have no proxy before them.
        let proxied = means.private || !means.several || !matches!(kind.act, Act::Proxy(_));
        (means.private || !kind.needs.private)
            && (means.clock || !kind.needs.clock)
            && (means.several || !kind.needs.several)
            && (means.alone || !kind.needs.alone)
            && proxied
    };
    let fitting = |kind: &Kind| wanted.is_empty() && (means.long || !kind.needs.long);
    let chosen = KINDS.iter().filter(|kind| able(kind) && (asked(kind) || fitting(kind)));
    Ok(chosen.copied().collect())
}
