#![cfg(not(loom))]
//! The life of slots in any order of calls, judged by a naive model: a list of what each slot is and
//! whose bytes it holds. The model knows nothing of words and compare-and-swap.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

#[path = "far/double.rs"]
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod double;

use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::{Action, Notice, Order, OrderResult};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ObjectId, PutToken, SegmentId, Slot,
};
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{
    BeginWrite, Bell, LabelHash, PinGuard, ReadError, Segment, SegmentSpec, WriteGuard,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const SLOTS: u32 = 3;
const ROOM: u64 = 4096;
const SEGMENT: SegmentId = SegmentId(1);
const INCARNATION: Incarnation = Incarnation(1);
const EPOCH: LeaderEpoch = LeaderEpoch(1);
const MS: u64 = 1_000_000;

/// A call. `back` picks a life: 0 is the one now, 1 the one before.
#[derive(Clone, Debug)]
enum Call {
    Begin { slot: u32, back: u32, len: u64 },
    Publish { slot: u32, right_token: bool },
    HangUp { slot: u32 },
    Pin { slot: u32, back: u32 },
    Unpin { pick: usize },
    Copy { slot: u32, back: u32 },
    Order { slot: u32, back: u32, action: Action },
    Tick { ms: u64 },
    Announce,
}

fn any_call() -> impl Strategy<Value = Call> {
    let slot = 0..SLOTS;
    let back = prop_oneof![4 => Just(0_u32), 1 => Just(1)];
    let action = prop_oneof![
        Just(Action::Evict),
        Just(Action::Abort),
        (0_u32..5).prop_map(|free_after_ms| Action::Retire { free_after_ms }),
    ];
    prop_oneof![
        4 => (slot.clone(), back.clone(), 0..=ROOM)
            .prop_map(|(slot, back, len)| Call::Begin { slot, back, len }),
        4 => (slot.clone(), prop::bool::weighted(0.8))
            .prop_map(|(slot, right_token)| Call::Publish { slot, right_token }),
        1 => slot.clone().prop_map(|slot| Call::HangUp { slot }),
        4 => (slot.clone(), back.clone()).prop_map(|(slot, back)| Call::Pin { slot, back }),
        3 => (0_usize..9).prop_map(|pick| Call::Unpin { pick }),
        2 => (slot.clone(), back.clone()).prop_map(|(slot, back)| Call::Copy { slot, back }),
        3 => (slot, back, action)
            .prop_map(|(slot, back, action)| Call::Order { slot, back, action }),
        2 => (0_u64..4).prop_map(|ms| Call::Tick { ms }),
        1 => Just(Call::Announce),
    ]
}

/// What the model thinks a slot is.
#[derive(Clone, Debug, PartialEq)]
enum Life {
    Empty,
    Writing,
    /// Given up, but the writer is there.
    Quarantine,
    Ready,
    Retiring {
        until: u64,
    },
}

struct Room {
    generation: u32,
    life: Life,
    value: Vec<u8>,
    guard: Option<WriteGuard>,
    pins: Vec<(Vec<u8>, PinGuard)>,
}

/// Where the bytes of the segment lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Host,
    /// In memory of a device, which zeroes ranges between lives or does not.
    Far {
        wipes: bool,
    },
}

fn any_place() -> impl Strategy<Value = Place> {
    prop_oneof![
        2 => Just(Place::Host),
        1 => any::<bool>().prop_map(|wipes| Place::Far { wipes }),
    ]
}

struct Rig {
    place: Place,
    segment: Arc<Segment>,
    rooms: Vec<Room>,
    now: u64,
    puts: u64,
    /// Lives whose end was, or is to be, told.
    told: Vec<Notice>,
    expected: Vec<(u32, u32)>,
    bell: Arc<Bell>,
    /// When whoever tends the segment would tick, if the bell did not ring.
    planned: Option<Now>,
}

