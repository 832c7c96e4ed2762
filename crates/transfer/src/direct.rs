//! Values stored straight into the memory of an owner on this host: the owner hands its memory over for stores, once per
//! mount; it books the range of a value to our link, we store, it publishes. The values of a batch go together: their ranges are asked for ahead, and what is stored is
//! published with the next request for ranges. So a batch waits once for some values, not twice for each.

use crate::error::TransferError;
use crate::shared::{Shared, UNPIN_TIME, last_words};
use crate::stream::{answer, begin_write};
use crate::{Write, Written, go_on};
use mooncrate_core::time::Deadline;
use mooncrate_core::{PutToken, Seal, plan::Locator};
use mooncrate_lock::interrupt;
use mooncrate_mem::Mapping;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::{self, DataRequest};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{CallError, DataError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Values whose ranges are booked before the first of them is stored.
const AHEAD: usize = 16;
/// Their bytes, unless it is one. An owner leaves a link a part of the segment; one with less is asked again.
const AHEAD_BYTES: u64 = 4 << 20;

type Outcome = Result<Seal, TransferError>;

/// Puts of some values over one link.
pub(crate) struct DirectPuts<'s, 'a> {
    shared: &'s Shared,
    link: PooledLink<'s>,
    writes: &'s [&'a Write<'a>],
    deadline: Deadline,
    /// Whose turn has not come.
    todo: VecDeque<usize>,
    /// How many may be booked at a time.
    ahead: usize,
    results: Vec<Option<Outcome>>,
}

impl<'s, 'a> DirectPuts<'s, 'a> {
    /// Each value in one piece, which goes to that owner.
    pub(crate) fn new(
        shared: &'s Shared,
        link: PooledLink<'s>,
        writes: &'s [&'a Write<'a>],
        deadline: Deadline,
    ) -> Self {
        let results = writes.iter().map(|_| None).collect();
        Self {
            shared,
            link,
            writes,
            deadline,
            todo: (0..writes.len()).collect(),
            ahead: AHEAD,
            results,
        }
    }

    /// Stores and publishes them. When the exchange ends early, one of them says why.
    pub(crate) fn put_all(mut self) -> Vec<Outcome> {
        if self.exchange().is_err() {
            // Ranges may be booked to the link.
            self.link.hang_up();
        }
        self.results.into_iter().map(|one| one.unwrap_or(Err(TransferError::NotTried))).collect()
    }

    /// `Err`: the exchange cannot go on, and a result says why.
    fn exchange(&mut self) -> Result<(), ()> {
        let mut stored: Vec<(usize, Outcome)> = Vec::new();
        loop {
            let asked = self.next_some()?;
            let first = stored.first().map(|(at, _)| *at).or(asked.first().map(|(at, _)| *at));
            let Some(first) = first else { return Ok(()) };
            let sent = self.ask(&stored, &asked);
            self.or_end(first, sent)?;
            for (at, outcome) in stored.drain(..) {
                let told = answer(&mut self.link, self.deadline);
                let told = self.or_end(at, told)?;
                self.results[at] = Some(outcome.and_then(|seal| Ok(told.map(|()| seal)?)));
            }
            let alone = asked.len() == 1;
            for (at, mapping) in asked {
                let booked = answer(&mut self.link, self.deadline);
                match self.or_end(at, booked)? {
                    // Who is interrupted here fails to say so, which ends the exchange.
                    Ok(()) => stored.push((at, self.store(at, &mapping))),
                    // Those that are booked may be all that it leaves us.
                    Err(DataError::Busy { .. }) if !alone => {
                        self.todo.push_back(at);
                        self.ahead = 1;
                    }
                    Err(error) => self.results[at] = Some(Err(error.into())),
                }
            }
        }
    }

    /// Whose ranges are asked for next, and where they lie. What cannot be stored to is not asked for.
    fn next_some(&mut self) -> Result<Vec<(usize, Arc<Mapping>)>, ()> {
        let (mut some, mut bytes) = (Vec::with_capacity(AHEAD), 0);
        while let Some(&at) = self.todo.front()
            && some.len() < self.ahead
            && (some.is_empty() || bytes + self.writes[at].len() <= AHEAD_BYTES)
        {
            self.todo.pop_front();
            let locator = &self.writes[at].locator;
            match self.shared.storable(&mut self.link, locator, self.deadline) {
                Ok(mapping) => {
                    bytes += self.writes[at].len();
                    some.push((at, mapping));
                }
                Err(TransferError::Call(error)) => self.or_end(at, Err(error))?,
                Err(error) => self.results[at] = Some(Err(error)),
            }
        }
        Ok(some)
    }

    /// Has those that are stored published, or given up where that failed, and asks for ranges.
    fn ask(
        &mut self,
        stored: &[(usize, Outcome)],
        asked: &[(usize, Arc<Mapping>)],
    ) -> Result<(), CallError> {
        for (at, outcome) in stored {
            let Write { locator, token, .. } = *self.writes[*at];
            let end = match outcome {
                Ok(seal) => DataRequest::Signal(message::Signal { locator, token, seal: *seal }),
                Err(_) => DataRequest::Abandon(message::Abandon { locator, token }),
            };
            self.link.queue_data(&end, &[], self.deadline)?;
        }
        for (at, _) in asked {
            let put = begin_write(self.writes[*at]);
            let begin = DataRequest::Begin(message::Begin { put });
            self.link.queue_data(&begin, &[], self.deadline)?;
        }
        self.link.flush(self.deadline)
    }

    /// Stores a value whose range is booked.
    fn store(&self, at: usize, mapping: &Mapping) -> Outcome {
        let write = self.writes[at];
        let [value] = write.value else { unreachable!("values in pieces go inline") };
        go_on(write.len())?;
        store(mapping, write, value)
    }

    /// The error is that of this value, and ends the exchange.
    fn or_end<T>(&mut self, at: usize, done: Result<T, CallError>) -> Result<T, ()> {
        done.map_err(|error| self.results[at] = Some(Err(error.into())))
    }
}

/// Stores into a range that the owner booked to this link just now. Should we die, it hangs up, and only then can the
/// range be used again (R7).
fn store(mapping: &Mapping, write: &Write<'_>, value: &[u8]) -> Outcome {
    Ok(mapping.write_value(&write.locator, value)?)
}

/// A value stored straight into the owner's memory. It is not visible yet.
pub(crate) struct DirectWritten<'a> {
    link: PooledLink<'a>,
    locator: Locator,
    token: PutToken,
    seal: Seal,
    /// The owner has been told; nothing is left to give up.
    signalled: bool,
    /// Of the call that wrote it.
    deadline: Deadline,
}

