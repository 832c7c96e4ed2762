//! An exchange in host memory, with a process for each rank. It runs the oracles of the kernels on heaps that
//! the processes share: this is the specification, and CI runs every test of the protocol on it.

use crate::barrier::{Fault, Kind, Look, Op, Record, Tag, give_up};
use crate::config::{EpConfig, HIDDEN_MAX, Payload, Shape};
use crate::error::EpError;
use crate::heaps::Heaps;
use crate::kernels::{
    Batch, Packed, Weights, begin, combine_oracle, dispatch_oracle, experts_oracle, fail, failed,
    give_back_oracle, leave_oracle, look_oracle, next_phase, pack_oracle, pass,
};
use crate::layout::{EpLayout, ctl, row};
use crate::stage::Stage;
use mooncrate_core::Deadline;
use mooncrate_heap::{Group, Heap, Rank, Ranks, Watch};
use mooncrate_lock::interrupt;
use mooncrate_mem::atomic::{Ordering, spin_loop};
use mooncrate_mem::clock::boottime;
use std::sync::Arc;
use std::thread::yield_now;
use std::time::Duration;

/// One rank of an exchange in host memory.
#[derive(Debug)]
pub struct Ep {
    heap: Arc<Heap>,
    layout: EpLayout,
    timeout: Duration,
    first_timeout: Duration,
    /// Tells of ranks whose processes have ended.
    watch: Watch,
    stage: Stage,
    /// The layer that is under way.
    layer: u16,
    /// What `pack` has found out for `give_back`.
    rows: Vec<i32>,
}

impl Ep {
    /// Makes heaps for the processes of a group, and an exchange on them. All ranks call it together, with
    /// the same configuration.
    pub fn host(group: &mut Group, config: &EpConfig, within: Duration) -> Result<Self, EpError> {
        let layout = agree(group, config, within)?;
        let heap = Heap::host(group, layout.bytes(), within)?;
        let ep = Self::over(Arc::new(heap), group.watch(), config);
        // Everybody has claimed its heap before the first token comes.
        group.barrier("start the exchange", within)?;
        ep
    }

