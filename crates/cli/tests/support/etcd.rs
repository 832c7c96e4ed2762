//! A real etcd as a child process, on ports of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest wait for etcd to answer.
const START_MAX: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(20);

/// One member of etcd. Killed when dropped.
pub(crate) struct Etcd {
    pub(crate) child: Child,
}

/// Whether this machine has etcd.
pub(crate) fn installed() -> bool {
    let asked = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// Starts it and waits until it answers. It does not sync its disk: no test cuts the power, and a
    /// disk that others keep busy would stall the election.
    pub(crate) fn start(folder: &Path, client: u16) -> Self {
        let (client, peer) = (url(client), url(free_port()));
        let child = Command::new("etcd")
            .args(["--name", "e", "--log-level", "error", "--unsafe-no-fsync"])
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("e={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.join("etcd.log")).unwrap())
            .spawn()
            .unwrap();
        let started = Self { child };
        let mut waited = Duration::ZERO;
        while !healthy(&client) {
            assert!(waited < START_MAX, "etcd did not answer in {START_MAX:?}");
            std::thread::sleep(STEP);
            waited += STEP;
        }
        started
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn healthy(url: &str) -> bool {
    let host = url.strip_prefix("http://").unwrap();
    let Ok(mut stream) = TcpStream::connect(host) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let asked = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.write_all(asked.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    answer.contains("\"true\"")
}
