//! The kernels, loaded on one GPU, and how many threads each of them gets.

use crate::barrier::Tag;
use crate::config::Shape;
use crate::layout::EpLayout;
use mooncrate_gpu::{Gpu, GpuError, Kernel, Launch, Module, Param, Plain, Stream};
use mooncrate_heap::{Bases, RANKS_MAX, Rank};

/// Compiled from the `.cu` files by `./dev kernels`.
pub(super) const DISPATCH: &str = include_str!("dispatch.ptx");
pub(super) const WAIT: &str = include_str!("wait.ptx");
pub(super) const PACK: &str = include_str!("pack.ptx");
pub(super) const GIVE_BACK: &str = include_str!("give_back.ptx");
pub(super) const COMBINE: &str = include_str!("combine.ptx");
pub(super) const SCALE: &str = include_str!("scale.ptx");
pub(super) const EXPERTS: &str = include_str!("experts.ptx");
pub(super) const LEAVE: &str = include_str!("leave.ptx");
pub(super) const COMPARE: &str = include_str!("compare.ptx");

/// Most threads of a block that moves rows.
const THREADS_MAX: u32 = 512;
/// A metadata row for each of eight ranks is as many pieces.
const THREADS_MIN: u32 = 32;

/// Columns of `ep_up` and of `ep_down` in a block.
const UP_COLUMNS: u32 = 16;
const DOWN_COLUMNS: u32 = 64;
const EXPERT_THREADS: u32 = 256;

/// Blocks that share the rows of an expert of `ep_scale`.
const SCALE_PARTS: u32 = 4;

/// What every kernel is told: `Step` in `ep.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawStep {
    bases: [u64; RANKS_MAX],
    /// sig, sent, meta, recv, ret.
    offsets: [u64; 5],
    report: u64,
    abort: u64,
    ranks: u32,
    me: u32,
    tokens_max: u32,
    top_k: u32,
    pieces: u32,
    local_experts: u32,
    rows_max: u32,
    tag: u32,
    parts: u32,
    token_pieces: u32,
}
const _: () = assert!(size_of::<RawStep>() == 160);

// SAFETY: numbers without padding: 15 of 8 bytes and 10 of 4.
unsafe impl Plain for RawStep {}

impl RawStep {
    /// `report` and `abort` are addresses of host memory that the GPU reaches.
    pub(crate) fn new(layout: &EpLayout, bases: Bases, me: Rank, report: u64, abort: u64) -> Self {
        let shape = layout.shape();
        Self {
            bases: bases.0,
            offsets: layout.offsets(),
            report,
            abort,
            ranks: shape.ranks(),
            me: me.number().into(),
            tokens_max: shape.tokens_max(),
            top_k: shape.top_k(),
            pieces: pieces(shape),
            local_experts: shape.local_experts(),
            rows_max: shape.rows_max(),
            tag: 0,
            parts: 1,
            token_pieces: (shape.token_bytes() / 16) as u32,
        }
    }

    fn with(mut self, tag: Tag, parts: u32) -> Self {
        (self.tag, self.parts) = (tag.0, parts);
        self
    }
}

/// 16-byte pieces of a row.
fn pieces(shape: &Shape) -> u32 {
    shape.hidden() / 8
}

/// Addresses of packed tokens, their counts, weights, and what is made of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawExperts {
    pub(crate) inter: u32,
    pub(crate) x: u64,
    pub(crate) counts: u64,
    pub(crate) w13: u64,
    pub(crate) w2: u64,
    pub(crate) act: u64,
    pub(crate) y: u64,
}

/// Addresses of a batch in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBatch {
    pub(crate) x: u64,
    pub(crate) experts: u64,
    pub(crate) weights: u64,
    pub(crate) tokens: u64,
    /// Whether experts are numbers of 64 bits.
    pub(crate) wide: bool,
    /// A dispatch that does not count: its phase may have been signalled.
    pub(crate) again: bool,
}

/// How launches are made; results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Blocks that share a row in `dispatch`, `give_back` and `combine`.
    pub parts: u32,
    /// Most blocks of `pack` and of `give_back`, which go over the rows of all ranks. More than run at once only start
    /// later: ranks that share a GPU are fastest with their share of its blocks each ([`Tuning::shared`]).
    pub blocks: u32,
    /// Kernels may start while the one before them ends (programmatic dependent launch).
    pub early: bool,
}

/// Blocks of `pack` and `give_back` that the ranks of a GPU have together for each of its multiprocessors: with eight
/// ranks on an H200, 4 to 8 of them are within 2 % of each other, and 32 take half as long again (`docs/bench/ep.md`).
const BLOCKS_PER_SM: u32 = 6;