    /// An exchange on heaps that are there, all zero. A heap serves one communicator.
    pub fn over(heap: Arc<Heap>, watch: Watch, config: &EpConfig) -> Result<Self, EpError> {
        let shape = config.shape()?;
        let layout = EpLayout::new(shape);
        check_heap(&heap, &layout)?;
        let me = u32::from(heap.rank().number());
        let Some(region) = heap.region(heap.rank()) else {
            return Err(EpError::WrongHeap("Ep::over wants heaps in host memory".into()));
        };
        let claim = region.atomic(ctl::CLAIM).expect("a heap of the layout has its first word");
        // Acquire and Release: whoever claims first is alone; nobody waits for it.
        if claim.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(EpError::InUse);
        }
        heap.set_word(me, ctl::BAD, u64::MAX);
        let rows = vec![-1; (shape.slots() * crate::TOP_K_MAX) as usize];
        Ok(Self {
            heap,
            layout,
            timeout: config.timeout,
            first_timeout: config.first_timeout,
            watch,
            stage: Stage::Combined,
            layer: 0,
            rows,
        })
    }

    /// Who this is.
    pub fn rank(&self) -> Rank {
        self.heap.rank()
    }

    /// What the exchange is made for.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Where everything lies in the heaps.
    pub fn layout(&self) -> &EpLayout {
        &self.layout
    }

    /// The heaps, as this rank sees them.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Phases that this rank has passed since the last reset.
    pub fn phase(&self) -> u32 {
        next_phase(&*self.heap, self.me()).wrapping_sub(1)
    }

    /// How often the group was reset.
    pub fn epoch(&self) -> u64 {
        self.heap.word(self.me(), ctl::EPOCH)
    }

    /// Why this rank has failed, if it has.
    pub fn status(&self) -> Result<(), EpError> {
        match failed(&*self.heap, self.me()) {
            None => Ok(()),
            Some(record) => Err(EpError::Fault(Fault { rank: self.rank(), record })),
        }
    }

    fn me(&self) -> u32 {
        u32::from(self.rank().number())
    }

    fn tag(&self, op: Op) -> Tag {
        Tag::new(self.layer, op, self.shape().hash())
    }

    /// Sends the tokens of this rank. A batch without tokens is sent like any other.
    pub fn dispatch(&mut self, layer: u16, batch: &Batch<'_>) -> Result<(), EpError> {
        self.status()?;
        self.stage.may(Stage::Dispatched)?;
        check_batch(self.shape(), batch)?;
        self.layer = layer;
        dispatch_oracle(&*self.heap, &self.layout, self.rank(), self.tag(Op::Dispatch), batch);
        self.stage = Stage::Dispatched;
        self.status()
    }

    /// Waits until the tokens of all ranks have come.
    pub fn await_rows(&mut self) -> Result<(), EpError> {
        self.status()?;
        self.stage.may(Stage::Arrived)?;
        self.wait(self.tag(Op::Dispatch))?;
        self.stage = Stage::Arrived;
        Ok(())
    }

    /// Puts what came in the order of this rank's experts: `x` is `[local_experts, rows_max, token_words]`, and
    /// `counts` says how many rows each expert has. Other rows stay as they are.
    pub fn pack(&mut self, x: &mut [u16], counts: &mut [u32]) -> Result<(), EpError> {
        self.status()?;
        self.stage.may(Stage::Packed)?;
        let shape = self.shape();
        exactly("the packed tokens", x.len(), shape.packed_bytes() / 2)?;
        exactly("the counts", counts.len(), shape.local_experts().into())?;
        let tag = self.tag(Op::Dispatch);
        let mut packed = Packed { x, counts, rows: &mut self.rows };
        pack_oracle(&*self.heap, &self.layout, self.heap.rank(), tag, &mut packed);
        self.stage = Stage::Packed;
        self.status()
    }

    /// Sends what the experts made of the packed tokens: `y` is `[local_experts, rows_max, hidden]`, bf16.
    pub fn give_back(&mut self, y: &[u16]) -> Result<(), EpError> {
        self.status()?;
        self.stage.may(Stage::GivenBack)?;
        exactly("the results", y.len(), self.shape().results_bytes() / 2)?;
        let tag = self.tag(Op::Return);
        give_back_oracle(&*self.heap, &self.layout, self.rank(), tag, y, &self.rows);
        self.stage = Stage::GivenBack;
        self.status()
    }

    /// Waits until the results of all ranks have come.
    pub fn await_results(&mut self) -> Result<(), EpError> {
        self.status()?;
        self.stage.may(Stage::Returned)?;
        self.wait(self.tag(Op::Return))?;
        self.stage = Stage::Returned;
        Ok(())
    }

    /// Adds up what came back for each token of this rank: `out` is `[tokens, hidden]`, or longer.
    pub fn combine(&mut self, out: &mut [u16]) -> Result<(), EpError> {
        self.status()?;
        self.stage.may(Stage::Combined)?;
        let mut tokens = [0; 4];
        self.heap.load(self.me(), self.layout.sent(), &mut tokens);
        let tokens = u32::from_le_bytes(tokens).min(self.shape().tokens_max());
        self.check_output(tokens, out)?;
        let tag = self.tag(Op::Return);
        combine_oracle(&*self.heap, &self.layout, self.rank(), tag, out);
        self.stage = Stage::Combined;
        self.status()
    }

    fn check_output(&self, tokens: u32, out: &[u16]) -> Result<(), EpError> {
        at_least("the output", out.len(), u64::from(tokens) * u64::from(self.shape().hidden()))
    }

    /// The experts on packed tokens: `y = w2 · (silu(gate · x) × (up · x))`. `act` is
    /// `[local_experts, rows_max, inter]`; the others are as in [`Ep::pack`] and [`Ep::give_back`].
    pub fn experts(
        &self,
        weights: &Weights<'_>,
        x: &[u16],
        counts: &[u32],
        act: &mut [u16],
        y: &mut [u16],
    ) -> Result<(), EpError> {
        let (shape, inter) = (self.shape(), u64::from(weights.inter));
        check_products(shape, weights.inter)?;
        let local = u64::from(shape.local_experts());
        let matrix = local * inter * u64::from(shape.hidden());
        exactly("the weights of the first product", weights.w13.len(), 2 * matrix)?;
        exactly("the weights of the second product", weights.w2.len(), matrix)?;
        exactly("the packed tokens", x.len(), shape.packed_bytes() / 2)?;
        exactly("the counts", counts.len(), local)?;
        let rows = local * u64::from(shape.rows_max());
        exactly("the memory between the products", act.len(), rows * inter)?;
        exactly("the results", y.len(), shape.results_bytes() / 2)?;
        if let Some(count) = counts.iter().find(|count| **count > shape.rows_max()) {
            let most = shape.rows_max();
            return Err(EpError::Shape(format!(
                "{count} tokens of an expert; {most} are the most"
            )));
        }
        experts_oracle(shape, weights, x, counts, act, y);
        Ok(())
    }

    /// A whole layer: tokens to their experts, the experts, and the results back into `out`, which is
    /// `[tokens, hidden]`, or longer. Memory for what lies between is made and given back.
    pub fn forward(
        &mut self,
        layer: u16,
        batch: &Batch<'_>,
        weights: &Weights<'_>,
        out: &mut [u16],
    ) -> Result<(), EpError> {
        let shape = *self.shape();
        check_products(&shape, weights.inter)?;
        let mut x = vec![0; (shape.packed_bytes() / 2) as usize];
        let mut y = vec![0; (shape.results_bytes() / 2) as usize];
        let mut counts = vec![0; shape.local_experts() as usize];
        let rows = shape.local_experts() as usize * shape.rows_max() as usize;
        let mut act = vec![0; rows * weights.inter as usize];
        // What is wrong with memory is found before anything is sent. Too many tokens are told to all ranks.
        self.check_output(batch.tokens.min(shape.tokens_max()), out)?;
        self.experts(weights, &x, &counts, &mut act, &mut y)?;
        self.dispatch(layer, batch)?;
        self.await_rows()?;
        self.pack(&mut x, &mut counts)?;
        self.experts(weights, &x, &counts, &mut act, &mut y)?;
        self.give_back(&y)?;
        self.await_results()?;
        self.combine(out)
    }

    /// After a failure, or between two layers: all ranks forget it and begin again with phase 1. All ranks
    /// call it together; if one is gone, the group is, and a new one is needed.
    pub fn reset(&mut self, group: &mut Group, within: Duration) -> Result<(), EpError> {
        // Whoever comes here neither stores nor waits any more.
        let epochs =
            group.gather("reset the exchange", &self.epoch().to_le_bytes(), None, within)?;
        let epochs = epochs.iter().filter_map(|shared| shared.body.first_chunk());
        let epoch = epochs.map(|bytes| u64::from_le_bytes(*bytes)).max().unwrap_or(0) + 1;
        self.clear(epoch);
        group.barrier("start the exchange again", within)?;
        Ok(())
    }

    /// Gives the communicator up: the other ranks hear of it at once, if they come to another layer, and do not
    /// wait for their timeout. Then all ranks together give their heaps back, so each has to call this. A
    /// communicator that is dropped says the same, and waits for nobody.
    pub fn close(self, group: &mut Group, within: Duration) -> Result<(), EpError> {
        let heap = Arc::clone(&self.heap);
        drop(self);
        match Arc::into_inner(heap) {
            Some(heap) => heap.close(group, within)?,
            // Whoever made the heap holds it, and gives it back.
            None => group.barrier("close heaps", within)?,
        }
        Ok(())
    }

    fn clear(&mut self, epoch: u64) {
        let me = self.me();
        for phase in 0..2 {
            for source in 0..self.shape().ranks() {
                self.heap.set_word(me, self.layout.signal(phase, source), 0);
            }
        }
        // Phases begin anew, so a stamp of before could be that of a step to come.
        for slot in 0..self.shape().slots() {
            self.heap.store(me, self.layout.meta(slot), &[0; row::BYTES]);
        }
        for word in [ctl::PHASE, ctl::ARRIVED, ctl::ERROR, ctl::ERROR + 8, ctl::ERROR + 16] {
            self.heap.set_word(me, word, 0);
        }
        self.heap.set_word(me, ctl::BAD, u64::MAX);
        self.heap.set_word(me, ctl::EPOCH, epoch);
        self.stage = Stage::Combined;
    }

    /// Passes the next phase, or fails for everybody.
    fn wait(&self, tag: Tag) -> Result<(), EpError> {
        let began = begin(&*self.heap, &self.layout, self.rank(), tag, 1);
        let Some((tag, phase)) = began else { return self.status() };
        let timeout = if phase == 1 { self.first_timeout } else { self.timeout };
        let until = boottime().deadline_in(timeout);
        let mut pause = Pause::default();
        loop {
            let missing = match look_oracle(&*self.heap, &self.layout, self.me(), tag) {
                Look::All => {
                    pass(&*self.heap, self.me());
                    return Ok(());
                }
                Look::Failed(record) => return Err(self.fault(record)),
                Look::Missing(missing) => missing,
            };
            if let Some((kind, ranks)) = self.given_up(missing, until, &pause) {
                // A rank may have signalled just before it ended.
                if let Look::Missing(missing) =
                    look_oracle(&*self.heap, &self.layout, self.me(), tag)
                    && let Some(guilty) = still_missing(kind, ranks, missing)
                {
                    let me = self.rank().number();
                    return Err(self.fault(give_up(kind, guilty, me, tag, phase)));
                }
                continue;
            }
            pause.take();
        }
    }

    /// Whether there is no use in waiting for these ranks.
    fn given_up(&self, missing: Ranks, until: Deadline, pause: &Pause) -> Option<(Kind, Ranks)> {
        if pause.is_long() {
            let present = missing.without(self.watch.gone());
            let gone = missing.without(present);
            if !gone.is_empty() {
                return Some((Kind::Lost, gone));
            }
        }
        // A caller that was interrupted gives the layer up as if its time were over: the others hear of it at once.
        let over = until.passed(boottime()) || interrupt::ended();
        over.then_some((Kind::Timeout, missing))
    }

    fn fault(&self, record: Record) -> EpError {
        fail(&*self.heap, &self.layout, self.me(), &record);
        EpError::Fault(Fault { rank: self.rank(), record })
    }
}

