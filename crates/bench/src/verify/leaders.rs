//! `leaders`: watches who leads among several masters, and tempts everybody who leads no longer.
//!
//! ```text
//!   watch  one thread per master: who leads, under which epoch?    ─► the highest epoch that was seen
//!   tempt  one thread per master: another one leads by now ─► reserve! remove! lease! ─► refused?
//! ```
//!
//! A request that is sent after a higher epoch was seen to lead must not be accepted under a lower one,
//! however late it is read: links are open before, so requests also wait in the sockets of a master
//! that was stopped, and are the first thing it meets when it wakes.
//!
//! What must stay true: an answer counts as accepted unless it is a refusal or was given under an epoch
//! that is at least as high as the one that was seen before the request was sent.

use crate::render;
use crate::verify::signals;
use anyhow::Result;
use mooncrate::{Address, Masters};
use mooncrate_core::LeaderEpoch;
use mooncrate_core::plan::PutConfig;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Locate, Ping, PutItem, PutRevoke, PutRevokeItem, PutStart, Remove, Reply, Request,
};
use mooncrate_wire::{CallError, Hello, Link, LinkConfig, LinkKind, Role};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(50);
const REPORT: Duration = Duration::from_millis(200);
/// How long a master may take that is asked whether it leads.
const PING_TIME: Duration = Duration::from_secs(1);
/// How long an answer of a tempted master is waited for: longer than one is stopped.
const TEMPT_TIME: Duration = Duration::from_secs(15);
/// How long everybody else is tempted after an election.
const TEMPTED: Duration = Duration::from_secs(8);
/// Violations kept in words; all are counted.
const TOLD_MAX: usize = 20;
/// Nobody has this key.
const KEY: &[u8] = b"nobody's";

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Leaders {
    /// The masters
    #[arg(long, value_name = "HOST:PORT,…")]
    pub(crate) masters: Masters,
}

/// What was seen.
#[derive(Debug, Default)]
struct Sight {
    /// The highest epoch that led, and which master that was.
    highest: Mutex<(LeaderEpoch, usize)>,
    leaders: AtomicU64,
    asked: AtomicU64,
    accepted: AtomicU64,
    /// Answers under an epoch that could not be found out.
    unclear: AtomicU64,
    told: Mutex<Vec<String>>,
}

/// Watches until SIGTERM; whether nobody accepted what it must not.
pub(crate) fn run(wanted: &Leaders) -> Result<bool> {
    let end = signals()?;
    let sight = Arc::new(Sight::default());
    for (index, address) in wanted.masters.all().iter().enumerate() {
        for (name, work) in [("watch", watch as fn(&Sight, usize, &Address)), ("tempt", tempt)] {
            let (sight, address) = (Arc::clone(&sight), address.clone());
            // Not joined: they end with the process, whatever they wait for.
            Builder::new().name(name.into()).spawn(move || work(&sight, index, &address))?;
        }
    }
    while !end.load(Ordering::Relaxed) {
        std::thread::sleep(REPORT);
        render::say(&sight.line(false).to_string())?;
    }
    render::say(&sight.line(true).to_string())?;
    Ok(sight.accepted.load(Ordering::Relaxed) == 0)
}

