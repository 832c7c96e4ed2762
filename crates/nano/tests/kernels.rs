//! Every kernel beside its oracle, on a real GPU or the emulator of one: equal in every byte, of what it
//! writes and of what it must not touch.
//!
//! Without either each test says `SKIPPED`, with its name and the reason; the oracles have tests of their
//! own that run everywhere. `./dev gpu` runs these on a machine with a GPU and fails if one was skipped.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_core::header::Header;
use mooncrate_core::rng::Rng;
use mooncrate_core::state::Event;
use mooncrate_core::word::Word;
use mooncrate_core::{Generation, ReplicaState};
use mooncrate_gpu::{DeviceBuffer, Gpu, PinnedBuffer, Span, Stream};
use mooncrate_heap::{Heap, Rank, World};
use mooncrate_nano::kernels::{
    Action, Counter, Counts, FEW, Kernels, Outcome, Outcomes, Push, Read, Step, Steps, Value,
    commit_oracle, fill_oracle, push_oracle, read_oracle, reap_oracle, sums_oracle, verify_oracle,
    word_oracle, words_oracle,
};
use mooncrate_nano::{HeapLayout, PAGE_BYTES, Pages};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sizes at which something changes: pieces, blocks, pages.
const SIZES: [u64; 12] =
    [1, 15, 16, 17, 4_095, 4_096, 65_539, 262_144, 262_159, 1_000_003, 1 << 20, 8 << 20];
const G: Generation = Generation(5);

struct Rig {
    kernels: Kernels,
    heaps: Vec<Heap>,
    layout: HeapLayout,
    stream: Stream,
    gpu: Gpu,
    rng: Rng,
    /// One test at a time: the emulator has one set of threads.
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    /// Heaps of so many ranks on GPU number 0, or the word that the test was skipped.
    fn new(test: &str, ranks: usize, slots: u32, bytes: u64) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) if error.is_absent() => {
                eprintln!("SKIPPED {test}: {error}");
                return None;
            }
            Err(error) => panic!("{test}: {error}"),
        };
        let heaps = Heap::cuda_ranks(&gpu, World::new(ranks).unwrap(), bytes).unwrap();
        let layout = HeapLayout::new(slots, heaps[0].bytes()).unwrap();
        let kernels = Kernels::load(&gpu, layout).unwrap();
        let stream = Stream::new(&gpu).unwrap();
        Some(Self { kernels, heaps, layout, stream, gpu, rng: Rng::stream(1, test), _turn: turn })
    }

    fn random(&mut self, len: u64) -> Vec<u8> {
        let words = len.div_ceil(8);
        let mut bytes: Vec<u8> = (0..words).flat_map(|_| self.rng.next().to_le_bytes()).collect();
        bytes.truncate(len as usize);
        bytes
    }

    fn upload(&self, bytes: &[u8]) -> DeviceBuffer {
        let buffer = DeviceBuffer::new(&self.gpu, bytes.len() as u64).unwrap();
        buffer.span().write(bytes, &self.stream).unwrap();
        buffer
    }

    fn rank(&self, number: usize) -> Rank {
        self.heaps[0].world().rank(number).unwrap()
    }

    fn span(&self, rank: Rank) -> Span<'_> {
        self.heaps[0].span(rank).unwrap()
    }

    /// Fills a heap with random bytes and its first headers with words; gives the same in host memory.
    fn set_heap(&mut self, rank: Rank, words: &[Word]) -> Vec<u8> {
        let mut host = self.random(self.heaps[0].bytes());
        for (header, word) in host.chunks_exact_mut(128).zip(words) {
            header[56..64].copy_from_slice(&word.0.to_le_bytes());
        }
        self.span(rank).write(&host, &self.stream).unwrap();
        host
    }

    /// Steps on the headers of a rank, at once.
    fn act(&self, owner: Rank, steps: &[Step]) -> Vec<Outcome> {
        let count = steps.len() as u32;
        let outcomes = Outcomes::new(&self.gpu, count).unwrap();
        let mut batch = Steps::new(&self.gpu, count).unwrap();
        batch.set(steps, &self.layout, &self.stream).unwrap();
        self.kernels.words(&self.stream, &self.heaps[0], owner, &batch, &outcomes).unwrap();
        outcomes.read(count, &self.stream).unwrap()
    }

    /// A value of so many bytes somewhere in the heap of a rank.
    fn value(&mut self, owner: Rank, slot: u32, bytes: u64, page_bytes: u32) -> Value {
        let room = self.layout.payload();
        let payload = room.offset() + 16 * self.rng.below((room.len() - bytes) / 16 + 1);
        let pages = Pages::new(bytes, page_bytes).unwrap();
        Value { owner, slot, generation: G, payload, pages }
    }

    /// Compares device memory with what the oracle made, and says where they differ.
    fn compare(&self, what: &str, device: Span<'_>, oracle: &[u8]) {
        let seen = device.to_vec(&self.stream).unwrap();
        let wrong = seen.iter().zip(oracle).filter(|(seen, oracle)| seen != oracle).count();
        let first = seen.iter().zip(oracle).position(|(seen, oracle)| seen != oracle);
        assert_eq!(
            first,
            None,
            "{what}: {wrong} of {} bytes differ; first place above",
            seen.len()
        );
    }

    /// The sizes at which something changes, and some more.
    fn sizes(&mut self) -> Vec<u64> {
        let drawn = (0..4).map(|_| 1 + self.rng.below(8 << 20));
        SIZES.into_iter().chain(drawn).collect()
    }
}