impl Rig {
    fn new(place: Place) -> Self {
        let spec = SegmentSpec {
            segment: SEGMENT,
            incarnation: INCARNATION,
            bytes: u64::from(SLOTS) * ROOM,
            slots: SLOTS,
            shared: false,
            huge: false,
        };
        let segment = match place {
            Place::Host => Segment::create(spec),
            Place::Far { wipes } => {
                let device = double::Device::new(spec.bytes as usize, 1, SLICE_BYTES as usize);
                Segment::create_far(spec, Arc::new(double::Memory(device)), wipes)
            }
        }
        .unwrap();
        segment.set_serve_until(Now(u64::MAX));
        let room =
            |_| Room { generation: 0, life: Life::Empty, value: vec![], guard: None, pins: vec![] };
        let rooms = (0..SLOTS).map(room).collect();
        let bell = Arc::<Bell>::default();
        segment.set_bell(&bell);
        let (told, expected, planned) = (vec![], vec![], None);
        Self { place, segment, rooms, now: 0, puts: 0, told, expected, bell, planned }
    }

    fn locator(&self, slot: u32, back: u32, len: u64) -> Option<Locator> {
        let generation = Generation(self.rooms[slot as usize].generation.checked_sub(back)?);
        let extent = Extent::new(u64::from(slot) * ROOM, extent_bytes(len)).unwrap();
        let (segment, incarnation, slot) = (SEGMENT, INCARNATION, Slot(slot));
        let (stripe, grant) = (0, None);
        Some(Locator { segment, incarnation, slot, generation, extent, stripe, grant })
    }

    fn room(&mut self, slot: u32) -> &mut Room {
        &mut self.rooms[slot as usize]
    }

    fn begin(&mut self, slot: u32, back: u32, len: u64) {
        let Some(locator) = self.locator(slot, back, len) else { return };
        self.puts += 1;
        let puts = self.puts;
        let value: Vec<u8> =
            (0..len).map(|i| (i.wrapping_mul(puts) >> 3) as u8 ^ puts as u8).collect();
        let label = [&[0; 5][..], &puts.to_le_bytes()].concat();
        let begin = BeginWrite {
            locator,
            token: PutToken(puts),
            object: ObjectId { epoch: EPOCH, sequence: puts },
            epoch: EPOCH,
            len,
            label: &label,
            hash: LabelHash::default(),
        };
        let result = self.segment.begin(Now(self.now), &begin);
        let room = self.room(slot);
        assert_eq!(result.is_ok(), back == 0 && room.life == Life::Empty, "{result:?}");
        if let Ok(mut guard) = result {
            let cut = value.len() / 2;
            guard.write(0, &value[..cut]).unwrap();
            guard.write(cut as u64, &value[cut..]).unwrap();
            (room.life, room.value, room.guard) = (Life::Writing, value, Some(guard));
        }
    }

    fn publish(&mut self, slot: u32, right_token: bool) {
        let now = Now(self.now);
        let room = self.room(slot);
        let Some(guard) = room.guard.take() else { return };
        let token = PutToken(if right_token { guard.token().0 } else { 0 });
        let seal = seal_of(&room.value);
        match guard.publish(now, token, seal) {
            Ok(()) => {
                assert!(right_token && room.life == Life::Writing);
                room.life = Life::Ready;
            }
            Err(refused) => {
                assert!(!right_token || room.life == Life::Quarantine, "{refused}");
                room.guard = Some(refused.guard);
            }
        }
    }

    fn hang_up(&mut self, slot: u32) {
        let room = self.room(slot);
        if room.guard.take().is_none() {
            return;
        }
        // Quarantine has bumped already.
        room.generation += u32::from(room.life == Life::Writing);
        room.life = Life::Empty;
        let ended = room.generation - 1;
        self.expected.push((slot, ended));
    }

    fn pin(&mut self, slot: u32, back: u32) {
        let len = self.rooms[slot as usize].value.len() as u64;
        let Some(locator) = self.locator(slot, back, len) else { return };
        let result = self.segment.pin(Now(self.now), &locator);
        let room = self.room(slot);
        assert_eq!(result.is_ok(), back == 0 && room.life == Life::Ready, "{result:?}");
        if let Ok(pin) = result {
            room.pins.push((room.value.clone(), pin));
        }
    }

