//! The binary as an operator meets it: tokens, certificates, and what it says to those without.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate_check::certs::{Authority, Issued};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use support::{Answer, Server, ask, keep, run};

const ANY: &str = "127.0.0.1:0";

fn new_token(folder: &Path, name: &str) -> String {
    keep(folder, name, &run(folder, &["token", "new"]).good())
}

fn derive(folder: &Path, secret: &str, role: &str, tenant: &str) -> String {
    let args = ["token", "derive", "--role", role, "--tenant", tenant, "--token-file", secret];
    keep(folder, &format!("{role}{tenant}.token"), &run(folder, &args).good())
}

#[track_caller]
fn refused(answer: &Answer, code: i32, says: &[&str]) {
    assert_eq!(answer.code, Some(code), "{answer:?}");
    for part in says {
        assert!(answer.err.contains(part), "{part}: {}", answer.err);
    }
}

#[test]
fn security_tokens_from_the_command_line_to_a_value_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let secret = new_token(folder, "cluster.token");
    // Open to other machines, because it is guarded.
    let args = ["serve", "--master", "0.0.0.0:0", "--admin", ANY, "--data", ANY];
    let server = Server::start(folder, &[&args[..], &["--token-file", &secret]].concat());
    let master = server.address("master").replace("0.0.0.0", "127.0.0.1");
    let client = derive(folder, &secret, "client", "acme");
    let put = ["put", "k", "--value", "v", "--token-file", &client];
    ask(folder, &master, &put, b"").good();
    let got = ask(folder, &master, &["get", "k", "--token-file", &client], b"");
    assert_eq!(got.good(), "v");

    refused(&ask(folder, &master, &["get", "k"], b""), 1, &["--token-file"]);
    let foreign = new_token(folder, "foreign.token");
    let wrong = ["get", "k", "--token-file", &foreign];
    refused(&ask(folder, &master, &wrong, b""), 1, &["not of this cluster", "token derive"]);
    let node = ["node", "--data", ANY, "--node-name", "x", "--token-file", &client];
    refused(&ask(folder, &master, &node, b""), 2, &["token new", "derived token"]);
    std::fs::set_permissions(&client, PermissionsExt::from_mode(0o644)).unwrap();
    let open = ["get", "k", "--token-file", &client];
    refused(&ask(folder, &master, &open, b""), 2, &["chmod 600"]);
}

#[test]
fn security_what_an_admin_changes_is_in_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let secret = new_token(folder, "cluster.token");
    let args = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY, "--token-file", &secret];
    let server = Server::start(folder, &args);
    let admin = derive(folder, &secret, "admin", "");
    let master = server.address("master");
    let name = "a-very-private-key";
    ask(folder, master, &["put", name, "--value", "v", "--token-file", &admin], b"").good();
    ask(folder, master, &["rm", name, "--token-file", &admin], b"").good();
    let log = std::fs::read_to_string(folder.join("serve.log")).unwrap();
    assert!(log.contains("audit") && log.contains("remove 1 keys"), "{log}");
    assert!(!log.contains(name), "keys stay out of logs: {log}");
}

#[test]
fn security_certificates_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (ca, other) = (Authority::default(), Authority::default());
    let ca_file = keep(folder, "ca.pem", &ca.cert());
    let pair = |name: &str, issued: &Issued| {
        let cert = keep(folder, &format!("{name}.pem"), &issued.cert);
        (cert, keep(folder, &format!("{name}.key"), &issued.key))
    };
    let servers = pair("server", &ca.issue(&["master.mooncrate", "node.mooncrate"]));
    let args = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY, "--unix", "off"];
    let tls = ["--tls-cert", &servers.0, "--tls-key", &servers.1, "--tls-ca", &ca_file];
    let server = Server::start(folder, &[&args[..], &tls].concat());
    let master = server.address("master");
    let with = |pair: &(String, String), more: &[&str]| {
        let tls = ["--tls-cert", &pair.0, "--tls-key", &pair.1, "--tls-ca", &ca_file];
        ask(folder, master, &[more, &tls].concat(), b"")
    };
    let client = pair("client", &ca.issue(&["client.mooncrate"]));
    with(&client, &["put", "k", "--value", "over TLS"]).good();
    assert_eq!(with(&client, &["get", "k"]).good(), "over TLS");
    let old = pair("old", &ca.issue_expired(&["client.mooncrate"]));
    refused(&with(&old, &["get", "k"]), 1, &["expired"]);
    let foreign = pair("foreign", &other.issue(&["client.mooncrate"]));
    refused(&with(&foreign, &["get", "k"]), 1, &["same CA"]);
    let half = ["get", "k", "--tls-cert", &client.0, "--tls-ca", &ca_file];
    refused(&ask(folder, master, &half, b""), 2, &["--tls-key"]);
}

