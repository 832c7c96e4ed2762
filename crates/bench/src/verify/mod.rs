//! `verify`: a workload that judges every answer, as a process that others may kill, stop or cut off.
//!
//! ```text
//!   worker  one thread: puts, gets, views, removes, batches        bounds  what other processes may know
//!   judge   tells the oracle of `check` before and after a call    tally   counts, deadlines, hangs
//!   clear   removes everything and looks for what is left          leaders  who leads, and who still would
//! ```
//!
//! It prints a JSON line now and then and a last one with `"final": true`. It ends by itself, or on
//! SIGTERM, and exits with 1 if a byte was wrong or a call hung.
//!
//! What must stay true: a thread that does not come back is a hang, not a reason to wait for ever; keys
//! and put numbers of one process are of no other, so that every process can judge every value.

pub(crate) mod bounds;
pub(crate) mod clear;
pub(crate) mod judge;
pub(crate) mod leaders;
pub(crate) mod tally;
pub(crate) mod worker;

use crate::render;
use anyhow::{Context, Result};
use bounds::{Bounds, Peers};
use judge::{Author, Judge};
use mooncrate::{ClientConfig, ConnectOptions, Masters, Store};
use mooncrate_core::time::Deadline;
use mooncrate_wire::clock::boottime;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tally::Tally;
use worker::{Role, Shared, Worker};

/// How long the first call may keep failing: the cluster may just be starting, or in trouble.
const CONNECT_TIME: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(20);

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Verify {
    /// The masters of the cluster
    #[arg(long, value_name = "HOST:PORT,…", default_value = "127.0.0.1:7411")]
    pub(crate) master: Masters,
    /// How long
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Threads that mostly read
    #[arg(long, default_value_t = 4)]
    pub(crate) readers: u64,
    /// Threads that mostly write
    #[arg(long, default_value_t = 4)]
    pub(crate) writers: u64,
    /// Keys of this process
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Copies of two keys of three; the others have one
    #[arg(long, default_value_t = 2)]
    pub(crate) replicas: u8,
    /// Deadline of each call
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000)]
    pub(crate) call_ms: u64,
    /// Number of the run, equal in all its processes
    #[arg(long, default_value_t = 1)]
    pub(crate) run: u16,
    /// Number of this process, unlike that of any other of the run
    #[arg(long, default_value_t = 1)]
    pub(crate) client: u16,
    /// Folder that the processes of a run share, to read each other's keys
    #[arg(long, value_name = "FOLDER")]
    pub(crate) shared: Option<PathBuf>,
    /// This machine's label: nodes with the same one are read through their memory
    #[arg(long, value_name = "NAME")]
    pub(crate) host_label: Option<String>,
    /// Move values over sockets only
    #[arg(long)]
    pub(crate) no_shared_memory: bool,
    /// Least time between two calls of a thread, to leave the machine to others
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub(crate) pace_us: u64,
    /// What the order of calls follows from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Time between two lines
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    pub(crate) report_ms: u64,
}

/// Runs the workload; whether nothing was wrong and nothing hung.
pub(crate) fn run(wanted: &Verify) -> Result<bool> {
    let end = signals()?;
    let store = connect(wanted, &end)?;
    let author = Author { run: wanted.run, client: wanted.client };
    let folder = wanted.shared.as_deref();
    let bounds = Bounds::create(folder, wanted.client, wanted.keys)?;
    let call_time = Duration::from_millis(wanted.call_ms);
    let shared = Arc::new(Shared {
        store,
        judge: Judge::new(author, bounds),
        tally: Tally::new(call_time),
        stop: AtomicBool::new(false),
        replicas: wanted.replicas,
        pace: Duration::from_micros(wanted.pace_us),
    });
    clock(&shared)?;
    let workers = spawn(wanted, &shared)?;
    let deadline = boottime().deadline_in(Duration::from_secs(wanted.seconds));
    let every = Duration::from_millis(wanted.report_ms.max(20));
    let mut next = boottime().deadline_in(every);
    while !deadline.passed(boottime()) && !end.load(Ordering::Relaxed) {
        std::thread::sleep(STEP.min(next.left(boottime())));
        if next.passed(boottime()) {
            next = boottime().deadline_in(every);
            render::say(&line(wanted, &shared, false).to_string())?;
        }
    }
    shared.stop.store(true, Ordering::Relaxed);
    join(workers, &shared, boottime().deadline_in(call_time * 2 + tally::LATE * 4));
    render::say(&line(wanted, &shared, true).to_string())?;
    Ok(shared.judge.wrong() == 0 && shared.tally.hangs() == 0)
}