    fn unpin(&mut self, pick: usize) {
        let room = &mut self.rooms[pick % SLOTS as usize];
        if !room.pins.is_empty() {
            drop(room.pins.remove(pick % room.pins.len()));
        }
    }

    fn copy(&mut self, slot: u32, back: u32) {
        let value = &self.rooms[slot as usize].value;
        let Some(locator) = self.locator(slot, back, value.len() as u64) else { return };
        let mut copy = vec![0; value.len()];
        let clock = || Now(self.now);
        let read = self.segment.one_sided().read_into(&locator, seal_of(value), &mut copy, clock);
        if self.place != Place::Host {
            assert_eq!(read, Err(ReadError::OutOfBounds), "only its owner reads it");
            return;
        }
        let readable = back == 0 && self.rooms[slot as usize].life == Life::Ready;
        assert_eq!(read, if readable { Ok(()) } else { Err(ReadError::Stale) });
        assert!(!readable || copy == *value);
    }

    fn order(&mut self, slot: u32, back: u32, action: Action) {
        let Some(Locator { generation, .. }) = self.locator(slot, back, 0) else { return };
        let order = Order {
            segment: SEGMENT,
            incarnation: INCARNATION,
            slot: Slot(slot),
            generation,
            action,
        };
        let answer = self.segment.execute(Now(self.now), EPOCH, &order);
        // A far range is zeroed by a tick, so only that frees it.
        let later = self.place == Place::Far { wipes: true };
        let now = self.now;
        let room = self.room(slot);
        let next = Generation(room.generation);
        if back == 1 {
            let quarantined = room.life == Life::Quarantine;
            let over = OrderResult::Freed { next };
            let expected = if quarantined { OrderResult::Waiting } else { over };
            assert_eq!(answer.unwrap().result, expected);
            return;
        }
        if room.life == Life::Quarantine {
            assert!(answer.is_err(), "the life after the quarantine has not begun");
            return;
        }
        let pinned = !room.pins.is_empty();
        let wait = match action {
            Action::Retire { free_after_ms } => u64::from(free_after_ms) * MS,
            Action::Evict | Action::Abort => 0,
        };
        let expected = match room.life.clone() {
            Life::Writing => {
                (room.life, room.generation) = (Life::Quarantine, room.generation + 1);
                OrderResult::Waiting
            }
            Life::Ready if action == Action::Evict && pinned => OrderResult::Pinned,
            Life::Empty => room.end(),
            Life::Ready => room.retire(now, now + wait, later),
            Life::Retiring { until } => room.retire(now, until.max(now + wait), later),
            Life::Quarantine => unreachable!("returned above"),
        };
        assert_eq!(answer.unwrap().result, expected, "{action:?}");
    }

    fn tick(&mut self, ms: u64) {
        self.now += ms * MS;
        self.bell.wait(Some(Duration::ZERO));
        self.segment.tick(Now(self.now), &mut self.told);
        self.planned = self.segment.next_look();
        for notice in &self.told {
            let slot = notice.slot.0;
            let room = &mut self.rooms[slot as usize];
            if let Life::Retiring { until } = room.life
                && room.generation == notice.generation.0
            {
                assert!(until <= self.now && room.pins.is_empty(), "freed too early");
                room.end();
                self.expected.push((slot, notice.generation.0));
            }
        }
        let mut told: Vec<_> = self.told.iter().map(|n| (n.slot.0, n.generation.0)).collect();
        told.sort_unstable();
        self.expected.sort_unstable();
        assert_eq!(told, self.expected, "each end is told once");
        self.told.clear();
        self.expected.clear();
    }

