//! The halves of a layer: what one call of Python does with a rank.
//!
//! What must stay true: whatever is wrong with the memory of the caller is found before anything is sent, so that
//! the layer can go on with a better call.

use crate::ep::{Live, OnGpu, Side, UnderWay};
use crate::ep_memory::{Given, Goal, Number};
use crate::ep_room::{BatchRooms, ExpertRooms, Rooms};
use mooncrate_ep::{Batch, CudaBatch, CudaWeights, Ep, EpError, Scratch, Shape, Weights};
use mooncrate_gpu::{Span, Stream};

/// The tokens of a rank.
pub(crate) struct Sending {
    pub(crate) x: Given,
    pub(crate) ids: Given,
    /// Whether they are numbers of 64 bits.
    pub(crate) wide: bool,
    pub(crate) weights: Given,
    /// How many there are; with `count`, how many fit.
    pub(crate) tokens: u32,
    /// Device memory that says how many there are.
    pub(crate) count: Option<Given>,
    pub(crate) layer: u16,
}

/// The weights of this rank's experts.
pub(crate) struct Products {
    pub(crate) w13: Given,
    pub(crate) w2: Given,
}

/// Where something is queued. The caller of Python keeps the stream that it names until the call is over.
fn queue(cuda: &OnGpu, handle: u64) -> Stream {
    // SAFETY: 0, 1 and 2 are the default streams; any other handle is of a stream that its caller keeps.
    unsafe { Stream::of_others(&cuda.gpu, handle) }
}

/// The elements of a room on the host, by `Room::host`.
///
/// # Safety
///
/// The room lives for `'a`, and no other reference into it is used meanwhile.
unsafe fn elements<'a, T: Number>((first, bytes): (*mut u8, usize)) -> &'a mut [T] {
    // SAFETY: a region begins at a page and has so many bytes, any of which are numbers; that it lives, and that
    // nobody else refers to them, is the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(first.cast(), bytes / size_of::<T>()) }
}

fn exactly(what: &str, given: u64, needed: u64) -> Result<(), EpError> {
    if given == needed {
        return Ok(());
    }
    Err(EpError::Shape(format!("{what}: {needed} bytes are needed, {given} are given")))
}

/// Refuses weights that kernels, which read 16 bytes at a time, cannot read.
fn aligned(what: &str, memory: Span<'_>) -> Result<(), EpError> {
    let address = memory.address();
    if address.is_multiple_of(16) {
        return Ok(());
    }
    let text = format!("{what} begins at {address:#x}, which is no multiple of 16; give a copy");
    Err(EpError::Shape(text))
}

impl Live {
    /// Sends the tokens of this rank, and has what came in `rows` and `counts`. Whether that was recorded.
    pub(crate) fn dispatch(&mut self, given: &Sending, stream: u64) -> Result<bool, EpError> {
        let Self { side, rooms, shape, .. } = self;
        side.status()?;
        let recorded = match side {
            Side::Host(ep) => dispatch_on_host(ep, rooms, given).map(|()| false)?,
            Side::Cuda(cuda) => dispatch_on_gpu(cuda, rooms, shape, given, stream)?,
        };
        self.tokens = given.tokens;
        Ok(recorded)
    }

    /// Refuses weights of experts that do not fit, and a rank that has no memory for experts.
    pub(crate) fn check_products(&self, products: &Products) -> Result<(), EpError> {
        let Some(ExpertRooms { inter, .. }) = self.rooms.experts else {
            let text = "there is no memory for experts here: make the Communicator with inter=…";
            return Err(EpError::Shape(text.into()));
        };
        let matrix =
            u64::from(self.shape.local_experts()) * u64::from(inter) * self.shape.row_bytes();
        let (first, second) = match self.side.gpu() {
            None => (
                products.w13.numbers::<u16>()?.len() as u64 * 2,
                products.w2.numbers::<u16>()?.len() as u64 * 2,
            ),
            Some(gpu) => {
                let (w13, w2) = (products.w13.span(gpu)?, products.w2.span(gpu)?);
                aligned("w13", w13)?;
                aligned("w2", w2)?;
                (w13.len(), w2.len())
            }
        };
        exactly("w13", first, 2 * matrix)?;
        exactly("w2", second, matrix)
    }

    /// Refuses memory that has no room for the results of so many tokens.
    pub(crate) fn check_out(&self, out: Option<&mut Goal>, tokens: u32) -> Result<(), EpError> {
        let Some(out) = out else { return Ok(()) };
        let given = match self.side.gpu() {
            None => out.numbers::<u16>()?.len() as u64 * 2,
            Some(gpu) => out.span(gpu)?.len(),
        };
        let needed = u64::from(tokens) * self.shape.row_bytes();
        if given < needed { exactly("out", given, needed) } else { Ok(()) }
    }

