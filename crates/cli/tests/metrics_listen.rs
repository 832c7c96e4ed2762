//! `--metrics-listen`: other machines read metrics and health there, and nothing else; the admin HTTP stays closed to them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]
#![expect(clippy::float_cmp, reason = "counts are whole numbers, which floats hold exactly")]

#[path = "support/metrics.rs"]
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod metrics;
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use metrics::Scrape;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Server, ask, keep, mooncrate, run};

const ANY: &str = "127.0.0.1:0";
/// A name for a key and a tenant that no page would hold by chance.
const SECRET: &str = "k7q-secret";
const PATIENCE: Duration = Duration::from_secs(20);
/// What the admin HTTP answers and the listener for metrics must not.
const ADMIN_PATHS: [(&str, &str); 9] = [
    ("GET", "/"),
    ("GET", "/v1/keys"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/quotas"),
    ("DELETE", "/v1/keys/k7q-secret?force=true"),
    ("GET", "/metrics/summary"),
    ("POST", "/metrics"),
];

/// Host and port of a URL.
fn host_of(url: &str) -> &str {
    url.strip_prefix("http://").unwrap().split('/').next().unwrap()
}

/// A request under another name than the server's own.
fn fetch(address: &str, verb: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "Host: metrics.example\r\nConnection: close\r\nContent-Length: 0";
    write!(stream, "{verb} {path} HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// Judges a listener for metrics of a server that is well.
fn judge(address: &str) {
    let (status, health) = fetch(address, "GET", "/healthz");
    assert_eq!(status, 200, "{health}");
    assert_eq!(serde_json::from_str::<Value>(&health).unwrap()["status"], "ok");
    let (status, page) = fetch(address, "GET", "/metrics");
    assert_eq!(status, 200, "{page}");
    assert!(!Scrape::read(&page).families.is_empty());
    assert!(!page.contains(SECRET) && !health.contains(SECRET), "keys and tenants stay inside");
    for (verb, path) in ADMIN_PATHS {
        let (status, said) = fetch(address, verb, path);
        assert_eq!(status, 404, "{verb} {path}: {said}");
        assert!(said.contains("GET /metrics") && !said.contains(SECRET), "{said}");
    }
}

/// A server of each role with a listener for metrics at this host, and a value that a tenant put.
fn servers(folder: &Path, host: &str) -> Vec<Server> {
    let metrics = format!("{host}:0");
    let listen = ["--metrics-listen", &metrics];
    let secret = keep(folder, "secret", &run(folder, &["token", "new"]).good());
    let derive = ["token", "derive", "--tenant", SECRET, "--token-file", &secret];
    let tenant = keep(folder, "tenant", &run(folder, &derive).good());
    let guarded = ["--token-file", &secret];
    let serve = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY, "--unix", "off"];
    let serve = Server::start(folder, &[&serve[..], &listen, &guarded].concat());
    let put = ["put", SECRET, "--value", "v", "--token-file", &tenant];
    ask(folder, serve.address("master"), &put, b"").good();
    let master = ["master", "--master", ANY, "--admin", ANY, "--state-file", "off"];
    let master = Server::start(folder, &[&master[..], &listen, &guarded].concat());
    let at = master.address("master").to_owned();
    let node = ["node", "--master", &at, "--data", ANY, "--unix", "off", "--node-admin", ANY];
    let node = Server::start(folder, &[&node[..], &listen, &guarded].concat());
    vec![serve, master, node]
}

#[test]
fn security_the_listener_for_metrics_serves_two_pages_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    for server in servers(folder.path(), "127.0.0.1") {
        judge(host_of(server.address("metrics")));
        // The admin HTTP has the same pages and asks for a local name, as before.
        let (status, said) = fetch(host_of(server.address("admin")), "GET", "/metrics");
        assert_eq!(status, 403, "{said}");
    }
    let quiet = ["serve", "--master", ANY, "--admin", "off", "--data", ANY];
    let quiet = Server::start(folder.path(), &quiet);
    assert!(quiet.started["metrics"].is_null(), "off unless asked for");
}

#[test]
fn an_address_that_cannot_be_had_is_named_with_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let holder = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
    let _held = TcpListener::bind(holder).unwrap();
    let (taken, port) = (holder.to_string(), format!("port {} is taken by process", holder.port()));
    for (address, says) in [
        ("9090", "host:port"),
        ("192.0.2.7:9090", "this machine has no such address"),
        (&taken, &port),
    ] {
        for role in ["serve", "master", "node"] {
            let mut command = mooncrate(folder.path());
            command.args([role, "--metrics-listen", address, "--master", ANY, "--log", "error"]);
            // A store of this machine may have the usual ports.
            command.env("MOONCRATE_DATA", ANY).env("MOONCRATE_ADMIN", "off");
            let refused = support::answer(&support::finish(&mut command, b""));
            assert_eq!(refused.code, Some(2), "{refused:?}");
            for part in ["--metrics-listen", says] {
                assert!(refused.err.contains(part), "{role} {address}: {}", refused.err);
            }
        }
    }
    let mut command = mooncrate(folder.path());
    command.env("MOONCRATE_METRICS_LISTEN", "10.0.0.1:9100").args(["node", "--print-config"]);
    let shown = support::answer(&support::finish(&mut command, b"")).good();
    let row = shown.lines().find(|line| line.starts_with("metrics_listen")).unwrap();
    assert!(row.contains("10.0.0.1:9100"), "{row}");
}

