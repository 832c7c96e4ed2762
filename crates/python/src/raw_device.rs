//! The raw door's pieces in the memory of GPUs. The driver is asked only where it is in this process already, and
//! before it has named a first piece only of memory that the host cannot use: who has no GPU pays nothing.
//!
//! What must stay true: a get has its bytes in place when it returns, because a caller by address has no stream
//! that could wait for them.

use crate::batch::Keys;
use crate::device::Device;
use crate::error::exception;
use crate::probe::Use;
use crate::raw::{Asked, Got, Item, Piece, Refused, get_some};
use crate::store::Store;
use mooncrate::{Error, Landed, LandedItem, Part, PartsItem, Stored, Wishes};
use mooncrate_client::Error as ClientError;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_gpu::{device_of, driver_is_loaded};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a piece was memory of a GPU before. Then the driver is asked before the kernel.
static SEEN: AtomicBool = AtomicBool::new(false);

pub(crate) fn comes_first() -> bool {
    // Relaxed: both orders of asking are right.
    SEEN.load(Ordering::Relaxed)
}

/// The GPU that has all of a piece.
pub(crate) fn gpu_of(address: usize, size: usize) -> Option<u32> {
    if size == 0 || !driver_is_loaded() {
        return None;
    }
    let found = device_of(address as u64, size as u64).ok();
    if found.is_some() {
        SEEN.store(true, Ordering::Relaxed);
    }
    found
}

pub(crate) fn any(asked: &[Asked]) -> bool {
    asked.iter().flatten().flatten().any(|piece| piece.gpu.is_some())
}

/// The stream whose order a caller by address means: the one that torch works in, or the default stream.
fn current_stream(py: Python<'_>, ordinal: u32) -> PyResult<u64> {
    py.import("mooncrate.devices")?.call_method1("current_stream", (ordinal,))?.extract()
}

/// The streams of the GPUs that have pieces.
type Streams = BTreeMap<u32, u64>;

fn streams<'a>(py: Python<'_>, pieces: impl Iterator<Item = &'a Piece>) -> PyResult<Streams> {
    let mut streams = Streams::new();
    for ordinal in pieces.filter_map(|piece| piece.gpu) {
        if let Entry::Vacant(place) = streams.entry(ordinal) {
            place.insert(current_stream(py, ordinal)?);
        }
    }
    Ok(streams)
}

/// The memory of pieces on GPUs, in the order of the pieces.
fn devices<'a>(
    pieces: impl Iterator<Item = &'a Piece>,
    streams: &Streams,
) -> Result<Vec<Option<Device>>, Error> {
    let device = |piece: &Piece| -> Result<Option<Device>, Error> {
        let Some(ordinal) = piece.gpu else { return Ok(None) };
        let (address, size) = (piece.address as u64, piece.size as u64);
        let stream = streams.get(&ordinal).copied().unwrap_or(0);
        Ok(Some(Device::new(address, size, stream, None)?))
    };
    pieces.map(device).collect()
}

/// Stores values of which some lie on GPUs.
pub(crate) fn put(
    store: &Store,
    py: Python<'_>,
    keys: &Keys,
    asked: &[Asked],
    wishes: Wishes<'_>,
) -> PyResult<Vec<Result<bool, Error>>> {
    let good: Vec<(&[u8], &[Piece])> = keys
        .0
        .iter()
        .zip(asked)
        .filter_map(|(key, one)| Some((key.bytes(), one.as_ref().ok()?.as_slice())))
        .collect();
    let streams = streams(py, good.iter().flat_map(|(_, pieces)| *pieces))?;
    let stored = store.detached(py, |live| -> Result<Vec<Result<Stored, Error>>, Error> {
        let devices: Vec<Vec<Option<Device>>> = good
            .iter()
            .map(|(_, pieces)| devices(pieces.iter(), &streams))
            .collect::<Result<_, _>>()?;
        let parts: Vec<Vec<Part<'_>>> = good
            .iter()
            .zip(&devices)
            .map(|((_, pieces), devices)| {
                let each = pieces.iter().zip(devices);
                each.map(|(piece, device)| match device {
                    Some(device) => Part::Device(device.memory()),
                    None => Part::Host(piece.bytes()),
                })
                .collect()
            })
            .collect();
        let items: Vec<PartsItem<'_>> =
            good.iter().zip(&parts).map(|((key, _), parts)| (*key, &parts[..])).collect();
        Ok(live.store().put_mixed(&items, wishes))
    })?;
    let stored = stored.map_err(|error| exception(py, error))?;
    Ok(stored.into_iter().map(|one| one.map(|stored| stored == Stored::New)).collect())
}

