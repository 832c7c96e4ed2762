//! A cluster for the tests of several programs: a master in this process, nodes in processes of their own (the test's
//! program, started again with one test to run, [`crate::CHILD_TEST`], and a line that says what to be).

use mooncrate::{
    Address, CatalogConfig, ClientConfig, ConnectOptions, MasterOptions, NodeOptions, Running,
    Store, run_master, run_node,
};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// How long a master keeps a silent node in these tests; half of it is the serving lease (R10).
pub(crate) const REGISTRATION: Duration = Duration::from_secs(4);
pub(crate) const CALL_TIME: Duration = Duration::from_secs(2);
const CHILD: &str = "MOONCRATE_TEST_CHILD";
/// So that the harness's own lines are not taken for the child's.
const MARK: &str = "@@";

pub(crate) fn any_port() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

pub(crate) fn catalog() -> CatalogConfig {
    CatalogConfig {
        registration: REGISTRATION,
        serve_lease: REGISTRATION / 2,
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
}

/// A process that does a part.
pub(crate) struct Process {
    pub(crate) child: Child,
    says: BufReader<ChildStdout>,
    /// The child ends when this is closed, so it cannot outlive us.
    _hears: ChildStdin,
}

impl Process {
    pub(crate) fn start(part: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([crate::CHILD_TEST, "--exact", "--ignored", "--nocapture"])
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

/// What a started process is told to be; `None` in a process that nobody started.
#[expect(clippy::disallowed_methods, reason = "a started process is told its part this way")]
pub(crate) fn child_part() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// The part of a node: serves until the process that started this one is gone.
pub(crate) fn be_a_node(name: &str, master: &str, folder: &str) {
    let options = node(name, &master.parse().unwrap(), Path::new(folder));
    let _running = run_node(options).unwrap();
    say("ready");
    wait_for_the_end();
}

pub(crate) fn wait_for_the_end() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[expect(clippy::print_stdout, reason = "the pipe to the process that started this one")]
pub(crate) fn say(word: &str) {
    println!("{MARK}{word}");
}