/// Whose fault it is after one more look: of the ranks that were given up, those that have ended and are still
/// `missing`; a timeout counts for all who are. `None`: those who ended were there, and the others may still come.
fn still_missing(kind: Kind, given_up: Ranks, missing: Ranks) -> Option<Ranks> {
    let here = given_up.without(missing);
    let guilty = if kind == Kind::Lost { given_up.without(here) } else { missing };
    (!guilty.is_empty()).then_some(guilty)
}

impl Drop for Ep {
    /// The others would wait for this rank until their timeout.
    fn drop(&mut self) {
        leave_oracle(&*self.heap, &self.layout, self.rank(), self.layer);
    }
}

/// Compares the configurations of all ranks before anything is made.
pub(crate) fn agree(
    group: &mut Group,
    config: &EpConfig,
    within: Duration,
) -> Result<EpLayout, EpError> {
    let layout = config.shape().map(EpLayout::new);
    // A rank whose configuration is bad says so, or the others would wait for it.
    let hash = layout.as_ref().map_or(0, EpLayout::hash).to_le_bytes();
    let heard = group.gather("compare configurations", &hash, None, within);
    let (layout, heard) = (layout?, heard?);
    let reference = heard.first().map(|shared| shared.body.clone()).unwrap_or_default();
    let ranks = group.world().ranks().zip(&heard);
    let others: Ranks =
        ranks.filter(|(_, shared)| shared.body != reference).map(|(rank, _)| rank).collect();
    let fits = layout.shape().world() == group.world();
    if !fits {
        let (wanted, here) = (layout.shape().ranks(), group.world().len());
        let text = format!("the configuration has {wanted} ranks, the group {here}");
        return Err(EpError::WrongHeap(text));
    }
    if others.is_empty() { Ok(layout) } else { Err(EpError::OtherShape(others)) }
}

