//! Connections that ask nothing, or not all of a question, and one that does.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_admin::{Router, Settings, serve, window};
use mooncrate_wire::door::Times;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for anything, on a machine that is busy with other things.
const LONG: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A window of eight connections at work while `asking` runs.
fn with_window(times: Times, asking: impl FnOnce(SocketAddr) + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let settings = Settings { connections: 8, times, ..Settings::new("a test") };
        let routes = window(Router::new().fallback(|body: String| async move { body + "here" }));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = serve(listener, routes, settings, async move { drop(stopped.await) });
        let asking = async move {
            tokio::task::spawn_blocking(move || asking(at)).await.unwrap();
            drop(stop);
        };
        tokio::select! {
            () = asking => {}
            ended = serving => panic!("{ended:?}"),
        }
    });
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&at, LONG).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(ASK).unwrap();
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

/// Waits until the server hangs up.
fn ended(stream: &mut TcpStream) {
    match stream.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn security_silent_connections_do_not_close_the_window() {
    let times = Times { first: HOUR, idle: HOUR, write: HOUR };
    with_window(times, |at| {
        let mut silent: Vec<_> = (0..100).map(|_| connect(at)).collect();
        let mut caller = connect(at);
        assert!(ask(&mut caller).ends_with("here"));
        ended(&mut silent[0]);
        // It may be displaced later than those who say nothing.
        silent.push(connect(at));
        assert!(ask(&mut caller).ends_with("here"));
    });
}

#[test]
fn security_whoever_asks_nothing_is_hung_up_on() {
    let soon = Duration::from_millis(200);
    with_window(Times { first: soon, idle: HOUR, write: HOUR }, |at| {
        ended(&mut connect(at));
        let mut half = connect(at);
        half.write_all(&ASK[..20]).unwrap();
        ended(&mut half);
    });
    with_window(Times { first: HOUR, idle: soon, write: HOUR }, |at| {
        let mut caller = connect(at);
        assert!(ask(&mut caller).ends_with("here"));
        ended(&mut caller);
    });
}