/// A get whose pieces were looked at: those of a key with memory of a GPU, with their places.
pub(crate) type OnGpus = BTreeMap<usize, Vec<Piece>>;

/// Which keys have pieces on GPUs. Where none was seen before, only pieces that the host cannot write at all
/// are asked about.
pub(crate) fn of_gpus(py: Python<'_>, items: &[(Item<'_>, bool)]) -> OnGpus {
    if items.iter().all(|(_, known)| *known) {
        return OnGpus::default();
    }
    py.detach(|| {
        let unknown = items.iter().enumerate().filter(|(_, (_, known))| !known);
        unknown
            .filter_map(|(at, ((_, pieces), _))| {
                let mut pieces = pieces.to_vec();
                for piece in &mut pieces {
                    if comes_first() || !piece.starts_usable() {
                        piece.gpu = gpu_of(piece.address, piece.size);
                    }
                }
                pieces.iter().any(|piece| piece.gpu.is_some()).then_some((at, pieces))
            })
            .collect()
    })
}

/// Copies values into pieces of which some are on GPUs.
pub(crate) fn get(
    store: &Store,
    py: Python<'_>,
    items: &[(Item<'_>, bool)],
    on_gpus: &OnGpus,
    exact: bool,
) -> PyResult<Vec<Got>> {
    let streams = streams(py, on_gpus.values().flatten())?;
    let got = store.detached(py, |live| -> Result<Vec<Got>, Error> {
        let host: Vec<(Item<'_>, bool)> = items
            .iter()
            .enumerate()
            .filter(|(at, _)| !on_gpus.contains_key(at))
            .map(|(_, item)| *item)
            .collect();
        let chunks = host.chunks(BATCH_ITEMS_MAX);
        let mut host = chunks.flat_map(|some| get_some(live.store(), some, exact));
        let mut device = get_on_gpus(live.store(), items, on_gpus, &streams, exact)?.into_iter();
        let each = (0..items.len()).map(|at| {
            let got = if on_gpus.contains_key(&at) { device.next() } else { host.next() };
            got.expect("one result per key")
        });
        Ok(each.collect())
    })?;
    got.map_err(|error| exception(py, error))
}

fn get_on_gpus(
    store: &mooncrate::Store,
    items: &[(Item<'_>, bool)],
    on_gpus: &OnGpus,
    streams: &Streams,
    exact: bool,
) -> Result<Vec<Got>, Error> {
    // The host's share of a key is looked at as well: it may reach past an allocation of a GPU.
    let looked = on_gpus.values().map(|pieces| {
        let host = pieces.iter().filter(|piece| piece.gpu.is_none());
        host.copied().try_for_each(|piece| piece.look_all(Use::Write)).err()
    });
    let refused: Vec<Option<Refused>> = looked.collect();
    let good = on_gpus.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
    let on_gpus: Vec<(&usize, &Vec<Piece>)> = good.map(|(one, _)| one).collect();
    let devices: Vec<Vec<Option<Device>>> = on_gpus
        .iter()
        .map(|(_, pieces)| devices(pieces.iter(), streams))
        .collect::<Result<_, _>>()?;
    for device in devices.iter().flatten().flatten() {
        // What is queued before on the stream may read the memory; it has the time of the call.
        store.pass(device.mark())?;
    }
    let mut targets: Vec<LandedItem<'_>> = on_gpus
        .iter()
        .zip(&devices)
        .map(|((at, pieces), devices)| {
            let each = pieces.iter().zip(devices);
            let landed = each.map(|(piece, device)| match device {
                Some(device) => Landed::Device(device.memory()),
                None => Landed::Host(piece.bytes_mut()),
            });
            (items[**at].0.0, landed.collect())
        })
        .collect();
    let (found, arriving) = store.get_into_mixed(&mut targets, exact);
    arriving.wait()?;
    let mut got = found.into_iter().map(|one| match one {
        Ok(len) => Got::Read(len.map(|len| len as usize)),
        Err(Error::Client(ClientError::BufferTooSmall { need, have })) => {
            Got::Misfit { need: need as usize, have: have as usize }
        }
        Err(error) => Got::Failed(error),
    });
    let each = refused.into_iter().map(|refused| match refused {
        Some(refused) => Got::Refused(refused),
        None => got.next().expect("one result per key"),
    });
    Ok(each.collect())
}
