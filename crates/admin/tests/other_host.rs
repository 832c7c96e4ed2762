//! A window whose socket is bound too widely, and somebody who comes from another address. In a network
//! namespace of its own, so that nothing of this machine's network matters or changes; that needs root.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_admin::{Router, Settings, serve, window};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// An address that is not loopback; in the namespace it is this machine's own.
const ELSEWHERE: &str = "192.0.2.7";
const SETUP: &str = "ip link set lo up && ip addr add 192.0.2.7/32 dev lo && \
                     exec \"$0\" in_a_namespace --exact --ignored --nocapture";

#[test]
fn security_admin_calls_from_another_host_are_refused() {
    let possible = Command::new("unshare").args(["--net", "ip", "link"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED security_admin_calls_from_another_host_are_refused: no namespaces here");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let ran = Command::new("unshare").args(["--net", "sh", "-c", SETUP]).arg(own).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{:?}", ran.stderr);
}

fn ask(at: SocketAddr, from: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(20)).unwrap();
    assert_eq!(stream.local_addr().unwrap().ip().to_string(), from);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The name alone does not help: it says localhost.
    let request = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
#[ignore = "started by the other test, in a namespace"]
fn in_a_namespace() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let routes = window(Router::new().fallback(|| async { "every key" }));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving =
            serve(listener, routes, Settings::new("a test"), async move { drop(stopped.await) });
        let asking = async move {
            let answers = tokio::task::spawn_blocking(move || {
                let at = |host: &str| SocketAddr::new(host.parse().unwrap(), port);
                (ask(at("127.0.0.1"), "127.0.0.1"), ask(at(ELSEWHERE), ELSEWHERE))
            });
            let (here, there) = answers.await.unwrap();
            assert!(here.starts_with("HTTP/1.1 200") && here.contains("every key"), "{here}");
            assert!(there.starts_with("HTTP/1.1 403") && !there.contains("every key"), "{there}");
            drop(stop);
        };
        let all = async { tokio::join!(serving, asking) };
        let (served, ()) = tokio::time::timeout(Duration::from_mins(1), all).await.unwrap();
        served.unwrap();
    });
}
