//! `Sessions`: the sessions of one store, which a caller by address knows by the keys of their values.
//!
//! A call takes many keys: all that it says is converted here, at one crossing into native code and one back, as in
//! [`crate::raw_flat`]. The master is asked once for all keys of a call.
//!
//! What must stay true: the locks of the tables are taken with the GIL in hand, and nothing is waited for or dropped
//! under them. A put session that has left its table is over, but for what other threads do with it at that moment:
//! so nothing is asked of a master where an object is dropped with the GIL in hand. What a forked child inherits is
//! neither used nor dropped.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::batch::Keys;
use crate::buffer::slices;
use crate::error::{exception, forked, invalid};
use crate::fork::Own;
use crate::probe::Use;
use crate::raw::{Piece, Refused};
use crate::raw_flat::{Failed, Number, Row, fail, memory};
use crate::raw_ranges::Ranges;
use crate::raw_wishes::RawWishes;
use crate::store::Store;
use crate::wait::{in_deallocator, interrupted, look_at_handler};
use mooncrate::{
    Error, GetSession, Opened, PutSession, RangeInto, SessionError, SessionParts, Wishes,
};
use mooncrate_client::Error as ClientError;
use mooncrate_core::limits::LEASE_MS_MAX;
use mooncrate_lock::{Mutex, interrupt};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Places in values start below this.
const START_MAX: usize = 1 << 63;

type Table<T> = Mutex<BTreeMap<Vec<u8>, Arc<T>>>;

/// One number per key, and what failed.
type Codes<'py> = (Bound<'py, PyList>, Failed<'py>);

/// The sessions of a store.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct Sessions {
    store: Py<Store>,
    tables: Own<Tables>,
    /// A call was interrupted: whoever did that does not wait when the sessions are dropped either.
    interrupted: AtomicBool,
}

#[derive(Default)]
struct Tables {
    puts: Table<PutSession>,
    gets: Table<GetSession>,
}

/// What became of one key.
enum Outcome {
    Code(i64),
    Failed(Error),
    Refused(Refused),
}

/// The bytes that a call moves for one key: their places in the value, and in memory.
type Parts = Vec<(u64, Piece)>;

#[pymethods]
impl Sessions {
    #[new]
    fn new(store: Py<Store>) -> Self {
        let (tables, interrupted) = (Own::new(Tables::default()), AtomicBool::new(false));
        Self { store, tables, interrupted }
    }