pub(crate) fn check_heap(heap: &Heap, layout: &EpLayout) -> Result<(), EpError> {
    let (needed, given) = (layout.bytes(), heap.bytes());
    let (wanted, here) = (layout.shape().world(), heap.world());
    if wanted != here {
        let (wanted, here) = (wanted.len(), here.len());
        let text = format!("the configuration has {wanted} ranks, the heap {here}");
        return Err(EpError::WrongHeap(text));
    }
    if needed > given {
        let text = format!("the exchange needs heaps of {needed} bytes, these have {given}");
        return Err(EpError::WrongHeap(text));
    }
    Ok(())
}

/// Lengths only: what the values say is judged when they are sent. A batch that is too long for the exchange
/// is judged there, too, so that all ranks learn of it.
fn check_batch(shape: &Shape, batch: &Batch<'_>) -> Result<(), EpError> {
    let tokens = u64::from(batch.tokens.min(shape.tokens_max()));
    let (words, k) = (shape.token_words() as u64, u64::from(shape.top_k()));
    at_least("the tokens", batch.x.len(), tokens * words)?;
    at_least("the experts", batch.experts.len(), tokens * k)?;
    at_least("the weights", batch.weights.len(), tokens * k)
}

/// Refuses a length between the two products that kernels cannot read 16 bytes at a time, and tokens that they do
/// not understand.
pub(crate) fn check_products(shape: &Shape, inter: u32) -> Result<(), EpError> {
    if shape.payload() != Payload::Bf16 {
        let text = "the experts here take bf16; compute those of fp8 tokens yourself, between pack and give_back";
        return Err(EpError::Shape(text.into()));
    }
    if inter > 0 && inter.is_multiple_of(8) && inter <= HIDDEN_MAX {
        return Ok(());
    }
    let text = format!("inter is {inter}; choose a multiple of 8, at most {HIDDEN_MAX}");
    Err(EpError::Shape(text))
}

