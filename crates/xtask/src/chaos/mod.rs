//! `chaos`: real processes, killed, stopped, cut off and lied to, while clients judge every answer.
//!
//! ```text
//!   kinds ── what can happen        dice ── what happens, from the seed
//!   net ──── hosts, one namespace each      proxy, flood ── what no packet filter can do
//!   fleet ── master, nodes              client ── `mooncrate-bench verify`, and what it says
//!   fault ── begin, hold, end              report ── table, file, verdict
//! ```
//!
//! A run is a row of rounds. A round begins one to three faults on different processes, ends each after
//! its time, and then waits until every client works again without trouble; that wait has a bound. At the
//! end clients stop, every key is removed, and the master's books must show that nothing leaked.
//!
//! What must stay true: the schedule follows from the seed and the kinds, never from the clock; no crate
//! of ours is linked; a process that ends unasked fails the run.

mod client;
mod dice;
mod fault;
mod fleet;
mod flood;
mod kinds;
mod net;
mod options;
mod proxy;
mod report;

use anyhow::{Context, Result};
use dice::{Dice, now};
use fault::{Active, Planned};
use fleet::{Fleet, Programs, host_names};
use kinds::{Kind, Means};
use net::Net;
use options::Options;
use report::{Happened, Report};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Quiet that counts as recovered.
const QUIET: Duration = Duration::from_millis(600);
/// Longest wait for it: more than a master waits for a node that does not come back.
const RECOVER_MAX: Duration = Duration::from_mins(1);
/// How long a client may take to end: its calls have deadlines.
const FINISH_MAX: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(20);

/// Runs it all; whether it passed.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let Some(options) = Options::parse(arguments)? else {
        print!("{}", options::MENU);
        return Ok(true);
    };
    flood::raise_limit();
    let names = host_names();
    let net = match (options.namespaces, net::lacks()) {
        (false, _) => Net::loopback(&names),
        (true, None) => Net::private(&names)?,
        (true, Some(why)) => {
            println!("no network namespaces here: {why}; only faults that need none are injected");
            Net::loopback(&names)
        }
    };
    let means = Means {
        private: net.is_private(),
        clock: fleet::faketime().is_some(),
        long: options.long(),
    };
    if !means.clock {
        println!("libfaketime is not installed: no faults of the wall clock");
    }
    let kinds = kinds::choose(&options.kinds, means)?;
    let folder = match &options.programs {
        Some(folder) => std::fs::canonicalize(folder).with_context(|| folder.clone())?,
        None => build(root)?,
    };
    let programs =
        Programs { mooncrate: folder.join("mooncrate"), bench: folder.join("mooncrate-bench") };
    let folder = std::env::temp_dir().join(format!("mooncrate-chaos-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    println!("seed {}, {} kinds, logs in {}", options.seed, kinds.len(), folder.display());
    let private = net.is_private();
    let mut fleet = Fleet::start(net, programs, &folder, options.seed)?;
    let began = now();
    let happened = torment(&mut fleet, &kinds, &options)?;
    let seconds = began.elapsed().as_secs();
    let report = finish(fleet, happened, &options, seconds, private);
    println!("\n{}", report.text());
    if let Some(path) = &options.report {
        std::fs::write(path, serde_json::to_string_pretty(&report.json())?)
            .with_context(|| format!("writing {path}"))?;
        println!("written to {path}");
    }
    let passed = report.failures().is_empty();
    if passed && !options.keep {
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(passed)
}

/// Builds the programs that are run, as they ship; where they are.
fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["build", "--release", "-q", "-p", "mooncrate-cli", "-p", "mooncrate-bench"])
        .current_dir(root)
        .status()
        .context("starting cargo build")?;
    anyhow::ensure!(status.success(), "the programs do not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(root.join(target).join("release"))
}

/// The rounds of a seed, without end: every kind once in each pass through the deck, long ones in every
/// fourth, in groups that hit different processes.
struct Schedule {
    kinds: Vec<Kind>,
    deck: Vec<Kind>,
    dice: Dice,
    passes: u64,
}

impl Schedule {
    fn new(kinds: &[Kind], seed: u64) -> Self {
        let dice = Dice::new(seed).stream("schedule");
        Self { kinds: kinds.to_vec(), deck: Vec::new(), dice, passes: 0 }
    }

    fn next(&mut self) -> Vec<Planned> {
        if self.deck.is_empty() {
            let only_long = self.kinds.iter().all(|kind| kind.long);
            let turn = self.passes % 4 == 1 || only_long;
            self.deck = self.kinds.iter().filter(|kind| turn || !kind.long).copied().collect();
            self.dice.shuffle(&mut self.deck);
            self.passes += 1;
        }
        let mut round: Vec<Planned> = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let Some(kind) = self.deck.last() else { break };
            let planned = Planned::draw(*kind, &mut self.dice);
            if round.iter().any(|other| other.collides(&planned)) {
                break;
            }
            self.deck.pop();
            round.push(planned);
        }
        round
    }
}

