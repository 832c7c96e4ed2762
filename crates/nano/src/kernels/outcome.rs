//! What steps on control words came to: arrays in device memory that kernels write.

use super::KernelError;
use mooncrate_core::word::Word;
use mooncrate_gpu::{DeviceBuffer, Gpu, PinnedBuffer, Span, Stream};
use std::sync::atomic::Ordering;

/// Bytes of an outcome in device memory: the word, a code, and zeros. `Outcome` in `nano.cuh`.
const OUTCOME_BYTES: u64 = 16;
/// Bytes of a counter, and the offsets of two of its fields: the address of the outcome in host memory, and the outcome
/// itself. `Counter` in `nano.cuh`.
const COUNTER_BYTES: u64 = 32;
const COUNTER_TOLD: usize = 8;
const COUNTER_OUTCOME: u64 = 16;

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It never ran.
    Missing,
    /// The word after it.
    Done(Word),
    /// The word that forbids it. Asking `Word` again with this word gives the reason.
    Refused(Word),
    /// Others kept changing the word: ask again.
    Busy(Word),
}

impl Outcome {
    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |from: usize| {
            let bytes = bytes.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        Self::of(Word(number(0)), number(8))
    }

    fn of(word: Word, code: u64) -> Self {
        match code {
            1 => Self::Done(word),
            2 => Self::Refused(word),
            3 => Self::Busy(word),
            _ => Self::Missing,
        }
    }
}

/// Room for the outcomes of a batch of steps. Launches that write the same ones follow each other.
#[derive(Debug)]
pub struct Outcomes {
    memory: DeviceBuffer,
    capacity: u32,
}

impl Outcomes {
    /// Room for so many, none of them there yet.
    pub fn new(gpu: &Gpu, capacity: u32) -> Result<Self, KernelError> {
        let memory = zeroed(gpu, u64::from(capacity) * OUTCOME_BYTES)?;
        Ok(Self { memory, capacity })
    }

    /// How many there is room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The first `count` of them, after everything that is queued on `stream`.
    pub fn read(&self, count: u32, stream: &Stream) -> Result<Vec<Outcome>, KernelError> {
        let bytes = self.memory.span().part(0..u64::from(count) * OUTCOME_BYTES)?.to_vec(stream)?;
        Ok(bytes.chunks_exact(OUTCOME_BYTES as usize).map(Outcome::from_bytes).collect())
    }

    /// The outcome of one step, for a kernel that goes on only if it was done.
    pub fn at(&self, index: u32) -> Result<OutcomeAt<'_>, KernelError> {
        let from = u64::from(index) * OUTCOME_BYTES;
        Ok(OutcomeAt(self.memory.span().part(from..from + OUTCOME_BYTES)?))
    }

    pub(super) fn memory(&self) -> Span<'_> {
        self.memory.span()
    }
}

/// One outcome in device memory.
#[derive(Clone, Copy, Debug)]
pub struct OutcomeAt<'a>(pub(crate) Span<'a>);

/// What a launch of many blocks counts them with, and where the last one leaves the outcome of its step.
///
/// It belongs to one stream: launches that shared it at the same time would take each other's blocks for
/// their own, and publish too early.
#[derive(Debug)]
pub struct Counter {
    memory: DeviceBuffer,
    order: Order,
}

/// What keeps launches with one counter apart.
#[derive(Debug)]
enum Order {
    /// They are on this stream.
    Stream(u64),
    /// The host has seen the outcome of one here before it queues the next.
    Told(PinnedBuffer),
}

impl Counter {
    /// One for launches on this stream.
    pub fn new(stream: &Stream) -> Result<Self, KernelError> {
        let memory = zeroed(stream.gpu(), COUNTER_BYTES)?;
        Ok(Self { memory, order: Order::Stream(stream.raw()) })
    }