fn step(slot: u32, generation: Generation, action: Action) -> Step {
    Step { slot, generation, action }
}

fn word(state: ReplicaState, pins: u32) -> Word {
    Word::new(G, state, pins)
}

/// All states and all codes that are none, all events, all pins that matter, all kinds of generations.
#[test]
fn words_do_what_core_says() {
    const TEST: &str = "words_do_what_core_says";
    const CASES: u32 = 16 * 12 * 6 * 3 * 2;
    let Some(mut rig) = Rig::new(TEST, 8, CASES, 2 << 20) else { return };
    let reader = rig.rank(2);
    let header = Header { key_hash: 1, extent_bytes: 2, word: 3, epoch: 4, ..Header::default() };
    let actions = [
        Action::Event(Event::Reserve),
        Action::Event(Event::Begin),
        Action::Event(Event::Publish),
        Action::Event(Event::Unlink),
        Action::Event(Event::Reclaim { pins: 0 }),
        Action::Event(Event::Abort),
        Action::Event(Event::Fence),
        Action::Open(header),
        Action::Pin(reader),
        Action::Unpin(reader),
        Action::Pin(rig.rank(7)),
        Action::Unpin(rig.rank(7)),
    ];
    let full = 7 * Word::pin_of(2);
    let pins = [0, Word::pin_of(2), full - Word::pin_of(2), full, (1 << 24) - 1, Word::pin_of(7)];
    let (mut words, mut steps) = (Vec::new(), Vec::new());
    for code in 0..16_u64 {
        for action in actions {
            for (pins, generation) in pins.iter().flat_map(|p| [0, 7, u32::MAX].map(|g| (p, g))) {
                for asked in [generation, generation.wrapping_sub(1)] {
                    steps.push(step(words.len() as u32, Generation(asked), action));
                    words.push(Word(u64::from(generation) << 32 | code << 28 | pins));
                }
            }
        }
    }
    assert_eq!(steps.len() as u32, CASES);
    let owner = rig.rank(5);
    let mut host = rig.set_heap(owner, &words);
    let outcomes = rig.act(owner, &steps);
    let expected = words_oracle(&mut host, &steps);
    for (n, step) in steps.iter().enumerate() {
        assert_eq!(outcomes[n], expected[n], "{:?} and {step:?}", words[n]);
    }
    rig.compare("headers", rig.span(owner), &host);
    few_at_a_time(&mut rig, &words, &steps);
}

/// The same steps, or some of them, in launches that carry them along.
fn few_at_a_time(rig: &mut Rig, words: &[Word], steps: &[Step]) {
    let owner = rig.rank(4);
    let mut host = rig.set_heap(owner, words);
    let outcomes = Outcomes::new(&rig.gpu, FEW as u32).unwrap();
    let (kernels, stream, heap) = (&rig.kernels, &rig.stream, &rig.heaps[1]);
    let some: Vec<Step> = steps.iter().copied().step_by(5).collect();
    for (n, few) in some.chunks(FEW).enumerate() {
        let few = &few[..few.len() - n % 2];
        kernels.act(stream, heap, owner, few, &outcomes).unwrap();
        let seen = outcomes.read(few.len() as u32, stream).unwrap();
        assert_eq!(seen, words_oracle(&mut host, few), "{few:?}");
    }
    rig.compare("headers", rig.span(owner), &host);
    assert!(kernels.act(stream, heap, owner, &some[..=FEW], &outcomes).is_err());
}

