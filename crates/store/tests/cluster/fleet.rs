//! Clusters of this test: masters in threads, nodes in threads or in processes of their own (this
//! very program, started again with one test to run and a line that says what to be).

use mooncrate::{
    Address, CatalogConfig, ClientConfig, ConnectOptions, Error, MasterOptions, NodeOptions,
    Running, Store, run_master, run_node,
};
use mooncrate_check::{PutId, payload};
use mooncrate_core::ids::{NodeId, SegmentId};
use mooncrate_core::key;
use mooncrate_wire::clock::boottime;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// How long a master keeps a silent node in these tests; half of it is the leave to serve (R10).
pub(crate) const REGISTRATION: Duration = Duration::from_secs(4);
/// The same for masters in processes of their own, which are away for longer than the tests above take.
pub(crate) const LONG_REGISTRATION: Duration = Duration::from_secs(20);
pub(crate) const CALL_TIME: Duration = Duration::from_secs(2);
/// What a busy machine may add to any time.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);
const CHILD: &str = "MOONCRATE_TEST_CHILD";
/// So that the harness's own lines are not taken for the child's.
const MARK: &str = "@@";

pub(crate) fn any_port() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

pub(crate) fn catalog() -> CatalogConfig {
    CatalogConfig {
        registration: REGISTRATION,
        silent_after: Duration::from_millis(1500),
        put_timeout: Duration::from_secs(1),
        order_retry: Duration::from_millis(200),
        ..CatalogConfig::default()
    }
}

pub(crate) fn master() -> MasterOptions {
    MasterOptions { listen: any_port(), catalog: catalog(), ..MasterOptions::default() }
}

pub(crate) fn node(name: &str, master: &Address, folder: &Path) -> NodeOptions {
    NodeOptions {
        name: name.into(),
        master: master.clone().into(),
        listen: Some(any_port()),
        unix: Some(folder.join(format!("{name}.sock"))),
        segment_bytes: 32 << 20,
        ..NodeOptions::default()
    }
}

/// A client that maps memory where it can, or goes over TCP.
pub(crate) fn connect(master: &Address, shared_memory: bool) -> Store {
    let client = ClientConfig { call_time: CALL_TIME, ..ClientConfig::default() };
    let master = master.clone().into();
    Store::connect(ConnectOptions { master, shared_memory, client, ..ConnectOptions::default() })
        .unwrap()
}

/// The segment of a node, to prefer it.
pub(crate) fn segment(node: &str) -> SegmentId {
    SegmentId::of(NodeId::named(node), 0)
}

/// A master in this process and nodes in others.
pub(crate) struct Fleet {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) master: Option<Running>,
    pub(crate) address: Address,
    pub(crate) nodes: Vec<Process>,
}

impl Fleet {
    /// The master keeps its state in a file; `names` are processes.
    pub(crate) fn start(names: &[&str]) -> Self {
        Self::start_with(names, catalog())
    }

    /// The same with other times.
    pub(crate) fn start_with(names: &[&str], catalog: CatalogConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state_file = Some(folder.path().join("state"));
        let options = MasterOptions { state_file, catalog, ..master() };
        let master = run_master(options).unwrap();
        let address = master.master_address().unwrap();
        let mut fleet = Self { folder, master: Some(master), address, nodes: Vec::new() };
        for name in names {
            fleet.start_node(name);
        }
        fleet
    }

    pub(crate) fn start_node(&mut self, name: &str) {
        let folder = self.folder.path().display();
        let mut process = Process::start(&format!("node {name} {} {folder}", self.address));
        assert_eq!(process.word(), "ready");
        self.nodes.push(process);
    }

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

/// A process that does a part.
pub(crate) struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
    /// The child ends when this is closed, so it cannot outlive us.
    _hears: ChildStdin,
}

impl Process {
    pub(crate) fn start(part: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["fleet::as_a_child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        Self { child, says, _hears: hears }
    }

    pub(crate) fn word(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some((_, word)) = line.split_once(MARK) {
                return word.trim().to_owned();
            }
        }
    }

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

    /// SIGKILL, and gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: what the started processes do.
#[test]
#[ignore = "started by the tests of this program"]
#[expect(clippy::disallowed_methods, reason = "a started process is told its part this way")]
fn as_a_child() {
    let Ok(part) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["node", name, master, folder] => {
            let options = node(name, &master.parse().unwrap(), Path::new(folder));
            let _running = run_node(options).unwrap();
            say("ready");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        ["master", address, folder] => {
            let listen = address.parse().unwrap();
            let state_file = Some(Path::new(folder).join("state"));
            let catalog = CatalogConfig { registration: LONG_REGISTRATION, ..catalog() };
            let options = MasterOptions { listen, state_file, catalog, ..MasterOptions::default() };
            let running = run_master(options).unwrap();
            say(&running.master_address().unwrap().to_string());
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        ["writer", master, shared] => write_for_ever(&master.parse().unwrap(), shared == "shared"),
        ["session", master, shared] => {
            let store = connect(&master.parse().unwrap(), shared == "shared");
            let session = store.put_session(b"layers", 400_000, &store.put_config()).unwrap();
            session.write(100_000, &vec![7; 100_000]).unwrap();
            say("ready");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        _ => panic!("no part {part}"),
    }
}

#[expect(clippy::print_stdout, reason = "the pipe to the process that started this one")]
fn say(word: &str) {
    println!("{MARK}{word}");
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