impl Tuning {
    /// What was fastest for so many ranks on a GPU with so many multiprocessors.
    #[must_use]
    pub fn shared(sm_count: u32, ranks: u32) -> Self {
        let blocks = (BLOCKS_PER_SM * sm_count / ranks.max(1)).max(1);
        Self { parts: 2, blocks, early: true }
    }
}

impl Default for Tuning {
    /// For eight ranks that share an H200.
    fn default() -> Self {
        Self::shared(132, 8)
    }
}

/// The kernels of an exchange, loaded and ready to run. Clones share the code.
#[derive(Clone, Debug)]
pub struct EpKernels {
    dispatch: Kernel,
    wait: Kernel,
    pack: Kernel,
    give_back: Kernel,
    combine: Kernel,
    scale: Kernel,
    up: Kernel,
    down: Kernel,
    compare: Kernel,
    leave: Kernel,
}

impl EpKernels {
    /// Loads all kernels. This compiles PTX and takes some milliseconds: once per process.
    pub fn load(gpu: &Gpu) -> Result<Self, GpuError> {
        let kernel = |ptx, name| Module::load(gpu, ptx)?.kernel(name);
        let experts = Module::load(gpu, EXPERTS)?;
        Ok(Self {
            dispatch: kernel(DISPATCH, "ep_dispatch")?,
            wait: kernel(WAIT, "ep_wait")?,
            pack: kernel(PACK, "ep_pack")?,
            give_back: kernel(GIVE_BACK, "ep_give_back")?,
            combine: kernel(COMBINE, "ep_combine")?,
            scale: kernel(SCALE, "ep_scale")?,
            up: experts.kernel("ep_up")?,
            down: experts.kernel("ep_down")?,
            compare: kernel(COMPARE, "ep_compare")?,
            leave: kernel(LEAVE, "ep_leave")?,
        })
    }

    /// Queues `ep_dispatch`.
    ///
    /// # Safety
    ///
    /// For all launches here: the step describes heaps of its layout that stay mapped, `report` and `abort`
    /// are host memory that the GPU reaches or 0, and the other addresses are device memory of at least the
    /// lengths that the kernel's comment names, until the launch has ended.
    pub(crate) unsafe fn dispatch(
        &self,
        stream: &Stream,
        step: RawStep,
        tag: Tag,
        tuning: Tuning,
        batch: RawBatch,
    ) -> Result<(), GpuError> {
        let step = step.with(tag, tuning.parts);
        let RawBatch { x, experts, weights, tokens, .. } = &batch;
        let (wide, again) = (u32::from(batch.wide), u32::from(batch.again));
        let params = [
            (&step).into(),
            x.into(),
            experts.into(),
            weights.into(),
            tokens.into(),
            (&wide).into(),
            (&again).into(),
        ];
        let launch = rows(&step, step.token_pieces, step.tokens_max * step.parts, tuning);
        // SAFETY: the parameters are those of `ep_dispatch`; the addresses are the caller's promise.
        unsafe { self.dispatch.launch(stream, launch, &params) }
    }

    /// Queues `ep_wait`, for one phase, or for the next one as well.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn wait(
        &self,
        stream: &Stream,
        step: RawStep,
        tag: Tag,
        then: Option<Tag>,
        tuning: Tuning,
        timeouts: [u64; 2],
    ) -> Result<(), GpuError> {
        let (step, then) = (step.with(tag, 1), then.map_or(0, |tag| tag.0));
        let [timeout, first_timeout] = &timeouts;
        let params: [Param<'_>; 4] =
            [(&step).into(), timeout.into(), first_timeout.into(), (&then).into()];
        // One warp: each lane looks at the signal of one rank.
        let launch = Launch { dependent: tuning.early, ..Launch::linear(1, 32) };
        // SAFETY: the parameters are those of `ep_wait`; the addresses are the caller's promise.
        unsafe { self.wait.launch(stream, launch, &params) }
    }

    /// Queues `ep_pack`.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn pack(
        &self,
        stream: &Stream,
        step: RawStep,
        tag: Tag,
        tuning: Tuning,
        (packed, counts, places): (u64, u64, u64),
    ) -> Result<(), GpuError> {
        let step = step.with(tag, 1);
        let params = [(&step).into(), (&packed).into(), (&counts).into(), (&places).into()];
        let blocks = (step.ranks * step.tokens_max).min(tuning.blocks) + 1;
        let launch = rows(&step, step.token_pieces, blocks, tuning);
        // SAFETY: the parameters are those of `ep_pack`; the addresses are the caller's promise.
        unsafe { self.pack.launch(stream, launch, &params) }
    }

    /// Queues `ep_give_back`.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn give_back(
        &self,
        stream: &Stream,
        step: RawStep,
        tag: Tag,
        tuning: Tuning,
        (y, places): (u64, u64),
    ) -> Result<(), GpuError> {
        let step = step.with(tag, tuning.parts);
        let params = [(&step).into(), (&y).into(), (&places).into()];
        let blocks = (step.ranks * step.tokens_max * step.parts).min(tuning.blocks);
        let launch = rows(&step, step.pieces, blocks, tuning);
        // SAFETY: the parameters are those of `ep_give_back`; the addresses are the caller's promise.
        unsafe { self.give_back.launch(stream, launch, &params) }
    }

    /// Queues `ep_combine`.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn combine(
        &self,
        stream: &Stream,
        step: RawStep,
        tag: Tag,
        tuning: Tuning,
        out: u64,
    ) -> Result<(), GpuError> {
        let step = step.with(tag, tuning.parts);
        let params = [(&step).into(), (&out).into()];
        let launch = rows(&step, step.pieces, step.tokens_max * step.parts, tuning);
        // SAFETY: the parameters are those of `ep_combine`; the addresses are the caller's promise.
        unsafe { self.combine.launch(stream, launch, &params) }
    }
}

