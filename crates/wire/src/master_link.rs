//! A master at the other end of pools of links. Batches that are larger than a frame allows are
//! split here, and keys that cannot be keys are answered here, so that a caller may ask for
//! anything and gets one result per item, at its own index (G11).

use crate::api::{Batch, MasterApi};
use crate::clock::boottime;
use crate::error::{CallError, DecodeError};
use crate::frame::BODY_BYTES_MAX;
use crate::guard::Guard;
use crate::host::this_machine;
use crate::masters::MasterPools;
use crate::message::{
    Announce, ClusterStat, Command, CopyKey, Drain, DropCopy, Evict, Exist, Heartbeat, List,
    Listing, Locate, Look, MarksHeard, Mount, Mounted, NodeEntry, Nodes, OrderBatch, Orders, Ping,
    Pulse, PutEnd, PutEndItem, PutItem, PutReplan, PutRevoke, PutRevokeItem, PutStart, Remove,
    RemoveMatching, Removed, Reply, Request, SetQuota, Stat, Unmount,
};
use crate::pool::LinkPool;
use crate::reports::Reports;
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::ids::LeaderEpoch;
use mooncrate_core::key::{self, KeyError};
use mooncrate_core::limits::{BATCH_ITEMS_MAX, KEY_BYTES_MAX, LABEL_BYTES_MAX};
use mooncrate_core::plan::{Announced, Located, Looked, PutConfig, ReadMark, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_lock::interrupt;
use std::borrow::Cow;
use std::time::Duration;

/// What the fields around the items of a batch may take; the items share the rest of the body.
const AROUND_BYTES: usize = 64 << 10;
/// What an item may take besides its key.
const ITEM_BYTES: usize = 64;

/// Between two looks at keys that the master has not decided about.
const UNDECIDED_PAUSE: Duration = Duration::from_millis(50);

/// Pages of an announcement that are on their way at once: while the master takes one in, the next
/// lies in its socket.
const PAGES_AHEAD: usize = 8;

/// A master over links.
#[derive(Debug)]
pub struct MasterLink {
    pools: MasterPools,
    reports: Reports,
    /// Only of clients.
    guard: Option<Guard>,
}

impl MasterLink {
    /// A master behind this pool, or whoever leads behind these pools.
    pub fn new(pools: impl Into<MasterPools>) -> Self {
        Self { pools: pools.into(), reports: Reports::default(), guard: None }
    }

    /// The same for a client: once the master does not answer, calls fail at once, until it answers a probe.
    pub fn guarded(pools: impl Into<MasterPools>) -> Self {
        Self { guard: Some(Guard::default()), ..Self::new(pools) }
    }

    fn call(&self, request: &Request<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        let Some(guard) = &self.guard else { return self.pools.call(request, deadline) };
        let (pools, time) = (&self.pools, Guard::limit(&self.pools, request.kind()));
        guard.admit(pools)?;
        let sent = boottime();
        // Once more when there is a place for the call: others may have found out meanwhile.
        let admit = || guard.admit(pools);
        pools.call_within(request, time, deadline, admit, |answer| guard.note(pools, sent, answer))
    }

    fn guarded_call<T>(
        &self,
        call: impl FnOnce(&MasterPools) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let Some(guard) = &self.guard else { return call(&self.pools) };
        guard.admit(&self.pools)?;
        let sent = boottime();
        let answer = call(&self.pools);
        guard.note(&self.pools, sent, &answer);
        answer
    }

    /// The pool of the master that is asked first, for tools that show it.
    pub fn pool(&self) -> &LinkPool {
        self.pools.current()
    }
}

/// Asks, and takes the one reply that fits the request. The link has compared the kinds already.
macro_rules! ask {
    ($self:ident, $kind:ident, $request:expr, $deadline:expr) => {
        match $self.call(&Request::$kind($request), $deadline)? {
            Reply::$kind(reply) => Ok(reply),
            other => Err(CallError::from(DecodeError::Unexpected { kind: other.kind() })),
        }
    };
}

impl MasterApi for MasterLink {
    fn ping(&self, deadline: Deadline) -> Result<LeaderEpoch, CallError> {
        ask!(self, Ping, Ping {}, deadline).map(|pong| pong.epoch)
    }

    fn put_start(
        &self,
        config: &PutConfig,
        items: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Batch<WritePlan, PutError> {
        batched(
            items,
            |item| item.key,
            PutError::Key,
            |part| {
                patiently(part, deadline, |part| {
                    let (config, items) = (Cow::Borrowed(config), Cow::Borrowed(part));
                    ask!(self, PutStart, PutStart { config, items }, deadline)
                })
            },
        )
    }

    fn put_end(&self, items: &[PutEndItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        batched(
            items,
            |item| item.key,
            PutError::Key,
            |part| ask!(self, PutEnd, PutEnd { items: Cow::Borrowed(part) }, deadline),
        )
    }

    fn put_revoke(&self, items: &[PutRevokeItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        batched(
            items,
            |item| item.key,
            PutError::Key,
            |part| ask!(self, PutRevoke, PutRevoke { items: Cow::Borrowed(part) }, deadline),
        )
    }

    fn locate(
        &self,
        lease_ms: u32,
        keys: &[&[u8]],
        deadline: Deadline,
    ) -> Batch<Located, GetError> {
        batched(
            keys,
            |key| key,
            GetError::Key,
            |part| {
                patiently(part, deadline, |part| {
                    ask!(self, Locate, Locate { lease_ms, keys: Cow::Borrowed(part) }, deadline)
                })
            },
        )
    }

    fn exist(&self, keys: &[&[u8]], deadline: Deadline) -> Batch<bool, GetError> {
        batched(
            keys,
            |key| key,
            GetError::Key,
            |part| {
                patiently(part, deadline, |part| {
                    ask!(self, Exist, Exist { keys: Cow::Borrowed(part) }, deadline)
                })
            },
        )
    }

    fn look(&self, ask: &Look<'_>, deadline: Deadline) -> Batch<Looked, GetError> {
        let Look { hold, places, reads, .. } = *ask;
        batched(
            &ask.keys,
            |key| key,
            GetError::Key,
            |part| {
                patiently(part, deadline, |part| {
                    let keys = Cow::Borrowed(part);
                    ask!(self, Look, Look { hold, places, reads, keys }, deadline)
                })
            },
        )
    }

    fn remove(&self, force: bool, keys: &[&[u8]], deadline: Deadline) -> Batch<(), RemoveError> {
        batched(
            keys,
            |key| key,
            RemoveError::Key,
            |part| {
                patiently(part, deadline, |part| {
                    ask!(self, Remove, Remove { force, keys: Cow::Borrowed(part) }, deadline)
                })
            },
        )
    }

    fn put_replan(
        &self,
        ask: &PutReplan<'_>,
        deadline: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError> {
        ask!(self, PutReplan, ask.clone(), deadline)
    }

    fn remove_matching(
        &self,
        ask: &RemoveMatching<'_>,
        deadline: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError> {
        ask!(self, RemoveMatching, ask.clone(), deadline)
    }

    fn set_quota(&self, ask: &SetQuota, deadline: Deadline) -> Result<(), CallError> {
        ask!(self, SetQuota, ask.clone(), deadline)
    }

    fn drain(&self, ask: &Drain, deadline: Deadline) -> Result<Option<DrainStat>, CallError> {
        ask!(self, Drain, ask.clone(), deadline)
    }

    fn evict(&self, ask: &Evict, deadline: Deadline) -> Result<Option<InUse>, CallError> {
        ask!(self, Evict, ask.clone(), deadline)
    }

    fn copy(
        &self,
        ask: &CopyKey<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        ask!(self, Copy, ask.clone(), deadline)
    }

    fn drop_copy(
        &self,
        ask: &DropCopy<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        ask!(self, DropCopy, ask.clone(), deadline)
    }

    fn tell_reads(&self, marks: &[ReadMark], deadline: Deadline) -> Result<MarksHeard, CallError> {
        self.guarded_call(|pools| self.reports.tell(pools, marks, deadline))
    }

    fn command(&self, ask: &Command, deadline: Deadline) -> Result<bool, CallError> {
        ask!(self, Command, ask.clone(), deadline)
    }

    fn list(&self, ask: &List<'_>, deadline: Deadline) -> Result<Listing, CallError> {
        ask!(self, List, ask.clone(), deadline)
    }

    fn stat(&self, deadline: Deadline) -> Result<ClusterStat, CallError> {
        ask!(self, Stat, Stat {}, deadline)
    }

    fn nodes(&self, deadline: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        ask!(self, Nodes, Nodes {}, deadline)
    }

    fn mount(
        &self,
        mount: &Mount,
        deadline: Deadline,
    ) -> Result<Result<Mounted, MountError>, CallError> {
        ask!(self, Mount, mount.clone(), deadline)
    }

    fn announce(
        &self,
        announce: Announce,
        deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        for page in framed(announce) {
            let taken = ask!(self, Announce, page, deadline)?;
            if taken.is_err() {
                return Ok(taken);
            }
        }
        Ok(Ok(()))
    }

    /// Over one link, with several pages on their way, so that neither side waits for the other.
    fn announce_all(
        &self,
        pages: &mut dyn Iterator<Item = Announce>,
        time: Duration,
    ) -> Result<Result<(), MountError>, CallError> {
        let mut link = self.pools.current().checkout(boottime().deadline_in(time))?;
        let (mut pages, mut ahead) = (pages.flat_map(framed), 0);
        loop {
            while ahead < PAGES_AHEAD
                && let Some(page) = pages.next()
            {
                link.send(&Request::Announce(page), boottime().deadline_in(time))?;
                ahead += 1;
            }
            if ahead == 0 {
                return Ok(Ok(()));
            }
            match link.recv(boottime().deadline_in(time))?.1 {
                Reply::Announce(Ok(())) => ahead -= 1,
                // The link goes with it: other pages are on their way, in vain.
                Reply::Announce(refused) => return Ok(refused),
                Reply::Refuse(refusal) => return Err(refusal.into()),
                other => return Err(DecodeError::Unexpected { kind: other.kind() }.into()),
            }
        }
    }

    fn unmount(
        &self,
        unmount: &Unmount,
        deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        ask!(self, Unmount, unmount.clone(), deadline)
    }

    fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        deadline: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError> {
        ask!(self, Heartbeat, heartbeat.clone(), deadline)
    }

    fn orders(
        &self,
        orders: &Orders,
        deadline: Deadline,
    ) -> Result<Result<OrderBatch, MountError>, CallError> {
        ask!(self, Orders, orders.clone(), deadline)
    }

    fn nobody_listens(&self) -> bool {
        // A forwarder at an address of this machine refuses in the name of a master elsewhere that is alive.
        let here = |pool: &&LinkPool| pool.peer_host() == Some(this_machine());
        self.pools.lone().filter(here).is_some_and(|pool| pool.address().nobody_listens())
    }
}

/// Why the master has not decided about a key yet, if time alone brings that about.
trait Undecided {
    /// For how long at most; `None`: it is decided.
    fn wait_ms(&self) -> Option<u32>;
}

impl Undecided for PutError {
    fn wait_ms(&self) -> Option<u32> {
        match *self {
            Self::Rebuilding { after_ms } | Self::Held { after_ms } => Some(after_ms),
            _ => None,
        }
    }
}

impl Undecided for GetError {
    fn wait_ms(&self) -> Option<u32> {
        match *self {
            Self::Rebuilding { after_ms } => Some(after_ms),
            _ => None,
        }
    }
}

impl Undecided for RemoveError {
    fn wait_ms(&self) -> Option<u32> {
        match *self {
            Self::Rebuilding { after_ms } => Some(after_ms),
            _ => None,
        }
    }
}

/// Asks again for items that the master has not decided about, until it has or the deadline is near. A young master
/// waits for the nodes of an earlier one, and a key for the end of its last owner's serving lease: neither is a
/// reason to refuse a call that has time. It waits here, in the thread of its caller, so a crowd of them costs the
/// master a request each now and then. At the deadline the caller learns how long the rest takes.
fn patiently<T: Copy, R, E: Undecided>(
    items: &[T],
    deadline: Deadline,
    mut ask: impl FnMut(&[T]) -> Batch<R, E>,
) -> Batch<R, E> {
    let mut answers = ask(items)?;
    loop {
        let wait_ms = |answer: &Result<R, E>| answer.as_ref().err().and_then(E::wait_ms);
        let Some(longest) = answers.iter().filter_map(wait_ms).max() else { return Ok(answers) };
        let pause = UNDECIDED_PAUSE.min(Duration::from_millis(longest.max(1).into()));
        let left = deadline.left(boottime());
        if left < 2 * pause || interrupt::sleep(pause) {
            return Ok(answers);
        }
        let open: Vec<usize> =
            (0..answers.len()).filter(|at| wait_ms(&answers[*at]).is_some()).collect();
        let again: Vec<T> = open.iter().filter_map(|at| items.get(*at).copied()).collect();
        // What was decided stands: plans of puts would keep their keys until the put timeout if nobody had them.
        // The rest has its own error.
        let Some(results) = ask(&again).ok().filter(|results| results.len() == open.len()) else {
            return Ok(answers);
        };
        for (at, result) in open.into_iter().zip(results) {
            answers[at] = result;
        }
    }
}

/// Cuts items into parts that travel in one frame each, for callers that keep the answers of some frames when
/// another one fails. What cannot be a key does not travel, and takes no room.
pub fn frames<'i, 'k, T>(
    items: &'i [T],
    key: impl Fn(&T) -> &'k [u8],
) -> impl Iterator<Item = &'i [T]> {
    let bytes = move |item: &T| {
        let key = key(item);
        if key::check(key).is_ok() { key.len() } else { 0 }
    };
    let mut rest = items;
    std::iter::from_fn(move || {
        let (part, after) = rest.split_at(fitting(rest, &bytes));
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// Asks for all items, in as many frames as they need. An error of one frame is an error of the
/// whole call: what earlier frames did stands, as it would if their answers had been lost. Who would lose
/// by that cuts its batch by [`frames`] and asks for one part at a time, as the client does.
fn batched<'k, T: Copy, R, E>(
    items: &[T],
    key: impl Fn(&T) -> &'k [u8],
    bad: impl Fn(KeyError) -> E,
    mut ask: impl FnMut(&[T]) -> Batch<R, E>,
) -> Batch<R, E> {
    // The common case borrows; only a batch with bad keys is copied without them.
    let good: Cow<'_, [T]> = if items.iter().all(|item| key::check(key(item)).is_ok()) {
        Cow::Borrowed(items)
    } else {
        items.iter().copied().filter(|item| key::check(key(item)).is_ok()).collect()
    };
    let mut answers = Vec::with_capacity(good.len());
    let mut rest = &good[..];
    while !rest.is_empty() {
        let (part, after) = rest.split_at(fitting(rest, |item| key(item).len()));
        let results = ask(part)?;
        if results.len() != part.len() {
            let (items, results) = (part.len(), results.len());
            return Err(DecodeError::ResultCount { items, results }.into());
        }
        answers.extend(results);
        rest = after;
    }
    if good.len() == items.len() {
        return Ok(answers);
    }
    let mut answers = answers.into_iter();
    let each = items.iter().map(|item| match key::check(key(item)) {
        Ok(()) => answers.next().expect("one answer came for each good key"),
        Err(error) => Err(bad(error)),
    });
    Ok(each.collect())
}

/// How many of these items one frame takes; at least one, if there is one.
fn fitting<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> usize {
    let mut left = BODY_BYTES_MAX - AROUND_BYTES;
    let mut count = 0;
    for item in items.iter().take(BATCH_ITEMS_MAX) {
        let wanted = bytes(item) + ITEM_BYTES;
        if wanted > left {
            break;
        }
        left -= wanted;
        count += 1;
    }
    // One key is at most 8 KiB, so the first item always fits.
    assert!(count > 0 || items.is_empty(), "an item larger than a frame");
    count
}

/// A page in as many pages as it needs frames; one, unless its keys are long.
fn framed(announce: Announce) -> impl Iterator<Item = Announce> {
    let Announce { epoch, segment, incarnation, page, last } = announce;
    let mut rest = Some(page);
    std::iter::from_fn(move || {
        let mut page = rest.take()?;
        let after = page.split_off(fitting(&page, announced_bytes));
        rest = (!after.is_empty()).then_some(after);
        Some(Announce { epoch, segment, incarnation, page, last: last && rest.is_none() })
    })
}

fn announced_bytes(announced: &Announced) -> usize {
    let object = announced.life.as_ref().and_then(|life| life.object.as_ref());
    object.map_or(0, |object| object.label.key.as_bytes().len() + LABEL_BYTES_MAX - KEY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Was: a master that was young refused every call for 20 s.
    #[test]
    fn items_that_are_not_decided_are_asked_for_again() {
        let mut calls: Vec<Vec<u32>> = Vec::new();
        let later = boottime().deadline_in(Duration::from_mins(1));
        let answers = patiently(&[1, 2, 3], later, |part: &[u32]| {
            calls.push(part.to_vec());
            let open = |item: u32| item == 2 && calls.len() < 3;
            let answer = |item: &u32| match *item {
                item if open(item) => Err(GetError::Rebuilding { after_ms: 1 }),
                item => Ok(item),
            };
            Ok(part.iter().map(answer).collect())
        });
        assert_eq!(answers.unwrap(), [Ok(1), Ok(2), Ok(3)]);
        assert_eq!(calls, [&[1, 2, 3][..], &[2], &[2]]);
        // At the deadline the caller learns how long the rest takes.
        let rest = PutError::Held { after_ms: 2_000 };
        let answers = patiently(&[1], boottime().deadline_in(Duration::ZERO), |_: &[u32]| {
            Ok(vec![Err::<u32, _>(rest)])
        });
        assert_eq!(answers.unwrap(), [Err(rest)]);
    }

    /// Was: one key that was held, and a master that did not answer the second time, failed a whole batch, and the
    /// keys of the plans that it had given could not be put for 30 s.
    #[test]
    fn what_was_decided_outlives_a_later_ask_that_fails() {
        let held = PutError::Held { after_ms: 1 };
        let later = boottime().deadline_in(Duration::from_mins(1));
        let lost = || CallError::Deadline { awaited: "an answer", silent: Duration::ZERO };
        for second in [None, Some(vec![]), Some(vec![Ok(2), Ok(3)])] {
            let mut second = Some(second);
            let mut first = Some(vec![Ok(1), Err(held)]);
            let answers = patiently(&[1, 2], later, |_: &[u32]| match first.take() {
                Some(first) => Ok(first),
                None => second.take().flatten().ok_or_else(lost),
            });
            assert_eq!(answers.unwrap(), [Ok(1), Err(held)]);
        }
    }

    #[test]
    fn a_batch_is_split_by_count_and_by_bytes() {
        let many = vec![&b"k"[..]; 10_000];
        let mut parts = Vec::new();
        let asked = batched(
            &many,
            |key| key,
            GetError::Key,
            |part| {
                parts.push(part.len());
                Ok(part.iter().map(|_| Ok(true)).collect())
            },
        );
        assert_eq!(asked.unwrap().len(), 10_000);
        assert_eq!(parts, [4096, 4096, 1808]);

        let long = [7; 8192];
        let heavy = vec![&long[..]; 4096];
        let mut parts = Vec::new();
        let asked = batched(
            &heavy,
            |key| key,
            GetError::Key,
            |part| {
                let mut body = Vec::new();
                Exist { keys: Cow::Borrowed(part) }.encode(&mut body);
                assert!(body.len() <= BODY_BYTES_MAX);
                parts.push(part.len());
                Ok(part.iter().map(|_| Ok(true)).collect())
            },
        );
        assert_eq!(asked.unwrap().len(), 4096);
        assert_eq!(parts.len(), 5);
    }

    /// Proves G11: bad keys are errors of their own items, and shift nobody.
    #[test]
    fn bad_keys_keep_their_place() {
        let long = [7; 8193];
        let keys: [&[u8]; 5] = [b"a", b"", b"b", &long, b"c"];
        let asked = batched(
            &keys,
            |key| key,
            GetError::Key,
            |part| {
                assert_eq!(part, [&b"a"[..], b"b", b"c"]);
                Ok(part.iter().map(|key| Ok(key[0])).collect())
            },
        );
        assert_eq!(
            asked.unwrap(),
            [
                Ok(b'a'),
                Err(GetError::Key(KeyError::Empty)),
                Ok(b'b'),
                Err(GetError::Key(KeyError::TooLong { bytes: 8193 })),
                Ok(b'c')
            ]
        );
    }

    #[test]
    fn a_wrong_number_of_results_is_an_error() {
        let asked = batched(&[&b"a"[..]], |key| key, GetError::Key, |_| Ok(vec![Ok(1), Ok(2)]));
        assert!(matches!(
            asked,
            Err(CallError::Protocol(DecodeError::ResultCount { items: 1, results: 2 }))
        ));
    }
}