#[test]
fn pins_of_one_batch_are_counted_exactly() {
    const TEST: &str = "pins_of_one_batch_are_counted_exactly";
    let Some(mut rig) = Rig::new(TEST, 8, 4, 2 << 20) else { return };
    let owner = rig.rank(3);
    rig.set_heap(owner, &[word(ReplicaState::Ready, 0); 4]);
    let ranks: Vec<Rank> = rig.heaps[0].world().ranks().collect();
    let pins: Vec<Step> = (0..800).map(|n| step(1, G, Action::Pin(ranks[n % 8]))).collect();
    let done = |outcomes: &[Outcome]| {
        outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(_))).count()
    };
    assert_eq!(done(&rig.act(owner, &pins)), 8 * 7);
    let unlink = rig.act(owner, &[step(1, G, Action::Event(Event::Unlink))]);
    assert_eq!(unlink, [Outcome::Done(word(ReplicaState::Retiring, (1 << 24) - 1))]);
    let counts = Counts::new(&rig.gpu).unwrap();
    let (heap, gone) = (&rig.heaps[0], ranks[6]);
    rig.kernels.reap(&rig.stream, heap, owner, 0..4, gone, &counts).unwrap();
    assert_eq!(counts.read(&rig.stream).unwrap(), [7, 0]);
    let unpins: Vec<Step> = (0..800).map(|n| step(1, G, Action::Unpin(ranks[n % 8]))).collect();
    assert_eq!(done(&rig.act(owner, &unpins)), 7 * 7);
    let free = rig.act(owner, &[step(1, G, Action::Event(Event::Reclaim { pins: 0 }))]);
    assert_eq!(free, [Outcome::Done(Word::new(Generation(6), ReplicaState::Dead, 0))]);
}

#[test]
fn reap_does_what_its_oracle_does() {
    const TEST: &str = "reap_does_what_its_oracle_does";
    let Some(mut rig) = Rig::new(TEST, 3, 1_000, 2 << 20) else { return };
    let (owner, gone) = (rig.rank(1), rig.rank(2));
    let words: Vec<Word> = (0..1_000).map(|_| Word(rig.rng.next())).collect();
    let mut host = rig.set_heap(owner, &words);
    let counts = Counts::new(&rig.gpu).unwrap();
    let mut expected = 0;
    for slots in [17..500, 900..1_000, 3..3, 0..1_000] {
        let heap = &rig.heaps[1];
        rig.kernels.reap(&rig.stream, heap, owner, slots.clone(), gone, &counts).unwrap();
        expected += reap_oracle(&mut host, slots, gone);
        assert_eq!(counts.read(&rig.stream).unwrap(), [expected, 0]);
        rig.compare("headers", rig.span(owner), &host);
    }
}

/// In worlds of all sizes, values of all sizes: pushed, published, pinned, read and unpinned.
#[test]
fn push_and_read_do_what_their_oracles_do() {
    const TEST: &str = "push_and_read_do_what_their_oracles_do";
    for ranks in 1..=8 {
        let Some(mut rig) = Rig::new(TEST, ranks, 16, 10 << 20) else { return };
        let sizes = rig.sizes();
        let counter = Counter::new(&rig.stream).unwrap();
        // Each size in two worlds; the last rank of each is the owner at times.
        for (n, bytes) in sizes.into_iter().enumerate().filter(|(n, _)| n % 4 == ranks % 4) {
            let (me, owner) = (rig.rank(n % ranks), rig.rank((n + ranks - 1) % ranks));
            let what = format!("{bytes} bytes of {me} in {owner} of {ranks}");
            let mut host = rig.set_heap(owner, &[word(ReplicaState::Writing, 0); 16]);
            let value = rig.value(owner, n as u32 % 16, bytes, PAGE_BYTES);
            // The source is longer than the value.
            let given = rig.random(bytes + 64);
            let source = rig.upload(&given);
            let pages = 0..value.pages.count();
            let (heap, stream) = (&rig.heaps[me.index()], &rig.stream);
            let publish = Some(&counter);
            let push =
                Push { value, pages: pages.clone(), source: source.span(), begun: None, publish };
            rig.kernels.push(stream, heap, &push).unwrap();
            push_oracle(&mut host, &value, pages, &given);
            let expected = commit_oracle(&mut host, &value);
            assert_eq!(counter.outcome(stream).unwrap(), expected, "{what}");
            assert_eq!(expected, Outcome::Done(word(ReplicaState::Ready, 0)));
            rig.compare(&what, rig.span(owner), &host);
            read_back(&mut rig, &what, me, &value, &mut host);
        }
    }
}