    /// The experts that are here, on what came.
    pub(crate) fn experts(&mut self, products: &Products, stream: u64) -> Result<(), EpError> {
        self.check_products(products)?;
        let Self { side, rooms, .. } = self;
        let own = rooms.experts.as_ref().expect("it was checked above");
        let inter = own.inter;
        match side {
            Side::Host(ep) => {
                let weights =
                    Weights { inter, w13: products.w13.numbers()?, w2: products.w2.numbers()? };
                // SAFETY: the room lives as long as `self`; each one is used once here.
                let x = unsafe { elements(rooms.rows.host()) };
                // SAFETY: as above.
                let counts = unsafe { elements(rooms.counts.host()) };
                // SAFETY: as above.
                let act = unsafe { elements(own.act.host()) };
                // SAFETY: as above.
                let y = unsafe { elements(own.y.host()) };
                ep.experts(&weights, x, counts, act, y)
            }
            Side::Cuda(cuda) => {
                let (w13, w2) = (products.w13.span(&cuda.gpu)?, products.w2.span(&cuda.gpu)?);
                let weights = CudaWeights { inter, w13, w2 };
                let scratch = Scratch {
                    x: rooms.rows.span(),
                    counts: rooms.counts.span(),
                    act: own.act.span(),
                    y: own.y.span(),
                };
                cuda.ep.experts(&queue(cuda, stream), &weights, &scratch)
            }
        }
    }

    /// Sends results back, of the caller or of the experts that are here, and adds up what came for the tokens of
    /// this rank: to `out`, or to the room of that name.
    pub(crate) fn combine(
        &mut self,
        y: Option<&Given>,
        mut out: Option<&mut Goal>,
        stream: u64,
    ) -> Result<(), EpError> {
        self.check_out(out.as_deref_mut(), self.tokens)?;
        let Self { side, rooms, shape, tokens, .. } = self;
        side.status()?;
        match side {
            Side::Host(ep) => combine_on_host(ep, rooms, y, out),
            Side::Cuda(cuda) => combine_on_gpu(cuda, rooms, shape, *tokens, y, out, stream),
        }
    }
}

fn dispatch_on_host(ep: &mut Ep, rooms: &Rooms, given: &Sending) -> Result<(), EpError> {
    if given.count.is_some() {
        let text =
            "a count in device memory is for backend=\"cuda\"; give only the tokens that there are";
        return Err(EpError::Shape(text.into()));
    }
    let narrowed;
    let experts = if given.wide {
        // Beyond 32 bits there is no expert: the nearest number is refused as such.
        let narrow =
            |id: &i64| i32::try_from(*id).unwrap_or(if *id < 0 { i32::MIN } else { i32::MAX });
        narrowed = given.ids.numbers::<i64>()?.iter().map(narrow).collect::<Vec<i32>>();
        &narrowed[..]
    } else {
        given.ids.numbers()?
    };
    let (x, weights) = (given.x.numbers()?, given.weights.numbers()?);
    let batch = Batch { tokens: given.tokens, x, experts, weights };
    ep.dispatch(given.layer, &batch)?;
    ep.await_rows()?;
    // SAFETY: the room outlives the call. An array of the caller over it was read above, and is not any more.
    let x = unsafe { elements(rooms.rows.host()) };
    // SAFETY: as above.
    let counts = unsafe { elements(rooms.counts.host()) };
    ep.pack(x, counts)
}

fn dispatch_on_gpu(
    cuda: &mut OnGpu,
    rooms: &Rooms,
    shape: &Shape,
    given: &Sending,
    stream: u64,
) -> Result<bool, EpError> {
    let stream = queue(cuda, stream);
    let recording = stream.recording()?;
    // The exchange looks for it, too, but after copies to rooms that the layer has yet to read. A recording that
    // ended in the middle of a layer left nothing behind: that layer never began.
    let ended = |layer: &UnderWay| layer.recording.is_some() && layer.recording != recording;
    if cuda.under_way.as_ref().is_some_and(|layer| !ended(layer)) {
        return Err(EpError::Order { called: "dispatch", before: "pack" });
    }
    // A recording is no part of the order of plain layers, nor they of its own. The stream of one that has ended may be gone.
    let kind = usize::from(recording.is_some());
    if let Some(layer) = cuda.shown[kind]
        && (layer.stream != stream.raw() && layer.recording == recording)
    {
        // The result of the layer before is in a room of this rank, and what reads it was queued behind that layer.
        cuda.ep.extend(&queue(cuda, layer.stream))?;
    }
    let own = rooms.batch.as_ref().expect("a rank on a GPU has them");
    let batch = device_batch(own, shape, given, cuda, &stream)?;
    cuda.ep.dispatch(&stream, given.layer, &batch)?;
    cuda.shown[kind] = None;
    cuda.under_way = Some(UnderWay { stream: stream.raw(), recording });
    cuda.ep.await_rows(&stream)?;
    cuda.ep.pack(&stream, rooms.rows.span(), rooms.counts.span())?;
    Ok(recording.is_some())
}

