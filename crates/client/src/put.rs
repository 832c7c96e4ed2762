//! put: reserve, write every replica, signal every replica, make it visible.

use crate::client::Client;
use crate::error::Error;
use crate::get::share;
use crate::stripes::{PARALLEL_BYTES_MIN, Part, in_parallel};
use mooncrate_core::error::PutError;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, Locator, PutConfig, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_core::{PutToken, Seal};
use mooncrate_transfer::TransferError;
use mooncrate_wire::DataError;
use mooncrate_wire::message::{PutEndItem, PutItem, PutReplan, PutRevokeItem, SealList};

/// Owners that may fail one after the other before a put fails.
const ROUNDS_MAX: usize = 3;

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
        self.put_many(&[(key, value)], config).pop().expect("one result per item")
    }

    /// The wishes of a plain put.
    pub fn put_config(&self) -> &PutConfig {
        &self.put_config
    }

    /// Stores values: one call to start them all, one to end them all.
    pub(crate) fn put_many(
        &self,
        items: &[(&[u8], &[&[u8]])],
        config: &PutConfig,
    ) -> Vec<Result<Stored, Error>> {
        let deadline = self.deadline();
        let mut results: Vec<Option<Result<Stored, Error>>> = items.iter().map(|_| None).collect();
        let mut ends: Vec<Written> = Vec::with_capacity(items.len());
        for (index, plan) in self.start(items, config, deadline).into_iter().enumerate() {
            let (key, value) = items[index];
            match plan {
                Ok(mut plan) => match self.write_all(key, value, &mut plan, config, deadline) {
                    Ok(seals) => ends.push(Written { index, plan, seals }),
                    Err(error) => {
                        self.revoke(key, plan.token, deadline);
                        results[index] = Some(Err(error));
                    }
                },
                Err(Error::Put(PutError::Exists)) => {
                    results[index] = Some(Ok(Stored::AlreadyThere));
                }
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        self.end(items, ends, config, &mut results, deadline);
        results.into_iter().map(|result| result.expect("every item was decided")).collect()
    }

    fn start(
        &self,
        items: &[(&[u8], &[&[u8]])],
        config: &PutConfig,
        deadline: Deadline,
    ) -> Vec<Result<WritePlan, Error>> {
        let asks: Vec<PutItem<'_>> = items
            .iter()
            .map(|(key, value)| PutItem {
                key,
                len: value.iter().map(|piece| piece.len() as u64).sum(),
            })
            .collect();
        match self.master.put_start(config, &asks, deadline) {
            Ok(plans) => plans.into_iter().map(|plan| plan.map_err(Error::from)).collect(),
            Err(error) => spread(error, items.len()),
        }
    }

    /// Moves the bytes to every replica and publishes them there. Replicas whose owners fail are
    /// planned anew, elsewhere. The seals of the stripes.
    fn write_all(
        &self,
        key: &[u8],
        value: &[&[u8]],
        plan: &mut WritePlan,
        config: &PutConfig,
        deadline: Deadline,
    ) -> Result<Vec<Seal>, Error> {
        let mut seals: Vec<Option<Seal>> = vec![None; plan.striping.stripes()];
        let mut config = std::borrow::Cow::Borrowed(config);
        let mut todo = plan.replicas.clone();
        for rounds_left in (1..=ROUNDS_MAX).rev() {
            // An owner that stands still must leave time to ask another one.
            let until = share(deadline, rounds_left);
            let written = self.write_parts(key, value, plan, &config, &todo, until);
            let mut failed = Vec::new();
            let mut trouble = None;
            for (locator, written) in todo.iter().zip(written) {
                match written {
                    Ok(seal) => {
                        let known = seals[usize::from(locator.stripe)].get_or_insert(seal);
                        if *known != seal {
                            // The caller changed its bytes while they were being copied.
                            return Err(TransferError::from(DataError::Corrupt).into());
                        }
                    }
                    Err(error) => {
                        self.engine.forget(locator.segment);
                        failed.push(locator.segment);
                        trouble = Some(error);
                    }
                }
            }
            let Some(trouble) = trouble else {
                return Ok(seals
                    .into_iter()
                    .map(|s| s.expect("every stripe is planned"))
                    .collect());
            };
            if rounds_left == 1 {
                return Err(trouble.into());
            }
            config.to_mut().avoid.extend(&failed);
            plan.replicas.retain(|locator| !failed.contains(&locator.segment));
            let config = std::borrow::Cow::Borrowed(&*config);
            let ask = PutReplan { config, key, token: plan.token, failed };
            match self.master.put_replan(&ask, deadline) {
                Ok(Ok(fresh)) => todo = fresh.replicas,
                _ => return Err(trouble.into()),
            }
            plan.replicas.extend(&todo);
            plan.replicas.sort_by_key(|locator| locator.stripe);
        }
        unreachable!("the last round returns")
    }

    /// Moves the bytes to some replicas and publishes them there; one seal each. Several large ones
    /// travel at the same time, each over a connection of its own.
    fn write_parts(
        &self,
        key: &[u8],
        value: &[&[u8]],
        plan: &WritePlan,
        config: &PutConfig,
        todo: &[Locator],
        deadline: Deadline,
    ) -> Vec<Result<Seal, TransferError>> {
        let one = |locator: &Locator| {
            let part = Part::new(self.config.tenant, key, value, plan, config, locator.stripe);
            let transport = self.engine.transport(locator, deadline)?;
            let written = transport.write(&part.write(plan, *locator), deadline)?;
            let seal = written.seal();
            written.signal(deadline)?;
            Ok(seal)
        };
        if todo.len() > 1 && plan.striping.stripe_len(0) >= PARALLEL_BYTES_MIN {
            return in_parallel(todo, self.config.parallel_max, one);
        }
        // Small ones: all are sent before the first answer is waited for.
        let parts: Vec<Part<'_>> = todo
            .iter()
            .map(|at| Part::new(self.config.tenant, key, value, plan, config, at.stripe))
            .collect();
        let transports: Vec<_> =
            todo.iter().map(|locator| self.engine.transport(locator, deadline)).collect();
        let mut sent = Vec::with_capacity(todo.len());
        for ((locator, transport), part) in todo.iter().zip(&transports).zip(&parts) {
            sent.push(match transport {
                Ok(transport) => transport.write(&part.write(plan, *locator), deadline),
                Err(_) => Err(TransferError::NoRoute),
            });
        }
        let published = sent.into_iter().map(|written| {
            let written = written?;
            let seal = written.seal();
            written.signal(deadline)?;
            Ok(seal)
        });
        published.collect()
    }

    /// Makes written values visible, all in one call.
    pub(crate) fn end(
        &self,
        items: &[(&[u8], &[&[u8]])],
        ends: Vec<Written>,
        config: &PutConfig,
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
        let ended: Vec<Result<(), Error>> = match self.master.put_end(&asks, deadline) {
            Ok(ended) => ended.into_iter().map(|one| one.map_err(Error::from)).collect(),
            Err(error) => spread(error, ends.len()),
        };
        for (Written { index, plan, seals }, ended) in ends.into_iter().zip(ended) {
            let key = items[index].0;
            results[index] = Some(ended.map(|()| {
                let WritePlan { object, striping, replicas, .. } = plan;
                let counters = self.counters.at(object.sequence);
                counters.puts.one();
                counters.bytes_written.add(striping.len);
                // We wrote these bytes and know where they are: the next get asks nobody. Unless the
                // master must see the first get.
                if config.expire_ms == 0 {
                    let (seal, more_seals) = (seals[0], seals[1..].to_vec());
                    let lease_ms = 0;
                    let located =
                        Located { object, striping, seal, more_seals, lease_ms, replicas };
                    self.remember(key::hash(key), key, located);
                }
                Stored::New
            }));
        }
    }

    /// Gives a failed put back; if the master cannot be reached, its watchdog does.
    pub(crate) fn revoke(&self, key: &[u8], token: PutToken, deadline: Deadline) {
        let _ = self.master.put_revoke(&[PutRevokeItem { key, token }], deadline);
    }
}

/// One error for many items: the first gets it as it is, the others in words.
pub(crate) fn spread<T>(error: mooncrate_wire::CallError, items: usize) -> Vec<Result<T, Error>> {
    let refusal = error.refusal();
    let mut all: Vec<Result<T, Error>> = vec![Err(Error::Master(error))];
    all.extend((1..items).map(|_| Err(Error::Master(refusal.clone().into()))));
    all
}