/// Pins, reads all and a part, and unpins.
fn read_back(rig: &mut Rig, what: &str, me: Rank, value: &Value, host: &mut [u8]) {
    let (bytes, owner) = (value.pages.bytes_total, value.owner);
    let pin = step(value.slot, value.generation, Action::Pin(me));
    let outcomes = Outcomes::new(&rig.gpu, 2).unwrap();
    let mut batch = Steps::new(&rig.gpu, 2).unwrap();
    // The second one finds another generation.
    let wrong = Step { generation: Generation(4), ..pin };
    batch.set(&[pin, wrong], &rig.layout, &rig.stream).unwrap();
    rig.kernels.words(&rig.stream, &rig.heaps[me.index()], owner, &batch, &outcomes).unwrap();
    let pins = words_oracle(host, &[pin, wrong]);
    let found = outcomes.read(2, &rig.stream).unwrap();
    assert_eq!(found[0], pins[0], "{what}");
    // Steps of one batch happen in any order, so the second may have found the word before or after the pin.
    let unpinned = Outcome::Refused(word(ReplicaState::Ready, 0));
    assert!(found[1] == pins[1] || found[1] == unpinned, "{what}: {found:?}");
    let mut target = rig.random(bytes + 64);
    let device = rig.upload(&target);
    let counter = Counter::new(&rig.stream).unwrap();
    let from = 16 * rig.rng.below(bytes.div_ceil(16));
    let to = from + rig.rng.below(bytes - from + 1);
    for (pin, range, unpin) in
        [(1, 0..bytes, true), (0, from..to, false), (0, 0..bytes, false), (0, from..to, true)]
    {
        let read = Read {
            value: *value,
            bytes: range.clone(),
            target: device.span(),
            pin: outcomes.at(pin).unwrap(),
            unpin: unpin.then_some(&counter),
        };
        rig.kernels.read(&rig.stream, &rig.heaps[me.index()], &read).unwrap();
        let rank = unpin.then_some(me);
        let expected = read_oracle(host, value, range, &mut target, found[pin as usize], rank);
        if unpin {
            assert_eq!(counter.outcome(&rig.stream).unwrap(), expected, "{what}");
        }
        rig.compare(what, device.span(), &target);
    }
    rig.compare(what, rig.span(owner), host);
    assert_eq!(word_oracle(host, value.slot), word(ReplicaState::Ready, 0));
}

/// The outcome of a step on another value, or of another step, is no pin of this one.
#[test]
fn a_pin_of_another_life_reads_nothing() {
    const TEST: &str = "a_pin_of_another_life_reads_nothing";
    let Some(mut rig) = Rig::new(TEST, 2, 4, 2 << 20) else { return };
    let (me, owner) = (rig.rank(0), rig.rank(1));
    let next = Generation(6);
    let ready = word(ReplicaState::Ready, 0);
    let words = [ready, Word::new(next, ReplicaState::Ready, 0), ready];
    let mut host = rig.set_heap(owner, &words);
    let value = rig.value(owner, 0, 5_000, PAGE_BYTES);
    let unlink = Action::Event(Event::Unlink);
    let steps = [step(1, next, Action::Pin(me)), step(2, G, unlink), step(0, G, Action::Pin(me))];
    let outcomes = Outcomes::new(&rig.gpu, 3).unwrap();
    rig.kernels.act(&rig.stream, &rig.heaps[0], owner, &steps, &outcomes).unwrap();
    let pins = words_oracle(&mut host, &steps);
    let (mut target, counter) = (rig.random(5_000), Counter::new(&rig.stream).unwrap());
    let device = rig.upload(&target);
    for (index, pin) in (0..).zip(pins) {
        assert!(matches!(pin, Outcome::Done(_)));
        let (bytes, unpin) = (0..5_000, Some(&counter));
        let at = outcomes.at(index).unwrap();
        let read = Read { value, bytes: bytes.clone(), target: device.span(), pin: at, unpin };
        rig.kernels.read(&rig.stream, &rig.heaps[0], &read).unwrap();
        let expected = read_oracle(&mut host, &value, bytes, &mut target, pin, Some(me));
        assert_eq!(counter.outcome(&rig.stream).unwrap(), expected, "{pin:?}");
        assert_eq!(matches!(expected, Outcome::Done(_)), index == 2);
        rig.compare("the target", device.span(), &target);
    }
    rig.compare("headers", rig.span(owner), &host);
}