fn at_least(what: &str, given: usize, needed: u64) -> Result<(), EpError> {
    if given as u64 >= needed {
        return Ok(());
    }
    Err(EpError::Shape(format!("{what}: {needed} elements are needed, {given} are given")))
}

fn exactly(what: &str, given: usize, needed: u64) -> Result<(), EpError> {
    if given as u64 == needed {
        return Ok(());
    }
    Err(EpError::Shape(format!("{what}: exactly {needed} elements are needed, {given} are given")))
}

/// How a rank passes its time: first it looks again at once, then it lets others run, then it sleeps.
#[derive(Debug, Default)]
struct Pause {
    taken: u32,
}

impl Pause {
    const SPINS: u32 = 64;
    const YIELDS: u32 = 256;
    const SLEEP: Duration = Duration::from_micros(100);

    fn take(&mut self) {
        self.taken = self.taken.saturating_add(1);
        if self.taken < Self::SPINS {
            spin_loop();
        } else if self.taken < Self::YIELDS {
            yield_now();
        } else {
            // Longer and longer, up to a millisecond: a late rank costs no processor.
            interrupt::sleep(Self::SLEEP * (1 + (self.taken - Self::YIELDS) / 16).min(10));
        }
    }

    /// Whether this takes so long that it is worth to ask who has ended.
    fn is_long(&self) -> bool {
        self.taken >= Self::YIELDS && self.taken.is_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that signalled just before it ended is not blamed, whoever else is late.
    #[test]
    fn only_ranks_that_are_still_missing_are_blamed() {
        let ranks = Ranks::from_bits;
        for (kind, given_up, missing, guilty) in [
            (Kind::Lost, 0b0110, 0b1110, Some(0b0110)),
            (Kind::Lost, 0b0110, 0b1010, Some(0b0010)),
            (Kind::Lost, 0b0110, 0b1000, None),
            (Kind::Timeout, 0b0110, 0b0100, Some(0b0100)),
        ] {
            let found = still_missing(kind, ranks(given_up), ranks(missing));
            assert_eq!(found, guilty.map(ranks), "{kind:?} {given_up:b} {missing:b}");
        }
    }
}
