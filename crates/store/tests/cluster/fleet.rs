//! Clusters of this test: masters in threads or processes, nodes in processes, what can be done to them, and stamped
//! values.

pub(crate) use crate::processes::{
    CALL_TIME, Fleet, Process, REGISTRATION, any_port, catalog, connect, master, node,
};
use crate::processes::{be_a_node, child_part, say, wait_for_the_end};
use mooncrate::{Address, CatalogConfig, Error, MasterOptions, run_master};
use mooncrate_check::{PutId, payload};
use mooncrate_core::ids::{NodeId, SegmentId};
use mooncrate_core::key;
use mooncrate_wire::clock::boottime;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// What [`REGISTRATION`] is for masters in processes of their own, which are away for longer than tests with a
/// master in a thread take.
pub(crate) const LONG_REGISTRATION: Duration = Duration::from_secs(20);
/// What a busy machine may add to any time.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);
/// The segment of a node, to prefer it.
pub(crate) fn segment(node: &str) -> SegmentId {
    SegmentId::of(NodeId::named(node), 0)
}

impl Fleet {
    /// Ends the master and starts it again at the same address.
    pub(crate) fn restart_master(&mut self, with_state: bool) {
        self.master.take().unwrap().stop();
        let state = self.folder.path().join("state");
        let options = MasterOptions {
            listen: self.address.clone(),
            state_file: with_state.then_some(state),
            ..master()
        };
        self.master = Some(run_master(options).unwrap());
    }

    pub(crate) fn audit(&self) {
        self.master.as_ref().unwrap().master().unwrap().audit().unwrap();
    }
}

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Flips a bit of byte `at` of a value that lies in the memory of this process.
    pub(crate) fn flip(&self, value: &[u8], at: usize) {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let is_payload = |path: &Path| {
            let target = std::fs::read_link(path).unwrap_or_default();
            target.to_string_lossy().contains("mooncrate-payload")
        };
        let mut paths = fds.map(|entry| entry.unwrap().path()).filter(|path| is_payload(path));
        let path = paths.next().expect("a node has memory");
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        let lies = |start: &usize| all[*start..].starts_with(value);
        let start = (0..all.len()).step_by(64).find(lies).expect("the value lies there");
        file.write_all_at(&[value[at] ^ 4], (start + at) as u64).unwrap();
    }

    /// SIGSTOP, and no thread of it runs when this returns.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let status = format!("/proc/{}/task", self.child.id());
        until("the process stands still", SLACK, || {
            let tasks = std::fs::read_dir(&status).unwrap();
            tasks.map(|task| task.unwrap().path().join("stat")).all(|stat| {
                // The state stands behind the name, which is in parentheses.
                let stat = std::fs::read_to_string(stat).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't']))
            })
        });
    }
}

/// Not a test of its own: what the started processes do.
#[test]
#[ignore = "started by the tests of this program"]
fn as_a_child() {
    let Some(part) = child_part() else { return };
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["node", name, master, folder] => be_a_node(name, master, folder),
        ["master", address, folder] => {
            let listen = address.parse().unwrap();
            let state_file = Some(Path::new(folder).join("state"));
            let catalog = CatalogConfig { registration: LONG_REGISTRATION, ..catalog() };
            let options = MasterOptions { listen, state_file, catalog, ..MasterOptions::default() };
            let running = run_master(options).unwrap();
            say(&running.master_address().unwrap().to_string());
            wait_for_the_end();
        }
        ["writer", master, shared] => write_for_ever(&master.parse().unwrap(), shared == "shared"),
        ["session", master, shared] => {
            let store = connect(&master.parse().unwrap(), shared == "shared");
            let session = store.put_session(b"layers", 400_000, &store.put_config()).unwrap();
            session.write(100_000, &vec![7; 100_000]).unwrap();
            say("ready");
            wait_for_the_end();
        }
        _ => panic!("no part {part}"),
    }
}

/// Puts, looks and removes until somebody ends it.
fn write_for_ever(master: &Address, shared: bool) {
    let store = connect(master, shared);
    let mut views = Vec::new();
    say("ready");
    for n in 0_u32.. {
        let name = format!("w/{}", n % 16);
        let len = [500, 40_000, 1_500_000][n as usize % 3];
        let _ = store.put(name.as_bytes(), &stamped(name.as_bytes(), n, len));
        views.extend(store.view(name.as_bytes()).ok().flatten());
        if views.len() > 4 {
            views.clear();
        }
        let _ = store.remove(name.as_bytes(), false);
    }
}

/// The value of the `n`-th put of a key.
pub(crate) fn stamped(name: &[u8], n: u32, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    payload::fill(&mut value, PutId::new(1, 1, n), key::hash(name));
    value
}

/// Whether this is, to the last byte, the value of the `n`-th put of a key.
pub(crate) fn judge(name: &[u8], n: u32, len: usize, found: &[u8]) {
    assert_eq!(found.len(), len, "{}", name.escape_ascii());
    payload::examine_as(found, PutId::new(1, 1, n), key::hash(name)).unwrap();
}

/// Asks again while the answer is an error that says so.
pub(crate) fn patiently<T>(mut call: impl FnMut() -> Result<T, Error>) -> T {
    let end = boottime().deadline_in(3 * REGISTRATION);
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(!end.passed(boottime()), "still: {error}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Waits for something that must come true.
pub(crate) fn until(what: &str, most: Duration, mut done: impl FnMut() -> bool) {
    let end = boottime().deadline_in(most);
    while !done() {
        assert!(!end.passed(boottime()), "{what}: not within {most:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
