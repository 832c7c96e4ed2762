//! Who may hold a connection at a door, and who leaves when it is full.
//!
//! Everybody comes as a stranger. Whoever has proved who it is keeps its place until it leaves; strangers
//! have a share of the places and no more. A new one is always let in while a stranger can make room: the
//! one that was heard of longest ago, at the origin that has most of them. So a flood displaces itself, and
//! a caller with a credential has to be faster than the flood only until its proof.
//!
//! What must stay true: at most `all` guests, at most `strangers` of them strangers, at most `per_origin` of
//! those from one origin; nobody who was proved is ever displaced; a newcomer is refused only where nobody
//! can be displaced.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// Whence somebody comes, as far as strangers are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A host of the network.
    Address(IpAddr),
    /// A user of this machine, at a Unix socket.
    User(u32),
}

impl Origin {
    /// The origin of an address. A host has 2^64 addresses of IPv6 to choose from, so their prefix counts.
    pub fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(host) if !host.is_loopback() => {
                IpAddr::V6(Ipv6Addr::from_bits(host.to_bits() >> 64 << 64))
            }
            other => other,
        })
    }
}

/// How many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Guests.
    pub all: usize,
    /// Strangers among them; the rest is kept for those who prove who they are.
    pub strangers: usize,
    /// Strangers of one origin.
    pub per_origin: usize,
}

/// Strangers of one origin that a door has room for, where half of the door is that many.
const ORIGIN_MIN: usize = 128;

impl Limits {
    /// For a door where a proof comes soon or never: a quarter for strangers, half of that for one origin.
    /// A small door gives up to half: the processes of one machine, or those behind one address, may all
    /// start at once, and [`ORIGIN_MIN`] of them shall get through their hellos.
    pub fn proving(all: usize) -> Self {
        let strangers = (all / 4).max(ORIGIN_MIN.min(all / 2)).max(1);
        let per_origin = strangers.div_ceil(2).max(ORIGIN_MIN.min(strangers));
        Self { all: all.max(1), strangers, per_origin }
    }

    /// For a door where most have nothing to prove: a quarter is kept for those who do. All the others may
    /// be of one origin, as they are on loopback.
    pub fn open(all: usize) -> Self {
        let strangers = (all - all / 4).max(1);
        Self { all: all.max(1), strangers, per_origin: strangers }
    }
}

/// A guest's number; no other guest of this book has had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guest(pub u64);

/// What becomes of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let in, in place of another one if there was no room.
    Admit {
        /// Its number.
        guest: Guest,
        /// Who must leave; it is not in the book any more.
        displaced: Option<Guest>,
    },
    /// Sent away: every place is taken by somebody who proved who it is.
    Refuse,
}

/// Who is in.
#[derive(Clone, Debug)]
pub struct Book {
    limits: Limits,
    /// Numbers guests and moments in one order.
    next: u64,
    guests: BTreeMap<Guest, Place>,
    /// Strangers by origin, who was heard of longest ago first.
    crowds: BTreeMap<Origin, BTreeSet<(u64, Guest)>>,
    /// The origins by the number of their strangers.
    largest: BTreeSet<(usize, Origin)>,
    strangers: usize,
}

/// `heard`: when a stranger was heard of last; `None`: it has proved who it is.
#[derive(Clone, Copy, Debug)]
struct Place {
    origin: Origin,
    heard: Option<u64>,
}

impl Book {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            guests: BTreeMap::new(),
            crowds: BTreeMap::new(),
            largest: BTreeSet::new(),
            strangers: 0,
        }
    }

    /// Guests.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Whether nobody is in.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// Strangers among them.
    pub fn strangers(&self) -> usize {
        self.strangers
    }

    /// Somebody comes.
    pub fn admit(&mut self, origin: Origin) -> Verdict {
        let of_origin = self.crowds.get(&origin).map_or(0, BTreeSet::len);
        let full = self.strangers >= self.limits.strangers || self.guests.len() >= self.limits.all;
        let from = if of_origin >= self.limits.per_origin {
            Some(origin)
        } else if full {
            let Some((_, crowded)) = self.largest.last() else { return Verdict::Refuse };
            Some(*crowded)
        } else {
            None
        };
        let displaced = from.and_then(|origin| {
            let (_, oldest) = *self.crowds.get(&origin)?.first()?;
            self.leave(oldest);
            Some(oldest)
        });
        let guest = Guest(self.tick());
        self.guests.insert(guest, Place { origin, heard: Some(guest.0) });
        self.enlist(origin, guest.0, guest);
        Verdict::Admit { guest, displaced }
    }

    /// It has proved who it is; `false`: it was displaced before.
    pub fn prove(&mut self, guest: Guest) -> bool {
        let Some(place) = self.guests.get_mut(&guest) else { return false };
        if let (origin, Some(heard)) = (place.origin, place.heard.take()) {
            self.strike(origin, heard, guest);
        }
        true
    }

    /// A stranger said something that was worth an answer: others leave before it.
    pub fn hear(&mut self, guest: Guest) {
        let moment = self.tick();
        let Some(Place { origin, heard: Some(heard) }) = self.guests.get_mut(&guest) else {
            return;
        };
        let (origin, before) = (*origin, std::mem::replace(heard, moment));
        self.strike(origin, before, guest);
        self.enlist(origin, moment, guest);
    }

    /// It is gone.
    pub fn leave(&mut self, guest: Guest) {
        let Some(place) = self.guests.remove(&guest) else { return };
        if let Some(heard) = place.heard {
            self.strike(place.origin, heard, guest);
        }
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn enlist(&mut self, origin: Origin, heard: u64, guest: Guest) {
        let crowd = self.crowds.entry(origin).or_default();
        self.largest.remove(&(crowd.len(), origin));
        crowd.insert((heard, guest));
        self.largest.insert((crowd.len(), origin));
        self.strangers += 1;
    }

    fn strike(&mut self, origin: Origin, heard: u64, guest: Guest) {
        let Some(crowd) = self.crowds.get_mut(&origin) else { return };
        self.largest.remove(&(crowd.len(), origin));
        if crowd.remove(&(heard, guest)) {
            self.strangers -= 1;
        }
        if crowd.is_empty() {
            self.crowds.remove(&origin);
        } else {
            self.largest.insert((crowd.len(), origin));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_counts_by_its_network() {
        let of = |text: &str| Origin::of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.7"), of("192.0.2.7"));
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
        assert_eq!(of("::1"), Origin::Address(Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn limits_leave_room_for_one_of_each() {
        assert_eq!(Limits::proving(0), Limits { all: 1, strangers: 1, per_origin: 1 });
        assert_eq!(Limits::proving(4096), Limits { all: 4096, strangers: 1024, per_origin: 512 });
        assert_eq!(Limits::proving(512), Limits { all: 512, strangers: 128, per_origin: 128 });
        assert_eq!(Limits::proving(192), Limits { all: 192, strangers: 96, per_origin: 96 });
        assert_eq!(Limits::open(256), Limits { all: 256, strangers: 192, per_origin: 192 });
    }
}
