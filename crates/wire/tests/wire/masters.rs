//! Several masters, of which one leads: the link finds it, and repeats nothing that it must not.

use crate::toy::hello;
use mooncrate_core::LeaderEpoch;
use mooncrate_core::error::PutError;
use mooncrate_core::plan::PutConfig;
use mooncrate_core::time::Deadline;
use mooncrate_wire::address::Bound;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Pong, PutItem, Reply, Request};
use mooncrate_wire::{
    Answer, CallError, Caller, Handler, Kind, MasterApi, MasterLink, MasterPools, Masters,
    PoolConfig, Refusal, RefusalCode, ServerConfig, serve_control,
};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// What a master does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Mood {
    Leads,
    Follows(Option<String>),
    /// Alive, and never done before the caller's deadline.
    Slow,
    /// Like a stopped process: it accepts connections, and nothing comes back.
    Stopped,
}

struct Mute {
    mood: Mutex<Mood>,
    /// What it was asked, in the order it came.
    asked: Mutex<Vec<Kind>>,
    puts: AtomicU64,
}

impl Handler for Mute {
    fn epoch(&self) -> LeaderEpoch {
        LeaderEpoch(1)
    }

    fn handle(&self, request: Request<'_>, _: Caller<'_>) -> Answer {
        let mood = self.mood.lock().unwrap().clone();
        self.asked.lock().unwrap().push(request.kind());
        match (mood, request) {
            (Mood::Follows(leader), _) => {
                Answer::Now(Reply::Refuse(Refusal::not_leader(leader.as_deref())))
            }
            (Mood::Slow, request) => {
                self.count(&request);
                Answer::Later(Box::pin(std::future::pending()))
            }
            (Mood::Stopped, request) => {
                self.count(&request);
                while matches!(*self.mood.lock().unwrap(), Mood::Stopped) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Answer::Now(Reply::Refuse(Refusal::not_leader(None)))
            }
            (Mood::Leads, Request::Ping(_)) => {
                Answer::Now(Reply::Ping(Pong { epoch: LeaderEpoch(1) }))
            }
            (Mood::Leads, request) => {
                self.count(&request);
                Answer::Now(Reply::PutStart(vec![Err(PutError::NoSegments)]))
            }
        }
    }
}

impl Mute {
    fn count(&self, request: &Request<'_>) {
        if matches!(request, Request::PutStart(_)) {
            self.puts.fetch_add(1, Ordering::SeqCst);
        }
    }
}

pub(crate) struct Master {
    pub(crate) at: String,
    mute: Arc<Mute>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Master {
    pub(crate) fn start(mood: Mood) -> Self {
        Self::start_at("127.0.0.1:0", mood)
    }

    pub(crate) fn start_at(at: &str, mood: Mood) -> Self {
        let bound = Bound::listen(&at.parse().unwrap()).unwrap();
        let at = bound.address().unwrap().to_string();
        let (mood, asked) = (Mutex::new(mood), Mutex::default());
        let mute = Arc::new(Mute { mood, asked, puts: AtomicU64::new(0) });
        let (stop, stopped) = watch::channel(false);
        let config = ServerConfig { drain_time: Duration::ZERO, ..ServerConfig::default() };
        let handler = Arc::clone(&mute);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let serve = serve_control(bound, handler, Arc::new(config), stopped);
            runtime.unwrap().block_on(async { serve.await.unwrap() });
        };
        let thread = std::thread::Builder::new().spawn(work).unwrap();
        Self { at, mute, stop, thread: Some(thread) }
    }

    pub(crate) fn becomes(&self, mood: Mood) {
        *self.mute.mood.lock().unwrap() = mood;
    }

