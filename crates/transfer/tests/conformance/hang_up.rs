//! Fault rows 1, 2 and 8: clients that are killed or stopped in the middle. They are real processes:
//! this very program, started again with one test to run and a line that says what to be.

use crate::life::{link, put_frame};
use crate::rig::{EPOCH, HANG_UP, MOUNT, Rig, SEGMENT, Value, attached, soon};
use crate::suite::expect;
use mooncrate_core::plan::{Action, Locator, OrderResult};
use mooncrate_core::{Extent, Generation, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{DataServerConfig, Path, Stream, Transport};
use mooncrate_wire::message::{self, DataReply, DataRequest};
use mooncrate_wire::{Address, DataError, PoolConfig};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use std::borrow::Cow;
use std::io::{BufRead, BufReader, IoSlice, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const CHILD: &str = "MOONCRATE_TEST_CHILD";
/// So that the harness's own lines are not taken for the child's.
const MARK: &str = "@@";

/// A client in a process of its own.
struct Client {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Client {
    fn start(role: &str, address: &Address, value: &Value) -> Self {
        let Locator { slot, extent, .. } = value.locator;
        let part = format!(
            "{role} {address} {} {} {} {}",
            slot.0,
            extent.offset(),
            extent.len(),
            value.bytes.len()
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["hang_up::as_a_child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        Self { child, says, hears }
    }

    /// The child's next word.
    fn word(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some((_, word)) = line.split_once(MARK) {
                return word.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::print_stdout, reason = "the pipe to the process that started this one")]
fn say(word: &str) {
    println!("{MARK}{word}");
}

fn listen() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Not a test of its own: what the started processes do.
#[test]
#[ignore = "started by the tests of this file"]
#[expect(clippy::disallowed_methods, reason = "a started process is told its part this way")]
fn as_a_child() {
    let Ok(part) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    let [role, address, numbers @ ..] = &words[..] else { panic!("{part}") };
    let numbers: Vec<u64> = numbers.iter().map(|n| n.parse().unwrap()).collect();
    let [slot, offset, bytes, len] = numbers[..] else { panic!("{part}") };
    let locator = Locator {
        segment: SEGMENT,
        incarnation: MOUNT,
        slot: Slot(slot as u32),
        generation: Generation(0),
        extent: Extent::new(offset, bytes).unwrap(),
        stripe: 0,
        grant: None,
    };
    let value = Value::new(locator, len);
    let address: Address = address.parse().unwrap();
    let transport: Box<dyn Transport> = match address {
        Address::Unix(_) => Box::new(std::sync::Arc::into_inner(attached(&address)).unwrap()),
        Address::Tcp(_) => Box::new(Stream::new(address, &PoolConfig::default())),
    };
    match *role {
        "writer" => {
            let pieces = [&value.bytes[..]];
            let written = transport.write(&value.write(&pieces), soon()).unwrap();
            say("written");
            listen();
            match written.signal(soon()) {
                Ok(()) => say("published"),
                Err(error) => say(&error.to_string()),
            }
        }
        "viewer" => {
            let view = transport.view(&locator, len, value.seal, soon()).unwrap().unwrap();
            value.judge(&view).unwrap();
            say("seen");
            listen();
            value.judge(&view).unwrap();
            say("seen again");
        }
        other => panic!("no part {other}"),
    }
}

fn doors(rig: &Rig) -> [(Address, u64); 4] {
    // Through the socket, and straight into the owner's memory.
    let (unix, tcp) = (&rig.unix, &rig.tcp);
    [(unix.clone(), 5000), (unix.clone(), 2 << 20), (tcp.clone(), 5000), (tcp.clone(), 2 << 20)]
}

/// Fault row 1: the token dies with its client, the range comes back, the slot can be used again.
#[test]
fn a_killed_writer_gives_its_range_back() {
    let rig = Rig::new(Path::Local);
    for (address, len) in doors(&rig) {
        let value = rig.value(len);
        let mut client = Client::start("writer", &address, &value);
        assert_eq!(client.word(), "written");
        rig.until("the owner knows of the put", HANG_UP, |s| s.stats().writing == 1);
        client.signal(Signal::KILL);
        let next = rig.freed_within(&value.locator, HANG_UP);
        expect(rig.read_value(&value), DataError::Stale);
        let again = value.next(next);
        rig.put(&again).unwrap();
        rig.read_value(&again).unwrap();
    }
    let stats = rig.segment.stats();
    assert_eq!((stats.writing, stats.failed, stats.ready), (0, 0, 4));
}

/// Fault row 11: a writer whose machine is gone, or whose last word was lost, says nothing. It is asked.
#[test]
fn a_writer_that_vanishes_without_a_word_gives_its_range_back() {
    let rig = Rig::new(Path::Local);
    let value = rig.value(5000);
    let mut client = Client::start("writer", &rig.tcp, &value);
    assert_eq!(client.word(), "written");
    rig.until("the owner knows of the put", HANG_UP, |s| s.stats().writing == 1);
    if let Err(why) = mute(&client) {
        eprintln!("SKIPPED: a socket cannot be made to vanish here: {why}");
        return;
    }
    client.signal(Signal::KILL);
    rig.freed_within(&value.locator, Duration::from_secs(30));
}

/// From now on the client's TCP connection ends without a packet (`TCP_REPAIR`, for root).
fn mute(client: &Client) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let pid = Pid::from_raw(client.child.id().cast_signed()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| words(&error))?;
    let folder = format!("/proc/{}/fd", client.child.id());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_socket = |to: &std::path::Path| to.to_string_lossy().starts_with("socket:");
        if !std::fs::read_link(&path).is_ok_and(|to| is_socket(&to)) {
            continue;
        }
        let number = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty());
        let socket = socket.map_err(|error| words(&error))?;
        let python = "import socket; socket.socket(fileno=0).setsockopt(socket.IPPROTO_TCP, 19, 1)";
        let mut command = Command::new("python3");
        let done = command.args(["-c", python]).stdin(Stdio::from(socket)).output();
        let done = done.map_err(|error| words(&error))?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
    }
    Ok(())
}

/// Fault row 2: a dead client's pins are taken back within a second, and eviction goes on.
#[test]
fn a_killed_viewer_leaves_no_pin() {
    let rig = Rig::new(Path::Local);
    let value = rig.stored(100_000);
    let mut clients = [0, 1].map(|_| Client::start("viewer", &rig.unix, &value));
    for client in &mut clients {
        assert_eq!(client.word(), "seen");
    }
    assert_eq!(rig.segment.pins(), 2);
    assert_eq!(rig.order(&value.locator, Action::Evict), OrderResult::Pinned);
    clients[0].signal(Signal::KILL);
    rig.until("the pin of the dead one is taken back", HANG_UP, |s| s.pins() == 1);
    // The other one is alive and looks: nothing is taken from it.
    assert_eq!(rig.order(&value.locator, Action::Evict), OrderResult::Pinned);
    clients[1].hears.write_all(b"go\n").unwrap();
    assert_eq!(clients[1].word(), "seen again");
    rig.until("the last pin is given back", HANG_UP, |s| s.pins() == 0);
    assert!(matches!(rig.order(&value.locator, Action::Evict), OrderResult::Freed { .. }));
}

/// Fault row 8: a writer that is stopped for longer than its put may take. Its token is refused when
/// it wakes; until then nobody gets its range, and the next object there is whole.
#[test]
fn a_stopped_writer_wakes_up_to_a_refusal() {
    let rig = Rig::new(Path::Local);
    for (address, len) in doors(&rig) {
        let value = rig.value(len);
        let mut client = Client::start("writer", &address, &value);
        assert_eq!(client.word(), "written");
        rig.until("the owner knows of the put", HANG_UP, |s| s.stats().writing == 1);
        client.signal(Signal::STOP);
        assert_eq!(rig.order(&value.locator, Action::Abort), OrderResult::Waiting);
        std::thread::sleep(Duration::from_millis(50));
        let mut news = Vec::new();
        rig.segment.tick(boottime(), &mut news);
        assert_eq!(news, [], "freed under a writer that is alive");
        client.signal(Signal::CONT);
        client.hears.write_all(b"go\n").unwrap();
        let answer = client.word();
        assert!(answer.contains("this put is over"), "{answer}");
        let again = value.next(rig.freed_within(&value.locator, HANG_UP));
        rig.put(&again).unwrap();
        rig.read_value(&again).unwrap();
    }
}

/// The same without a process: whatever one connection holds ends with it, many at once.
#[test]
fn all_that_a_connection_holds_ends_with_it() {
    let rig = Rig::new(Path::Local);
    let pinned: Vec<Value> = (0..50).map(|_| rig.stored(1000)).collect();
    let open: Vec<Value> = (0..50).map(|_| rig.value(1000)).collect();
    let mut held = link(&rig.unix);
    let locators: Vec<Locator> = pinned.iter().map(|value| value.locator).collect();
    let pin = DataRequest::Pin(message::Pin { locators: Cow::Borrowed(&locators) });
    let DataReply::Pin(pins) = held.call_data(&pin, &[], soon()).unwrap() else { panic!() };
    assert!(pins.len() == 50 && pins.iter().all(Result::is_ok));
    for (n, value) in open.iter().enumerate() {
        let put = put_frame(value);
        let bytes = [IoSlice::new(&value.bytes)];
        let reply = if n % 2 == 0 {
            held.call_data(&DataRequest::Write(message::Write { put }), &bytes, soon())
        } else {
            held.call_data(&DataRequest::Begin(message::Begin { put }), &[], soon())
        };
        assert!(matches!(reply.unwrap(), DataReply::Write(Ok(())) | DataReply::Begin(Ok(()))));
        assert!(held.take_fds().is_empty(), "memory is handed over once, not with every put");
    }
    assert_eq!((rig.segment.pins(), rig.segment.stats().writing), (50, 50));
    drop(held);
    rig.until("pins and puts end", HANG_UP, |s| s.pins() == 0 && s.stats().writing == 0);
    let mut news = Vec::new();
    rig.segment.tick(boottime(), &mut news);
    assert_eq!(news.len(), 50);
    assert!(news.iter().all(|notice| matches!(notice.result, OrderResult::Freed { .. })));
    assert_eq!(rig.segment.epoch(), EPOCH);
}

fn pin_one(link: &mut mooncrate_wire::Link, value: &Value) -> Result<message::PinId, DataError> {
    let locators = [value.locator];
    let pin = DataRequest::Pin(message::Pin { locators: Cow::Borrowed(&locators) });
    let DataReply::Pin(pins) = link.call_data(&pin, &[], soon()).unwrap() else { panic!() };
    pins[0]
}

/// Pins are bounded per tenant over all its links, and a link that keeps what was removed gets no more of
/// them; nothing is taken from under a reader.
#[test]
fn pins_are_bounded_over_links_and_by_age() {
    let rig = Rig::new(Path::Local);
    let bytes = rig.segment.spec().bytes;
    let large: Vec<Value> = (0..5).map(|_| rig.stored(bytes / 8)).collect();
    let settings = DataServerConfig { pin_age_max: Duration::ZERO, ..DataServerConfig::default() };
    let (server, unix) = rig.serve_with(settings);
    let mut links: Vec<_> = (0..5).map(|_| link(&unix)).collect();
    let pinned: Vec<_> = links.iter_mut().zip(&large).map(|(l, v)| pin_one(l, v)).collect();
    // An eighth of the segment and its sums each, half of it for all links together.
    assert_eq!(pinned.iter().filter(|pin| pin.is_ok()).count(), 3, "{pinned:?}");
    assert!(matches!(pinned[4], Err(DataError::Busy { .. })));
    drop(links);
    rig.until("pins end", HANG_UP, |s| s.pins() == 0);

    let (kept, other) = (rig.stored(100), rig.stored(100));
    let mut one = link(&unix);
    let id = pin_one(&mut one, &kept).unwrap();
    pin_one(&mut one, &other).unwrap();
    let waits = rig.order(&kept.locator, Action::Retire { free_after_ms: 0 });
    assert_eq!(waits, OrderResult::Waiting);
    assert!(matches!(pin_one(&mut one, &other), Err(DataError::Busy { .. })));
    assert_eq!(rig.segment.pins(), 2, "nothing is taken away");
    let unpin =
        DataRequest::Unpin(message::Unpin { ids: Cow::Borrowed(std::slice::from_ref(&id)) });
    one.call_data(&unpin, &[], soon()).unwrap();
    pin_one(&mut one, &other).unwrap();
    drop(one);
    rig.until("pins end", HANG_UP, |s| s.pins() == 0);
    server.stop(Duration::ZERO);
}

/// A link with more pins than one call looks at: the removed value is found over calls, wherever its pin is. Was:
/// the first 64 pins were looked at, and a link that kept the 65th got more for ever.
#[test]
fn a_removed_value_is_found_behind_many_pins() {
    let rig = Rig::new(Path::Local);
    let settings = DataServerConfig { pin_age_max: Duration::ZERO, ..DataServerConfig::default() };
    let (server, unix) = rig.serve_with(settings);
    let values: Vec<Value> = (0..70).map(|_| rig.stored(100)).collect();
    let mut one = link(&unix);
    for value in &values {
        pin_one(&mut one, value).unwrap();
    }
    let last = &values[69];
    let waits = rig.order(&last.locator, Action::Retire { free_after_ms: 0 });
    assert_eq!(waits, OrderResult::Waiting);
    // At most one round ends before the removal, and the next one needs two calls.
    let pins = (0..4).map(|_| pin_one(&mut one, &values[0])).collect::<Vec<_>>();
    assert!(pins.iter().any(Result::is_err), "{pins:?}");
    assert!(matches!(pin_one(&mut one, &values[0]), Err(DataError::Busy { .. })), "and stays so");
    drop(one);
    rig.until("pins end", HANG_UP, |s| s.pins() == 0);
    server.stop(Duration::ZERO);
}

/// A client whose pin or unpin went wrong used to keep the broken connection, and with it every pin
/// that was booked there, until somebody asked for another view. No test had let a call for a pin
/// fail while the client lived on.
#[test]
fn a_view_that_failed_leaves_no_pin_behind() {
    let rig = Rig::new(Path::Shared);
    let value = rig.stored(100_000);
    let len = value.bytes.len() as u64;
    let first = rig.transport.view(&value.locator, len, value.seal, soon()).unwrap().unwrap();
    // Sent and, with luck, granted; but nobody waits for the answer.
    let over = boottime().deadline_in(Duration::from_nanos(1));
    rig.transport.view(&value.locator, len, value.seal, over).unwrap_err();
    // The connection is out of step now. What is pinned stays pinned while somebody looks …
    std::thread::sleep(Duration::from_millis(50));
    assert!(rig.segment.pins() >= 1);
    value.judge(&first).unwrap();
    // … and then goes, although the client lives and asks for nothing.
    drop(first);
    rig.until("the pins of a broken connection end", HANG_UP, |s| s.pins() == 0);
}
