//! One leg of a run: a fleet that is started, tormented, drained, audited and stopped. A run has one with
//! a single master and one with three on etcd.

use crate::chaos::client::{Client, Seen};
use crate::chaos::dice::now;
use crate::chaos::fault::{Active, Planned};
use crate::chaos::fleet::Fleet;
use crate::chaos::kinds::Kind;
use crate::chaos::report::{Happened, Leg};
use crate::chaos::schedule::{Schedule, shown};
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

/// Quiet that counts as recovered.
const QUIET: Duration = Duration::from_millis(600);
/// Longest wait for it: more than a master waits for a node that does not come back.
const RECOVER_MAX: Duration = Duration::from_mins(1);
/// How long a process may take to end: its calls have deadlines.
const FINISH_MAX: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(20);

/// Injects faults until the time is over.
pub(crate) fn torment(
    fleet: &mut Fleet,
    kinds: &[Kind],
    time: Duration,
    seed: u64,
) -> Result<Vec<Happened>> {
    let mut schedule = Schedule::new(kinds, seed);
    let mut happened = Vec::new();
    let began = now();
    settle(fleet, began, "the start");
    while began.elapsed() < time && fleet.findings.is_empty() {
        let round = schedule.next();
        let names: Vec<String> = round.iter().map(shown).collect();
        let what = names.join(" + ");
        let (ended, effects) = inject(fleet, &round, seed)?;
        let last = ended.iter().map(|(_, at)| *at).max().unwrap_or_else(now);
        let calm = settle(fleet, last, &what);
        let longest = calm.map_or(Duration::ZERO, |calm| calm.saturating_duration_since(last));
        let [operations, wrong, hangs] =
            ["operations", "wrong", "hangs"].map(|name| sum(fleet, name));
        println!(
            "{:>5} s {operations:>9} ops {wrong} wrong {hangs} hangs  {what}{effects}; recovered in \
             {:.2} s",
            began.elapsed().as_secs(),
            longest.as_secs_f64(),
        );
        happened.extend(ended.into_iter().map(|(planned, at)| Happened {
            kind: planned.kind.name,
            recovery: calm.map_or(Duration::ZERO, |calm| calm.saturating_duration_since(at)),
        }));
    }
    Ok(happened)
}

/// Begins and ends the faults of a round; when each ended, and what they did.
fn inject(
    fleet: &mut Fleet,
    round: &[Planned],
    seed: u64,
) -> Result<(Vec<(Planned, Instant)>, String)> {
    let began = now();
    let mut waiting = round.to_vec();
    let (mut active, mut ended, mut effects) = (Vec::<Active>::new(), Vec::new(), Vec::new());
    while !waiting.is_empty() || !active.is_empty() {
        if let Some(at) = waiting.iter().position(|one| began.elapsed() >= one.begins) {
            active.push(Active::begin(waiting.swap_remove(at), fleet, seed)?);
        }
        if let Some(at) = active.iter().position(|one| now() >= one.ends) {
            let done = active.swap_remove(at);
            let planned = done.planned;
            let effect = done.end(fleet)?;
            if !effect.is_empty() {
                effects.push(format!(" ({effect})"));
            }
            ended.push((planned, now()));
        }
        std::thread::sleep(STEP / 4);
    }
    Ok((ended, effects.concat()))
}

/// Waits until every client works without trouble; when the last trouble was, if there was any after
/// `since`.
fn settle(fleet: &mut Fleet, since: Instant, after: &str) -> Option<Instant> {
    let mut last = None;
    loop {
        fleet.look_for_dead();
        let seen: Vec<_> = fleet.clients.iter().map(Client::seen).collect();
        last = seen.iter().filter_map(Seen::trouble).chain(last).max();
        let well = seen.iter().all(|seen| seen.well().is_some_and(|well| well > since));
        let fresh = seen.iter().all(|seen| seen.at.elapsed() < QUIET);
        let calm = last.is_none_or(|last| last.elapsed() > QUIET);
        if well && fresh && calm {
            return last.filter(|last| *last > since);
        }
        if since.elapsed() > RECOVER_MAX {
            let lines: Vec<String> = seen.iter().map(|seen| seen.line.to_string()).collect();
            let what = format!("no recovery in {RECOVER_MAX:?} after {after}: {lines:#?}");
            fleet.findings.push(what);
            return last;
        }
        if !fleet.findings.is_empty() {
            return last;
        }
        std::thread::sleep(STEP);
    }
}

/// A count of all clients, those that were killed included.
fn sum(fleet: &Fleet, name: &str) -> u64 {
    let gone = fleet.departed.iter().filter_map(|line| line[name].as_u64());
    let here = fleet.clients.iter().map(|client| client.seen().count(name));
    gone.chain(here).sum()
}

/// Ends the clients, removes everything, audits, stops the servers.
pub(crate) fn finish(mut fleet: Fleet, happened: Vec<Happened>, seconds: u64) -> Leg {
    let mut clients = std::mem::take(&mut fleet.departed);
    let mut findings = std::mem::take(&mut fleet.findings);
    for mut client in std::mem::take(&mut fleet.clients) {
        if client.finish(FINISH_MAX).is_none() {
            findings.push(format!("client {} did not end in {FINISH_MAX:?}", client.number));
        }
        clients.push(client.seen().line);
    }
    let watcher = fleet.watcher.take().map(|mut watcher| {
        if watcher.finish(FINISH_MAX).is_none() {
            findings.push(format!("the watcher of leaders did not end in {FINISH_MAX:?}"));
        }
        watcher.seen().line
    });
    let drain = fleet.drain().unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
    let audit = fleet.audit().unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
    // etcd goes with the fleet: it is not what is tested.
    for server in fleet.nodes.iter_mut().chain(&mut fleet.masters) {
        if server.child.is_some() && !server.leave(FINISH_MAX) {
            findings.push(format!("{} did not end well on SIGTERM", server.host.name));
        }
    }
    Leg {
        masters: fleet.masters.len(),
        seconds,
        happened,
        clients,
        watcher,
        drain,
        audit,
        restarts: fleet.restarts,
        findings,
    }
}