#[test]
fn security_an_open_bind_is_refused_with_every_way_out() {
    let folder = tempfile::tempdir().unwrap();
    for door in ["--master", "--data"] {
        let tried = run(folder.path(), &["serve", door, "0.0.0.0:0"]);
        let ways = ["--token-file", "--tls-cert", "--tls-ca", "--insecure-listen", door];
        refused(&tried, 2, &ways);
    }
    // The admin HTTP has no way out, not even with a token.
    let secret = new_token(folder.path(), "cluster.token");
    let admin = ["serve", "--admin", "0.0.0.0:0", "--token-file", &secret, "--insecure-listen"];
    refused(&run(folder.path(), &admin), 2, &["loopback only"]);
}

/// What cannot be, or would hang, is refused at start, with the way out.
#[test]
fn security_a_server_refuses_what_it_cannot_keep() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let serve = |more: &[&str]| {
        let args = ["serve", "--master", ANY, "--admin", "off", "--data", ANY, "--unix", "off"];
        run(folder, &[&args[..], more].concat())
    };
    refused(&serve(&["--ssd", "disk=16EiB"]), 2, &["its file system has", "ask for less"]);
    let pipe = folder.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let pipe = pipe.to_str().unwrap();
    refused(&serve(&["--config", pipe]), 2, &["not a regular file"]);
    refused(&serve(&["--config", "/dev/zero"]), 2, &["not a regular file"]);
    refused(&serve(&["--state-file", pipe]), 1, &["not a regular file"]);
    let last = format!("mooncrate-master 4\nepoch {}\nserial 1\nend\n", u64::MAX);
    let state = keep(folder, "master.state", &last);
    refused(&serve(&["--state-file", &state]), 1, &["damaged"]);
    let ca = Authority::default();
    let issued = ca.issue(&["client.mooncrate"]);
    let (cert, key) = (keep(folder, "c.pem", &issued.cert), keep(folder, "c.key", &issued.key));
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    refused(&serve(&tls), 2, &["no client will accept it", "master.mooncrate"]);
}

/// A terminal that is closed ends a server as an operator would.
#[test]
fn security_a_hang_up_stops_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let args = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY, "--unix", "s"];
    if ignores_hang_ups("self") {
        // The server would inherit that, and is right to stay.
        return eprintln!("skipped: this process runs under nohup");
    }
    let mut server = Server::start(folder, &args);
    assert!(folder.join("s").exists());
    let status = server.end_by(rustix::process::Signal::HUP);
    assert!(status.success(), "{status:?}");
    assert!(!folder.join("s").exists(), "it tidied up");
}

/// Whether a process ignores SIGHUP, which is the first signal.
fn ignores_hang_ups(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

/// Whoever starts a server with `nohup` wants it to outlive the terminal.
#[test]
fn a_server_under_nohup_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let args = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY, "--unix", "off"];
    let mut server = Server::start_with(folder, &args, |command| {
        let mut nohup = std::process::Command::new("nohup");
        nohup.arg(command.get_program()).args(command.get_args()).current_dir(folder);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nohup.env(name, value),
                None => nohup.env_remove(name),
            };
        }
        let log = std::fs::File::create(folder.join("serve.log")).unwrap();
        nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        *command = nohup;
    });
    server.signal(rustix::process::Signal::HUP);
    assert!(ignores_hang_ups(&server.pid().to_string()), "a handler took the place of nohup");
    ask(folder, server.address("master"), &["put", "k", "--value", "v"], b"").good();
    let status = server.end_by(rustix::process::Signal::TERM);
    assert!(status.success(), "{status:?}");
}

/// A node that calls itself by an escape sequence tells no terminal anything, and forges no line of a log.
#[test]
fn security_names_of_others_are_shown_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = "evil\u{1b}[2J\nINFO\u{202e}\u{200b}";
    let args = ["serve", "--master", ANY, "--admin", ANY, "--data", ANY, "--node-name", name];
    let server = Server::start(folder, &args);
    let shown = ask(folder, server.address("master"), &["stat"], b"").good();
    assert!(shown.contains(r"evil\u{1b}[2J\nINFO\u{202e}\u{200b}"), "{shown:?}");
    let log = std::fs::read_to_string(folder.join("serve.log")).unwrap();
    for text in [shown, log] {
        for raw in ['\u{1b}', '\u{202e}', '\u{200b}'] {
            assert!(!text.contains(raw), "{text:?}");
        }
        assert!(!text.lines().any(|line| line.starts_with("INFO")), "{text:?}");
    }
}