    fn announce(&self) {
        let (page, next) = self.segment.announce(Slot(0), 100);
        assert_eq!(next, None);
        for told in page {
            let room = &self.rooms[told.slot.0 as usize];
            let quarantined = room.life == Life::Quarantine;
            assert_eq!(told.generation.0, room.generation - u32::from(quarantined));
            assert_eq!(told.life.is_none(), room.life == Life::Empty);
            let object = told.life.and_then(|life| life.object);
            assert_eq!(object.is_some(), room.life == Life::Ready);
            if let Some(object) = object {
                assert_eq!(object.len, room.value.len() as u64);
                assert_eq!(object.seal, seal_of(&room.value));
                assert_eq!(object.label.key.as_bytes(), object.object.sequence.to_le_bytes());
            }
        }
    }

    /// What holds after every call: whoever tends the segment wakes in time, pinned bytes stay, and the
    /// counters agree.
    fn check(&mut self) {
        let next = self.segment.next_look();
        if self.bell.wait(Some(Duration::ZERO)) {
            self.planned = next;
        }
        let late = next.is_some_and(|next| self.planned.is_none_or(|planned| next < planned));
        assert!(!late, "due at {next:?}, looked at {:?}", self.planned);
        let mut pins = 0;
        for (value, pin) in self.rooms.iter().flat_map(|room| &room.pins) {
            if self.place == Place::Host {
                assert_eq!(pin.bytes(), value, "pinned bytes changed");
            } else {
                let mut copy = vec![0; value.len()];
                assert_eq!(pin.read_into(seal_of(value), &mut copy), Ok(()));
                assert_eq!(copy, *value, "pinned bytes changed");
            }
            pins += 1;
        }
        assert_eq!(self.segment.pins(), pins);
        let count =
            |is: fn(&Life) -> bool| self.rooms.iter().filter(|room| is(&room.life)).count() as u64;
        let stats = self.segment.stats();
        assert_eq!(stats.writing, count(|life| *life == Life::Writing));
        assert_eq!(stats.ready, count(|life| *life == Life::Ready));
        assert_eq!(stats.retiring, count(|life| matches!(life, Life::Retiring { .. })));
        assert_eq!(stats.failed, count(|life| *life == Life::Quarantine));
    }

    /// Everybody leaves: all pins go, all slots can be freed (G8).
    fn drain(&mut self) {
        for slot in 0..SLOTS {
            self.hang_up(slot);
            self.room(slot).pins.clear();
            if self.room(slot).life != Life::Empty {
                self.order(slot, 0, Action::Retire { free_after_ms: 0 });
            }
        }
        self.tick(1000);
        self.check();
        let stats = self.segment.stats();
        assert_eq!(stats.ready + stats.writing + stats.retiring + stats.failed, 0);
    }
}

impl Room {
    fn end(&mut self) -> OrderResult {
        (self.life, self.generation) = (Life::Empty, self.generation + 1);
        OrderResult::Freed { next: Generation(self.generation) }
    }

    fn retire(&mut self, now: u64, until: u64, later: bool) -> OrderResult {
        if until <= now && self.pins.is_empty() && !later {
            return self.end();
        }
        self.life = Life::Retiring { until };
        OrderResult::Waiting
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Proves G3, G4, G8, G10, M1 for one segment.
    #[test]
    fn any_order_of_calls_is_as_the_model_says(
        place in any_place(),
        calls in prop::collection::vec(any_call(), 0..120),
    ) {
        let mut rig = Rig::new(place);
        for call in calls {
            match call {
                Call::Begin { slot, back, len } => rig.begin(slot, back, len),
                Call::Publish { slot, right_token } => rig.publish(slot, right_token),
                Call::HangUp { slot } => rig.hang_up(slot),
                Call::Pin { slot, back } => rig.pin(slot, back),
                Call::Unpin { pick } => rig.unpin(pick),
                Call::Copy { slot, back } => rig.copy(slot, back),
                Call::Order { slot, back, action } => rig.order(slot, back, action),
                Call::Tick { ms } => rig.tick(ms),
                Call::Announce => rig.announce(),
            }
            rig.check();
        }
        rig.drain();
    }
}
