//! What an operator does to a running cluster of processes: empty a node and change their mind, give a
//! tenant a quota that outlives the master, and keep memory from other users.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]
#![expect(clippy::float_cmp, reason = "counts are whole numbers, which floats hold exactly")]

#[path = "support/metrics.rs"]
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod metrics;
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use metrics::Scrape;
use mooncrate_core::NodeId;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;
use support::{Server, answer, ask, fetch, finish, keep, mooncrate, run};

const ANY: &str = "127.0.0.1:0";
/// Nobody, on every Linux.
const OTHER_USER: u32 = 65534;

fn node(folder: &Path, master: &str, name: &str) -> Server {
    let here = folder.join(name);
    std::fs::create_dir(&here).unwrap();
    let args = ["node", "--master", master, "--data", ANY, "--segment-size", "16MiB"];
    Server::start(&here, &[&args[..], &["--node-name", name]].concat())
}

/// Objects on a node, as the cluster says.
fn on_node(folder: &Path, master: &str, name: &str) -> u64 {
    let stat = ask(folder, master, &["stat", "--json"], b"").json();
    let id = NodeId::named(name).to_string();
    let rows = stat["segments"].as_array().unwrap().iter().filter(|row| row["node"] == id);
    rows.map(|row| row["objects"].as_u64().unwrap()).sum()
}

#[test]
fn a_node_is_drained_and_undrained_by_command_and_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::start(folder, &["master", "--master", ANY, "--admin", ANY]);
    let (at, admin) = (server.address("master"), server.address("admin"));
    let admin = admin.strip_prefix("http://").unwrap();
    let _a = node(folder, at, "a");
    for n in 0..5 {
        ask(folder, at, &["put", &format!("k{n}")], &vec![n; 10_000]).good();
    }
    let _b = node(folder, at, "b");
    assert_eq!(on_node(folder, at, "a"), 5);

    let drained = ask(folder, at, &["drain", "a", "--wait", "--json"], b"").json();
    assert_eq!((&drained["drained"], &drained["moved"]), (&json!(true), &json!(5)), "{drained}");
    assert_eq!((on_node(folder, at, "a"), on_node(folder, at, "b")), (0, 5));
    for n in 0..5 {
        assert_eq!(ask(folder, at, &["get", &format!("k{n}")], b"").out, vec![n; 10_000]);
    }
    let (status, body) = fetch(admin, "GET", "/v1/nodes/a/drain");
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &told["drained"]), (200, &json!(true)), "{body}");
    let undrained = ask(folder, at, &["undrain", "a", "--json"], b"").json();
    assert_eq!(undrained["draining"], json!(0));

    // The other way round, over HTTP.
    let (status, body) = fetch(admin, "POST", "/v1/nodes/b/drain");
    assert_eq!(status, 200, "{body}");
    for _ in 0..600 {
        if fetch(admin, "GET", "/v1/nodes/b/drain").1.contains("\"drained\":true") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((on_node(folder, at, "a"), on_node(folder, at, "b")), (5, 0));
    assert_eq!(fetch(admin, "DELETE", "/v1/nodes/b/drain").0, 200);

    for command in ["drain", "undrain"] {
        let nobody = ask(folder, at, &[command, "nobody"], b"");
        assert_eq!(nobody.code, Some(1));
        assert!(nobody.err.contains("no node `nobody` is mounted"), "{}", nobody.err);
    }
}

#[test]
fn a_quota_is_set_kept_and_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let secret = keep(folder, "cluster.token", &run(folder, &["token", "new"]).good());
    let derive = |role: &str, tenant: &str| {
        let args = ["token", "derive", "--role", role, "--tenant", tenant, "--token-file", &secret];
        keep(folder, &format!("{role}{tenant}.token"), &run(folder, &args).good())
    };
    let (admin, acme) = (derive("admin", ""), derive("client", "acme"));
    let start = |at: &str| {
        let args = ["master", "--master", at, "--admin", "off", "--state-file", "state"];
        Server::start(folder, &[&args[..], &["--token-file", &secret]].concat())
    };
    let mut server = start(ANY);
    let at = server.address("master").to_owned();
    let here = folder.join("n");
    std::fs::create_dir(&here).unwrap();
    let args = ["node", "--master", &at, "--data", ANY, "--segment-size", "16MiB"];
    let _node = Server::start(&here, &[&args[..], &["--token-file", &secret]].concat());
    let as_acme = |args: &[&str], input: &[u8]| {
        ask(folder, &at, &[args, &["--token-file", &acme]].concat(), input)
    };
    let as_admin = |args: &[&str]| {
        ask(folder, &at, &[args, &["--json", "--token-file", &admin]].concat(), b"")
    };
    let quota = || as_admin(&["quota", "acme"]).json()["tenants"][0]["quota"].clone();

    as_acme(&["put", "small"], &[1; 10_000]).good();
    as_admin(&["quota", "acme", "64KiB"]).good();
    assert_eq!(quota(), json!(65536));
    let full = as_acme(&["put", "large"], &vec![2; 200_000]);
    assert_eq!(full.code, Some(1));
    assert!(full.err.contains("quota"), "{}", full.err);
    let refused = as_acme(&["quota", "acme", "1GiB"], b"");
    assert_eq!(refused.code, Some(1), "a client gives itself nothing: {refused:?}");

    // The master is killed, and its successor knows.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let _again = start(&at);
    assert_eq!(quota(), json!(65536));
    // It waits for its nodes first.
    let large = || {
        for _ in 0..300 {
            let put = as_acme(&["put", "large"], &vec![2; 200_000]);
            if !put.err.contains("being rebuilt") {
                return put;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("the index was never rebuilt");
    };
    let full = large();
    assert_eq!(full.code, Some(1));
    assert!(full.err.contains("quota"), "{}", full.err);
    as_admin(&["quota", "acme", "off"]).good();
    large().good();
    assert_eq!(as_acme(&["get", "small"], b"").out, [1; 10_000]);
}

/// The kernel says who is at the other end of a Unix socket: whoever may connect to it but is neither
/// the node's user nor root nor named gets no memory, and reads over TCP.
#[test]
fn security_another_user_gets_no_memory() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED security_another_user_gets_no_memory: only root can be somebody else");
        return;
    }
    for (more, mapped) in [(&[][..], false), (&["--share-users", "65534"][..], true)] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let open = |path: &Path| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        };
        open(folder);
        let socket = folder.join("n.sock");
        let unix = ["--unix", socket.to_str().unwrap()];
        let args = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY];
        let server = Server::start(folder, &[&args[..], &unix, more].concat());
        // Only the kernel's word stands between others and the memory now.
        open(&socket);
        let master = server.address("master");
        ask(folder, master, &["put", "k"], &vec![7; 50_000]).good();
        // Reads in shared memory are not seen by the node, others are.
        let streamed = || {
            let admin = server.address("admin").strip_prefix("http://").unwrap();
            let page = fetch(admin, "GET", "/metrics").1;
            Scrape::read(&page).value("mooncrate_node_read_seconds_count")
        };
        assert_eq!(ask(folder, master, &["get", "k"], b"").out, vec![7; 50_000]);
        assert_eq!(streamed(), 0.0, "our own user maps the memory");
        let mut other = mooncrate(folder);
        other.uid(OTHER_USER).gid(OTHER_USER).env("MOONCRATE_MASTER", master).args(["get", "k"]);
        let got = answer(&finish(&mut other, b""));
        assert_eq!(got.out, vec![7; 50_000], "{}", got.err);
        assert_eq!(streamed() == 0.0, mapped, "{more:?}");
    }
}
