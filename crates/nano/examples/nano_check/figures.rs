//! Puts, gets and sums, each beside a plain copy of the same bytes, hot and rotating.

use crate::report::{Figure, Report};
use crate::timer::{BATCH, ROUNDS, Time, launches, time};
use mooncrate_core::word::Word;
use mooncrate_core::{Generation, ReplicaState};
use mooncrate_gpu::{DeviceBuffer, Gpu, Span, Stream};
use mooncrate_heap::{Heap, Rank, World};
use mooncrate_nano::kernels::{
    Action, Counter, Counts, KernelError, Kernels, Outcome, Outcomes, Push, Read, Step, Value,
};
use mooncrate_nano::{HeapLayout, PAGE_BYTES, Pages};

/// A header for each round of the longest graph.
const SLOTS: u32 = 4_096;
/// Bytes that values have in a heap, and in the buffer of this rank.
const ROOM: u64 = 256 << 20;
/// What rotating sets add up to, sources and targets: far more than any L2 cache.
const ROTATING_BYTES: u64 = 400_000_000;
const G: Generation = Generation(1);
const SIZES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 8 << 20];

/// Everything that the figures share.
struct Bench {
    kernels: Kernels,
    stream: Stream,
    /// The first rank works, the second one owns the values.
    heaps: Vec<Heap>,
    layout: HeapLayout,
    /// Sources of puts and targets of gets.
    buffer: DeviceBuffer,
    counter: Counter,
    counts: Counts,
    /// Headers of values that are being written, and of values that are ready.
    writing: DeviceBuffer,
    ready: DeviceBuffer,
}

/// Measures everything, and goes on where something fails.
pub(crate) fn all(gpu: &Gpu, report: &mut Report) {
    let bench = match Bench::new(gpu) {
        Ok(bench) => bench,
        Err(error) => return report.add("set-up", Err(error)),
    };
    for mode in ["hot", "rotating"] {
        for bytes in SIZES {
            let sets = Sets::of(mode, bytes);
            report.add("put", bench.put(sets, PAGE_BYTES, false));
            report.add("get", bench.get(sets));
        }
    }
    for page_bytes in [128 << 10, 256 << 10, 512 << 10] {
        for mode in ["hot", "rotating"] {
            report.add("put by page", bench.put(Sets::of(mode, 8 << 20), page_bytes, true));
        }
    }
    for bytes in SIZES {
        report.add("single puts", bench.single(gpu, bytes));
    }
    for bytes in [8 << 20, ROOM] {
        report.add("sums", bench.sums(bytes));
    }
}

/// How many sets of buffers the rounds take turns with.
#[derive(Clone, Copy)]
struct Sets {
    mode: &'static str,
    bytes: u64,
    count: usize,
}

impl Sets {
    fn of(mode: &'static str, bytes: u64) -> Self {
        let needed = ROTATING_BYTES.div_ceil(2 * bytes).max(6) as usize;
        Self { mode, bytes, count: if mode == "hot" { 1 } else { needed } }
    }

    /// Each set has at least one round.
    fn rounds(self) -> usize {
        self.count.max(ROUNDS)
    }

    /// Where the set of a round begins.
    fn at(self, round: usize) -> u64 {
        (round % self.count) as u64 * self.bytes
    }
}

impl Bench {
    fn new(gpu: &Gpu) -> Result<Self, String> {
        let world = World::new(2).ok_or("a world of two")?;
        let heap_bytes = ROOM + u64::from(SLOTS) * 128;
        let heaps = Heap::cuda_ranks(gpu, world, heap_bytes).map_err(text)?;
        let layout = HeapLayout::new(SLOTS, heaps[0].bytes()).ok_or("no room for values")?;
        let stream = Stream::new(gpu).map_err(text)?;
        Ok(Self {
            kernels: Kernels::load(gpu, layout).map_err(text)?,
            heaps,
            layout,
            buffer: DeviceBuffer::new(gpu, ROOM).map_err(text)?,
            counter: Counter::new(&stream).map_err(text)?,
            counts: Counts::new(gpu).map_err(text)?,
            writing: headers(gpu, &stream, ReplicaState::Writing).map_err(text)?,
            ready: headers(gpu, &stream, ReplicaState::Ready).map_err(text)?,
            stream,
        })
    }

    fn owner(&self) -> Rank {
        self.heaps[1].rank()
    }

