//! The methods of `EpRank`: arguments in, one half of a layer or a whole one, the memory of the rank out.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::ep::{EpRank, Joining};
use crate::ep_memory::{Given, Goal};
use crate::ep_room::EpView;
use crate::ep_step::{Products, Sending};
use crate::error::invalid;
use crate::options::span;
use crate::paged_input::{Whole, Word};
use mooncrate_ep::{EpConfig, HIDDEN_MAX, Payload};
use mooncrate_heap::Rank;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;

/// A rank, or how many there are.
type Number = Whole<{ i64::MAX as u64 }>;
/// The number of a layer.
type Layer = Whole<{ u16::MAX as u64 }>;

/// Far more than run at once on any GPU.
const BLOCKS_MAX: u32 = 1 << 16;

/// Refuses experts that the exchange does not have.
fn check_inter(py: Python<'_>, inter: Option<Number>, payload: Payload) -> PyResult<Option<u32>> {
    let Some(Whole(inter)) = inter else { return Ok(None) };
    if payload == Payload::Fp8 {
        let words = "the experts here take bf16; leave inter out, and compute those of fp8 tokens between \
                     dispatch and combine";
        return Err(invalid(py, words));
    }
    if inter == 0 || !inter.is_multiple_of(8) || inter > u64::from(HIDDEN_MAX) {
        let words = format!("inter is {inter}; choose a multiple of 8, at most {HIDDEN_MAX}");
        return Err(invalid(py, &words));
    }
    Ok(Some(inter as u32))
}

#[pymethods]
impl EpRank {
    /// Joins, and returns when all ranks have.
    #[new]
    #[pyo3(signature = (*, path, rank, world, tokens_max, top_k, hidden, experts, rows_max, payload, inter, blocks,
        backend, device, timeout, first_timeout, join_timeout))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        rank: Number,
        world: Number,
        tokens_max: Number,
        top_k: Number,
        hidden: Number,
        experts: Number,
        rows_max: Option<Number>,
        payload: &str,
        inter: Option<Number>,
        blocks: Option<Word>,
        backend: &str,
        device: Word,
        timeout: f64,
        first_timeout: f64,
        join_timeout: f64,
    ) -> PyResult<Self> {
        let device = match backend {
            "host" => None,
            "cuda" => Some(device.get()),
            other => {
                let words = format!("backend is \"cuda\" or \"host\", not {other:?}");
                return Err(invalid(py, &words));
            }
        };
        let payload = match payload {
            "bf16" => Payload::Bf16,
            "fp8" => Payload::Fp8,
            other => {
                let words = format!("payload is \"bf16\" or \"fp8\", not {other:?}");
                return Err(invalid(py, &words));
            }
        };
        let inter = check_inter(py, inter, payload)?;
        let blocks = blocks.map(Word::get);
        if blocks.is_some_and(|blocks| !(1..=BLOCKS_MAX).contains(&blocks)) {
            let words =
                format!("blocks is the number of blocks of a kernel; choose 1 to {BLOCKS_MAX}");
            return Err(invalid(py, &words));
        }
        let config = EpConfig {
            world: world.0 as usize,
            tokens_max: tokens_max.0 as usize,
            top_k: top_k.0 as usize,
            hidden: hidden.0 as usize,
            experts: experts.0 as usize,
            rows_max: rows_max.map(|rows| rows.0 as usize),
            payload,
            timeout: span(py, "timeout", timeout)?,
            first_timeout: span(py, "first_timeout", first_timeout)?,
        };
        let within = span(py, "join_timeout", join_timeout)?;
        let rank = rank.0 as usize;
        Self::join(py, &Joining { path, rank, device, config, inter, blocks, within })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// `rows_max`, and the bytes of a token on its way to the experts.
    fn bounds(&self, py: Python<'_>) -> PyResult<(u32, u64)> {
        self.with(py, |live| Ok((live.shape.rows_max(), live.shape.token_bytes())))
    }

    /// The memory that calls leave results in: rows, counts, out.
    fn views(&self, py: Python<'_>) -> PyResult<(EpView, EpView, EpView)> {
        self.with(py, |live| {
            let rooms = &live.rooms;
            Ok((EpView::new(&rooms.rows), EpView::new(&rooms.counts), EpView::new(&rooms.out)))
        })
    }

    /// Sends tokens and has those that came for this rank's experts in `rows` and `counts`. Whether that was recorded.
    #[pyo3(signature = (x, ids, weights, tokens, *, wide, count, layer, stream))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn dispatch(
        &self,
        py: Python<'_>,
        x: Given,
        ids: Given,
        weights: Given,
        tokens: Word,
        wide: bool,
        count: Option<Given>,
        layer: Layer,
        stream: u64,
    ) -> PyResult<bool> {
        let (tokens, layer) = (tokens.get(), layer.0 as u16);
        let sending = Sending { x, ids, wide, weights, tokens, count, layer };
        self.with(py, |live| live.dispatch(&sending, stream))
    }

    /// Sends the results of this rank's experts back, and has the sums for its own tokens in `out`.
    #[pyo3(signature = (y, out, *, stream))]
    fn combine(&self, py: Python<'_>, y: Given, out: Option<Goal>, stream: u64) -> PyResult<()> {
        let mut out = out;
        self.with(py, |live| live.combine(Some(&y), out.as_mut(), stream))
    }

    /// A whole layer with the experts that are here. Whether that was recorded.
    #[pyo3(signature = (x, ids, weights, tokens, w13, w2, out, *, wide, count, layer, stream))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn forward(
        &self,
        py: Python<'_>,
        x: Given,
        ids: Given,
        weights: Given,
        tokens: Word,
        w13: Given,
        w2: Given,
        out: Option<Goal>,
        wide: bool,
        count: Option<Given>,
        layer: Layer,
        stream: u64,
    ) -> PyResult<bool> {
        let (tokens, layer) = (tokens.get(), layer.0 as u16);
        let sending = Sending { x, ids, wide, weights, tokens, count, layer };
        let (products, mut out) = (Products { w13, w2 }, out);
        self.with(py, |live| {
            live.check_products(&products)?;
            live.check_out(out.as_mut(), sending.tokens)?;
            let recorded = live.dispatch(&sending, stream)?;
            live.experts(&products, stream)?;
            live.combine(None, out.as_mut(), stream)?;
            Ok(recorded)
        })
    }

    /// Raises what has failed so far. It waits for no rank, only for calls of other threads.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |live| live.side.status())
    }

    /// Waits until what is queued on streams has ended, and raises what has failed.
    fn finish(&self, py: Python<'_>, streams: Vec<u64>) -> PyResult<()> {
        self.with(py, |live| live.finish(&streams))
    }

    /// Ranks whose processes have ended; waits for them end. It waits for calls of other threads.
    fn notice<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let gone = self.with(py, |live| Ok(live.notice()))?;
        PyTuple::new(py, gone.iter().map(Rank::number).collect::<Vec<u8>>())
    }

    /// All ranks begin again. With `replays` all graphs that hold layers have ended, or are on that stream.
    fn reset(&self, py: Python<'_>, replays: Option<u64>) -> PyResult<()> {
        self.with(py, |live| live.reset(replays))
    }

    /// How often the group was reset.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |live| live.epoch())
    }

    /// Leaves the exchange; with the others, or without waiting for them. Again, it does nothing.
    #[pyo3(signature = (together=true))]
    fn close(&self, py: Python<'_>, together: bool) -> PyResult<()> {
        self.shut(py, together)
    }
}
