//! The raw door, for packages that bring a calling convention of their own: values in pieces at addresses.
//!
//! It is internal and may change with any version ([`crate::raw_store`]). What must stay
//! true: no piece is touched that was not looked at ([`crate::probe`]), or known to be memory by the caller,
//! who says so key by key. The caller promises that it stays memory, and that nobody else writes to it (or,
//! for a get, uses it at all) until the call returns. What else can be checked is checked: no null address,
//! no piece that is longer than memory can be, as many sizes as addresses.

use crate::batch::{Keys, put_all, result};
use crate::error::{Class, exception, invalid, listed, make};
use crate::probe::{self, Use, is_usable};
use crate::raw_device;
use crate::store::Store;
use mooncrate::{Advice, Error, Wishes};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Numbers of each key: addresses, sizes, starts.
pub(crate) type Numbers = Vec<Vec<usize>>;

/// Of each key, whether the caller knows that its pieces are memory that can be used; nothing: of none.
pub(crate) type Known = Option<Vec<bool>>;

/// Most bytes of room that are looked at before a get: the kernel populates what it looks at, and room may
/// be far larger than the value. Beyond that a value is read elsewhere first, and as much of the room as it
/// needs is looked at.
const LOOK_BYTES_MAX: usize = 64 << 20;

/// A piece of memory that was looked at, or that the caller vouches for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) address: usize,
    pub(crate) size: usize,
    /// The GPU whose memory it is; `None`: memory of the host.
    pub(crate) gpu: Option<u32>,
}

impl Piece {
    /// An error, unless the first bytes of the piece can be used so.
    fn look(self, size: usize, wanted: Use) -> Result<(), Refused> {
        if is_usable(self.address, size.min(self.size), wanted) {
            return Ok(());
        }
        Err(Refused::Unusable { address: self.address, size, wanted })
    }

    /// Finds out whose memory it is: an error, unless all of it can be used so.
    fn place(&mut self, wanted: Use) -> Result<(), Refused> {
        if raw_device::comes_first() {
            self.gpu = raw_device::gpu_of(self.address, self.size);
        }
        if self.gpu.is_some() {
            return Ok(());
        }
        self.look_all(wanted).or_else(|refused| {
            self.gpu = raw_device::gpu_of(self.address, self.size);
            self.gpu.map(|_| ()).ok_or(refused)
        })
    }

    /// Whether its first byte can be written; that of memory of a GPU cannot.
    pub(crate) fn starts_usable(self) -> bool {
        self.size == 0 || is_usable(self.address, 1, Use::Write)
    }

    /// The same for all of it.
    pub(crate) fn look_all(self, wanted: Use) -> Result<(), Refused> {
        self.look(self.size, wanted)
    }

