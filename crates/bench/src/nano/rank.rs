//! One rank of the conformance list.

use super::{Backend, NanoArgs, SAYS, checks, deaths, races};
use crate::render::say;
use anyhow::{Context, Result, anyhow, bail};
use mooncrate::nano::{NanoOptions, NanoRank};
use mooncrate_check::payload::{PutId, examine_as, fill};
use mooncrate_core::key;
use mooncrate_gpu::{DeviceBuffer, Gpu, Stream};
use mooncrate_heap::{Heap, World};
use mooncrate_nano::{Nano, NanoConfig, NanoError, Source, Target};
use std::time::Duration;

/// Bytes of each heap: little, so that eviction has work.
pub(super) const HEAP_BYTES: u64 = 32 << 20;
/// The longest value of a check.
const VALUE_MAX: u64 = 16 << 20;
/// Headers of each heap.
pub(super) const SLOTS: u32 = 1024;
/// A put that takes longer is given up.
pub(super) const PUT_TIMEOUT: Duration = Duration::from_millis(700);
/// How long ranks wait for each other.
const WITHIN: Duration = Duration::from_mins(1);

/// A rank, and what it can do in checks.
pub(super) struct Stage {
    rank: NanoRank,
    memory: Option<Device>,
    pub(super) args: NanoArgs,
}

/// A check: every rank does it at the same time.
pub(super) type Check = (&'static str, fn(&Stage) -> Result<()>);

/// Runs one rank, or all of them where they share a process.
pub(super) fn run(args: &NanoArgs) -> Result<()> {
    if args.backend != Backend::CudaVirtual {
        let options = options(args, args.rank.unwrap_or(0))?;
        return go_through(args, NanoRank::join(&options)?);
    }
    let gpu = Gpu::open(0)?;
    let world = World::new(args.world.into()).context("a world of 2 to 8 ranks")?;
    let heaps = Heap::cuda_ranks(&gpu, world, HEAP_BYTES)?;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..args.world)
            .zip(heaps)
            .map(|(rank, heap)| {
                scope.spawn(move || {
                    let options = options(args, rank)?;
                    go_through(args, NanoRank::join_in_process(&options, heap)?)
                })
            })
            .collect();
        let ended =
            ranks.into_iter().map(|rank| rank.join().map_err(|_| anyhow!("a rank panicked"))?);
        // All of them, before the first error is told.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn options(args: &NanoArgs, rank: u8) -> Result<NanoOptions> {
    let checksums = args.part.as_deref() == Some("sealed");
    Ok(NanoOptions {
        heap_bytes: HEAP_BYTES,
        put_timeout: PUT_TIMEOUT,
        within: WITHIN,
        config: NanoConfig { slots: SLOTS, checksums, ..NanoConfig::default() },
        ..NanoOptions::new(
            args.path.clone().context("--path is said by the program that starts ranks")?,
            rank.into(),
            args.world.into(),
            args.backend.of_nano(),
        )
    })
}

/// One rank, through its part of the list.
fn go_through(args: &NanoArgs, rank: NanoRank) -> Result<()> {
    let part = args.part.as_deref().unwrap_or("checks");
    let gpu = if args.backend == Backend::Cpu { None } else { Some(Gpu::open(0)?) };
    let memory = gpu.map(|gpu| Device::new(&gpu)).transpose()?;
    let stage = Stage { rank, memory, args: args.clone() };
    let list: Vec<Check> = match part {
        "checks" => [checks::LIST, races::LIST].concat(),
        "sealed" => checks::SEALED.to_vec(),
        "writer-dies" => vec![deaths::WRITER],
        "reader-dies" => vec![deaths::READER],
        other => bail!("there is no part {other:?}"),
    };
    for (name, check) in list {
        match check(&stage) {
            Ok(()) => say(&format!("{SAYS}{name}"))?,
            Err(error) => say(&format!("{SAYS}{name}: rank {}: {error:#}", stage.me()))?,
        }
        if !deaths::dies(part, usize::MAX) {
            stage.together("between checks")?;
        }
    }
    if deaths::dies(part, usize::MAX) {
        // Somebody is dead: nobody can wait for all.
        return Ok(());
    }
    stage.rank.leave().context("leaving")
}

/// Memory of this rank on the GPU, through which its values go.
struct Device {
    buffer: DeviceBuffer,
    stream: Stream,
}

impl Device {
    fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { buffer: DeviceBuffer::new(gpu, VALUE_MAX)?, stream: Stream::new(gpu)? })
    }
}

impl Stage {
    pub(super) fn nano(&self) -> &Nano {
        self.rank.nano()
    }

    pub(super) fn me(&self) -> usize {
        self.nano().rank().index()
    }

    pub(super) fn world(&self) -> usize {
        self.nano().world().len()
    }

    pub(super) fn together(&self, doing: &'static str) -> Result<()> {
        Ok(self.rank.barrier(doing)?)
    }

    /// Puts a stamped value of `len` bytes.
    pub(super) fn put(
        &self,
        key: &str,
        len: usize,
        put: PutId,
        owner: Option<usize>,
    ) -> Result<(), NanoError> {
        let mut value = vec![0; len];
        fill(&mut value, put, key::hash(key.as_bytes()));
        let Some(Device { buffer, stream }) = self.memory.as_ref().filter(|_| len > 0) else {
            return self.nano().put(key.as_bytes(), Source::Host(&value), owner, None);
        };
        let span = buffer.span().part(0..len as u64)?;
        span.write(&value, stream)?;
        self.nano().put(key.as_bytes(), Source::Device(span), owner, Some(stream.raw()))
    }

    /// Gets a value of `len` bytes, which must be that of `put`; `false`: a miss.
    pub(super) fn get(&self, key: &str, len: usize, put: PutId) -> Result<bool> {
        let mut value = vec![0; len];
        let found = match self.memory.as_ref().filter(|_| len > 0) {
            None => self.nano().get_into(key.as_bytes(), Target::Host(&mut value), None)?,
            Some(Device { buffer, stream }) => {
                let span = buffer.span().part(0..len as u64)?;
                let target = Target::Device(span);
                let found = self.nano().get_into(key.as_bytes(), target, Some(stream.raw()))?;
                span.read(&mut value, stream)?;
                found
            }
        };
        if !found {
            return Ok(false);
        }
        examine_as(&value, put, key::hash(key.as_bytes()))
            .map_err(|line| anyhow!("WRONG BYTES in {key}: {line}"))?;
        Ok(true)
    }
}

/// Tries until `done` says so, for a while.
pub(super) fn until(
    what: &str,
    within: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let pause = Duration::from_millis(5);
    let tries = within.as_millis() / pause.as_millis();
    for _ in 0..tries {
        if done()? {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
    bail!("not within {within:?}: {what}")
}

/// What must be refused, in these words.
pub(super) fn refused<T>(answer: Result<T, NanoError>, words: &str) -> Result<()> {
    match answer {
        Ok(_) => bail!("it was not refused; expected: {words}"),
        Err(error) if error.to_string().contains(words) => Ok(()),
        Err(error) => bail!("expected {words:?}, got: {error}"),
    }
}