/// The step that opens a slot and the copy are queued together: the range of a plan that came too late is another one's.
#[test]
fn a_push_whose_life_was_not_begun_writes_nothing() {
    const TEST: &str = "a_push_whose_life_was_not_begun_writes_nothing";
    let Some(mut rig) = Rig::new(TEST, 2, 4, 2 << 20) else { return };
    let owner = rig.rank(1);
    let next = Word::new(Generation(6), ReplicaState::Writing, 0);
    let dead = word(ReplicaState::Dead, 0);
    let mut host = rig.set_heap(owner, &[next, word(ReplicaState::Failed, 0), dead]);
    let (given, counter) = (rig.random(5_000), Counter::new(&rig.stream).unwrap());
    let source = rig.upload(&given);
    let outcomes = Outcomes::new(&rig.gpu, 1).unwrap();
    for slot in [0, 1, 2] {
        let value = rig.value(owner, slot, 5_000, PAGE_BYTES);
        let open = [step(slot, G, Action::Open(Header::default()))];
        rig.kernels.act(&rig.stream, &rig.heaps[0], owner, &open, &outcomes).unwrap();
        let begun = words_oracle(&mut host, &open).remove(0);
        let (pages, publish) = (0..value.pages.count(), Some(&counter));
        let at = Some(outcomes.at(0).unwrap());
        let push = Push { value, pages, source: source.span(), begun: at, publish };
        rig.kernels.push(&rig.stream, &rig.heaps[0], &push).unwrap();
        let found = counter.outcome(&rig.stream).unwrap();
        match begun {
            Outcome::Done(_) => {
                push_oracle(&mut host, &value, 0..value.pages.count(), &given);
                assert_eq!(found, commit_oracle(&mut host, &value), "{slot}");
            }
            Outcome::Refused(word) => assert_eq!(found, Outcome::Refused(word), "{slot}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(matches!(begun, Outcome::Done(_)), slot == 2, "{slot}");
        rig.compare("the heap", rig.span(owner), &host);
    }
}

#[test]
fn pages_arrive_in_any_order_and_the_last_launch_publishes() {
    const TEST: &str = "pages_arrive_in_any_order_and_the_last_launch_publishes";
    let Some(mut rig) = Rig::new(TEST, 2, 2, 4 << 20) else { return };
    let (me, owner) = (rig.rank(0), rig.rank(1));
    let counter = Counter::new(&rig.stream).unwrap();
    for (page_bytes, bytes) in [(128 << 10, 1_000_001), (16, 200), (512 << 10, 1 << 20)] {
        let mut host = rig.set_heap(owner, &[word(ReplicaState::Writing, 0); 2]);
        let value = rig.value(owner, 1, bytes, page_bytes);
        let given = rig.random(bytes);
        let source = rig.upload(&given);
        let count = value.pages.count();
        let (middle, heap) = (count / 2, &rig.heaps[me.index()]);
        let parts = [(middle..count, None), (count..count, None), (0..middle, Some(&counter))];
        for (pages, publish) in parts {
            assert_eq!(word_oracle(&host, 1), word(ReplicaState::Writing, 0));
            let from = (u64::from(pages.start) * u64::from(page_bytes)).min(bytes);
            let source = source.span().part(from..bytes).unwrap();
            let push = Push { value, pages: pages.clone(), source, begun: None, publish };
            rig.kernels.push(&rig.stream, heap, &push).unwrap();
            push_oracle(&mut host, &value, pages, &given[from as usize..]);
            if publish.is_some() {
                let expected = commit_oracle(&mut host, &value);
                assert_eq!(counter.outcome(&rig.stream).unwrap(), expected);
            }
            rig.compare("after a part", rig.span(owner), &host);
        }
    }
}

#[test]
fn a_late_producer_is_refused() {
    const TEST: &str = "a_late_producer_is_refused";
    let Some(mut rig) = Rig::new(TEST, 2, 8, 2 << 20) else { return };
    let (owner, counter) = (rig.rank(1), Counter::new(&rig.stream).unwrap());
    let words = [
        word(ReplicaState::Failed, 0),
        word(ReplicaState::Ready, 0),
        Word::new(Generation(6), ReplicaState::Writing, 0),
        word(ReplicaState::Writing, 0),
        word(ReplicaState::Writing, 9),
    ];
    let mut host = rig.set_heap(owner, &words);
    for slot in [0, 1, 2, 3, 3, 4] {
        let value = rig.value(owner, slot, 100, PAGE_BYTES);
        rig.kernels.commit(&rig.stream, &rig.heaps[0], value, &counter).unwrap();
        let expected = commit_oracle(&mut host, &value);
        assert_eq!(counter.outcome(&rig.stream).unwrap(), expected, "{slot}");
    }
    rig.compare("headers", rig.span(owner), &host);
    assert_eq!(word_oracle(&host, 4), word(ReplicaState::Ready, 9));
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    const TEST: &str = "what_does_not_fit_is_refused_in_words";
    let Some(mut rig) = Rig::new(TEST, 2, 8, 2 << 20) else { return };
    let source = rig.upload(&[0; 4_096]);
    let value = rig.value(rig.rank(1), 0, 1_024, 256);
    let (other, kernels) = (Stream::new(&rig.gpu).unwrap(), &rig.kernels);
    let counter = Counter::new(&other).unwrap();
    let good = Push { value, pages: 0..4, source: source.span(), begun: None, publish: None };
    kernels.push(&rig.stream, &rig.heaps[0], &good).unwrap();
    let own = rig.span(value.owner).part(value.payload..value.payload + 2_048).unwrap();
    let nobody = World::new(8).unwrap().rank(7).unwrap();
    for (push, said) in [
        (Push { pages: 1..5, ..good.clone() }, "pages 1..5 of a value that has 4"),
        (
            Push { source: source.span().part(8..2_000).unwrap(), ..good.clone() },
            "no multiple of 16",
        ),
        (
            Push { source: source.span().part(0..1_000).unwrap(), ..good.clone() },
            "the source of a push needs 1024, but has 1000",
        ),
        (Push { value: Value { slot: 8, ..value }, ..good.clone() }, "header 8 does not exist"),
        (Push { value: Value { payload: 64, ..value }, ..good.clone() }, "reach outside"),
        (
            Push { value: Value { owner: nobody, ..value }, ..good.clone() },
            "rank 7 is not on a GPU",
        ),
        (Push { source: own, ..good.clone() }, "overlap"),
        (Push { publish: Some(&counter), ..good.clone() }, "a counter of another stream"),
    ] {
        let error = kernels.push(&rig.stream, &rig.heaps[0], &push).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let outcomes = Outcomes::new(&rig.gpu, 1).unwrap();
    let mut batch = Steps::new(&rig.gpu, 2).unwrap();
    let pin = step(7, G, Action::Pin(rig.rank(0)));
    let far = Step { slot: 8, ..pin };
    assert!(batch.set(&[far], &rig.layout, &rig.stream).is_err());
    assert!(batch.set(&[pin; 3], &rig.layout, &rig.stream).is_err());
    batch.set(&[pin; 2], &rig.layout, &rig.stream).unwrap();
    let owner = rig.rank(0);
    assert!(kernels.words(&rig.stream, &rig.heaps[0], owner, &batch, &outcomes).is_err());
    let (pin, target) = (outcomes.at(0).unwrap(), source.span());
    let read = Read { value, bytes: 8..16, target, pin, unpin: None };
    let error = kernels.read(&rig.stream, &rig.heaps[0], &read).unwrap_err().to_string();
    assert!(error.contains("the offset in the value is 8"), "{error}");
    assert!(outcomes.at(1).is_err());
}

#[test]
fn fill_and_verify_do_what_their_oracles_do() {
    const TEST: &str = "fill_and_verify_do_what_their_oracles_do";
    let Some(mut rig) = Rig::new(TEST, 1, 1, 2 << 20) else { return };
    let counts = Counts::new(&rig.gpu).unwrap();
    for bytes in rig.sizes().into_iter().filter(|bytes| *bytes < 4 << 20) {
        let mut host = rig.random(bytes + 64);
        let device = rig.upload(&host);
        let part = device.span().part(0..bytes).unwrap();
        rig.kernels.fill(&rig.stream, part, 77).unwrap();
        fill_oracle(&mut host[..bytes as usize], 77);
        rig.compare("filled", device.span(), &host);
        for spoiled in 0..3 {
            let at = rig.rng.below(bytes) as usize;
            if spoiled > 0 {
                host[at] ^= 16;
                device.span().write(&host, &rig.stream).unwrap();
            }
            for id in [77, 78] {
                counts.clear(&rig.stream).unwrap();
                rig.kernels.verify(&rig.stream, part, id, &counts).unwrap();
                let expected = verify_oracle(&host[..bytes as usize], id);
                assert_eq!(counts.read(&rig.stream).unwrap(), [expected, 0], "{bytes} bytes");
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_host() {
    const TEST: &str = "sums_are_those_of_the_host";
    let Some(mut rig) = Rig::new(TEST, 1, 1, 2 << 20) else { return };
    let mut cases: Vec<(u64, u32)> = Vec::new();
    for page in [16, 48, 4_096, 65_536, 131_088, 256 << 10, 1 << 20, 16 << 20] {
        let page_bytes = u64::from(page);
        cases.extend([1, 15, 16, 17, page_bytes - 1, page_bytes + 1].map(|bytes| (bytes, page)));
        cases.push((1 + rig.rng.below(40 * page_bytes.min(100_000)), page));
    }
    cases.extend([(8 << 20, 256 << 10), ((8 << 20) + 5, 512 << 10), (300_000, 64 << 20)]);
    for (bytes, page_bytes) in cases {
        let host = rig.random(bytes);
        let expected: Vec<u8> =
            sums_oracle(&host, page_bytes).into_iter().flat_map(u64::to_le_bytes).collect();
        let (value, sums) = (rig.upload(&host), rig.upload(&vec![0xa5; expected.len() + 16]));
        rig.kernels.sums(&rig.stream, value.span(), page_bytes, sums.span()).unwrap();
        let found = sums.span().to_vec(&rig.stream).unwrap();
        let (found, rest) = found.split_at(expected.len());
        assert!(found == expected, "{bytes} bytes in pages of {page_bytes}");
        assert_eq!(rest, [0xa5; 16]);
    }
    let value = rig.upload(&[0; 256]);
    assert!(rig.kernels.sums(&rig.stream, value.span(), 24, value.span()).is_err());
}

#[test]
fn host_memory_is_copied_both_ways() {
    const TEST: &str = "host_memory_is_copied_both_ways";
    let Some(mut rig) = Rig::new(TEST, 1, 1, 2 << 20) else { return };
    for bytes in [1, 16, 33, 65_536, 262_147, (1 << 20) - 1, 1 << 20, 3_000_001] {
        let (given, mut host) = (rig.random(bytes), rig.random(bytes + 16));
        let device = rig.upload(&host);
        let mut pinned = PinnedBuffer::new(&rig.gpu, bytes as usize).unwrap();
        pinned.copy_from_slice(&given);
        // SAFETY: nobody touches the buffer before the wait below.
        unsafe { rig.kernels.upload(&rig.stream, device.span(), &pinned) }.unwrap();
        rig.stream.synchronize().unwrap();
        host[..bytes as usize].copy_from_slice(&given);
        rig.compare("uploaded", device.span(), &host);
        pinned.fill(0);
        // SAFETY: as above.
        unsafe { rig.kernels.download(&rig.stream, &mut pinned, device.span()) }.unwrap();
        rig.stream.synchronize().unwrap();
        assert!(pinned[..] == given[..], "{bytes} bytes downloaded");
    }
}

/// What a reader needs for itself.
struct Reader {
    stream: Stream,
    outcomes: Outcomes,
    batch: Steps,
    target: DeviceBuffer,
    counter: Counter,
    counts: Counts,
}

impl Reader {
    fn new(gpu: &Gpu, bytes: u64) -> Self {
        let stream = Stream::new(gpu).unwrap();
        Self {
            outcomes: Outcomes::new(gpu, 1).unwrap(),
            batch: Steps::new(gpu, 1).unwrap(),
            target: DeviceBuffer::new(gpu, bytes).unwrap(),
            counter: Counter::new(&stream).unwrap(),
            counts: Counts::new(gpu).unwrap(),
            stream,
        }
    }

    /// Queues pin, read, unpin and a look at what was read, and waits for nothing.
    fn begin(&mut self, rig: &Rig, heap: &Heap, value: &Value) {
        let pin = step(value.slot, value.generation, Action::Pin(heap.rank()));
        self.batch.set(&[pin], &rig.layout, &self.stream).unwrap();
        self.counts.clear(&self.stream).unwrap();
        let (kernels, stream, target) = (&rig.kernels, &self.stream, self.target.span());
        kernels.fill(stream, target, u64::MAX).unwrap();
        kernels.words(stream, heap, value.owner, &self.batch, &self.outcomes).unwrap();
        let bytes = 0..value.pages.bytes_total;
        let (pin, unpin) = (self.outcomes.at(0).unwrap(), Some(&self.counter));
        kernels.read(stream, heap, &Read { value: *value, bytes, target, pin, unpin }).unwrap();
        kernels.verify(stream, target, u64::from(value.generation.0), &self.counts).unwrap();
    }

    /// Whether the value was read; then all of it is of its own generation.
    fn end(&self, lines: u64) -> bool {
        let [wrong, _] = self.counts.read(&self.stream).unwrap();
        let outcome = self.counter.outcome(&self.stream).unwrap();
        let pinned = matches!(self.outcomes.read(1, &self.stream).unwrap()[0], Outcome::Done(_));
        if pinned {
            assert_eq!(wrong, 0, "a line of another generation was read");
            assert!(matches!(outcome, Outcome::Done(_)), "the unpin: {outcome:?}");
        } else {
            assert_eq!(wrong, lines, "something was read without a pin");
        }
        pinned
    }
}

/// An owner that evicts and writes again under readers on other streams. Where they truly run at the same
/// time, a reader sees its generation or nothing.
#[test]
fn readers_never_see_bytes_of_another_life() {
    const TEST: &str = "readers_never_see_bytes_of_another_life";
    const BYTES: u64 = 1_000_000;
    let Some(mut rig) = Rig::new(TEST, 4, 4, 2 << 20) else { return };
    let owner = rig.rank(0);
    rig.set_heap(owner, &[Word(0); 4]);
    let mut readers: Vec<Reader> = (0..3).map(|_| Reader::new(&rig.gpu, BYTES)).collect();
    let source = DeviceBuffer::new(&rig.gpu, BYTES).unwrap();
    let counter = Counter::new(&rig.stream).unwrap();
    let mut value = Value { generation: Generation(0), ..rig.value(owner, 2, BYTES, PAGE_BYTES) };
    let (mut lives, mut reads) = (0, 0);
    for round in 0..60 {
        let opened = rig.act(owner, &[step(2, value.generation, Action::Open(Header::default()))]);
        if matches!(opened[0], Outcome::Done(_)) {
            let id = u64::from(value.generation.0);
            rig.kernels.fill(&rig.stream, source.span(), id).unwrap();
            let (pages, publish) = (0..value.pages.count(), Some(&counter));
            let push = Push { value, pages, source: source.span(), begun: None, publish };
            rig.kernels.push(&rig.stream, &rig.heaps[0], &push).unwrap();
            lives += 1;
        }
        if round % 2 == 0 {
            rig.stream.synchronize().unwrap();
        }
        for (reader, heap) in readers.iter_mut().zip(&rig.heaps[1..]) {
            reader.begin(&rig, heap, &value);
        }
        let free = Action::Event(Event::Reclaim { pins: 0 });
        let freed = rig.act(owner, &[step(2, value.generation, free)]);
        if let Outcome::Done(word) = freed[0] {
            value.generation = word.generation();
        }
        let all = BYTES.div_ceil(64);
        reads += readers.iter().filter(|reader| reader.end(all)).count();
    }
    assert!(lives > 1 && reads > 0, "{lives} lives, {reads} reads");
}