/// One line of the report.
fn line(wanted: &Verify, shared: &Shared, last: bool) -> Value {
    let mut line = shared.tally.json();
    line["client"] = json!(wanted.client);
    line["wrong"] = json!(shared.judge.wrong());
    line["final"] = json!(last);
    let (judged, counts) = (shared.judge.counts(), shared.store.counts());
    line["puts"] = json!(judged.puts);
    line["puts_unknown"] = json!(judged.puts_unknown);
    line["removes"] = json!(judged.removes);
    line["values"] = json!(judged.hits + shared.judge.foreign_values());
    line["values_of_others"] = json!(shared.judge.foreign_values());
    line["corrupt_refused"] = json!(counts.corrupt);
    line["kinds"] = json!(shared.tally.kinds());
    line["violations"] = json!(shared.judge.told());
    line["late"] = json!(shared.tally.late());
    line
}

fn connect(wanted: &Verify, end: &AtomicBool) -> Result<Store> {
    let defaults = ConnectOptions::default();
    let options = ConnectOptions {
        master: wanted.master.clone(),
        host: wanted.host_label.clone().unwrap_or(defaults.host),
        shared_memory: !wanted.no_shared_memory,
        client: ClientConfig {
            call_time: Duration::from_millis(wanted.call_ms),
            replicas: wanted.replicas,
            ..ClientConfig::default()
        },
        ..ConnectOptions::default()
    };
    let budget = boottime().deadline_in(CONNECT_TIME);
    loop {
        match Store::connect(options.clone()) {
            Ok(store) => return Ok(store),
            Err(error) if budget.passed(boottime()) || end.load(Ordering::Relaxed) => {
                return Err(error).context("the cluster cannot be reached");
            }
            Err(_) => std::thread::sleep(STEP * 5),
        }
    }
}

/// A flag that SIGTERM and SIGINT raise.
fn signals() -> Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let raised = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Caught before the thread starts, so that none is lost.
    let guard = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    drop(guard);
    let raise = Arc::clone(&raised);
    // Not joined: it waits for a signal as long as the process lives.
    Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        raise.store(true, Ordering::Relaxed);
    })?;
    Ok(raised)
}

/// The thread that pushes the clock of the tally. Not joined: it goes on while threads are waited for.
fn clock(shared: &Arc<Shared>) -> Result<()> {
    let shared = Arc::clone(shared);
    Builder::new().name("clock".into()).spawn(move || {
        loop {
            shared.tally.push();
        }
    })?;
    Ok(())
}

fn spawn(wanted: &Verify, shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>> {
    let readers = (0..wanted.readers).map(|index| (Role::Reader, index));
    let writers = (0..wanted.writers).map(|index| (Role::Writer, index));
    readers
        .chain(writers)
        .map(|(role, index)| {
            let shared = Arc::clone(shared);
            let peers = Peers::new(wanted.shared.as_deref(), wanted.client);
            let name = format!("{role:?}-{index}");
            let label = format!("{name} of {}", wanted.client);
            let seed = mooncrate_core::rng::Rng::stream(wanted.seed, &label).next();
            let thread = Builder::new().name(name);
            Ok(thread.spawn(move || Worker::new(&shared, seed, peers).work(role))?)
        })
        .collect()
}

/// Waits for the threads; one that does not come back in time hangs, one that died was wrong.
fn join(workers: Vec<JoinHandle<()>>, shared: &Shared, deadline: Deadline) {
    for worker in workers {
        while !worker.is_finished() && !deadline.passed(boottime()) {
            std::thread::sleep(STEP);
        }
        let name = worker.thread().name().unwrap_or("a thread").to_owned();
        if !worker.is_finished() {
            shared.tally.hang(format!("{name} did not come back from its last call"));
        } else if worker.join().is_err() {
            shared.judge.blame(format!("{name} panicked"));
        }
    }
}