    /// Looks values up, to read parts of them: 0, or one of the two codes for a key without a value and for one that
    /// is being written; and the errors by place.
    fn start_gets<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        codes: (i64, i64),
    ) -> PyResult<Codes<'py>> {
        let (missing, writing) = codes;
        let tables = self.tables(py)?;
        let slices = slices(&keys.0);
        let lease = Duration::from_millis(LEASE_MS_MAX.into());
        let opened =
            self.store.get().detached(py, |live| live.store().get_sessions(&slices, lease))?;
        let mut before = Vec::new();
        let mut outcomes = Vec::with_capacity(slices.len());
        for (key, opened) in slices.iter().zip(opened) {
            outcomes.push(match opened {
                Ok(Opened::Session(session)) => {
                    before.extend(tables.gets.lock().insert(key.to_vec(), Arc::new(session)));
                    Outcome::Code(0)
                }
                Ok(Opened::Writing) => Outcome::Code(writing),
                Ok(Opened::Missing) => Outcome::Code(missing),
                Err(error) => Outcome::Failed(error),
            });
        }
        py.detach(|| drop(before));
        told(py, outcomes, missing)
    }

    /// Copies parts of values to addresses: the bytes of each key, or `senseless` where there is no session, or
    /// where the numbers make no sense; and the errors by place. A session whose lease is over is gone.
    #[expect(clippy::too_many_arguments, reason = "a list per column of the call")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Vec<Row>,
        sizes: Vec<Row>,
        starts: Vec<Row>,
        ranges: PyRef<'py, Ranges>,
        senseless: i64,
    ) -> PyResult<Codes<'py>> {
        let tables = self.tables(py)?;
        let jobs =
            jobs(py, &keys, &tables.gets, (&addresses, &sizes, &starts), (&ranges, Use::Write))?;
        let done = self.interruptible(py, || read_all(&jobs))?;
        let mut done = done.into_iter();
        let mut outcomes = Vec::with_capacity(jobs.len());
        for (key, job) in keys.0.iter().zip(&jobs) {
            let Some(job) = job else {
                outcomes.push(Outcome::Code(senseless));
                continue;
            };
            let outcome = done.next().expect("one outcome per job");
            if matches!(&outcome, Outcome::Failed(error) if session_error(error) == Some(SessionError::LeaseOver))
            {
                // Not one that was started meanwhile.
                let mut gets = tables.gets.lock();
                if gets.get(key.bytes()).is_some_and(|now| Arc::ptr_eq(now, &job.session)) {
                    gets.remove(key.bytes());
                }
            }
            outcomes.push(outcome);
        }
        told(py, outcomes, senseless)
    }

    /// Ends sessions; those that there are not are ended already.
    fn end_gets(&self, py: Python<'_>, keys: Keys) -> PyResult<()> {
        let tables = self.tables(py)?;
        let ended: Vec<_> = {
            let mut gets = tables.gets.lock();
            keys.0.iter().map(|key| gets.remove(key.bytes())).collect()
        };
        py.detach(|| drop(ended));
        Ok(())
    }

    /// Reserves room for values that come in parts: 0, or `senseless` for a key that has a session and for a size
    /// that is none; and the errors by place.
    fn start_puts<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        sizes: Vec<Number>,
        wishes: RawWishes,
        senseless: i64,
    ) -> PyResult<Codes<'py>> {
        let tables = self.tables(py)?;
        if sizes.len() != keys.0.len() {
            return Err(invalid(py, "as many sizes as keys are needed"));
        }
        let store = self.store.get();
        let asked = wishes.onto(py, store.live(py)?.store().put_config(), keys.0.len())?;
        // Of a key that is named twice the second is refused by the master: another put of it is under way.
        let good: Vec<(usize, (&[u8], u64))> = {
            let puts = tables.puts.lock();
            let each = keys.0.iter().zip(&sizes).enumerate();
            each.filter_map(|(at, (key, size))| {
                let (key, size) = (key.bytes(), size.0.filter(|size| *size > 0)?);
                (!puts.contains_key(key)).then_some((at, (key, size as u64)))
            })
            .collect()
        };
        let groups = asked.all().pick(good.iter().map(|(at, _)| *at));
        let items: Vec<(&[u8], u64)> = good.iter().map(|(_, item)| *item).collect();
        let wishes = Wishes::grouped(asked.all().config(), &groups);
        // Of an interrupted call no session is left.
        let opened = store.detached(py, |live| live.store().put_sessions(&items, wishes))?;
        let mut outcomes: Vec<Outcome> = keys.0.iter().map(|_| Outcome::Code(senseless)).collect();
        let mut beaten = Vec::new();
        for ((at, (key, _)), opened) in good.into_iter().zip(opened) {
            let session = match opened {
                Ok(session) => Arc::new(session),
                Err(error) => {
                    outcomes[at] = Outcome::Failed(error);
                    continue;
                }
            };
            let mut puts = tables.puts.lock();
            let kept = puts.entry(key.to_vec()).or_insert_with(|| Arc::clone(&session));
            if Arc::ptr_eq(kept, &session) {
                outcomes[at] = Outcome::Code(0);
            } else {
                // Another thread has started the same key, and its put has timed out at the master meanwhile.
                beaten.push(session);
            }
        }
        py.detach(|| drop(beaten));
        told(py, outcomes, senseless)
    }

    /// Writes parts of values that lie at addresses: the bytes of each key, or `senseless`, as for `read`; and the
    /// errors by place.
    #[expect(clippy::too_many_arguments, reason = "a list per column of the call")]
    fn write<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Vec<Row>,
        sizes: Vec<Row>,
        starts: Vec<Row>,
        ranges: PyRef<'py, Ranges>,
        senseless: i64,
    ) -> PyResult<Codes<'py>> {
        let tables = self.tables(py)?;
        let jobs =
            jobs(py, &keys, &tables.puts, (&addresses, &sizes, &starts), (&ranges, Use::Read))?;
        let done = self.interruptible(py, || write_all(&jobs))?;
        let mut done = done.into_iter();
        let outcome = |job: &Option<Job<PutSession>>| match job {
            Some(_) => done.next().expect("one outcome per job"),
            None => Outcome::Code(senseless),
        };
        let outcomes = jobs.iter().map(outcome).collect();
        told(py, outcomes, senseless)
    }

    /// Makes written values visible, after writes that are on their way: 0 each, or `senseless` where there is no
    /// session; and the errors by place. A session with a gap goes on; every other one is over.
    fn end_puts<'py>(&self, py: Python<'py>, keys: Keys, senseless: i64) -> PyResult<Codes<'py>> {
        self.finish(py, &keys, senseless, |sessions| {
            let ended = PutSession::end_all(sessions);
            let is_over = |one: &Result<(), Error>| !one.as_ref().is_err_and(is_gap);
            let over = sessions.iter().zip(&ended).filter(|(_, one)| is_over(one));
            // One that was broken before is given up; the others are over already.
            PutSession::revoke_all(&over.map(|(session, _)| *session).collect::<Vec<_>>());
            ended
        })
    }

    /// Gives values up: nothing of them is left. 0 each, or `senseless` where there is no session.
    fn revoke_puts<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        senseless: i64,
    ) -> PyResult<Codes<'py>> {
        self.finish(py, &keys, senseless, |sessions| {
            PutSession::revoke_all(sessions).into_iter().map(|_| Ok(())).collect()
        })
    }

    /// Gives up all that is being written and lets go of all that is being read.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let tables = self.tables(py)?;
        look_at_handler(py)?;
        let puts = std::mem::take(&mut *tables.puts.lock());
        let gets = std::mem::take(&mut *tables.gets.lock());
        let revoked = self.interruptible(py, || revoke_all(&puts));
        py.detach(|| drop((puts, gets)));
        revoked
    }
}

