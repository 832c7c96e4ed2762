//! The other processes of a rebuild: a master that keeps its state, and a node that fills itself.

use crate::args::NodeArguments;
use crate::growth::{master_at, soon};
use crate::peer::until_the_end;
use crate::workload::{BenchKey, key};
use anyhow::{Context, Result};
use mooncrate::{Address, MasterOptions, NodeOptions, run_master, run_node};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::PutConfig;
use mooncrate_core::rng::Rng;
use mooncrate_core::{Label, Name};
use mooncrate_transfer::{Local, Transport, Write};
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::{PutEndItem, PutItem, SealList};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a segment with this many objects: an extent each, and room so that nothing is evicted.
pub(super) const fn segment_bytes(objects: u64) -> u64 {
    objects * 80 + (1 << 20)
}

/// The value with this number: 16 to 64 bytes.
pub(super) fn value(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(!number);
    let len = 16 + rng.below(49) as usize;
    let mut value = vec![0; len];
    for part in value.chunks_mut(8) {
        part.copy_from_slice(&rng.next().to_le_bytes()[..part.len()]);
    }
    value
}

/// A master that can be killed and started again.
pub(crate) fn serve_master(listen: String, state: PathBuf) -> Result<()> {
    let running = run_master(MasterOptions {
        listen: Address::Tcp(listen),
        state_file: Some(state),
        ..MasterOptions::default()
    })?;
    let address = running.master_address().context("it runs a master")?;
    until_the_end(&address.to_string())
}

/// A node with `objects` values, from the key number `first` on.
pub(crate) fn serve_node(own: &NodeArguments) -> Result<()> {
    let &NodeArguments { bytes, first, objects, .. } = own;
    // One slot per object that is filled in; as many as usual where others fill it.
    let slots = if objects > 0 { Some(u32::try_from(objects + 1024)?) } else { None };
    let running = run_node(NodeOptions {
        name: own.name.clone(),
        master: own.master.parse().map_err(anyhow::Error::msg)?,
        listen: Some(Address::Tcp("127.0.0.1:0".into())),
        unix: Some(own.unix.clone()),
        segment_bytes: bytes,
        slots,
        ..NodeOptions::default()
    })?;
    let node = running.node().context("it runs a node")?;
    let link = master_at(&own.master)?;
    let local = Local::new(Arc::clone(node.segments()));
    let wishes = PutConfig { preferred: vec![node.segment()], ..PutConfig::default() };
    let (mut number, end) = (first, first + objects);
    while number < end {
        let last = end.min(number + BATCH_ITEMS_MAX as u64);
        fill(&link, &local, &wishes, number..last)?;
        number = last;
    }
    until_the_end("filled")
}

/// What a client in this process does with a batch of puts.
fn fill(
    master: &impl MasterApi,
    local: &Local,
    wishes: &PutConfig,
    numbers: std::ops::Range<u64>,
) -> Result<()> {
    let keys: Vec<BenchKey> = numbers.clone().map(key).collect();
    let values: Vec<Vec<u8>> = numbers.map(value).collect();
    let items: Vec<PutItem<'_>> = keys
        .iter()
        .zip(&values)
        .map(|(key, value)| PutItem::new(key, value.len() as u64))
        .collect();
    let plans = master.put_start(wishes, &items, soon())?;
    let (mut sealed, mut tokens) = (Vec::new(), Vec::new());
    for ((key, value), plan) in keys.iter().zip(&values).zip(plans) {
        let plan = plan?;
        let label = Label::plain(Name::from(&key[..]))?.encode();
        let write = Write {
            locator: plan.replicas[0],
            token: plan.token,
            object: plan.object,
            epoch: plan.epoch,
            label: &label,
            value: &[value],
        };
        let written = local.write(&write, soon())?;
        sealed.push(SealList::encode(&[written.seal()]));
        written.signal(soon())?;
        tokens.push(plan.token);
    }
    let ends = keys.iter().zip(&tokens).zip(&sealed).map(|((key, token), seals)| PutEndItem {
        key,
        token: *token,
        seals: SealList::of(seals),
    });
    let ends: Vec<PutEndItem<'_>> = ends.collect();
    for ended in master.put_end(&ends, soon())? {
        ended?;
    }
    Ok(())
}
