//! What can be asked of a store, each as a [`Call`]; the two classes only say when it runs.

use crate::batch::{Goals, Items, Keys, put_all, result, results};
use crate::buffer::{Key, Room, Source, Target, no_memory, slices};
use crate::call::{Call, ask, call};
use crate::device::{Given, Goal, Reached, Value};
use crate::error::exception;
use crate::options::Wishes;
use crate::raw_flat::{NEAR_BYTES_MAX, NEAR_KEYS_MAX};
use crate::stats;
use crate::store::{Live, Store};
use crate::view::View;
use mooncrate::{Arriving, Error, LandedItem, Part, PartsItem, Stored};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_gpu::ForeignStream;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Keys of a listing that are asked for at once.
pub(crate) const PAGE: u32 = 1000;
/// Bytes of a batch that wait in memory of ours until they become objects. What goes beyond is read straight
/// into its object: making many of them at the end would take the GIL for long.
const WAITING_MAX: usize = 256 << 10;

/// Stores a value that lies in parts.
pub(crate) fn put(
    py: Python<'_>,
    store: &Store,
    key: Key,
    parts: Vec<Source>,
    wishes: &Wishes,
) -> PyResult<impl Call> {
    let config = wishes.onto(py, store.live(py)?.store().put_config())?;
    Ok(ask(move |store| {
        let stored = match &parts[..] {
            [one] => store.put_parts(key.bytes(), &[one.bytes()], &config),
            many => {
                let many: Vec<&[u8]> = many.iter().map(Source::bytes).collect();
                store.put_parts(key.bytes(), &many, &config)
            }
        };
        stored.map(|stored| stored == Stored::New)
    }))
}

/// The same where parts are arrays, on a GPU perhaps.
pub(crate) fn put_arrays(
    py: Python<'_>,
    store: &Store,
    key: Key,
    parts: Vec<Value>,
    stream: Option<&Bound<'_, PyAny>>,
    wishes: &Wishes,
) -> PyResult<impl Call> {
    let config = wishes.onto(py, store.live(py)?.store().put_config())?;
    let parts = parts.into_iter().map(|part| Given::of(py, part, stream));
    let parts: Vec<Given> = parts.collect::<PyResult<_>>()?;
    Ok(ask(move |store| {
        let parts: Vec<Part<'_>> = parts.iter().map(Given::part).collect();
        let mut stored = store.put_mixed(&[(key.bytes(), &parts)], &config);
        stored.pop().expect("one result per item").map(|stored| stored == Stored::New)
    }))
}

/// Reads a value.
pub(crate) struct Get(pub(crate) Key);

impl Call for Get {
    /// The room of the value, and whether there was no memory for it.
    type Done = (Result<Option<Room>, Error>, bool);

    fn near(&mut self, live: &Live) -> Option<Self::Done> {
        let near = live.store().get_near(self.0.bytes(), NEAR_BYTES_MAX, Room::new)?;
        Some((Ok(Some(near)), false))
    }

    fn work(&mut self, live: &Live) -> Self::Done {
        let mut starved = false;
        let found = live.store().get_with(self.0.bytes(), |len| {
            let room = Room::new(len);
            starved |= !room.is_made();
            room
        });
        (found, starved)
    }

    fn finish(self, py: Python<'_>, (found, starved): Self::Done) -> PyResult<Py<PyAny>> {
        match found {
            _ if starved => Err(no_memory()),
            Ok(Some(room)) => room.finish(py).map(Py::into_any),
            Ok(None) => Ok(py.None()),
            Err(error) => Err(exception(py, error)),
        }
    }
}

/// Copies a value.
pub(crate) struct GetInto {
    pub(crate) key: Key,
    pub(crate) target: Target,
}

impl Call for GetInto {
    type Done = Result<Option<usize>, Error>;