impl Sessions {
    fn tables(&self, py: Python<'_>) -> PyResult<&Tables> {
        self.tables.get().ok_or_else(|| forked(py))
    }

    /// Does something that may wait for peers, with locks of sessions in its hands.
    fn interruptible<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> T + Send,
    ) -> PyResult<T> {
        look_at_handler(py)?;
        let (done, raised) = interrupted(py, work)?;
        match raised {
            None => Ok(done),
            Some(raised) => {
                // Relaxed: a hint, for whoever drops the sessions.
                self.interrupted.store(true, Ordering::Relaxed);
                py.detach(|| drop(done));
                Err(raised)
            }
        }
    }

    /// Takes sessions out of their table and ends them; a gap puts them back.
    fn finish<'py>(
        &self,
        py: Python<'py>,
        keys: &Keys,
        senseless: i64,
        work: impl FnOnce(&[&PutSession]) -> Vec<Result<(), Error>> + Send,
    ) -> PyResult<Codes<'py>> {
        let tables = self.tables(py)?;
        // Before anything is taken: it may raise.
        look_at_handler(py)?;
        let taken: Vec<Option<Arc<PutSession>>> = {
            let mut puts = tables.puts.lock();
            keys.0.iter().map(|key| puts.remove(key.bytes())).collect()
        };
        let sessions: Vec<&PutSession> = taken.iter().flatten().map(|one| &**one).collect();
        let (done, raised) = interrupted(py, || work(&sessions))?;
        let mut done = done.into_iter();
        let (mut outcomes, mut replaced) = (Vec::with_capacity(taken.len()), Vec::new());
        for (key, session) in keys.0.iter().zip(taken) {
            let Some(session) = session else {
                outcomes.push(Outcome::Code(senseless));
                continue;
            };
            outcomes.push(match done.next().expect("one result per session") {
                Ok(()) => Outcome::Code(0),
                Err(error) => {
                    if is_gap(&error) {
                        match tables.puts.lock().entry(key.bytes().to_vec()) {
                            Entry::Vacant(place) => drop(place.insert(session)),
                            Entry::Occupied(_) => replaced.push(session),
                        }
                    }
                    Outcome::Failed(error)
                }
            });
        }
        // The end of a session asks the master.
        py.detach(|| drop(replaced));
        if let Some(raised) = raised {
            self.interrupted.store(true, Ordering::Relaxed);
            return Err(raised);
        }
        told(py, outcomes, senseless)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        let Some(tables) = self.tables.take() else { return };
        let Tables { puts, gets } = tables;
        let (puts, gets) = (puts.into_inner(), gets.into_inner());
        let interrupted = self.interrupted.load(Ordering::Relaxed);
        // Without an interpreter that takes us there is no GIL to give back either.
        Python::try_attach(|py| {
            in_deallocator(py, || {
                if interrupted {
                    // Whoever pressed Ctrl-C does not wait for a master that does not answer.
                    interrupt::under(
                        |_| true,
                        || {
                            interrupt::ask();
                            revoke_all(&puts);
                        },
                    );
                } else {
                    revoke_all(&puts);
                }
                drop((puts, gets));
            });
        });
    }
}