impl EpKernels {
    /// Queues `ep_up` and `ep_down`.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn experts(
        &self,
        stream: &Stream,
        step: RawStep,
        tuning: Tuning,
        experts: RawExperts,
    ) -> Result<(), GpuError> {
        let step = step.with(Tag(0), 1);
        let RawExperts { inter, x, counts, w13, w2, act, y } = &experts;
        let launch = |columns: u32, each: u32| Launch {
            dependent: tuning.early,
            ..Launch::linear(step.local_experts * columns.div_ceil(each), EXPERT_THREADS)
        };
        let up = [(&step).into(), x.into(), counts.into(), w13.into(), act.into(), inter.into()];
        // SAFETY: the parameters are those of `ep_up`; the addresses are the caller's promise.
        unsafe { self.up.launch(stream, launch(*inter, UP_COLUMNS), &up) }?;
        let down = [(&step).into(), act.into(), counts.into(), w2.into(), y.into(), inter.into()];
        // SAFETY: the parameters are those of `ep_down`; the addresses are the caller's promise.
        unsafe { self.down.launch(stream, launch(step.pieces * 8, DOWN_COLUMNS), &down) }
    }

    /// Queues `ep_scale`.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn scale(
        &self,
        stream: &Stream,
        step: RawStep,
        tuning: Tuning,
        (x, y, counts): (u64, u64, u64),
    ) -> Result<(), GpuError> {
        let step = step.with(Tag(0), SCALE_PARTS);
        let params = [(&step).into(), (&x).into(), (&y).into(), (&counts).into()];
        let launch = Launch {
            dependent: tuning.early,
            ..Launch::linear(step.local_experts * SCALE_PARTS, THREADS_MAX / 2)
        };
        // SAFETY: the parameters are those of `ep_scale`; the addresses are the caller's promise.
        unsafe { self.scale.launch(stream, launch, &params) }
    }
}

impl EpKernels {
    /// Queues `ep_leave`: `ended` once no other kernel of this rank is under way.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn leave(
        &self,
        stream: &Stream,
        step: RawStep,
        tag: Tag,
        ended: bool,
    ) -> Result<(), GpuError> {
        let (step, ended) = (step.with(tag, 1), u32::from(ended));
        let params = [(&step).into(), (&ended).into()];
        // SAFETY: the parameters are those of `ep_leave`; the addresses are the caller's promise.
        unsafe { self.leave.launch(stream, Launch::linear(1, 1), &params) }
    }

    /// Queues `ep_compare`.
    ///
    /// # Safety
    ///
    /// As for [`EpKernels::dispatch`].
    pub(crate) unsafe fn compare(
        &self,
        stream: &Stream,
        step: RawStep,
        tuning: Tuning,
        (out, expected, differ): (u64, u64, u64),
    ) -> Result<(), GpuError> {
        let step = step.with(Tag(0), 1);
        let pieces = step.tokens_max * step.pieces;
        let params =
            [(&step).into(), (&out).into(), (&expected).into(), (&differ).into(), (&pieces).into()];
        let launch =
            Launch { dependent: tuning.early, ..Launch::linear(step.tokens_max, THREADS_MAX / 2) };
        // SAFETY: the parameters are those of `ep_compare`; the addresses are the caller's promise.
        unsafe { self.compare.launch(stream, launch, &params) }
    }
}

/// A launch of `blocks` blocks of which each moves a row, or a part of one: two pieces for each thread.
fn rows(step: &RawStep, pieces: u32, blocks: u32, tuning: Tuning) -> Launch {
    let threads = pieces.div_ceil(2 * step.parts).next_multiple_of(32);
    let threads = threads.clamp(THREADS_MIN, THREADS_MAX);
    Launch { dependent: tuning.early, ..Launch::linear(blocks, threads) }
}