    fn near(&mut self, live: &Live) -> Option<Self::Done> {
        let (key, target) = (self.key.bytes(), self.target.bytes());
        Some(Ok(Some(live.store().get_into_near(key, NEAR_BYTES_MAX, target)?)))
    }

    fn work(&mut self, live: &Live) -> Self::Done {
        live.store().get_into(self.key.bytes(), self.target.bytes())
    }

    fn finish(self, py: Python<'_>, done: Self::Done) -> PyResult<Py<PyAny>> {
        done.map_err(|error| exception(py, error))?.into_py_any(py)
    }
}

/// The same into an array, on a GPU perhaps.
pub(crate) fn get_into_array(
    py: Python<'_>,
    key: Key,
    goal: Goal,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Call> {
    let mut target = Reached::of(py, goal, stream)?;
    // The caller's stream waits for the copy in the caller's thread, where the call ends.
    let streams = target.device().map(|device| device.stream().clone());
    let streams: Vec<ForeignStream> = streams.into_iter().collect();
    Ok(call(
        move |live| -> (Result<Option<u64>, Error>, Arriving) {
            let mut items = [(key.bytes(), vec![target.landed()])];
            let (mut found, arriving) = live.store().get_into_mixed(&mut items, false);
            (found.pop().expect("one result per item"), arriving)
        },
        move |py, (found, arriving)| {
            joined(py, arriving, &streams)?;
            found.map_err(|error| exception(py, error))?.into_py_any(py)
        },
    ))
}

/// Copies many values.
pub(crate) fn get_into_batch(
    py: Python<'_>,
    items: Goals,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<impl Call> {
    let items = items.0.into_iter().map(|(key, goal)| Ok((key, Reached::of(py, goal, stream)?)));
    let mut items: Vec<(Key, Reached)> = items.collect::<PyResult<_>>()?;
    let streams = items.iter().filter_map(|(_, target)| Some(target.device()?.stream().clone()));
    let streams: Vec<ForeignStream> = streams.collect();
    let on_host = streams.is_empty();
    Ok(call(
        move |live| -> (Vec<Result<Option<u64>, Error>>, Arriving) {
            if on_host {
                let mut targets: Vec<(&[u8], &mut [u8])> = items
                    .iter_mut()
                    .map(|(key, target)| {
                        (key.bytes(), target.bytes().expect("all are host memory"))
                    })
                    .collect();
                let chunks = targets.chunks_mut(BATCH_ITEMS_MAX);
                let found = chunks.flat_map(|some| live.store().get_into_batch(some));
                let found = found.map(|one| one.map(|len| len.map(|len| len as u64)));
                return (found.collect(), Arriving::default());
            }
            let mut targets: Vec<LandedItem<'_>> = items
                .iter_mut()
                .map(|(key, target)| (key.bytes(), vec![target.landed()]))
                .collect();
            live.store().get_into_mixed(&mut targets, false)
        },
        move |py, (found, arriving)| {
            joined(py, arriving, &streams)?;
            Ok(results(py, found)?.into_any().unbind())
        },
    ))
}

/// Lets the streams of a caller wait for copies that are under way. In the caller's thread.
fn joined(py: Python<'_>, arriving: Arriving, streams: &[ForeignStream]) -> PyResult<()> {
    arriving.join_all(streams).map_err(|error| exception(py, error))
}

/// Reads a part of a value.
pub(crate) fn get_range(key: Key, start: u64, length: usize) -> impl Call {
    let work = move |store: &mooncrate::Store| -> Result<Option<Room>, Error> {
        // Nothing is allocated for a range that the value does not have.
        let Some(have) = store.size(key.bytes())? else { return Ok(None) };
        if start.checked_add(length as u64).is_none_or(|end| end > have) {
            let (bytes, len) = (length as u64, have);
            return Err(mooncrate_client::Error::OutOfRange { start, bytes, len }.into());
        }
        let mut room = Room::new(length);
        if !room.is_made() {
            return Ok(Some(room));
        }
        let found = store.get_range(key.bytes(), start, room.as_mut())?;
        Ok(found.map(|_| room))
    };
    call(
        move |live| work(live.store()),
        |py, found| match found {
            Ok(Some(room)) => room.finish(py).map(Py::into_any),
            Ok(None) => Ok(py.None()),
            Err(error) => Err(exception(py, error)),
        },
    )
}

/// Shows a value in place.
pub(crate) fn view(key: Key) -> impl Call {
    call(
        move |live| {
            let found = live.store().view(key.bytes());
            found.map(|view| view.map(|view| View::new(view, live.clone())))
        },
        |py, found| found.map_err(|error| exception(py, error))?.into_py_any(py),
    )
}

/// Bytes of a value.
pub(crate) struct Size(pub(crate) Key);

impl Call for Size {
    type Done = Result<Option<u64>, Error>;

    fn near(&mut self, live: &Live) -> Option<Self::Done> {
        live.store().lengths_near(&[self.0.bytes()])[0].map(|len| Ok(Some(len)))
    }

    fn work(&mut self, live: &Live) -> Self::Done {
        live.store().size(self.0.bytes())
    }

    fn finish(self, py: Python<'_>, done: Self::Done) -> PyResult<Py<PyAny>> {
        done.map_err(|error| exception(py, error))?.into_py_any(py)
    }
}

/// Whether there is a value.
pub(crate) struct Exists(pub(crate) Key);

impl Call for Exists {
    type Done = Result<bool, Error>;

    fn near(&mut self, live: &Live) -> Option<Self::Done> {
        live.store().exists_near(&[self.0.bytes()])[0].then_some(Ok(true))
    }

    fn work(&mut self, live: &Live) -> Self::Done {
        live.store().exists(self.0.bytes())
    }

    fn finish(self, py: Python<'_>, done: Self::Done) -> PyResult<Py<PyAny>> {
        done.map_err(|error| exception(py, error))?.into_py_any(py)
    }
}

/// Removes a value.
pub(crate) fn remove(key: Key, force: bool) -> impl Call {
    ask(move |store| store.remove(key.bytes(), force))
}

/// Removes the values of keys with a prefix.
pub(crate) fn remove_prefix(prefix: Key, force: bool) -> impl Call {
    ask(move |store| {
        let done = store.remove_prefix(prefix.bytes(), force)?;
        Ok(done.removed + done.deferred)
    })
}

/// Removes the values of keys that an expression finds.
pub(crate) fn remove_regex(regex: String, force: bool) -> impl Call {
    ask(move |store| {
        let done = store.remove_regex(&regex, force)?;
        Ok(done.removed + done.deferred)
    })
}

/// One page of keys, and where the next one starts.
pub(crate) fn page(prefix: Option<Key>, cursor: u64) -> impl Call {
    call(
        move |live| {
            let prefix = prefix.as_ref().map_or(&b""[..], Key::bytes);
            live.store().list(prefix, cursor, PAGE)
        },
        |py, page| {
            let page = page.map_err(|error| exception(py, error))?;
            let keys = page.entries.iter().map(|listed| PyBytes::new(py, listed.key.as_bytes()));
            (PyList::new(py, keys.collect::<Vec<_>>())?, page.next).into_py_any(py)
        },
    )
}

/// The cluster, and this client, in numbers.
pub(crate) fn stats() -> impl Call {
    call(
        |live| {
            let store = live.store();
            Ok((store.stat()?, store.counts(), store.device_counts()))
        },
        |py, found: Result<_, Error>| {
            let (stat, counts, device) = found.map_err(|error| exception(py, error))?;
            Ok(stats::dict(py, &stat, &counts, &device)?.into_any().unbind())
        },
    )
}

/// Stores many values.
pub(crate) fn put_batch(
    py: Python<'_>,
    store: &Store,
    items: Items,
    stream: Option<&Bound<'_, PyAny>>,
    wishes: &Wishes,
) -> PyResult<impl Call> {
    let config = wishes.onto(py, store.live(py)?.store().put_config())?;
    let items = items.0.into_iter().map(|(key, value)| Ok((key, Given::of(py, value, stream)?)));
    let items: Vec<(Key, Given)> = items.collect::<PyResult<_>>()?;
    Ok(call(
        move |live| {
            let bytes = items.iter().map(|(_, value)| Some([value.bytes()?]));
            let keys = items.iter().map(|(key, _)| key.bytes());
            if let Some(values) = bytes.collect::<Option<Vec<[&[u8]; 1]>>>() {
                let parts: Vec<(&[u8], &[&[u8]])> =
                    keys.zip(values.iter().map(|value| &value[..])).collect();
                return put_all(live.store(), &parts, (&config).into());
            }
            let values: Vec<[Part<'_>; 1]> =
                items.iter().map(|(_, value)| [value.part()]).collect();
            let parts: Vec<PartsItem<'_>> =
                keys.zip(values.iter().map(|value| &value[..])).collect();
            let stored = live.store().put_mixed(&parts, &config).into_iter();
            stored.map(|one| one.map(|stored| stored == Stored::New)).collect()
        },
        |py, stored| Ok(results(py, stored)?.into_any().unbind()),
    ))
}

/// Reads many values.
pub(crate) fn get_batch(keys: Keys) -> impl Call {
    call(
        move |live| -> Vec<_> {
            let slices = slices(&keys.0);
            let mut waiting = 0;
            let mut room = |len| {
                waiting += len;
                if waiting > WAITING_MAX { Room::object(len) } else { Room::new(len) }
            };
            let chunks = slices.chunks(BATCH_ITEMS_MAX);
            chunks.flat_map(|some| live.store().get_batch_with(some, &mut room)).collect()
        },
        |py, found| {
            let all = found.into_iter().map(|one| match one {
                Ok(Some(room)) => room.finish(py).map(Py::into_any),
                Ok(None) => Ok(py.None()),
                Err(error) => result::<bool>(py, Err(error)),
            });
            PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)?.into_py_any(py)
        },
    )
}

/// What is answered with yes or no for each of many keys.
type Each = Result<Vec<Result<bool, Error>>, Error>;

/// Looks for many keys.
pub(crate) struct ExistsBatch(pub(crate) Keys);

impl Call for ExistsBatch {
    type Done = Each;

    fn near(&mut self, live: &Live) -> Option<Each> {
        let slices = slices(&self.0.0);
        let near = slices.len() <= NEAR_KEYS_MAX;
        let all = near && !live.store().exists_near(&slices).contains(&false);
        all.then(|| Ok(slices.iter().map(|_| Ok(true)).collect()))
    }

    fn work(&mut self, live: &Live) -> Each {
        in_chunks(&self.0, |some| live.store().exists_batch(some))
    }

    fn finish(self, py: Python<'_>, done: Each) -> PyResult<Py<PyAny>> {
        each(py, done)
    }
}

/// Removes many values.
pub(crate) fn remove_batch(keys: Keys, force: bool) -> impl Call {
    call(move |live| in_chunks(&keys, |some| live.store().remove_batch(some, force)), each)
}

/// Asks for many keys, as many at a time as a call may have.
fn in_chunks(keys: &Keys, one: impl Fn(&[&[u8]]) -> Each) -> Each {
    let slices = slices(&keys.0);
    let found = slices.chunks(BATCH_ITEMS_MAX).map(one).collect::<Result<Vec<_>, _>>()?;
    Ok(found.into_iter().flatten().collect())
}

fn each(py: Python<'_>, done: Each) -> PyResult<Py<PyAny>> {
    let found = done.map_err(|error| exception(py, error))?;
    Ok(results(py, found)?.into_any().unbind())
}