    fn puts(&self) -> u64 {
        self.mute.puts.load(Ordering::SeqCst)
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.becomes(Mood::Leads);
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn link(masters: &[&str]) -> MasterLink {
    let masters: Masters = masters.join(",").parse().unwrap();
    MasterLink::new(MasterPools::new(&masters, &hello(), &PoolConfig::default()))
}

/// Pools of one link to each of these masters.
pub(crate) fn narrow(masters: &[&str]) -> MasterPools {
    let masters: Masters = masters.join(",").parse().unwrap();
    MasterPools::new(&masters, &hello(), &PoolConfig { links_max: 1, ..PoolConfig::default() })
}

/// Waits for something that comes soon, however busy the machine is.
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let end = within(60);
    while !done() {
        assert!(!end.passed(boottime()), "not within a minute");
        std::thread::yield_now();
    }
}

fn within(seconds: u64) -> Deadline {
    boottime().deadline_in(Duration::from_secs(seconds))
}

fn put(link: &MasterLink, deadline: Deadline) -> Result<(), CallError> {
    let item = PutItem::new(b"k", 1);
    let answers = link.put_start(&PutConfig::default(), &[item], deadline)?;
    assert_eq!(answers, [Err(PutError::NoSegments)]);
    Ok(())
}

/// A master that nobody listens for.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_hint_leads_to_the_leader_and_is_remembered() {
    let leader = Master::start(Mood::Leads);
    let standby = Master::start(Mood::Follows(Some(leader.at.clone())));
    let link = link(&[&standby.at, &nobody(), &leader.at]);
    put(&link, within(10)).unwrap();
    assert_eq!((leader.puts(), link.pool().address().to_string()), (1, leader.at.clone()));
}

#[test]
fn a_dead_master_is_passed_over_and_a_foreign_hint_is_not_followed() {
    let elsewhere = Master::start(Mood::Leads);
    let (first, second) = (nobody(), Master::start(Mood::Follows(Some(elsewhere.at.clone()))));
    let leader = Master::start(Mood::Leads);
    let link = link(&[&first, &second.at, &leader.at]);
    put(&link, within(10)).unwrap();
    assert_eq!((leader.puts(), elsewhere.puts()), (1, 0));
}

/// A stopped leader takes requests and never answers. A put that it may have handled goes out again
/// only because another master leads by now.
#[test]
fn a_silent_leader_is_left_once_another_one_leads() {
    let old = Master::start(Mood::Stopped);
    let next = Master::start(Mood::Leads);
    let two = link(&[&old.at, &next.at]);
    two.ping(within(10)).unwrap();
    assert_eq!(two.pool().address().to_string(), next.at);
    // The other kind of request, over a link that was at rest when the leader was stopped.
    old.becomes(Mood::Leads);
    let again = link(&[&old.at, &next.at]);
    again.ping(within(10)).unwrap();
    old.becomes(Mood::Stopped);
    put(&again, within(20)).unwrap();
    assert_eq!((old.puts(), next.puts()), (1, 1));
}

#[test]
fn a_put_that_may_have_been_handled_is_not_repeated_while_nobody_else_leads() {
    let old = Master::start(Mood::Stopped);
    let standby = Master::start(Mood::Follows(Some(old.at.clone())));
    let link = link(&[&old.at, &standby.at]);
    let error = put(&link, within(4)).unwrap_err();
    assert!(matches!(error, CallError::Deadline { .. }), "{error}");
    assert_eq!((old.puts(), standby.puts()), (1, 0));
}

/// A leader that is alive and busy is asked again, not left: nobody else leads.
#[test]
fn a_slow_leader_is_asked_again() {
    let leader = Master::start(Mood::Slow);
    let standby = Master::start(Mood::Follows(Some(leader.at.clone())));
    let link = link(&[&leader.at, &standby.at]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| link.ping(within(20)));
        std::thread::sleep(Duration::from_millis(500));
        leader.becomes(Mood::Leads);
        assert_eq!(asked.join().unwrap().unwrap(), LeaderEpoch(1));
    });
    leader.becomes(Mood::Slow);
    let error = put(&link, within(5)).unwrap_err();
    // The leader says that its time is over while the caller still listens; a caller that gave up
    // first would take it for gone and search for another one until its own deadline.
    let slow = matches!(&error, CallError::Refused { code: RefusalCode::Deadline, .. });
    assert!(slow, "{error}");
    assert_eq!(leader.puts(), 1, "not repeated");
}

