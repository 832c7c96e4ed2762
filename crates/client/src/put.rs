//! put: reserve, write every replica, signal every replica, make it visible.

use crate::client::Client;
use crate::error::Error;
use mooncrate_core::error::PutError;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, PutConfig, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_core::{PutToken, Seal};
use mooncrate_transfer::{TransferError, Write};
use mooncrate_wire::message::{PutEndItem, PutItem, PutRevokeItem};
use std::sync::Arc;

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value is stored.
    New,
    /// The key had a value, which stays: published values never change.
    AlreadyThere,
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
        let mut ends: Vec<(usize, WritePlan, Seal)> = Vec::with_capacity(items.len());
        for (index, plan) in self.start(items, config, deadline).into_iter().enumerate() {
            let (key, value) = items[index];
            match plan {
                Ok(plan) => match self.write_all(key, value, &plan, deadline) {
                    Ok(seal) => ends.push((index, plan, seal)),
                    Err(error) => {
                        self.revoke(key, plan.token, deadline);
                        results[index] = Some(Err(error.into()));
                    }
                },
                Err(Error::Put(PutError::Exists)) => {
                    results[index] = Some(Ok(Stored::AlreadyThere));
                }
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        self.end(items, ends, &mut results, deadline);
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

    /// Moves the bytes to every replica, then publishes every replica.
    fn write_all(
        &self,
        key: &[u8],
        value: &[&[u8]],
        plan: &WritePlan,
        deadline: Deadline,
    ) -> Result<Seal, TransferError> {
        let transports = plan
            .replicas
            .iter()
            .map(|locator| self.engine.transport(locator, deadline))
            .collect::<Result<Vec<_>, _>>()?;
        let mut written = Vec::with_capacity(transports.len());
        for (locator, transport) in plan.replicas.iter().zip(&transports) {
            let write = Write {
                locator: *locator,
                token: plan.token,
                object: plan.object,
                epoch: plan.epoch,
                label: key,
                value,
            };
            written.push(transport.write(&write, deadline)?);
        }
        let seal = written.first().map_or_else(Seal::default, |first| first.seal());
        for one in written {
            if one.seal() != seal {
                // The caller changed its bytes while they were being copied.
                return Err(mooncrate_wire::DataError::Corrupt.into());
            }
            one.signal(deadline)?;
        }
        Ok(seal)
    }

    /// Makes written values visible, all in one call.
    fn end(
        &self,
        items: &[(&[u8], &[&[u8]])],
        ends: Vec<(usize, WritePlan, Seal)>,
        results: &mut [Option<Result<Stored, Error>>],
        deadline: Deadline,
    ) {
        if ends.is_empty() {
            return;
        }
        let asks: Vec<PutEndItem<'_>> = ends
            .iter()
            .map(|(index, plan, seal)| PutEndItem {
                key: items[*index].0,
                token: plan.token,
                seal: *seal,
            })
            .collect();
        let ended: Vec<Result<(), Error>> = match self.master.put_end(&asks, deadline) {
            Ok(ended) => ended.into_iter().map(|one| one.map_err(Error::from)).collect(),
            Err(error) => spread(error, ends.len()),
        };
        for ((index, plan, seal), ended) in ends.into_iter().zip(ended) {
            let key = items[index].0;
            results[index] = Some(ended.map(|()| {
                // We wrote these bytes and know where they are: the next get asks nobody.
                let WritePlan { object, len, replicas, .. } = plan;
                let counters = self.counters.at(object.sequence);
                counters.puts.one();
                counters.bytes_written.add(len);
                let located = Located { object, len, seal, lease_ms: 0, replicas };
                self.cache.insert(key::hash(key), key, Arc::new(located));
                Stored::New
            }));
        }
    }

    /// Gives a failed put back; if the master cannot be reached, its watchdog does.
    fn revoke(&self, key: &[u8], token: PutToken, deadline: Deadline) {
        let _ = self.master.put_revoke(&[PutRevokeItem { key, token }], deadline);
    }
}

/// One error for many items: the first gets it as it is, the others in words.
fn spread<T>(error: mooncrate_wire::CallError, items: usize) -> Vec<Result<T, Error>> {
    let refusal = error.refusal();
    let mut all: Vec<Result<T, Error>> = vec![Err(Error::Master(error))];
    all.extend((1..items).map(|_| Err(Error::Master(refusal.clone().into()))));
    all
}