/// The batch where it is, if it has room for as many tokens as fit, because kernels read all of it; otherwise a
/// copy in memory of this rank, made after the layer before, which may still have to read its own there.
fn device_batch<'a>(
    own: &'a BatchRooms,
    shape: &Shape,
    given: &Sending,
    cuda: &'a OnGpu,
    stream: &Stream,
) -> Result<CudaBatch<'a>, EpError> {
    let gpu = &cuda.gpu;
    let (x, experts) = (given.x.span(gpu)?, given.ids.span(gpu)?);
    let weights = given.weights.span(gpu)?;
    let (tokens, routes) = (u64::from(given.tokens), u64::from(shape.top_k()));
    let (wide, id) = (given.wide, if given.wide { 8 } else { 4 });
    exactly("x", x.len(), tokens * shape.token_bytes())?;
    exactly("topk_ids", experts.len(), tokens * routes * id)?;
    exactly("topk_weights", weights.len(), tokens * routes * 4)?;
    let count = given.count.as_ref().map(|count| count.span(gpu)).transpose()?;
    if given.tokens == shape.tokens_max() && x.address().is_multiple_of(16) {
        let tokens = count.map_or_else(|| own.number(given.tokens), Ok)?;
        return Ok(CudaBatch { tokens, x, experts, wide, weights });
    }
    if let Some(count) = count {
        let most = shape.tokens_max();
        let text = format!(
            "with a count in device memory ({} bytes) x, topk_ids and topk_weights have room for all {most} \
             tokens that may come, at an address that is a multiple of 16",
            count.len()
        );
        return Err(EpError::Shape(text));
    }
    cuda.ep.follow(stream)?;
    for (to, from) in [(&own.x, x), (&own.ids, experts), (&own.weights, weights)] {
        if !from.is_empty() {
            to.span().copy_from(from, stream)?;
        }
    }
    let (x, experts, weights) = (own.x.span(), own.ids.span(), own.weights.span());
    Ok(CudaBatch { tokens: own.number(given.tokens)?, x, experts, wide, weights })
}

fn combine_on_host(
    ep: &mut Ep,
    rooms: &Rooms,
    y: Option<&Given>,
    out: Option<&mut Goal>,
) -> Result<(), EpError> {
    match (y, &rooms.experts) {
        (Some(y), _) => ep.give_back(y.numbers()?)?,
        // SAFETY: the room outlives the call; nothing else of it is used here.
        (None, Some(own)) => ep.give_back(unsafe { elements(own.y.host()) })?,
        (None, None) => unreachable!("results are the caller's, or of the experts here"),
    }
    ep.await_results()?;
    // After the last look at `y`, which may be an array over the same memory.
    let out = match out {
        Some(out) => out.numbers()?,
        // SAFETY: as above.
        None => unsafe { elements::<u16>(rooms.out.host()) },
    };
    ep.combine(out)
}

fn combine_on_gpu(
    cuda: &mut OnGpu,
    rooms: &Rooms,
    shape: &Shape,
    tokens: u32,
    y: Option<&Given>,
    out: Option<&mut Goal>,
    stream: u64,
) -> Result<(), EpError> {
    let stream = queue(cuda, stream);
    let results = match (y, &rooms.experts) {
        (Some(y), _) => y.span(&cuda.gpu)?,
        (None, Some(own)) => own.y.span(),
        (None, None) => unreachable!("results are the caller's, or of the experts here"),
    };
    let out = out.map(|out| out.span(&cuda.gpu)).transpose()?;
    let needed = u64::from(tokens) * shape.row_bytes();
    // The kernel is told on the device how many tokens there are, so it gets room for all that may be there.
    let fits =
        |out: &Span<'_>| out.len() >= shape.output_bytes() && out.address().is_multiple_of(16);
    let direct = out.filter(fits);
    cuda.ep.give_back(&stream, results)?;
    cuda.ep.await_results(&stream)?;
    cuda.ep.combine(&stream, direct.unwrap_or_else(|| rooms.out.span()))?;
    if let Some(layer) = cuda.under_way.take() {
        cuda.shown[usize::from(layer.recording.is_some())] = out.is_none().then_some(layer);
    }
    match (out, direct) {
        (Some(out), None) if needed > 0 => {
            out.copy_from(rooms.out.span().part(0..needed)?, &stream)?;
            // The next layer, which may be on another stream, overwrites the room.
            cuda.ep.extend(&stream)
        }
        _ => Ok(()),
    }
}