impl<'a> DirectWritten<'a> {
    pub(crate) fn store(
        shared: &Shared,
        mut link: PooledLink<'a>,
        write: &Write<'_>,
        value: &[u8],
        deadline: Deadline,
    ) -> Result<Self, TransferError> {
        let mapping = shared.storable(&mut link, &write.locator, deadline)?;
        let begin = DataRequest::Begin(message::Begin { put: begin_write(write) });
        link.send_data(&begin, &[], deadline)?;
        answer(&mut link, deadline)??;
        let (locator, token) = (write.locator, write.token);
        let seal = store(&mapping, write, value)
            .inspect_err(|_| abandon(&mut link, (locator, token), deadline))?;
        Ok(Self { link, locator, token, seal, signalled: false, deadline })
    }
}

impl Written for DirectWritten<'_> {
    fn seal(&self) -> Seal {
        self.seal
    }

    fn signal(mut self: Box<Self>, deadline: Deadline) -> Result<(), TransferError> {
        self.signalled = true;
        let signal = message::Signal { locator: self.locator, token: self.token, seal: self.seal };
        self.link.send_data(&DataRequest::Signal(signal), &[], deadline)?;
        Ok(answer(&mut self.link, deadline)??)
    }
}

impl Drop for DirectWritten<'_> {
    /// A put that was not signalled is told to the owner, so that the link can go on.
    fn drop(&mut self) {
        if !self.signalled && self.link.at_rest() {
            abandon(&mut self.link, (self.locator, self.token), self.deadline);
        }
    }
}

/// Gives a range back that was begun.
fn abandon(link: &mut PooledLink<'_>, (locator, token): (Locator, PutToken), deadline: Deadline) {
    let abandon = message::Abandon { locator, token };
    let deadline = boottime().deadline_in(last_words(UNPIN_TIME)).min(deadline);
    // A failure closes the link, which tells the owner the same.
    let _ = interrupt::finally(|| link.call_data(&DataRequest::Abandon(abandon), &[], deadline));
}
