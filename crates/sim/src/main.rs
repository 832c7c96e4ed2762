//! The simulator's command line. It parses, runs and prints; what it runs is in the library.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this is the file that prints")]

use mooncrate_sim::disk;
use mooncrate_sim::report;
use mooncrate_sim::runner::{Job, Outcome, Sum, Tally};
use mooncrate_sim::shipped;
use mooncrate_sim::twin;
use mooncrate_sim::world::Watch;
use rustix::process::{Resource, Rlimit};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: mooncrate-sim run --ops N [--seed S] [--threads T] [--minutes M] [--ops-per-seed N]
       mooncrate-sim replay --seed S [--ops N] [--until-op N] [--verbose] [--twice]
       mooncrate-sim canaries [--threads T] [--disks]
       mooncrate-sim marks [--ops N] [--seed S] [--threads T]
       mooncrate-sim shipped [--ops N] [--seed S] [--threads T] [--ops-per-seed N]
       mooncrate-sim shipped --replay --seed S [--ops-per-seed N] [--verbose] [--twice]
       mooncrate-sim disk [--ops N] [--seed S] [--threads T] [--minutes M] [--ops-per-seed N]
       mooncrate-sim disk-crash [--rounds N] [--seed S] [--point NAME] [--threads T] [--busy B]
       mooncrate-sim disk --replay --seed S [--ops-per-seed N] [--verbose] [--twice]

run       seed S and others that follow from it, until N operations are done; exit 1 if a rule is
          broken
replay    one seed; --ops as in the REPRO line; --twice runs it twice and compares the hashes
canaries  switches every bug on purpose on, one after the other; each must be caught; with --disks only
          those of the SSD tier
marks     as run, and exit 1 if a rare situation was never reached
shipped   the master, nodes and clients as they ship, in virtual time; --replay repeats one seed
disk      the backends of the SSD tier on a simulated disk; --replay repeats one seed
disk-crash  the same on real disks: a process is killed at each point that makes something durable,
          N times, and what it left is verified; NAME may be the beginning of a name; B threads
          beside take the cores away";

/// What was asked for on the command line.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Clone, Debug, Default)]
struct Args {
    ops: Option<u64>,
    seed: Option<u64>,
    threads: Option<u64>,
    minutes: Option<u64>,
    ops_per_seed: Option<u64>,
    until_op: Option<u64>,
    verbose: bool,
    twice: bool,
    replay: bool,
    disks: bool,
    rounds: Option<u64>,
    busy: Option<u64>,
    point: Option<String>,
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(command) = words.next() else { return usage("say what to do") };
    if command == "disk-crash-child" {
        return crash_child(&words.collect::<Vec<String>>());
    }
    if command == shipped::worker::WORKER {
        return shipped_worker(&words.collect::<Vec<String>>());
    }
    let args = match parse(words) {
        Ok(args) => args,
        Err(why) => return usage(&why),
    };
    allow_descriptors();
    match command.as_str() {
        "run" => run(&args, false),
        "marks" => run(&args, true),
        "replay" => replay(&args),
        "disk-crash" => crash(&args),
        "shipped" if args.replay => replay_shipped(&args),
        "shipped" => run_shipped(&args),
        "disk" if args.replay => replay_disk(&args),
        "disk" => run_disk(&args),
        "canaries" => canaries(&args),
        other => usage(&format!("{other} is no command")),
    }
}

/// Mounts that are over stay mapped, each with a descriptor; many runs side by side need many.
fn allow_descriptors() {
    let files = rustix::process::getrlimit(Resource::Nofile);
    let _ =
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
}

fn usage(why: &str) -> ExitCode {
    eprintln!("{why}\n\n{USAGE}");
    ExitCode::from(2)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args::default();
    while let Some(word) = words.next() {
        let target = match word.as_str() {
            "--verbose" => {
                args.verbose = true;
                continue;
            }
            "--disks" => {
                args.disks = true;
                continue;
            }
            "--twice" => {
                args.twice = true;
                continue;
            }
            "--replay" => {
                args.replay = true;
                continue;
            }
            "--point" => {
                args.point = words.next();
                continue;
            }
            "--rounds" => &mut args.rounds,
            "--busy" => &mut args.busy,
            "--ops" => &mut args.ops,
            "--seed" => &mut args.seed,
            "--threads" => &mut args.threads,
            "--minutes" => &mut args.minutes,
            "--ops-per-seed" => &mut args.ops_per_seed,
            "--until-op" => &mut args.until_op,
            other => return Err(format!("{other} is no option")),
        };
        let text = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        *target = Some(number(&text).ok_or_else(|| format!("{text} is no number"))?);
    }
    Ok(args)
}

fn number(text: &str) -> Option<u64> {
    let plain = text.replace('_', "");
    match plain.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => plain.parse().ok(),
    }
}

fn threads(args: &Args) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    args.threads.map_or(cores, |threads| threads.max(1) as usize)
}

