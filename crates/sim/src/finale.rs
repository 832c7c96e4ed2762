//! The finale: the faults stop, and everything must come right within a bounded time.
//!
//! ```text
//! heal ─► all calls end ─► the leader knows what the owners hold
//!      ─► each key: get (a hit, if it is known), remove, put, get (a hit), remove
//!      ─► nothing is left anywhere
//! ```

use crate::client::{Kind, Outcome};
use crate::judge;
use crate::message::{Actor, Event};
use crate::world::World;
use crate::{MS, Nanos};

/// Between two looks.
const LOOK: Nanos = MS;
/// Before an operation is tried again.
const PAUSE: Nanos = 20 * MS;
/// All calls must have ended by then, zombies and slow readers included.
const QUIET_BY: Nanos = 8_000 * MS;
/// The leader must know what the owners hold by then: nodes that were counted out come back empty.
const AGREE_BY: Nanos = 4_000 * MS;
/// One key must work within this long: the takeover grace, and some.
const KEY_BY: Nanos = 14_000 * MS;
/// Nothing may be left after this long.
const EMPTY_BY: Nanos = 14_000 * MS;

/// Where the finale stands.
#[derive(Clone, Debug)]
pub struct Finale {
    stage: Stage,
    /// When the stage must be over.
    by: Nanos,
    key: u16,
    /// What leader and owners do not agree about.
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Quiet,
    /// The leader must come to know what the owners hold.
    Agree,
    /// An operation of the script runs.
    Runs(Act),
    /// The next one is due.
    Next(Act),
    Empty,
    Done,
}

/// What is done with each key, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Find,
    Clear,
    Put,
    Get,
    Remove,
}

impl Finale {
    /// Whether everything came right.
    pub fn done(&self) -> bool {
        self.stage == Stage::Done
    }
}

impl World {
    /// The faults stop: everything is healed and started. Who stands still does so to the end of its
    /// pause, so that nothing overtakes what waits for it.
    pub fn begin_finale(&mut self) {
        let now = self.ctx.now;
        self.ctx.say(|| "the finale begins".to_owned());
        self.ctx.calm = true;
        self.ctx.net.heal();
        for master in &mut self.masters {
            master.cut_until = now;
        }
        for client in &mut self.clients {
            client.pause(now);
        }
        for at in 0..self.masters.len() as u8 {
            self.ctx.at(now, Event::Restart(Actor::Master(at)));
        }
        for at in 0..self.nodes.len() as u8 {
            self.ctx.at(now, Event::Restart(Actor::Node(at)));
        }
        for at in 0..self.clients.len() as u8 {
            self.ctx.at(now, Event::Restart(Actor::Client(at)));
        }
        self.finale = Some(Finale { stage: Stage::Quiet, by: now + QUIET_BY, key: 0, why: None });
        self.ctx.at(now, Event::Finale);
    }

    /// The next look at how things stand.
    pub fn step_finale(&mut self) {
        let Some(mut finale) = self.finale.take() else { return };
        let pause = self.advance(&mut finale);
        if finale.by <= self.ctx.now && finale.stage != Stage::Done {
            let text = format!("{:?} of key {} did not end in time", finale.stage, finale.key);
            let why = finale.why.clone().unwrap_or_else(|| self.why_not());
            self.ctx.fail("liveness", Some(finale.key), format!("{text}: {why}"));
        }
        self.finale = Some(finale);
        self.ctx.after(pause, Event::Finale);
    }

    /// Whether the leader says that it has this key.
    fn known(&self, key: u16) -> bool {
        let leader = usize::from(self.ctx.election.leader.unwrap_or(0));
        let (now, name) =
            (self.ctx.mono(self.ctx.master_host()), self.ctx.keys[usize::from(key)].name());
        let catalog = self.masters[leader].catalog.as_ref();
        catalog.is_some_and(|catalog| catalog.exist(now, name) == Ok(true))
    }

    fn why_not(&self) -> String {
        let leader = self.ctx.election.leader.unwrap_or(0);
        match judge::drained(&self.masters, &self.nodes, leader) {
            Ok(()) => "but nothing is left".to_owned(),
            Err(why) => why,
        }
    }

    fn advance(&mut self, finale: &mut Finale) -> Nanos {
        let now = self.ctx.now;
        let actor = usize::from(finale.key) % self.clients.len();
        match finale.stage {
            Stage::Quiet => {
                if self.clients.iter().all(crate::client::Client::idle) {
                    finale.stage = Stage::Agree;
                    finale.by = now + AGREE_BY;
                }
                LOOK
            }
            Stage::Agree => {
                let leader = self.ctx.election.leader.unwrap_or(0);
                let agreed = judge::agree(&self.ctx, &self.masters, &self.nodes, leader);
                if agreed.is_ok() {
                    finale.stage = Stage::Next(Act::Find);
                    finale.by = now + KEY_BY;
                }
                finale.why = agreed.err();
                LOOK
            }
            // What is known must be found. If its bits have flipped it is found out, and not known any more.
            Stage::Next(Act::Find) if !self.known(finale.key) => {
                finale.stage = Stage::Next(Act::Clear);
                0
            }
            Stage::Next(act) => {
                let kind = match act {
                    Act::Clear | Act::Remove => Kind::Remove { force: true },
                    Act::Put => Kind::Put,
                    Act::Get | Act::Find => Kind::Get,
                };
                let client = &mut self.clients[actor];
                client.last_outcome = None;
                client.start(&mut self.ctx, 0, kind, finale.key);
                finale.stage = Stage::Runs(act);
                0
            }
            Stage::Runs(act) => {
                let client = &mut self.clients[actor];
                let Some(outcome) = client.last_outcome else { return LOOK / 4 };
                self.acted(finale, act, outcome)
            }
            Stage::Empty => {
                let leader = self.ctx.election.leader.unwrap_or(0);
                if judge::drained(&self.masters, &self.nodes, leader).is_ok() {
                    judge::audit_all(&mut self.ctx, &self.masters, &self.nodes);
                    finale.stage = Stage::Done;
                }
                PAUSE
            }
            Stage::Done => PAUSE,
        }
    }

    /// What follows on an operation of the script.
    fn acted(&mut self, finale: &mut Finale, act: Act, outcome: Outcome) -> Nanos {
        let (next, pause) = match (act, outcome) {
            (Act::Find, Outcome::Done) => (Act::Clear, 0),
            (Act::Clear, Outcome::Done) => (Act::Put, 0),
            (Act::Put, Outcome::Done) => (Act::Get, 0),
            (Act::Get, Outcome::Done) => (Act::Remove, 0),
            (Act::Remove, Outcome::Done) => {
                finale.key += 1;
                finale.by = self.ctx.now + KEY_BY;
                if usize::from(finale.key) == self.ctx.keys.len() {
                    finale.stage = Stage::Empty;
                    finale.by = self.ctx.now + EMPTY_BY;
                    finale.key = 0;
                    return 0;
                }
                (Act::Find, 0)
            }
            // The value may have been evicted at once, its bits may have flipped, or a put without an
            // answer may have taken effect: from the start.
            (Act::Get | Act::Put, _) => (Act::Clear, PAUSE),
            (act, _) => (act, PAUSE),
        };
        finale.stage = Stage::Next(next);
        pause
    }
}
