//! put: reserve, write every replica, signal every replica, make it visible.

use crate::client::Client;
use crate::error::Error;
use crate::get::share;
use crate::stripes::{Lane, PARALLEL_BYTES_MIN, Part, in_parallel, lanes};
use crate::wishes::Wishes;
use mooncrate_core::error::PutError;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, Locator, PutConfig, WritePlan};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{PutToken, Seal, SegmentId};
use mooncrate_lock::interrupt;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Sent, TransferError, Write};
use mooncrate_wire::master_link::frames;
use mooncrate_wire::message::{PutEndItem, PutItem, PutReplan, PutRevokeItem, SealList};
use mooncrate_wire::{CallError, DataError};
use std::borrow::Cow;
use std::time::Duration;

/// Owners that may fail one after the other before a put fails.
const ROUNDS_MAX: usize = 3;

/// Owners that a put leaves out at most: as many as a message takes is more than a cluster loses at once.
const AVOID_MAX: usize = 64;

/// How long the master has, at least, to hear that a put was given up.
const REVOKE_TIME: Duration = Duration::from_millis(100);

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value is stored.
    New,
    /// The key had a value, which stays: published values never change.
    AlreadyThere,
}

/// A value that lies published at its owners.
pub(crate) struct Written {
    pub(crate) index: usize,
    pub(crate) plan: WritePlan,
    pub(crate) seals: Vec<Seal>,
    /// Whether the next get may find it without asking the master.
    pub(crate) remember: bool,
}

/// A put that is under way.
struct Put<'a> {
    index: usize,
    key: &'a [u8],
    value: &'a [&'a [u8]],
    /// Its own wishes: of a batch, each value may have another group.
    config: Cow<'a, PutConfig>,
    plan: WritePlan,
    /// Replicas that are to be written.
    todo: Vec<Locator>,
    /// Segments that failed it, in all its rounds.
    failed: Vec<SegmentId>,
    /// Of its stripes, as far as they are written.
    seals: Vec<Option<Seal>>,
    /// Why it cannot be stored.
    trouble: Option<Error>,
}