/// Asks one master again and again whether it leads.
fn watch(sight: &Sight, index: usize, address: &Address) {
    let mut link = None;
    loop {
        if let Some(epoch) = held(&mut link, address).and_then(epoch) {
            sight.leads(epoch, index);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks one master for what it must not do while another one leads.
fn tempt(sight: &Sight, index: usize, address: &Address) {
    let mut links: Vec<Option<Link>> = mutations().iter().map(|_| None).collect();
    let (mut since, mut until) = (LeaderEpoch(0), boottime().deadline_in(Duration::ZERO));
    loop {
        std::thread::sleep(PAUSE);
        for link in &mut links {
            held(link, address);
        }
        let (highest, leader) = *sight.highest.lock().expect("no watcher panics");
        if highest > since {
            (since, until) = (highest, boottime().deadline_in(TEMPTED));
        }
        if leader == index || highest == LeaderEpoch(0) || until.passed(boottime()) {
            continue;
        }
        let deadline = boottime().deadline_in(TEMPT_TIME);
        for (link, request) in links.iter_mut().zip(&mutations()) {
            if link.as_mut().is_some_and(|link| link.send(request, deadline).is_err()) {
                *link = None;
            }
        }
        for link in links.iter_mut().flatten().filter(|link| link.in_flight() > 0) {
            if let Ok((_, reply)) = link.recv(deadline) {
                sight.judge(link, &reply, highest);
            }
        }
    }
}

/// The link, made anew if it is not there or broken.
fn held<'a>(link: &'a mut Option<Link>, address: &Address) -> Option<&'a mut Link> {
    if link.as_ref().is_none_or(|link| !link.is_open()) {
        let hello = Hello::new(Role::Client, LinkKind::Control, "leaders");
        let deadline = boottime().deadline_in(PING_TIME);
        *link = Link::connect(address, &hello, &LinkConfig::default(), deadline).ok();
    }
    link.as_mut()
}

/// The epoch under which the master at the other end leads.
fn epoch(link: &mut Link) -> Option<LeaderEpoch> {
    match link.call(&Request::Ping(Ping {}), boottime().deadline_in(PING_TIME)) {
        Ok(Reply::Ping(pong)) => Some(pong.epoch),
        _ => None,
    }
}

/// What an old leader must not do any more: reserve, remove, lease.
fn mutations() -> [Request<'static>; 3] {
    [
        Request::PutStart(PutStart {
            config: Cow::Owned(PutConfig::default()),
            items: Cow::Owned(vec![PutItem::new(KEY, 10)]),
        }),
        Request::Remove(Remove { force: true, keys: Cow::Owned(vec![KEY]) }),
        Request::Locate(Locate { lease_ms: 5000, keys: Cow::Owned(vec![KEY]) }),
    ]
}

impl Sight {
    /// A master said that it leads.
    fn leads(&self, epoch: LeaderEpoch, master: usize) {
        let mut highest = self.highest.lock().expect("no watcher panics");
        if epoch > highest.0 {
            *highest = (epoch, master);
            self.leaders.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Judges the answer to a request that was sent when `highest` had been seen to lead.
    fn judge(&self, link: &mut Link, reply: &Reply, highest: LeaderEpoch) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let under = match reply {
            Reply::Refuse(_) => return,
            Reply::PutStart(plans) => match plans.first() {
                Some(Ok(plan)) => {
                    give_back(link, plan.token);
                    Some(plan.epoch)
                }
                _ => epoch(link),
            },
            // The epoch of a process only grows, so that of a moment later is no lower.
            _ => epoch(link),
        };
        match under {
            Some(under) if under >= highest => {}
            Some(under) => {
                self.accepted.fetch_add(1, Ordering::Relaxed);
                let what = format!(
                    "G7 broken: the leader of epoch {} answered {:?} after epoch {} had led",
                    under.0,
                    reply.kind(),
                    highest.0
                );
                let mut told = self.told.lock().expect("no watcher panics");
                if told.len() < TOLD_MAX {
                    told.push(what);
                }
            }
            None => drop(self.unclear.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn line(&self, last: bool) -> Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "client": "watcher",
            "leaders": read(&self.leaders),
            "asked": read(&self.asked),
            "accepted": read(&self.accepted),
            "unclear": read(&self.unclear),
            "violations": *self.told.lock().expect("no watcher panics"),
            "final": last,
        })
    }
}

/// A put that was granted, rightly or not, is given back; else it ends with the master's patience.
fn give_back(link: &mut Link, token: mooncrate_core::PutToken) {
    let items = Cow::Owned(vec![PutRevokeItem { key: KEY, token }]);
    let asked: Result<Reply, CallError> =
        link.call(&Request::PutRevoke(PutRevoke { items }), boottime().deadline_in(PING_TIME));
    drop(asked);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_only_rise() {
        let sight = Sight::default();
        for (epoch, master, leaders) in [(3, 1, 1), (3, 1, 1), (2, 0, 1), (7, 2, 2)] {
            sight.leads(LeaderEpoch(epoch), master);
            assert_eq!(sight.line(false)["leaders"], leaders);
        }
        assert_eq!(*sight.highest.lock().unwrap(), (LeaderEpoch(7), 2));
    }
}