fn revoke_all(puts: &BTreeMap<Vec<u8>, Arc<PutSession>>) {
    PutSession::revoke_all(&puts.values().map(|one| &**one).collect::<Vec<_>>());
}

/// What a call does with one session.
struct Job<S> {
    session: Arc<S>,
    parts: Parts,
    /// All of its memory was looked at before.
    known: bool,
}

/// The columns of a call: addresses, sizes and places in values, by key.
type Columns<'a> = (&'a [Row], &'a [Row], &'a [Row]);

/// What is to be done for each key; `None`: it has no session, or its numbers make no sense.
fn jobs<S>(
    py: Python<'_>,
    keys: &Keys,
    table: &Table<S>,
    (addresses, sizes, starts): Columns<'_>,
    (ranges, wanted): (&Ranges, Use),
) -> PyResult<Vec<Option<Job<S>>>> {
    let count = keys.0.len();
    if [addresses.len(), sizes.len(), starts.len()] != [count; 3] {
        let words = "as many lists of addresses, sizes and offsets as keys are needed";
        return Err(invalid(py, words));
    }
    let table = table.lock();
    let each = keys.0.iter().enumerate().map(|(at, key)| {
        let parts = parts(&addresses[at].0, &sizes[at].0, &starts[at].0)?;
        let session = Arc::clone(table.get(key.bytes())?);
        let write = matches!(wanted, Use::Write);
        let is_known = |(_, piece): &(u64, Piece)| ranges.knows(piece.address, piece.size, write);
        let known = parts.iter().all(is_known);
        Some(Job { session, parts, known })
    });
    Ok(each.collect())
}

fn parts(addresses: &[Number], sizes: &[Number], starts: &[Number]) -> Option<Parts> {
    if addresses.len() != sizes.len() || addresses.len() != starts.len() {
        return None;
    }
    let each = addresses.iter().zip(sizes).zip(starts).map(|((address, size), start)| {
        let start = start.0.filter(|start| *start < START_MAX)? as u64;
        let nothing = Piece { address: 0, size: 0, gpu: None };
        Some((start, if size.0 == Some(0) { nothing } else { memory(address, size)? }))
    });
    each.collect()
}

impl<S> Job<S> {
    fn look(&self, wanted: Use) -> Result<(), Refused> {
        if self.known {
            return Ok(());
        }
        self.parts.iter().try_for_each(|(_, piece)| piece.look_all(wanted))
    }
}