/// Injects faults until the time is over.
fn torment(fleet: &mut Fleet, kinds: &[Kind], options: &Options) -> Result<Vec<Happened>> {
    let mut schedule = Schedule::new(kinds, options.seed);
    let mut happened = Vec::new();
    let began = now();
    settle(fleet, began, "the start");
    while began.elapsed() < options.time && fleet.findings.is_empty() {
        let round = schedule.next();
        let names: Vec<String> = round.iter().map(shown).collect();
        let what = names.join(" + ");
        let (ended, effects) = inject(fleet, &round, options.seed)?;
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

fn shown(planned: &Planned) -> String {
    let Planned { kind, target, lasts, .. } = planned;
    let target =
        if kind.on == kinds::On::Master { String::new() } else { format!(" {}", target + 1) };
    format!("{}{target} {:.1} s", kind.name, lasts.as_secs_f64())
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
        let seen: Vec<_> = fleet.clients.iter().map(client::Client::seen).collect();
        last = seen.iter().filter_map(client::Seen::trouble).chain(last).max();
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
fn finish(
    mut fleet: Fleet,
    happened: Vec<Happened>,
    options: &Options,
    seconds: u64,
    private: bool,
) -> Report {
    let mut clients = std::mem::take(&mut fleet.departed);
    let mut findings = std::mem::take(&mut fleet.findings);
    for mut client in std::mem::take(&mut fleet.clients) {
        if client.finish(FINISH_MAX).is_none() {
            findings.push(format!("client {} did not end in {FINISH_MAX:?}", client.number));
        }
        clients.push(client.seen().line);
    }
    let drain = fleet.drain().unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
    let audit = audit(&fleet).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
    for server in fleet.nodes.iter_mut().chain([&mut fleet.master]) {
        if server.child.is_some() && !server.leave(FINISH_MAX) {
            findings.push(format!("{} did not end well on SIGTERM", server.host.name));
        }
    }
    Report {
        command: options.command(),
        seed: options.seed,
        seconds,
        private,
        marks: options.marks(private),
        happened,
        clients,
        drain,
        audit,
        restarts: fleet.restarts,
        findings,
    }
}

/// Asks the admin HTTP whether every byte is accounted for.
fn audit(fleet: &Fleet) -> Result<Value> {
    let address = fleet.admin_address();
    let answer = Net::inside(&fleet.master.host, || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let host = "Host: localhost\r\nConnection: close";
        write!(stream, "GET /v1/audit HTTP/1.1\r\n{host}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })??;
    let body = answer.split_once("\r\n\r\n").context("no body")?.1;
    serde_json::from_str(body).with_context(|| format!("the answer was {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Means = Means { private: true, clock: true, long: true };
    const NONE: Means = Means { private: false, clock: false, long: false };

    fn names(seed: u64, rounds: usize) -> Vec<String> {
        let kinds = kinds::choose(&[], ALL).unwrap();
        let mut schedule = Schedule::new(&kinds, seed);
        let rounds = (0..rounds).map(|_| schedule.next().iter().map(shown).collect::<Vec<_>>());
        rounds.map(|round| round.join(" + ")).collect()
    }

    #[test]
    fn a_seed_is_a_schedule() {
        assert_eq!(names(5, 200), names(5, 200));
        assert_ne!(names(5, 200), names(6, 200));
    }

    #[test]
    fn every_kind_has_its_turn_and_no_process_is_hit_twice_at_once() {
        let kinds = kinds::choose(&[], ALL).unwrap();
        let mut schedule = Schedule::new(&kinds, 3);
        let mut met = std::collections::BTreeMap::<&str, u32>::new();
        for _ in 0..300 {
            let round = schedule.next();
            for (index, one) in round.iter().enumerate() {
                *met.entry(one.kind.name).or_default() += 1;
                assert!(!round[..index].iter().any(|other| other.collides(one)));
            }
        }
        assert_eq!(met.len(), kinds.len());
        assert!(met["stop-node-long"] < met["stop-node"] / 2, "{met:?}");
    }

    #[test]
    fn kinds_can_be_chosen_and_some_need_no_namespaces() {
        assert!(kinds::choose(&["kill-nod".into()], ALL).is_err());
        let one = kinds::choose(&["stop-node-long".into()], NONE).unwrap();
        assert_eq!(one.len(), 1, "what is asked for by name is taken, however long");
        assert!(kinds::choose(&[], NONE).unwrap().len() >= 8);
    }
}