/// The network of this test: the servers' machine and the one that asks, each a namespace, with a cable between them.
const HERE: &str = "10.79.0.1";
const THERE: &str = "10.79.0.2";

#[test]
fn security_another_machine_reads_metrics_and_cannot_reach_the_admin_http() {
    let cable = "ip link add a0 type veth peer name b0";
    let possible = Command::new("unshare").args(["--net", "sh", "-c", cable]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "SKIPPED security_another_machine_reads_metrics_and_cannot_reach_the_admin_http: network namespaces \
             and virtual cables are needed (root, iproute2)"
        );
        return;
    }
    let own = std::env::current_exe().unwrap();
    let here = "ip link set lo up && exec \"$0\" on_the_machine_of_the_servers --exact --ignored --nocapture";
    let ran = Command::new("unshare").args(["--net", "sh", "-c", here]).arg(own).output().unwrap();
    let (said, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{err}");
}

fn shell(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

#[test]
#[ignore = "started by the test above, in a namespace"]
fn on_the_machine_of_the_servers() {
    let own = std::env::current_exe().unwrap();
    // Waits for a line, so that its end of the cable is there before it is used.
    let there = format!(
        "read line && ip link set lo up && ip addr add {THERE}/24 dev b0 && ip link set b0 up && \
         exec \"$0\" on_another_machine --exact --ignored --nocapture"
    );
    let mut asking = Command::new("unshare");
    asking.args(["--net", "sh", "-c", &there]).arg(own);
    // Addresses of the servers are known later and come with the line.
    let mut asking = asking.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = asking.stdin.take().unwrap();
    shell(&format!(
        "until [ \"$(readlink /proc/{0}/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.01; done; \
         ip link add a0 type veth peer name b0 netns {0}; ip addr add {HERE}/24 dev a0; ip link set a0 up",
        asking.id()
    ));
    let folder = tempfile::tempdir().unwrap();
    let servers = servers(folder.path(), HERE);
    let addresses = servers.iter().flat_map(|server| {
        ["metrics", "admin"].map(|name| host_of(server.address(name)).to_owned())
    });
    writeln!(line).unwrap();
    writeln!(line, "{}", addresses.collect::<Vec<_>>().join(" ")).unwrap();
    drop(line);
    let ran = asking.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "started by the test above, in another namespace"]
fn on_another_machine() {
    let addresses = std::io::read_to_string(std::io::stdin()).unwrap();
    let addresses: Vec<&str> = addresses.split_whitespace().collect();
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    for pair in addresses.chunks(2) {
        let (metrics, admin) = (pair[0], pair[1]);
        judge(metrics);
        let port = admin.rsplit_once(':').unwrap().1;
        let refused = TcpStream::connect(format!("{HERE}:{port}")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "the admin HTTP");
    }
}
