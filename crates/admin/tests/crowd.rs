//! Connections that ask nothing, or not all of a question, and one that does.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use axum::body::{Body, Bytes};
use axum::routing::get;
use mooncrate_admin::{Router, Settings, serve, window};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::door::Times;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Longest wait for anything, on a machine that is busy with other things.
const LONG: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A window of eight connections at work while `asking` runs.
fn with_window(times: Times, asking: impl FnOnce(SocketAddr) + Send + 'static) {
    let routes = Router::new().fallback(|body: String| async move { body + "here" });
    with_routes(Settings { times, ..settings() }, routes, asking);
}

fn settings() -> Settings {
    Settings { connections: 8, ..Settings::new("a test") }
}

fn with_routes(
    settings: Settings,
    routes: Router,
    asking: impl FnOnce(SocketAddr) + Send + 'static,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let routes = window(routes);
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

/// Bytes of an answer that no buffer of a socket holds.
const LARGE: usize = 8 << 20;

/// An answer that knows how many of its kind there are.
struct Counted(Vec<u8>, &'static AtomicUsize);

impl Counted {
    fn new(count: &'static AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(vec![7; LARGE], count)
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The story: 40 requests for a long list whose answers nobody took held 1.1 GiB, and more of them more.
#[test]
fn security_answers_that_nobody_takes_have_a_bound() {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    let times = Times { first: HOUR, idle: HOUR, write: HOUR };
    let settings =
        Settings { connections: 64, times, answer_bytes: 4 * LARGE as u32, ..settings() };
    let large = || async { Body::from(Bytes::from_owner(Counted::new(&KEPT))) };
    let routes = Router::new().route("/large", get(large)).fallback(|| async { "here" });
    with_routes(settings, routes, |at| {
        let ask_large = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut crowd: Vec<_> = (0..12).map(|_| connect(at)).collect();
        for stream in &mut crowd {
            stream.write_all(ask_large).unwrap();
        }
        // Each has an answer, or the beginning of one.
        let mut heads = [[0; 12]; 12];
        for (one, head) in crowd.iter_mut().zip(&mut heads) {
            one.read_exact(head).unwrap();
        }
        let kept = KEPT.load(Ordering::SeqCst);
        assert!(kept <= 4, "{kept} answers are in memory, where 4 have room");
        assert!(heads.iter().any(|head| head == b"HTTP/1.1 200"));
        assert!(heads.iter().any(|head| head == b"HTTP/1.1 503"), "who gets none hears so");
        // Small ones need no room, and what was let go of gives its room back.
        assert!(ask(&mut connect(at)).ends_with("here"));
        drop(crowd);
        let until = boottime().deadline_in(LONG);
        while KEPT.load(Ordering::SeqCst) > 0 {
            assert!(!until.passed(boottime()), "room is never given back");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut one = connect(at);
        one.write_all(ask_large).unwrap();
        let mut answer = vec![0; LARGE];
        one.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(&[7; 1000]));
    });
}

/// One byte now and then kept an answer for ever: each byte that was taken began the time anew.
#[test]
fn security_whoever_takes_an_answer_byte_by_byte_is_hung_up_on() {
    let times = Times { first: HOUR, idle: HOUR, write: Duration::from_millis(500) };
    let routes = Router::new().fallback(|| async { vec![7; 3 * LARGE] });
    with_routes(Settings { times, ..settings() }, routes, |at| {
        let mut slow = connect(at);
        slow.write_all(ASK).unwrap();
        let (mut taken, mut some) = (0, [0; 4096]);
        for _ in 0..60 {
            taken += slow.read(&mut some).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        // What the sockets hold is all that is left.
        while let Ok(bytes @ 1..) = slow.read(&mut some) {
            taken += bytes;
        }
        assert!(taken < 3 * LARGE, "all {taken} bytes came, however slowly they were taken");
    });
}