    fn heap(&self) -> Result<Span<'_>, KernelError> {
        self.heaps[0].span(self.owner()).ok_or(KernelError::NoHeap(self.owner()))
    }

    /// The bytes of a set in the owner's heap, and in this rank's buffer.
    fn there(&self, at: u64, bytes: u64) -> Result<Span<'_>, KernelError> {
        let from = self.layout.payload().offset() + at;
        Ok(self.heap()?.part(from..from + bytes)?)
    }

    fn here(&self, at: u64, bytes: u64) -> Result<Span<'_>, KernelError> {
        Ok(self.buffer.span().part(at..at + bytes)?)
    }

    fn value(
        &self,
        slot: usize,
        at: u64,
        bytes: u64,
        page_bytes: u32,
    ) -> Result<Value, KernelError> {
        let pages = Pages::new(bytes, page_bytes)
            .ok_or_else(|| KernelError::Shape(format!("pages of {page_bytes} bytes")))?;
        let payload = self.layout.payload().offset() + at;
        Ok(Value { owner: self.owner(), slot: slot as u32, generation: G, payload, pages })
    }

    /// Sets all headers of the owner at once. Nobody else works with them here.
    fn set_headers(&self, from: &DeviceBuffer, stream: &Stream) -> Result<(), KernelError> {
        Ok(self.heap()?.part(0..u64::from(SLOTS) * 128)?.copy_from(from.span(), stream)?)
    }

    /// Stamps each set's source with its number, and makes sure that no target has it.
    fn stamp(&self, sets: Sets, put: bool) -> Result<(), KernelError> {
        for set in 0..sets.count {
            let at = sets.at(set);
            let (here, there) = (self.here(at, sets.bytes)?, self.there(at, sets.bytes)?);
            let (source, target) = if put { (here, there) } else { (there, here) };
            self.kernels.fill(&self.stream, source, set as u64)?;
            self.kernels.fill(&self.stream, target, u64::MAX)?;
        }
        self.stream.synchronize()?;
        Ok(())
    }

    /// Whether each set's target has the lines of its source.
    fn check(&self, sets: Sets, put: bool) -> Result<(), String> {
        self.counts.clear(&self.stream).map_err(text)?;
        for set in 0..sets.count {
            let at = sets.at(set);
            let target = if put { self.there(at, sets.bytes) } else { self.here(at, sets.bytes) };
            let target = target.map_err(text)?;
            self.kernels.verify(&self.stream, target, set as u64, &self.counts).map_err(text)?;
        }
        match self.counts.read(&self.stream).map_err(text)? {
            [0, _] => Ok(()),
            [wrong, _] => Err(format!("{wrong} lines are wrong")),
        }
    }

    /// Whether the first `count` headers are ready, and nobody has pinned them.
    fn all_ready(&self, count: usize) -> Result<(), String> {
        let slab =
            self.heap().and_then(|heap| Ok(heap.part(0..count as u64 * 128)?)).map_err(text)?;
        let bytes = slab.to_vec(&self.stream).map_err(text)?;
        let ready = Word::new(G, ReplicaState::Ready, 0).0.to_le_bytes();
        let wrong = bytes.chunks_exact(128).filter(|header| header[56..64] != ready).count();
        if wrong > 0 {
            return Err(format!("{wrong} of {count} values are not ready"));
        }
        match self.counter.outcome(&self.stream).map_err(text)? {
            Outcome::Done(_) => Ok(()),
            other => Err(format!("the last step was {other:?}")),
        }
    }

    /// A plain copy on the device, of the same bytes and as many sets.
    fn plain(&self, sets: Sets) -> Result<Time, KernelError> {
        let work = |stream: &Stream, round: usize| -> Result<(), KernelError> {
            let at = sets.at(round);
            Ok(self.there(at, sets.bytes)?.copy_from(self.here(at, sets.bytes)?, stream)?)
        };
        // SAFETY: heap and buffer outlive the call, and no host memory is reached.
        unsafe { time(&self.stream, sets.rounds(), |_| Ok(()), work) }
    }

    /// Puts of whole values in one launch, or of each page in a launch of its own.
    fn put(&self, sets: Sets, page_bytes: u32, by_page: bool) -> Result<Figure, String> {
        self.stamp(sets, true).map_err(text)?;
        let work = |stream: &Stream, round: usize| -> Result<(), KernelError> {
            self.put_one(stream, (round, sets.at(round)), sets.bytes, page_bytes, by_page)
        };
        let begin = |stream: &Stream| self.set_headers(&self.writing, stream);
        // SAFETY: heap, buffer and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(&self.stream, sets.rounds(), begin, work) }.map_err(text)?;
        self.all_ready(sets.rounds())?;
        self.check(sets, true)?;
        let name = if by_page {
            format!("put + publish, a launch for each page of {} KiB", page_bytes >> 10)
        } else {
            "put + publish".to_owned()
        };
        let goal = match sets.bytes {
            _ if by_page => None,
            0x4_0000 => Some(3.0),
            0x80_0000 => Some(8.0),
            _ => None,
        };
        let (mode, bytes, plain) = (sets.mode, sets.bytes, Some(self.plain(sets).map_err(text)?));
        Ok(Figure { name, mode, bytes, passes: 2, time, plain, goal })
    }

    fn put_one(
        &self,
        stream: &Stream,
        (slot, at): (usize, u64),
        bytes: u64,
        page_bytes: u32,
        by_page: bool,
    ) -> Result<(), KernelError> {
        let value = self.value(slot, at, bytes, page_bytes)?;
        let (source, count) = (self.here(at, bytes)?, value.pages.count());
        let step = if by_page { 1 } else { count };
        for page in (0..count).step_by(step as usize) {
            let pages = page..page + step;
            let source = source.part(u64::from(page) * u64::from(page_bytes)..bytes)?;
            let publish = (pages.end == count).then_some(&self.counter);
            self.kernels.push(
                stream,
                &self.heaps[0],
                &Push { value, pages, source, begun: None, publish },
            )?;
        }
        Ok(())
    }

    /// Gets: pin, read, unpin, in two launches.
    fn get(&self, sets: Sets) -> Result<Figure, String> {
        let gpu = self.stream.gpu();
        self.stamp(sets, false).map_err(text)?;
        self.set_headers(&self.ready, &self.stream).map_err(text)?;
        let me = self.heaps[0].rank();
        let steps = [Step { slot: 0, generation: G, action: Action::Pin(me) }];
        let outcomes = Outcomes::new(gpu, 1).map_err(text)?;
        let work = |stream: &Stream, round: usize| -> Result<(), KernelError> {
            let at = sets.at(round);
            let value = self.value(0, at, sets.bytes, PAGE_BYTES)?;
            self.kernels.act(stream, &self.heaps[0], self.owner(), &steps, &outcomes)?;
            let (target, pin) = (self.here(at, sets.bytes)?, outcomes.at(0)?);
            let unpin = Some(&self.counter);
            let read = Read { value, bytes: 0..sets.bytes, target, pin, unpin };
            self.kernels.read(stream, &self.heaps[0], &read)
        };
        // SAFETY: heap, buffer, lists and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(&self.stream, sets.rounds(), |_| Ok(()), work) }.map_err(text)?;
        self.all_ready(1)?;
        self.check(sets, false)?;
        let name = "get: pin, read + unpin".to_owned();
        let (mode, bytes, plain) = (sets.mode, sets.bytes, Some(self.plain(sets).map_err(text)?));
        Ok(Figure { name, mode, bytes, passes: 2, time, plain, goal: None })
    }

    /// Puts whose times are taken one by one, without a graph.
    fn single(&self, gpu: &Gpu, bytes: u64) -> Result<Figure, String> {
        let sets = Sets::of("hot", bytes);
        self.stamp(sets, true).map_err(text)?;
        let begin = |stream: &Stream| self.set_headers(&self.writing, stream);
        let work = |stream: &Stream, round: usize| {
            self.put_one(stream, (round, 0), bytes, PAGE_BYTES, false)
        };
        let time = launches(gpu, &self.stream, begin, work).map_err(text)?;
        self.all_ready(BATCH)?;
        self.check(sets, true)?;
        let name = "put + publish, single launches".to_owned();
        Ok(Figure { name, mode: "hot", bytes, passes: 2, time, plain: None, goal: None })
    }

    fn sums(&self, bytes: u64) -> Result<Figure, String> {
        let value = self.here(0, bytes).map_err(text)?;
        self.kernels.fill(&self.stream, value, bytes).map_err(text)?;
        let count = bytes.div_ceil(PAGE_BYTES.into());
        let sums = DeviceBuffer::new(self.stream.gpu(), 8 * count).map_err(text)?;
        let work =
            |stream: &Stream, _: usize| self.kernels.sums(stream, value, PAGE_BYTES, sums.span());
        // SAFETY: buffer, sums and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(&self.stream, ROUNDS, |_| Ok(()), work) }.map_err(text)?;
        let seen = sums.span().to_vec(&self.stream).map_err(text)?;
        let host = value.to_vec(&self.stream).map_err(text)?;
        let pages = host.chunks(PAGE_BYTES as usize).map(mooncrate_mem::crc::crc);
        if pages.flat_map(u64::to_le_bytes).ne(seen) {
            return Err("the sums are not those of the host".into());
        }
        let (name, mode) = ("sums of 256 KiB pages".to_owned(), "one buffer");
        Ok(Figure { name, mode, bytes, passes: 1, time, plain: None, goal: None })
    }
}

/// A slab of headers in one state.
fn headers(gpu: &Gpu, stream: &Stream, state: ReplicaState) -> Result<DeviceBuffer, KernelError> {
    let mut header = [0; 128];
    header[56..64].copy_from_slice(&Word::new(G, state, 0).0.to_le_bytes());
    let slab = DeviceBuffer::new(gpu, u64::from(SLOTS) * 128)?;
    slab.span().write(&header.repeat(SLOTS as usize), stream)?;
    Ok(slab)
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
