//! What can be asked of a store, each as a [`Call`]; the two classes only say when it runs.

use crate::batch::{Items, Keys, put_all, result, results};
use crate::buffer::{Key, Room, Source, Target, no_memory, slices};
use crate::call::{Call, ask, call};
use crate::error::exception;
use crate::options::Wishes;
use crate::stats;
use crate::store::Store;
use crate::view::View;
use mooncrate::{Error, Stored};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
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

/// Reads a value.
pub(crate) fn get(key: Key) -> impl Call {
    call(
        move |live| {
            let mut starved = false;
            let found = live.store().get_with(key.bytes(), |len| {
                let room = Room::new(len);
                starved |= !room.is_made();
                room
            });
            (found, starved)
        },
        |py, (found, starved)| match found {
            _ if starved => Err(no_memory()),
            Ok(Some(room)) => room.finish(py).map(Py::into_any),
            Ok(None) => Ok(py.None()),
            Err(error) => Err(exception(py, error)),
        },
    )
}

/// Copies a value.
pub(crate) fn get_into(key: Key, mut target: Target) -> impl Call {
    ask(move |store| store.get_into(key.bytes(), target.bytes()))
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
pub(crate) fn size(key: Key) -> impl Call {
    ask(move |store| store.size(key.bytes()))
}

/// Whether there is a value.
pub(crate) fn exists(key: Key) -> impl Call {
    ask(move |store| store.exists(key.bytes()))
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
        |live| Ok((live.store().stat()?, live.store().counts())),
        |py, found: Result<_, Error>| {
            let (stat, counts) = found.map_err(|error| exception(py, error))?;
            Ok(stats::dict(py, &stat, &counts)?.into_any().unbind())
        },
    )
}

/// Stores many values.
pub(crate) fn put_batch(
    py: Python<'_>,
    store: &Store,
    items: Items,
    wishes: &Wishes,
) -> PyResult<impl Call> {
    let config = wishes.onto(py, store.live(py)?.store().put_config())?;
    Ok(call(
        move |live| {
            let values: Vec<[&[u8]; 1]> =
                items.0.iter().map(|(_, value)| [value.bytes()]).collect();
            let keys = items.0.iter().map(|(key, _)| key.bytes());
            let parts: Vec<(&[u8], &[&[u8]])> =
                keys.zip(values.iter().map(|value| &value[..])).collect();
            put_all(live.store(), &parts, &config)
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

/// Looks for many keys.
pub(crate) fn exists_batch(keys: Keys) -> impl Call {
    in_chunks(keys, mooncrate::Store::exists_batch)
}

/// Removes many values.
pub(crate) fn remove_batch(keys: Keys, force: bool) -> impl Call {
    in_chunks(keys, move |store, some| store.remove_batch(some, force))
}

/// A call for many keys whose answers are yes or no, as many at a time as a call may have.
fn in_chunks(
    keys: Keys,
    one: impl Fn(&mooncrate::Store, &[&[u8]]) -> Result<Vec<Result<bool, Error>>, Error>
    + Send
    + 'static,
) -> impl Call {
    call(
        move |live| {
            let slices = slices(&keys.0);
            let chunks = slices.chunks(BATCH_ITEMS_MAX).map(|some| one(live.store(), some));
            chunks.collect::<Result<Vec<_>, _>>()
        },
        |py, found| {
            let found = found.map_err(|error| exception(py, error))?;
            Ok(results(py, found.into_iter().flatten().collect())?.into_any().unbind())
        },
    )
}