impl<'a> Put<'a> {
    fn new(
        index: usize,
        (key, value): (&'a [u8], &'a [&'a [u8]]),
        config: Cow<'a, PutConfig>,
        plan: WritePlan,
    ) -> Self {
        let (todo, seals) = (plan.replicas.clone(), vec![None; plan.striping.stripes()]);
        let (failed, trouble) = (Vec::new(), None);
        Self { index, key, value, config, plan, todo, failed, seals, trouble }
    }
}

/// Whether a put was refused because of the owners that it left out.
fn for_want_of_owners(error: &PutError) -> bool {
    matches!(
        error,
        PutError::NoSegments
            | PutError::NoMedium { .. }
            | PutError::TooFewNodes { .. }
            | PutError::LargerThanAnySegment { .. }
    )
}

impl Client {
    /// Stores a value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Stored, Error> {
        self.put_parts(key, &[value], &self.put_config)
    }

    /// Stores a value that lies in pieces, with wishes of its own. [`Client::put_config`] is a start.
    pub fn put_parts(
        &self,
        key: &[u8],
        value: &[&[u8]],
        config: &PutConfig,
    ) -> Result<Stored, Error> {
        self.put_many(&[(key, value)], config.into()).pop().expect("one result per item")
    }

    /// The wishes of a plain put.
    pub fn put_config(&self) -> &PutConfig {
        &self.put_config
    }

    /// Stores values: one call to start them all, one exchange with each owner, one call to end them all.
    pub(crate) fn put_many(
        &self,
        items: &[(&[u8], &[&[u8]])],
        wishes: Wishes<'_>,
    ) -> Vec<Result<Stored, Error>> {
        let deadline = self.deadline();
        let mut results: Vec<Option<Result<Stored, Error>>> = items.iter().map(|_| None).collect();
        let mut puts: Vec<Put<'_>> = Vec::with_capacity(items.len());
        for (index, plan) in self.start(items, wishes, deadline).into_iter().enumerate() {
            match plan {
                Ok(plan) => puts.push(Put::new(index, items[index], wishes.of(index), plan)),
                Err(Error::Put(PutError::Exists)) => {
                    results[index] = Some(Ok(Stored::AlreadyThere));
                }
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        self.write_all(&mut puts, deadline);
        let (mut ends, mut lost) = (Vec::with_capacity(puts.len()), Vec::new());
        // A put whose caller does not wait for its end is given up, not ended without an answer.
        let interrupted = interrupt::ended();
        for put in puts {
            let Put { index, plan, seals, mut trouble, .. } = put;
            if interrupted {
                let awaited = "the end of a put";
                trouble.get_or_insert(Error::Master(CallError::Interrupted { awaited }));
            }
            if let Some(error) = trouble {
                lost.push(PutRevokeItem { key: items[index].0, token: plan.token });
                results[index] = Some(Err(error));
            } else {
                let seals = seals.into_iter().map(|s| s.expect("every stripe is planned"));
                let remember = wishes.config().expire_ms == 0;
                ends.push(Written { index, plan, seals: seals.collect(), remember });
            }
        }
        self.revoke_all(&lost, deadline);
        self.end(items, ends, &mut results, deadline);
        results.into_iter().map(|result| result.expect("every item was decided")).collect()
    }

    /// Plans puts, where that can be at owners that answer.
    fn start(
        &self,
        items: &[(&[u8], &[&[u8]])],
        wishes: Wishes<'_>,
        deadline: Deadline,
    ) -> Vec<Result<WritePlan, Error>> {
        let asks: Vec<PutItem<'_>> = items
            .iter()
            .enumerate()
            .map(|(at, (key, value))| PutItem {
                key,
                len: value.iter().map(|piece| piece.len() as u64).sum(),
                group: wishes.own(at),
            })
            .collect();
        self.plan(wishes.config(), &asks, deadline)
    }

    /// The same for items as the master takes them.
    pub(crate) fn plan(
        &self,
        config: &PutConfig,
        asks: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Vec<Result<WritePlan, Error>> {
        let wary = self.avoiding(config, &[]);
        let each = frames(asks, |ask| ask.key);
        each.flat_map(|part| self.plan_frame(config, &wary, part, deadline)).collect()
    }

    /// The same for one frame, which fails alone.
    fn plan_frame(
        &self,
        config: &PutConfig,
        wary: &PutConfig,
        asks: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Vec<Result<WritePlan, Error>> {
        let mut plans = match self.master.put_start(wary, asks, deadline) {
            Ok(plans) => plans,
            Err(error) => return spread(error, asks.len()),
        };
        if wary != config {
            // Where there is nobody else, a doubtful owner is better than none.
            let refused = |plan: &Result<_, PutError>| plan.as_ref().is_err_and(for_want_of_owners);
            let again: Vec<usize> = (0..plans.len()).filter(|at| refused(&plans[*at])).collect();
            let asks: Vec<PutItem<'_>> = again.iter().map(|at| asks[*at]).collect();
            if !asks.is_empty()
                && let Ok(fresh) = self.master.put_start(config, &asks, deadline)
            {
                for (at, plan) in again.into_iter().zip(fresh) {
                    plans[at] = plan;
                }
            }
        }
        plans.into_iter().map(|plan| plan.map_err(Error::from)).collect()
    }

    /// Wishes that leave out owners which did not answer lately, and those that failed this very put.
    fn avoiding<'c>(&self, config: &'c PutConfig, failed: &[SegmentId]) -> Cow<'c, PutConfig> {
        let silent = self.owners.avoided();
        if silent.is_empty() && failed.is_empty() {
            return Cow::Borrowed(config);
        }
        // Those that failed this put come first: they must not be cut off.
        let mut avoid = Vec::new();
        for segment in failed.iter().chain(&config.avoid).chain(&silent) {
            if !avoid.contains(segment) && avoid.len() < AVOID_MAX {
                avoid.push(*segment);
            }
        }
        Cow::Owned(PutConfig { avoid, ..config.clone() })
    }

    /// Moves the bytes of all puts to every replica and publishes them there. Replicas whose owners fail
    /// are planned anew, elsewhere. A put that was not written says why.
    fn write_all(&self, puts: &mut [Put<'_>], deadline: Deadline) {
        for rounds_left in (1..=ROUNDS_MAX).rev() {
            // An owner that stands still must leave time to ask another one; one that moves has it all.
            let silence_max = share(deadline, rounds_left).left(boottime());
            let mut failed = self.write_round(puts, silence_max, deadline);
            failed.sort_by_key(|(put, _, _)| *put);
            for group in failed.chunk_by_mut(|a, b| a.0 == b.0) {
                let put = &mut puts[group[0].0];
                let segments: Vec<SegmentId> = group.iter().map(|(_, at, _)| at.segment).collect();
                // The word of the owner rather than that its turn did not come.
                let told = |error: &TransferError| !matches!(error, TransferError::NotTried);
                let at = group.iter().position(|(_, _, error)| told(error)).unwrap_or(0);
                let error = std::mem::replace(&mut group[at].2, TransferError::NotTried);
                put.todo.clear();
                let again = rounds_left > 1 && put.trouble.is_none();
                if !again || !self.replan(put, segments, deadline) {
                    put.trouble.get_or_insert(error.into());
                }
            }
            if puts.iter().all(|put| put.todo.is_empty()) {
                return;
            }
        }
    }

    /// Gives up the replicas of a put in these segments and plans others; whether that worked.
    fn replan(&self, put: &mut Put<'_>, failed: Vec<SegmentId>, deadline: Deadline) -> bool {
        let Put { key, config, plan, todo, failed: before, .. } = put;
        before.extend(&failed);
        let config = self.avoiding(config, before);
        plan.replicas.retain(|locator| !failed.contains(&locator.segment));
        let ask = PutReplan { config, key, token: plan.token, failed };
        let Ok(Ok(fresh)) = self.master.put_replan(&ask, deadline) else { return false };
        *todo = fresh.replicas;
        plan.replicas.extend(&*todo);
        plan.replicas.sort_by_key(|locator| locator.stripe);
        true
    }

    /// Writes what is to be written of all puts, side by side to its owners; what failed.
    fn write_round(
        &self,
        puts: &mut [Put<'_>],
        silence_max: Duration,
        deadline: Deadline,
    ) -> Vec<(usize, Locator, TransferError)> {
        let jobs: Vec<(usize, Locator)> = puts
            .iter_mut()
            .enumerate()
            .flat_map(|(at, put)| std::mem::take(&mut put.todo).into_iter().map(move |l| (at, l)))
            .collect();
        let parts: Vec<Part<'_>> = jobs
            .iter()
            .map(|(at, locator)| {
                let Put { key, value, config, plan, .. } = &puts[*at];
                Part::new(self.config.tenant, key, value, plan, config, locator.stripe)
            })
            .collect();
        let writes: Vec<(usize, Write<'_>)> = jobs
            .iter()
            .zip(&parts)
            .enumerate()
            .map(|(job, ((at, locator), part))| (job, part.write(&puts[*at].plan, *locator)))
            .collect();
        let lanes = lanes(writes, self.config.parallel_max);
        let written = self.write_lanes(&lanes, silence_max, deadline);
        let mut failed = Vec::new();
        for (job, written) in written {
            let (at, locator) = jobs[job];
            let put = &mut puts[at];
            match written {
                Ok(seal) => {
                    let known = put.seals[usize::from(locator.stripe)].get_or_insert(seal);
                    if *known != seal {
                        // The caller changed its bytes while they were being copied.
                        put.trouble = Some(TransferError::from(DataError::Corrupt).into());
                    }
                }
                Err(error) => {
                    if !error.is_silent() {
                        self.engine.forget(locator.segment);
                    }
                    failed.push((at, locator, error));
                }
            }
        }
        failed
    }

    /// One exchange per lane. Large ones have a thread each; small ones are all sent before the first answer
    /// is waited for.
    fn write_lanes(
        &self,
        lanes: &[Lane<'_>],
        silence_max: Duration,
        deadline: Deadline,
    ) -> Vec<(usize, Result<Seal, TransferError>)> {
        let bytes: u64 = lanes.iter().map(Lane::bytes).sum();
        let way = |lane: &Lane<'_>| self.engine.hasty(lane.owner(), silence_max, deadline);
        let finished = if lanes.len() > 1 && bytes >= PARALLEL_BYTES_MIN {
            let threads = self.config.parallel_max.max(2);
            in_parallel(lanes, threads, |lane| {
                let transport = way(lane)?;
                Ok(transport.send(&lane.writes, deadline).finish(deadline))
            })
        } else {
            let ways: Vec<_> = lanes.iter().map(way).collect();
            let sent: Vec<Result<_, TransferError>> = lanes
                .iter()
                .zip(&ways)
                .map(|(lane, way)| match way {
                    Ok(transport) => Ok(transport.send(&lane.writes, deadline)),
                    Err(_) => Err(TransferError::NotTried),
                })
                .collect();
            let finished = finish_all(sent, deadline);
            // The word on a way that was not found is its own, not that nothing was sent over it.
            let ways = ways.into_iter().map(Result::err);
            finished.into_iter().zip(ways).map(|(done, way)| way.map_or(done, Err)).collect()
        };
        let mut results = Vec::new();
        for (lane, finished) in lanes.iter().zip(finished) {
            let finished = finished.unwrap_or_else(|error| {
                let rest = lane.writes[1..].iter().map(|_| Err(TransferError::NotTried));
                std::iter::once(Err(error)).chain(rest).collect()
            });
            let errors = finished.iter().filter_map(|one| one.as_ref().err());
            let silence = errors.clone().find(|error| error.silence().is_some());
            self.owners.note(lane.owner(), silence.or(errors.clone().next()));
            results.extend(lane.jobs.iter().copied().zip(finished));
        }
        results
    }

    /// Makes written values visible, all in one call.
    pub(crate) fn end(
        &self,
        items: &[(&[u8], &[&[u8]])],
        ends: Vec<Written>,
        results: &mut [Option<Result<Stored, Error>>],
        deadline: Deadline,
    ) {
        if ends.is_empty() {
            return;
        }
        let seals: Vec<Vec<u8>> = ends.iter().map(|one| SealList::encode(&one.seals)).collect();
        let asks: Vec<PutEndItem<'_>> = ends
            .iter()
            .zip(&seals)
            .map(|(one, seals)| PutEndItem {
                key: items[one.index].0,
                token: one.plan.token,
                seals: SealList::of(seals),
            })
            .collect();
        let end = |part: &[PutEndItem<'_>]| match self.master.put_end(part, deadline) {
            Ok(ended) => ended.into_iter().map(|one| one.map_err(Error::from)).collect(),
            Err(error) => {
                if matches!(error, CallError::Interrupted { .. }) {
                    // Whichever comes first at the master, the end or this, is what counts.
                    let lost: Vec<_> = part
                        .iter()
                        .map(|ask| PutRevokeItem { key: ask.key, token: ask.token })
                        .collect();
                    self.revoke_all(&lost, deadline);
                }
                spread(error, part.len())
            }
        };
        // Values of a frame that was answered are stored, whatever becomes of the others.
        let ended: Vec<Result<(), Error>> = frames(&asks, |ask| ask.key).flat_map(end).collect();
        for (Written { index, plan, seals, remember }, ended) in ends.into_iter().zip(ended) {
            let key = items[index].0;
            results[index] = Some(ended.map(|()| {
                let WritePlan { object, striping, replicas, .. } = plan;
                let counters = self.counters.at(object.sequence);
                counters.puts.one();
                counters.bytes_written.add(striping.len);
                // We wrote these bytes and know where they are: the next get asks nobody. Unless the
                // master must see the first get.
                if remember {
                    let (seal, more_seals) = (seals[0], seals[1..].to_vec());
                    let lease_ms = 0;
                    let located =
                        Located { object, striping, seal, more_seals, lease_ms, replicas };
                    self.remember(key::hash(key), key, located, Now(0), deadline);
                }
                Stored::New
            }));
        }
    }

    /// Gives a failed put back.
    pub(crate) fn revoke(&self, key: &[u8], token: PutToken, deadline: Deadline) {
        self.revoke_all(&[PutRevokeItem { key, token }], deadline);
    }

    /// Gives failed puts back. If the master cannot be reached, its watchdog does. A caller that is, or was,
    /// interrupted waits a moment for it: revoking twice is harmless. So does one whose time is over: most puts fail
    /// by that, and their room would be taken until the watchdog looks.
    pub(crate) fn revoke_all(&self, lost: &[PutRevokeItem<'_>], deadline: Deadline) {
        if lost.is_empty() {
            return;
        }
        let mut moment = None;
        let deadline = deadline.max(boottime().deadline_in(REVOKE_TIME));
        for part in frames(lost, |one| one.key) {
            if !interrupt::ended() {
                let answer = self.master.put_revoke(part, deadline);
                if !matches!(answer, Err(CallError::Interrupted { .. })) {
                    continue;
                }
            }
            let soon = *moment.get_or_insert_with(|| boottime().deadline_in(interrupt::SLICE));
            let _ = interrupt::finally(|| self.master.put_revoke(part, deadline.min(soon)));
        }
    }
}

/// Takes the word of all owners, in their order. What waits for a link comes last, when all links that this
/// call holds are given back.
fn finish_all<'a>(
    sent: Vec<Result<Box<dyn Sent + 'a>, TransferError>>,
    deadline: Deadline,
) -> Vec<Result<Vec<Result<Seal, TransferError>>, TransferError>> {
    let mut sent: Vec<Option<Result<Box<dyn Sent + 'a>, TransferError>>> =
        sent.into_iter().map(Some).collect();
    let mut finished: Vec<_> = sent.iter().map(|_| None).collect();
    for waits in [false, true] {
        for (sent, finished) in sent.iter_mut().zip(&mut finished) {
            let now = |one: &mut Result<Box<dyn Sent + 'a>, _>| {
                waits || one.as_ref().is_ok_and(|one| one.has_begun())
            };
            if let Some(one) = sent.take_if(now) {
                *finished = Some(one.map(|one| one.finish(deadline)));
            }
        }
    }
    finished.into_iter().map(|one| one.expect("the second turn takes all")).collect()
}

/// One error for many items: the first gets it as it is, the others in words.
pub(crate) fn spread<T>(error: mooncrate_wire::CallError, items: usize) -> Vec<Result<T, Error>> {
    let refusal = error.refusal();
    let mut all: Vec<Result<T, Error>> = vec![Err(Error::Master(error))];
    all.extend((1..items).map(|_| Err(Error::Master(refusal.clone().into()))));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Values at one owner, which notes when it is finished.
    struct Noted<'a> {
        number: u64,
        has_begun: bool,
        finished: &'a RefCell<Vec<u64>>,
    }

    impl Sent for Noted<'_> {
        fn has_begun(&self) -> bool {
            self.has_begun
        }

        fn finish(self: Box<Self>, _: Deadline) -> Vec<Result<Seal, TransferError>> {
            self.finished.borrow_mut().push(self.number);
            vec![Ok(Seal(self.number))]
        }
    }

    /// Whoever waits for a link holds none: lanes that have theirs are finished first, whatever their places.
    #[test]
    fn lanes_without_a_link_are_finished_last() {
        let order = RefCell::new(Vec::new());
        let lane = |(number, has_begun)| {
            let sent: Box<dyn Sent> = Box::new(Noted { number, has_begun, finished: &order });
            if number == 9 { Err(TransferError::NoRoute) } else { Ok(sent) }
        };
        let sent = [(0, false), (1, true), (9, true), (2, false), (3, true)].map(lane);
        let finished = finish_all(sent.into(), boottime().deadline_in(Duration::ZERO));
        assert_eq!(*order.borrow(), [1, 3, 0, 2]);
        let seal = |lane: &Result<Vec<_>, _>| {
            lane.as_ref().ok().map(|all: &Vec<Result<Seal, TransferError>>| match all[..] {
                [Ok(seal)] => seal.0,
                _ => panic!("one value, and it went well"),
            })
        };
        let seals: Vec<Option<u64>> = finished.iter().map(seal).collect();
        assert_eq!(seals, [Some(0), Some(1), None, Some(2), Some(3)]);
    }
}