fn write_all(jobs: &[Option<Job<PutSession>>]) -> Vec<Outcome> {
    let jobs: Vec<&Job<PutSession>> = jobs.iter().flatten().collect();
    let looked: Vec<Result<(), Refused>> = jobs.iter().map(|job| job.look(Use::Read)).collect();
    let good = jobs.iter().zip(&looked).filter(|(_, looked)| looked.is_ok());
    let good: Vec<&Job<PutSession>> = good.map(|(job, _)| *job).collect();
    let bytes = |(start, piece): &(u64, Piece)| (*start, piece.bytes());
    let parts: Vec<Vec<(u64, &[u8])>> =
        good.iter().map(|job| job.parts.iter().map(bytes).collect()).collect();
    let items: Vec<SessionParts<'_, PutSession>> =
        good.iter().zip(&parts).map(|(job, parts)| (&*job.session, &parts[..])).collect();
    let mut written = PutSession::write_all(&items).into_iter().zip(&items);
    let outcome = |looked: Result<(), Refused>| {
        if let Err(refused) = looked {
            return Outcome::Refused(refused);
        }
        let (written, (_, parts)) = written.next().expect("one result per session");
        match written {
            Ok(()) => {
                let bytes: usize = parts.iter().map(|(_, part)| part.len()).sum();
                Outcome::Code(i64::try_from(bytes).unwrap_or(i64::MAX))
            }
            Err(error) => Outcome::Failed(error),
        }
    };
    looked.into_iter().map(outcome).collect()
}

fn read_all(jobs: &[Option<Job<GetSession>>]) -> Vec<Outcome> {
    let jobs: Vec<&Job<GetSession>> = jobs.iter().flatten().collect();
    let looked: Vec<Result<(), Refused>> = jobs.iter().map(|job| job.look(Use::Write)).collect();
    let good = jobs.iter().zip(&looked).filter(|(_, looked)| looked.is_ok());
    let mut ranges: Vec<(&GetSession, Vec<RangeInto<'_>>)> = good
        .map(|(job, _)| {
            let into = |(start, piece): &(u64, Piece)| RangeInto {
                start: *start,
                into: piece.bytes_mut(),
            };
            (&*job.session, job.parts.iter().map(into).collect())
        })
        .collect();
    let mut items: Vec<(&GetSession, &mut [RangeInto<'_>])> =
        ranges.iter_mut().map(|(session, ranges)| (*session, &mut ranges[..])).collect();
    let mut read = GetSession::read_all(&mut items).into_iter();
    let outcome = |looked: Result<(), Refused>| {
        if let Err(refused) = looked {
            return Outcome::Refused(refused);
        }
        let read = read.next().expect("one result per session");
        match read.and_then(|ranges| ranges.into_iter().sum::<Result<usize, Error>>()) {
            Ok(bytes) => Outcome::Code(i64::try_from(bytes).unwrap_or(i64::MAX)),
            Err(error) => Outcome::Failed(error),
        }
    };
    looked.into_iter().map(outcome).collect()
}

fn session_error(error: &Error) -> Option<SessionError> {
    match error {
        Error::Client(ClientError::Session(error)) => Some(*error),
        _ => None,
    }
}

fn is_gap(error: &Error) -> bool {
    matches!(session_error(error), Some(SessionError::Gap { .. }))
}

/// Numbers for Python, and exceptions for what failed, which stands as `other` among the numbers.
fn told(py: Python<'_>, outcomes: Vec<Outcome>, other: i64) -> PyResult<Codes<'_>> {
    let mut failed = None;
    let mut codes = Vec::with_capacity(outcomes.len());
    for (at, outcome) in outcomes.into_iter().enumerate() {
        let error = match outcome {
            Outcome::Code(code) => {
                codes.push(code);
                continue;
            }
            Outcome::Failed(error) => exception(py, error),
            Outcome::Refused(refused) => refused.exception(py),
        };
        codes.push(other);
        fail(py, &mut failed, at, error)?;
    }
    Ok((PyList::new(py, codes)?, failed))
}
