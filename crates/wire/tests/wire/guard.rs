//! The breaker of clients: a master that does not answer costs one call its time, and is asked again as soon
//! as it answers a probe.

use crate::masters::{Master, Mood, narrow, until};
use crate::toy::hello;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::{CallError, MasterApi, MasterLink, MasterPools, Masters, PoolConfig};
use std::io::{Read, Write};
use std::time::Duration;

/// Long enough that silence counts as such.
const CALL_TIME: Duration = Duration::from_millis(1500);

fn guarded(masters: &[&str]) -> MasterLink {
    let masters: Masters = masters.join(",").parse().unwrap();
    MasterLink::guarded(MasterPools::new(&masters, &hello(), &PoolConfig::default()))
}

fn ping(link: &MasterLink) -> Result<(), CallError> {
    link.ping(boottime().deadline_in(CALL_TIME)).map(|_| ())
}

/// Many calls, none of which is sent: each would have 1.5 s.
fn fails_at_once(link: &MasterLink) {
    let began = boottime();
    for _ in 0..500 {
        let error = ping(link).unwrap_err();
        assert!(matches!(error, CallError::Away { .. }), "{error}");
    }
    let time = boottime().since(began);
    assert!(time < 10 * CALL_TIME, "500 calls took {time:?}");
}

fn comes_back(link: &MasterLink) {
    let end = boottime().deadline_in(Duration::from_secs(20));
    while let Err(error) = ping(link) {
        assert!(!end.passed(boottime()), "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!((0..20).all(|_| ping(link).is_ok()));
}

#[test]
fn a_dead_master_is_asked_again_when_it_is_back() {
    let master = Master::start(Mood::Leads);
    let at = master.at.clone();
    let link = guarded(&[&at]);
    ping(&link).unwrap();
    drop(master);
    let error = ping(&link).unwrap_err();
    assert!(!matches!(error, CallError::Away { .. }), "{error}");
    fails_at_once(&link);
    let _again = Master::start_at(&at, Mood::Leads);
    comes_back(&link);
}

#[test]
fn a_stopped_master_is_asked_again_when_it_goes_on() {
    let master = Master::start(Mood::Leads);
    let link = guarded(&[&master.at]);
    ping(&link).unwrap();
    for _ in 0..2 {
        master.becomes(Mood::Stopped);
        let error = ping(&link).unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        fails_at_once(&link);
        master.becomes(Mood::Leads);
        comes_back(&link);
    }
}

/// All are there, and none leads: each call used to look for a leader until its deadline.
#[test]
fn masters_without_a_leader_are_asked_again_when_one_leads() {
    let masters = [Master::start(Mood::Follows(None)), Master::start(Mood::Follows(None))];
    let link = guarded(&[&masters[0].at, &masters[1].at]);
    let error = ping(&link).unwrap_err();
    // On a busy machine the deadline may pass while the next one is asked.
    let told = matches!(error, CallError::NotLeader { .. } | CallError::Deadline { .. });
    assert!(told, "{error}");
    fails_at_once(&link);
    masters[1].becomes(Mood::Leads);
    comes_back(&link);
}

/// A probe that is answered after its caller has left is seen by the next call, however late that comes. Was: a client
/// that called every two seconds or less often, over a network that takes a millisecond, was cut off for good.
#[test]
fn a_rare_caller_sees_the_answer_to_its_probe() {
    let master = Master::start(Mood::Leads);
    let at = master.at.clone();
    let link = guarded(&[&at]);
    ping(&link).unwrap();
    drop(master);
    ping(&link).unwrap_err();
    let slow = std::net::TcpListener::bind(&at).unwrap();
    let _answered = std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut peer, _) = slow.accept().unwrap();
            assert!(peer.read(&mut [0; 16]).unwrap() > 0);
            std::thread::sleep(Duration::from_millis(30));
            peer.write_all(&[1]).unwrap();
            peer
        });
        let error = ping(&link).unwrap_err();
        assert!(matches!(error, CallError::Away { .. }), "{error}");
        server.join().unwrap()
    });
    std::thread::sleep(Duration::from_millis(2_100));
    // The call is sent, to a port that is closed.
    let error = ping(&link).unwrap_err();
    assert!(!matches!(error, CallError::Away { .. }), "{error}");
}

/// One short call without an answer proves nothing: a master that is busy for a moment is asked on.
#[test]
fn a_moment_of_silence_is_no_outage() {
    let master = Master::start(Mood::Leads);
    let link = guarded(&[&master.at]);
    ping(&link).unwrap();
    master.becomes(Mood::Stopped);
    let late = link.ping(boottime().deadline_in(Duration::from_millis(20)));
    assert!(matches!(late, Err(CallError::Deadline { .. })));
    master.becomes(Mood::Leads);
    // The handler that was stopped answers that it does not lead; the next call is heard.
    let again = ping(&link);
    assert!(!matches!(again, Err(CallError::Away { .. })), "{again:?}");
    comes_back(&link);
}

/// Callers that stand in line for a master that has stopped fail at once when the first one has found out; each
/// would have taken three seconds, one after the other.
#[test]
fn who_stands_in_line_fails_with_the_first() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let link = MasterLink::guarded(narrow(&[&silent.local_addr().unwrap().to_string()]));
    let minute = boottime().deadline_in(Duration::from_mins(1));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ping(&link));
        until(|| link.pool().in_use() == 1 || first.is_finished());
        let later: Vec<_> = (0..4).map(|_| scope.spawn(|| link.ping(minute))).collect();
        let error = first.join().unwrap().unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        for caller in later {
            let error = caller.join().unwrap().unwrap_err();
            assert!(matches!(error, CallError::Away { .. }), "{error}");
        }
    });
}
