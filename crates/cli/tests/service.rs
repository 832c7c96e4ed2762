//! The real binary below a service manager: it tells when it is ready and when it stops, and a drain has its whole time.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;
use support::{Server, ask};

const ANY: &str = "127.0.0.1:0";

/// The next message at the socket of a service manager.
fn message(socket: &UnixDatagram) -> String {
    let mut room = [0; 64];
    let length = socket.recv(&mut room).unwrap();
    String::from_utf8(room[..length].to_vec()).unwrap()
}

fn master(folder: &Path) -> Server {
    Server::start(folder, &["master", "--master", ANY, "--admin", "off", "--state-file", "off"])
}

#[test]
fn each_server_tells_the_service_manager_when_it_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let other = master(folder);
    let place = ["--admin", "off", "--master", ANY];
    let master = [&["master", "--state-file", "off"], &place[..]].concat();
    let memory = ["--data", ANY, "--segment-size", "16MiB"];
    let node = [&["node", "--master", other.address("master")], &memory[..]].concat();
    let serve = [&["serve"], &place[..], &memory].concat();
    for args in [master, node, serve] {
        let mut server = Server::start_with(folder, &args, |command| {
            command.env("NOTIFY_SOCKET", &path);
        });
        assert_eq!(message(&socket), "READY=1", "{args:?}");
        assert!(server.end_by(Signal::TERM).success(), "{args:?}");
        assert_eq!(message(&socket), "STOPPING=1", "{args:?}");
    }
}

/// Was: every stop was cut off after 5 s, so a node with `--drain-on-stop 10m` lost what it had not moved by then. Here
/// the only node has no other node to move its value to, so the drain lasts as long as it may.
#[test]
fn a_drain_at_the_stop_has_all_of_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let master = master(folder);
    let at = master.address("master");
    let memory = ["--data", ANY, "--segment-size", "16MiB", "--node-name", "a"];
    let args = [&["node", "--master", at, "--drain-on-stop", "7s"], &memory[..]].concat();
    let mut node = Server::start(folder, &args);
    ask(folder, at, &["put", "k", "--value", "v"], b"").good();
    assert!(node.end_by(Signal::TERM).success());
    let log = std::fs::read_to_string(folder.join("node.log")).unwrap();
    assert!(log.contains("not drained") && !log.contains("cut off"), "{log}");
}
