//! The keeper of a door: one book of who is in (`core::door`), for every server of ours, and what makes a
//! guest that was displaced leave.
//!
//! ```text
//!   accept ─► Keeper::admit ─┬─► Place ─► prove: kept · hear: displaced later than others · drop: gone
//!                            ├─► another one is told to hang up
//!                            └─► nobody can make room: closed
//! ```
//!
//! [`KeptStream`] does the rest for doors whose protocol is read by a library (gRPC, HTTP): times for the
//! first request, for rest, and for bytes that nobody takes. Doors that read frames themselves have such
//! times already.
//!
//! What must stay true: no place is taken twice or kept by nobody; what is said of a flood is said once in
//! ten seconds, however many come.

mod descriptors;
mod stream;

pub use descriptors::{descriptor_share, raise_descriptors};
pub use stream::{KeptStream, Pulse, RATE, Sending, Times, Visit};

use crate::clock::boottime;
use mooncrate_core::door::{Book, Guest, Limits, Origin, Verdict};
use mooncrate_core::time::Now;
use mooncrate_lock::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two words about the same door.
const TELL_PAUSE: Duration = Duration::from_secs(10);

/// Keeps one door. Clones keep the same one.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    door: &'static str,
    tell: fn(&Turned),
    state: Mutex<State>,
}

/// Makes a guest leave.
type HangUp = Box<dyn FnOnce() + Send>;

struct State {
    book: Book,
    hang_ups: BTreeMap<Guest, HangUp>,
    turned: Turned,
    told: Option<Now>,
}

/// What happened at a door since it was last told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Which door.
    pub door: &'static str,
    /// Strangers that had to make room.
    pub displaced: u64,
    /// Newcomers that were sent away.
    pub refused: u64,
    /// Connections that the system could not give us, and why it said so last.
    pub failed: (u64, String),
}

impl fmt::Display for Turned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { door, displaced, refused, failed: (failed, why) } = self;
        write!(
            f,
            "{door} is crowded: {displaced} callers that had proved nothing were displaced, {refused} were \
             sent away"
        )?;
        if *failed > 0 {
            write!(f, ", {failed} could not be accepted ({why})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("door", &self.0.door).finish_non_exhaustive()
    }
}

impl Keeper {
    /// A keeper of `door`; `tell` hears of crowds now and then.
    pub fn new(door: &'static str, limits: Limits, tell: fn(&Turned)) -> Self {
        let turned = Turned { door, displaced: 0, refused: 0, failed: (0, String::new()) };
        let book = Book::new(limits);
        let state = State { book, hang_ups: BTreeMap::new(), turned, told: None };
        Self(Arc::new(Inner { door, tell, state: Mutex::new(state) }))
    }

    /// A place for somebody who came; `hang_up` is called if it must make room for another.
    pub fn admit(&self, origin: Origin, hang_up: impl FnOnce() + Send + 'static) -> Option<Place> {
        let mut state = self.0.state.lock();
        let (guest, leaves) = match state.book.admit(origin) {
            Verdict::Refuse => {
                state.turned.refused += 1;
                self.say(state);
                return None;
            }
            Verdict::Admit { guest, displaced } => {
                (guest, displaced.and_then(|displaced| state.hang_ups.remove(&displaced)))
            }
        };
        state.hang_ups.insert(guest, Box::new(hang_up));
        if let Some(hang_up) = leaves {
            state.turned.displaced += 1;
            self.say(state);
            hang_up();
        }
        Some(Place { keeper: self.clone(), guest })
    }

    /// The same for a task, which ends when the second part is ready.
    pub fn admit_task(&self, origin: Origin) -> Option<(Place, Displaced)> {
        let (hang_up, displaced) = oneshot::channel();
        let place = self.admit(origin, move || {
            // Nobody listens any more: then it has left by itself.
            let _ = hang_up.send(());
        })?;
        Some((place, Displaced(displaced)))
    }

    /// The system could not give us a connection.
    pub fn failed(&self, error: &std::io::Error) {
        let mut state = self.0.state.lock();
        let failed = &mut state.turned.failed;
        *failed = (failed.0 + 1, error.to_string());
        self.say(state);
    }

    /// Guests, and strangers among them.
    pub fn guests(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.book.len(), state.book.strangers())
    }

    /// Tells what has gathered, if the last time is long ago.
    fn say(&self, mut state: MutexGuard<'_, State>) {
        let now = boottime();
        if state.told.is_some_and(|told| now.since(told) < TELL_PAUSE) {
            return;
        }
        state.told = Some(now);
        let nothing =
            Turned { door: self.0.door, displaced: 0, refused: 0, failed: (0, String::new()) };
        let turned = std::mem::replace(&mut state.turned, nothing);
        // A log may be slow: not under the lock.
        drop(state);
        (self.0.tell)(&turned);
    }
}

/// The user at the other end of a Unix socket, as the kernel knows it.
pub fn user_of(socket: &impl std::os::fd::AsFd) -> Origin {
    let known = rustix::net::sockopt::socket_peercred(socket);
    Origin::User(known.map_or(u32::MAX, |user| user.uid.as_raw()))
}

/// A connection that counts, for as long as it is kept.
#[derive(Debug)]
#[must_use = "dropping it gives the place away"]
pub struct Place {
    keeper: Keeper,
    guest: Guest,
}

impl Place {
    /// It has proved who it is, and stays; `false`: it was displaced before.
    pub fn prove(&self) -> bool {
        self.keeper.0.state.lock().book.prove(self.guest)
    }

    /// It said something that was worth an answer.
    pub fn hear(&self) {
        self.keeper.0.state.lock().book.hear(self.guest);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.keeper.0.state.lock();
        state.book.leave(self.guest);
        let hang_up = state.hang_ups.remove(&self.guest);
        drop(state);
        drop(hang_up);
    }
}

/// Ready when the guest must leave; never for one that has proved who it is.
#[derive(Debug)]
pub struct Displaced(oneshot::Receiver<()>);

impl Future for Displaced {
    type Output = ();
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        std::pin::Pin::new(&mut self.0).poll(cx).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static TOLD: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn security_a_flood_is_told_once_and_the_proved_stay() {
        let tell = |turned: &Turned| {
            assert!(turned.to_string().contains("a test is crowded"), "{turned}");
            TOLD.fetch_add(1, Ordering::Relaxed);
        };
        let limits = Limits { all: 4, strangers: 2, per_origin: 2 };
        let keeper = Keeper::new("a test", limits, tell);
        let here = Origin::User(1);
        let gone = Arc::new(AtomicU64::new(0));
        let come = || {
            let gone = Arc::clone(&gone);
            keeper.admit(here, move || {
                gone.fetch_add(1, Ordering::Relaxed);
            })
        };
        let known: Vec<_> = (0..2).map(|_| come().unwrap()).collect();
        assert!(known.iter().all(Place::prove));
        let flood: Vec<_> = (0..100).map(|_| come().unwrap()).collect();
        assert_eq!(gone.load(Ordering::Relaxed), 98);
        assert_eq!(keeper.guests(), (4, 2));
        assert_eq!(TOLD.load(Ordering::Relaxed), 1, "one line for a hundred callers");
        assert!(flood[99].prove() && flood[98].prove() && !flood[0].prove());
        assert!(come().is_none(), "nobody can make room");
        drop(known);
        assert!(come().is_some());
        drop(flood);
        assert_eq!(keeper.guests(), (0, 0));
        assert_eq!(gone.load(Ordering::Relaxed), 98, "who leaves by itself is not told to");
    }
}