    /// One for launches on any stream, whose outcomes the host sees: [`Counter::expect`], launch,
    /// [`Counter::told`] until there is one, and the next.
    pub(crate) fn telling(gpu: &Gpu) -> Result<Self, KernelError> {
        let told = PinnedBuffer::new(gpu, OUTCOME_BYTES as usize)?;
        let (memory, stream) = (DeviceBuffer::new(gpu, COUNTER_BYTES)?, Stream::new(gpu)?);
        let mut bytes = [0; COUNTER_BYTES as usize];
        bytes[COUNTER_TOLD..][..8].copy_from_slice(&told.device_address().to_le_bytes());
        memory.span().write(&bytes, &stream)?;
        Ok(Self { memory, order: Order::Told(told) })
    }

    /// Forgets what the launch before has told.
    pub(crate) fn expect(&self) {
        if let Order::Told(told) = &self.order {
            // Relaxed: a launch makes it visible to the GPU.
            told.word(1).store(0, Ordering::Relaxed);
        }
    }

    /// What the launch since [`Counter::expect`] came to, as soon as it uses nothing any more that it was given. `None`:
    /// it has not come so far.
    pub(crate) fn told(&self) -> Option<Outcome> {
        let Order::Told(told) = &self.order else { return None };
        // Acquire: pairs with the release of `leave` in `nano.cuh`, which comes after all that the launch did.
        match told.word(1).load(Ordering::Acquire) {
            0 => None,
            code => Some(Outcome::of(Word(told.word(0).load(Ordering::Relaxed)), code)),
        }
    }

    /// What the last block of the last launch did, after everything that is queued on `stream`.
    pub fn outcome(&self, stream: &Stream) -> Result<Outcome, KernelError> {
        let place = self.memory.span().part(COUNTER_OUTCOME..COUNTER_BYTES)?;
        Ok(Outcome::from_bytes(&place.to_vec(stream)?))
    }

    /// Its address, for a launch on its own stream.
    pub(super) fn address(&self, stream: &Stream) -> Result<u64, KernelError> {
        if !matches!(self.order, Order::Stream(own) if own != stream.raw()) {
            return Ok(self.memory.span().address());
        }
        Err(KernelError::Shape("a counter of another stream: each stream has its own".into()))
    }
}

/// Two numbers to which kernels add.
#[derive(Debug)]
pub struct Counts {
    memory: DeviceBuffer,
}

impl Counts {
    /// Both 0.
    pub fn new(gpu: &Gpu) -> Result<Self, KernelError> {
        Ok(Self { memory: zeroed(gpu, 16)? })
    }

    /// Sets both to 0, after everything that is queued on `stream`.
    pub fn clear(&self, stream: &Stream) -> Result<(), KernelError> {
        Ok(self.memory.span().fill(0, stream)?)
    }

    /// Both, after everything that is queued on `stream`.
    pub fn read(&self, stream: &Stream) -> Result<[u64; 2], KernelError> {
        let bytes = self.memory.span().to_vec(stream)?;
        let at =
            |from: usize| bytes[from..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        Ok([at(0), at(8)])
    }

    pub(super) fn memory(&self) -> Span<'_> {
        self.memory.span()
    }
}

fn zeroed(gpu: &Gpu, bytes: u64) -> Result<DeviceBuffer, KernelError> {
    let memory = DeviceBuffer::new(gpu, bytes)?;
    let stream = Stream::new(gpu)?;
    memory.span().fill(0, &stream)?;
    stream.synchronize()?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_a_word_and_a_code() {
        let bytes = |code: u64| [0x0102_0304_0506_0708_u64, code].map(u64::to_le_bytes).concat();
        let word = Word(0x0102_0304_0506_0708);
        assert_eq!(Outcome::from_bytes(&bytes(0)), Outcome::Missing);
        assert_eq!(Outcome::from_bytes(&bytes(1)), Outcome::Done(word));
        assert_eq!(Outcome::from_bytes(&bytes(2)), Outcome::Refused(word));
        assert_eq!(Outcome::from_bytes(&bytes(3)), Outcome::Busy(word));
        assert_eq!(Outcome::from_bytes(&[]), Outcome::Missing);
    }
}