fn job(args: &Args) -> Job {
    quiet_panics();
    let (seed, threads) = (args.seed.unwrap_or(0), threads(args));
    println!("seeds from 0x{seed:x} on, {threads} threads");
    Job {
        seed,
        ops: args.ops.unwrap_or(1_000_000),
        ops_per_seed: args.ops_per_seed,
        threads,
        span: args.minutes.map(|minutes| Duration::from_secs(60 * minutes)),
    }
}

/// Prints what became of seeds; `again` repeats one in words. `all`: what must be met must have been.
fn ended<T: Tally>(
    sum: &Sum<T>,
    all: bool,
    again: impl FnOnce(u64) -> Outcome<T>,
    repeat: &str,
) -> ExitCode {
    print!("{}", report::table(sum));
    if let Some((seed, first)) = &sum.failed {
        println!("seed 0x{seed:x} failed: {first}");
        print!("{}", report::failure(&again(*seed), &format!("{repeat} --seed 0x{seed:x}")));
        return ExitCode::FAILURE;
    }
    let missing = sum.tally.missing();
    if !missing.is_empty() && (all || sum.ops >= T::ALL_MET_FROM_OPS) {
        println!("never met: {}", missing.join(", "));
        return ExitCode::FAILURE;
    }
    println!("clean");
    ExitCode::SUCCESS
}

/// Runs one seed in words, or twice.
fn repeated<T: Tally>(args: &Args, repeat: &str, run: impl Fn(Watch) -> Outcome<T>) -> ExitCode {
    let watch = Watch { words: true, aloud: args.verbose, until_op: args.until_op };
    let outcome = run(watch);
    println!("{}", report::line(&outcome));
    if args.twice {
        let again = run(Watch { aloud: false, ..watch });
        if again.hash != outcome.hash {
            println!("the second run has another trace hash: {:016x}", again.hash);
            return ExitCode::FAILURE;
        }
        println!("the second run has the same trace hash");
    }
    if outcome.failure.is_some() {
        print!("{}", report::failure(&outcome, repeat));
        return ExitCode::FAILURE;
    }
    println!("clean");
    ExitCode::SUCCESS
}

const IN_WORDS: Watch = Watch { words: true, aloud: false, until_op: None };

/// An option of a command that repeats a seed.
fn option(name: &str, ops: Option<u64>) -> String {
    ops.map_or_else(String::new, |ops| format!(" {name} {ops}"))
}

fn run(args: &Args, marks: bool) -> ExitCode {
    let job = job(args);
    let ops = job.ops_per_seed;
    let sum = twin::run(&job, |sum| println!("{}", report::progress(sum, job.ops)));
    let repeat = format!("./dev sim replay{}", option("--ops", ops));
    ended(&sum, marks, |seed| twin::run_seed(seed, ops, IN_WORDS), &repeat)
}

fn replay(args: &Args) -> ExitCode {
    let Some(seed) = args.seed else { return usage("replay needs --seed") };
    let repeat = format!("./dev sim replay --seed 0x{seed:x}{}", option("--ops", args.ops));
    repeated(args, &repeat, |watch| twin::run_seed(seed, args.ops, watch))
}

fn run_shipped(args: &Args) -> ExitCode {
    let job = job(args);
    let ops = job.ops_per_seed;
    let sum =
        shipped::runner::run(&job, None, |sum| println!("{}", report::progress(sum, job.ops)));
    let repeat = format!("./dev sim shipped --replay{}", option("--ops-per-seed", ops));
    ended(&sum, false, |seed| shipped::run_seed(seed, ops, IN_WORDS), &repeat)
}

fn shipped_worker(words: &[String]) -> ExitCode {
    quiet_panics();
    allow_descriptors();
    let Some(task) = shipped::worker::Task::parse(words) else {
        return usage("a worker needs its task");
    };
    task.work(|line| println!("{line}"));
    ExitCode::SUCCESS
}

fn replay_shipped(args: &Args) -> ExitCode {
    let Some(seed) = args.seed else { return usage("shipped --replay needs --seed") };
    let ops = args.ops_per_seed;
    let more = option("--ops-per-seed", ops);
    let repeat = format!("./dev sim shipped --replay --seed 0x{seed:x}{more}");
    if args.verbose {
        println!("{:?}", shipped::Plan::draw(seed, ops));
    }
    repeated(args, &repeat, |watch| shipped::run_seed(seed, ops, watch))
}

fn run_disk(args: &Args) -> ExitCode {
    let job = job(args);
    let ops = job.ops_per_seed;
    let sum = disk::runner::run(&job, &disk::Real, |sum| {
        println!("{}", report::progress(sum, job.ops));
    });
    let again = |seed| disk::runner::run_seed(seed, ops, &disk::Real, IN_WORDS);
    let repeat = format!("./dev sim disk --replay{}", option("--ops-per-seed", ops));
    ended(&sum, false, again, &repeat)
}

fn replay_disk(args: &Args) -> ExitCode {
    let Some(seed) = args.seed else { return usage("disk --replay needs --seed") };
    let ops = args.ops_per_seed;
    if args.verbose {
        println!("{:?}", disk::runner::swarm(seed, ops, &disk::Real));
    }
    let more = option("--ops-per-seed", ops);
    let repeat = format!("./dev sim disk --replay --seed 0x{seed:x}{more}");
    repeated(args, &repeat, |watch| disk::runner::run_seed(seed, ops, &disk::Real, watch))
}