    pub(crate) fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        let first = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: `piece` refused null and impossible sizes; the memory was looked at, or the caller knows
        // it; that it is left alone until the call returns is the caller's promise (see the head of this
        // file), and no slice outlives the call.
        unsafe { std::slice::from_raw_parts(first, self.size) }
    }

    pub(crate) fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.size == 0 {
            return &mut [];
        }
        let first = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`; that pieces do not overlap is a part of the same promise.
        unsafe { std::slice::from_raw_parts_mut(first, self.size) }
    }
}

/// Why pieces are not used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    /// They make no sense, in words.
    Senseless(&'static str),
    /// A piece is not memory of this process, or not memory for that use.
    Unusable { address: usize, size: usize, wanted: Use },
}

impl Refused {
    pub(crate) fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Senseless(words) => invalid(py, words),
            Self::Unusable { address, size, wanted } => {
                let what = match wanted {
                    Use::Read => "read",
                    Use::Write => "written",
                };
                let words = format!(
                    "the {size} bytes at {address:#x} cannot be {what}: they are not mapped in this process, \
                     not for that use, or reach past the end of an allocation on a GPU"
                );
                let made = make(py, Class::Invalid, &words, Advice::GiveUp);
                // A class that takes no attributes has no kind: nothing else depends on it.
                let _ = made.value(py).setattr("kind", "unusable memory");
                made
            }
        }
    }
}

/// What one key asks for, or why it is refused.
pub(crate) type Asked = Result<Vec<Piece>, Refused>;

/// Whether all bytes at an address can be read, or written.
#[pyfunction]
#[pyo3(signature = (address, size, *, write=false))]
pub(crate) fn memory_is_usable(py: Python<'_>, address: usize, size: usize, write: bool) -> bool {
    let wanted = if write { Use::Write } else { Use::Read };
    py.detach(|| is_usable(address, size, wanted))
}

/// Whether all bytes at an address may be read, and whether they may be written, by the table of mappings: of
/// each file the last page is touched, and nothing else. None if there is no such table.
#[pyfunction]
pub(crate) fn memory_access(py: Python<'_>, address: usize, size: usize) -> Option<(bool, bool)> {
    py.detach(|| probe::access(address, size)).map(|found| (found.read, found.write))
}

/// The GPU whose memory all bytes at an address are; None if they are not, or if nothing in this process uses
/// a GPU, which is found out without loading anything.
#[pyfunction]
pub(crate) fn memory_device(py: Python<'_>, address: usize, size: usize) -> Option<u32> {
    py.detach(|| raw_device::gpu_of(address, size))
}

/// Looks at all pieces of the keys that the caller does not know.
fn look(asked: &mut [Asked], known: &Known, wanted: Use) {
    for (at, one) in asked.iter_mut().enumerate() {
        if !is_known(known, at) {
            look_at(one, wanted);
        }
    }
}

fn look_at(one: &mut Asked, wanted: Use) {
    if let Ok(pieces) = one {
        let looked: Result<(), Refused> =
            pieces.iter_mut().try_for_each(|piece| piece.place(wanted));
        if let Err(refused) = looked {
            *one = Err(refused);
        }
    }
}

fn is_known(known: &Known, at: usize) -> bool {
    known.as_ref().is_some_and(|known| known.get(at).copied().unwrap_or(false))
}

/// The pieces of each key.
fn pieces(
    py: Python<'_>,
    keys: &Keys,
    addresses: &Numbers,
    sizes: &Numbers,
) -> PyResult<Vec<Asked>> {
    let (keys, lists) = (keys.0.len(), (addresses.len(), sizes.len()));
    if lists != (keys, keys) {
        let words = format!(
            "{keys} keys need as many lists of addresses and of sizes; there are {} and {}",
            lists.0, lists.1
        );
        return Err(invalid(py, &words));
    }
    Ok(addresses.iter().zip(sizes).map(|(addresses, sizes)| of_one(addresses, sizes)).collect())
}

fn of_one(addresses: &[usize], sizes: &[usize]) -> Asked {
    if addresses.len() != sizes.len() {
        return Err(Refused::Senseless("a key has as many sizes as addresses"));
    }
    addresses.iter().zip(sizes).map(|(&address, &size)| piece(address, size)).collect()
}

/// A piece, or why it cannot be one.
pub(crate) fn piece(address: usize, size: usize) -> Result<Piece, Refused> {
    let end = isize::try_from(size).ok().and_then(|_| address.checked_add(size));
    match end {
        _ if size == 0 => Ok(Piece { address, size, gpu: None }),
        _ if address == 0 => Err(Refused::Senseless("a piece has the address 0")),
        None => Err(Refused::Senseless("a piece reaches past the end of memory")),
        Some(_) => Ok(Piece { address, size, gpu: None }),
    }
}

/// A list of results: those of the keys that made sense, at their places, and an error for the others.
fn merged<'py, T, O>(
    py: Python<'py>,
    asked: &[Result<T, Refused>],
    done: Vec<O>,
    object: impl Fn(O) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut done = done.into_iter();
    let all = asked.iter().map(|one| match one {
        Ok(_) => object(done.next().expect("one result per key that made sense")),
        Err(refused) => listed(py, refused.exception(py)),
    });
    PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
}

/// Stores values that lie in pieces.
pub(crate) fn put<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    addresses: &Numbers,
    sizes: &Numbers,
    known: &Known,
    wishes: Wishes<'_>,
) -> PyResult<Bound<'py, PyList>> {
    let mut asked = pieces(py, keys, addresses, sizes)?;
    py.detach(|| look(&mut asked, known, Use::Read));
    let stored = put_pieces(store, py, keys, &asked, wishes)?;
    merged(py, &asked, stored, |one| result(py, one))
}

/// Stores the values of the keys whose pieces were looked at; one result for each of those.
pub(crate) fn put_pieces(
    store: &Store,
    py: Python<'_>,
    keys: &Keys,
    asked: &[Asked],
    wishes: Wishes<'_>,
) -> PyResult<Vec<Result<bool, Error>>> {
    let makes_sense = asked.iter().enumerate().filter(|(_, one)| one.is_ok());
    let groups = wishes.pick(makes_sense.map(|(at, _)| at));
    let wishes = Wishes::grouped(wishes.config(), &groups);
    if raw_device::any(asked) {
        return raw_device::put(store, py, keys, asked, wishes);
    }
    let good = keys.0.iter().zip(asked).filter_map(|(key, one)| Some((key, one.as_ref().ok()?)));
    let (keys, values): (Vec<&[u8]>, Vec<Vec<&[u8]>>) = good
        .map(|(key, pieces)| (key.bytes(), pieces.iter().map(|piece| piece.bytes()).collect()))
        .unzip();
    let items: Vec<(&[u8], &[&[u8]])> =
        keys.into_iter().zip(values.iter().map(|value| &value[..])).collect();
    store.detached(py, |live| put_all(live.store(), &items, wishes))
}

/// Looks at the pieces of keys that are to be stored, unless they are known.
pub(crate) fn place(asked: &mut [Asked], known: &[bool]) {
    for (one, _) in asked.iter_mut().zip(known).filter(|(_, known)| !**known) {
        look_at(one, Use::Read);
    }
}

/// What became of one get.
pub(crate) enum Got {
    /// Bytes, or no value.
    Read(Option<usize>),
    Failed(Error),
    /// The pieces do not fit the value.
    Misfit {
        need: usize,
        have: usize,
    },
    Refused(Refused),
}

impl Got {
    /// The error of one that was not read.
    pub(crate) fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Read(_) => invalid(py, "a value that was read is no error"),
            Self::Failed(error) => exception(py, error),
            Self::Misfit { need, have } => {
                let words = format!("the value has {need} bytes, the pieces have {have}");
                make(py, Class::TooLarge, &words, Advice::GiveUp)
            }
            Self::Refused(refused) => refused.exception(py),
        }
    }
}

/// A key and its pieces.
pub(crate) type Item<'a> = (&'a [u8], &'a [Piece]);

/// Copies values into pieces, which together are at least as long as the value, or with `exact` as long.
pub(crate) fn get<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    addresses: &Numbers,
    sizes: &Numbers,
    known: &Known,
    exact: bool,
) -> PyResult<Bound<'py, PyList>> {
    let asked = pieces(py, keys, addresses, sizes)?;
    let each = keys.0.iter().zip(&asked).enumerate();
    let good = each.filter_map(|(at, (key, one))| {
        Some(((key.bytes(), one.as_ref().ok()?.as_slice()), is_known(known, at)))
    });
    let good: Vec<(Item<'_>, bool)> = good.collect();
    merged(py, &asked, got(store, py, &good, exact)?, |one| match one {
        Got::Read(len) => result(py, Ok(len)),
        other => listed(py, other.exception(py)),
    })
}

/// Copies values into the pieces of their keys, of which each says whether it is known.
pub(crate) fn got(
    store: &Store,
    py: Python<'_>,
    items: &[(Item<'_>, bool)],
    exact: bool,
) -> PyResult<Vec<Got>> {
    let on_gpus = raw_device::of_gpus(py, items);
    if !on_gpus.is_empty() {
        return raw_device::get(store, py, items, &on_gpus, exact);
    }
    store.detached(py, |live| {
        let chunks = items.chunks(BATCH_ITEMS_MAX);
        chunks.flat_map(|some| get_some(live.store(), some, exact)).collect()
    })
}

/// Keys with one piece each that can be written are read straight into it. The others are read whole and
/// cut: a value is verified as one, and its cuts lie anywhere.
pub(crate) fn get_some(
    store: &mooncrate::Store,
    items: &[(Item<'_>, bool)],
    exact: bool,
) -> Vec<Got> {
    let in_place: Vec<bool> =
        items.iter().map(|(item, known)| is_in_place(item.1, *known)).collect();
    let (mut straight, mut whole) = (Vec::new(), Vec::new());
    for ((item, known), in_place) in items.iter().zip(&in_place) {
        if *in_place { straight.push(*item) } else { whole.push((*item, *known)) }
    }
    let mut straight = get_straight(store, &straight, exact).into_iter();
    let mut whole = get_whole(store, &whole, exact).into_iter();
    let each =
        in_place.into_iter().map(|in_place| if in_place { straight.next() } else { whole.next() });
    each.map(|got| got.expect("one result per item")).collect()
}

/// Whether a value may be read straight into the pieces of its key. If the room cannot all be used, the
/// value may still fit into its front.
fn is_in_place(pieces: &[Piece], known: bool) -> bool {
    let [piece] = pieces else { return false };
    known || (piece.size <= LOOK_BYTES_MAX && piece.look_all(Use::Write).is_ok())
}

fn get_straight(store: &mooncrate::Store, items: &[Item<'_>], exact: bool) -> Vec<Got> {
    if items.is_empty() {
        return Vec::new();
    }
    let mut targets: Vec<(&[u8], &mut [u8])> =
        items.iter().map(|(key, pieces)| (*key, pieces[0].bytes_mut())).collect();
    let found = store.get_into_batch(&mut targets);
    let sized = found.into_iter().zip(items);
    sized
        .map(|(found, (_, pieces))| match found {
            Ok(Some(need)) if exact && need != pieces[0].size => {
                Got::Misfit { need, have: pieces[0].size }
            }
            Ok(len) => Got::Read(len),
            Err(error) => Got::Failed(error),
        })
        .collect()
}

fn get_whole(store: &mooncrate::Store, items: &[(Item<'_>, bool)], exact: bool) -> Vec<Got> {
    if items.is_empty() {
        return Vec::new();
    }
    let keys: Vec<&[u8]> = items.iter().map(|((key, _), _)| *key).collect();
    let found = store.get_batch(&keys).into_iter().zip(items);
    found
        .map(|(found, ((_, pieces), known))| match found {
            Ok(Some(value)) => cut(&value, pieces, *known, exact),
            Ok(None) => Got::Read(None),
            Err(error) => Got::Failed(error),
        })
        .collect()
}

/// Copies a value into pieces, one after the other; into all of them or into none.
fn cut(value: &[u8], pieces: &[Piece], known: bool, exact: bool) -> Got {
    let need = value.len();
    let have = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.size));
    if need > have || (exact && need != have) {
        return Got::Misfit { need, have };
    }
    let mut rest = value;
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (now, later) = rest.split_at(piece.size.min(rest.len()));
        rest = later;
        parts.push((piece, now));
    }
    if !known {
        let looked = parts.iter().try_for_each(|(piece, now)| piece.look(now.len(), Use::Write));
        if let Err(refused) = looked {
            return Got::Refused(refused);
        }
    }
    for (piece, now) in parts {
        // Not more of the piece than was looked at.
        Piece { size: now.len(), ..*piece }.bytes_mut().copy_from_slice(now);
    }
    Got::Read(Some(need))
}