#[test]
fn while_nobody_leads_the_search_ends_with_the_deadline_and_says_why() {
    let masters = [Master::start(Mood::Follows(None)), Master::start(Mood::Follows(None))];
    let link = link(&[&masters[0].at, &masters[1].at]);
    let error = put(&link, within(1)).unwrap_err();
    assert!(matches!(error, CallError::NotLeader { leader: None, .. }), "{error}");
    masters[1].becomes(Mood::Leads);
    put(&link, within(10)).unwrap();
}

/// A batch goes on to its next key when its time is over, and each of them must end at once.
#[test]
fn calls_after_the_deadline_cost_no_pause() {
    const CALLS: u32 = 400;
    let masters = [Master::start(Mood::Follows(None)), Master::start(Mood::Follows(None))];
    let link = link(&[&masters[0].at, &masters[1].at]);
    assert!(put(&link, within(1)).is_err());
    let began = boottime();
    for _ in 0..CALLS {
        assert!(put(&link, began.deadline_in(Duration::ZERO)).is_err());
    }
    let took = boottime().since(began);
    // With a pause of 50 ms each it would be 20 s.
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Callers stand in line for a master that has stopped. The first one finds out; the others go to the leader, instead
/// of finding out one after the other.
#[test]
fn who_stands_in_line_hears_that_a_master_has_stopped() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let leader = Master::start(Mood::Leads);
    let at = silent.local_addr().unwrap().to_string();
    let link = MasterLink::new(narrow(&[&at, &leader.at]));
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..6).map(|_| scope.spawn(|| link.ping(within(60)).map(|_| ()))).collect();
        for caller in callers {
            caller.join().unwrap().unwrap();
        }
    });
    silent.set_nonblocking(true).unwrap();
    // Once; and once more where the machine is so busy that the leader itself is silent for a second.
    let asked = silent.incoming().map_while(Result::ok).count();
    assert!(asked <= 2, "asked {asked} times");
}

/// A way to a master that can be cut: where it begins, and the connections that came so far.
fn relay(to: &str) -> (String, Arc<Mutex<Vec<TcpStream>>>) {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = door.local_addr().unwrap().to_string();
    let came = Arc::<Mutex<Vec<TcpStream>>>::default();
    let (noted, to) = (Arc::clone(&came), to.to_owned());
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        let work = move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        };
        std::thread::Builder::new().spawn(work).unwrap();
    };
    let work = move || {
        for caller in door.incoming().map_while(Result::ok) {
            let Ok(master) = TcpStream::connect(&to) else { return };
            noted.lock().unwrap().push(caller.try_clone().unwrap());
            copy(caller.try_clone().unwrap(), master.try_clone().unwrap());
            copy(master, caller);
        }
    };
    std::thread::Builder::new().spawn(work).unwrap();
    (at, came)
}

/// A link that had rested breaks under a call, which is repeated, while another caller stands in line. The first one
/// keeps its place.
#[test]
fn a_repeated_call_keeps_its_place() {
    let master = Master::start(Mood::Leads);
    let (at, came) = relay(&master.at);
    let link = MasterLink::new(narrow(&[&at]));
    link.ping(within(60)).unwrap();
    master.becomes(Mood::Slow);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| link.ping(within(60)).map(|_| ()));
        until(|| master.mute.asked.lock().unwrap().len() == 2);
        let second = scope.spawn(|| put(&link, within(60)));
        until(|| link.pool().waiting() == 1);
        master.becomes(Mood::Leads);
        came.lock().unwrap()[0].shutdown(Shutdown::Both).unwrap();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(master.mute.asked.lock().unwrap()[2..], [Kind::Ping, Kind::PutStart]);
}