fn crash(args: &Args) -> ExitCode {
    let (program, home) = match (std::env::current_exe(), tempfile::tempdir()) {
        (Ok(program), Ok(home)) => (program, home),
        (Err(error), _) | (_, Err(error)) => return usage(&error.to_string()),
    };
    let (seed, rounds, only) =
        (args.seed.unwrap_or(1), args.rounds.unwrap_or(1), args.point.clone());
    let (directory, threads) = (home.path().to_owned(), threads(args));
    let busy = args.busy.unwrap_or(0) as usize;
    let job = disk::crash::Job { program, directory, seed, rounds, only, threads, busy };
    let sum = disk::crash::run(&job, |done, sum| {
        println!("{done}: {} children, {} records verified", sum.children, sum.verified);
    });
    let sum = match sum {
        Ok(sum) => sum,
        Err(failure) => {
            println!("VIOLATION of {failure}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", sum.table());
    let missing = sum.missing(&job);
    if !missing.is_empty() {
        println!("nobody came to: {}", missing.join("; "));
        return ExitCode::FAILURE;
    }
    println!("clean");
    ExitCode::SUCCESS
}

/// A child of `disk-crash`: directory, disk, then numbers.
fn crash_child(words: &[String]) -> ExitCode {
    let [directory, disk, numbers @ ..] = words else { return usage("a child needs its task") };
    let numbers: Vec<u64> = numbers.iter().filter_map(|word| number(word)).collect();
    let [kind, point, hits, seed, from] = numbers[..] else {
        return usage("a child needs its task");
    };
    let task = disk::crash::child::Task {
        directory: directory.into(),
        disk: disk.clone(),
        kind: kind as usize,
        point: point as usize,
        hits,
        seed,
        from,
    };
    match disk::crash::child::work(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Panics of code under test are told as failures, with the command that repeats them.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(not(canary))]
fn canaries(_args: &Args) -> ExitCode {
    println!(
        "this build carries no bugs on purpose; build one that does:\n  \
         RUSTFLAGS=\"--cfg canary\" CARGO_TARGET_DIR=target-canary \
         cargo run --release -p mooncrate-sim -- canaries"
    );
    ExitCode::from(2)
}

#[cfg(canary)]
fn canaries(args: &Args) -> ExitCode {
    use mooncrate_core::canary::Canary;
    use mooncrate_sim::canaries::{
        CAUGHT_SHIPPED, Caught, Found, caught, hunt, hunt_on_disks, hunt_shipped,
    };
    type Hunt = (fn(Option<Canary>, usize, u64) -> Found, u64);
    let threads = threads(args);
    quiet_panics();
    let ops = args.ops.unwrap_or(400_000);
    let clusters: [Hunt; 2] = [(hunt, ops), (hunt_shipped, ops / 8)];
    let disks: Hunt = (hunt_on_disks, ops / 10);
    let clusters = clusters.into_iter().filter(|_| !args.disks);
    for (hunt, ops) in clusters.chain([disks]) {
        let control = hunt(None, threads, ops);
        if let Some((seed, failure)) = control.caught {
            println!("control round: seed 0x{seed:x} failed without any canary: {failure}");
            return ExitCode::FAILURE;
        }
        println!("control round: {} operations, clean", control.ops);
    }
    let mut escaped = Vec::new();
    let wanted = |bug: &Canary| !args.disks || caught(*bug) == Caught::OnDisks;
    for bug in Canary::ALL.into_iter().filter(wanted) {
        let name = format!("canary {} {bug:?}", bug.number());
        match caught(bug) {
            Caught::ByLoom(tests) => {
                println!("{name}: caught by loom, in crates/mem/tests/loom: {tests}");
            }
            Caught::NothingToBreak(why) => println!("{name}: nothing to break: {why}"),
            by @ (Caught::Here | Caught::Shipped | Caught::OnDisks) => {
                let mut hunts: Vec<(&str, fn(_, _, _) -> Found)> = match by {
                    Caught::OnDisks => vec![("", hunt_on_disks)],
                    Caught::Here => vec![("", hunt)],
                    _ => Vec::new(),
                };
                if CAUGHT_SHIPPED.iter().any(|(canary, _)| *canary == bug) {
                    hunts.push((" in shipped code", hunt_shipped));
                }
                for (place, hunt) in hunts {
                    let found = hunt(Some(bug), threads, 0);
                    if let Some((seed, failure)) = found.caught {
                        let text: String = failure.text.lines().next().unwrap_or("").into();
                        println!(
                            "{name} caught{place} by seed 0x{seed:x} after {} operations ({} ms): {}: {text}",
                            found.ops,
                            found.took.as_millis(),
                            failure.rule
                        );
                    } else {
                        println!("{name} ESCAPED{place} {} operations", found.ops);
                        escaped.push(bug);
                    }
                }
            }
        }
    }
    if escaped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
