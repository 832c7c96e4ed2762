//! Replays a trace of prompts through a catalog with one segment: how many of the blocks each policy finds, and how
//! long the calls take.
//!
//! ```sh
//! cargo run --release -p mooncrate-core --example replay -- TRACE.jsonl 2000,4000 lru,density
//! ```
//!
//! A line of the trace has a list `hash_ids`, the blocks of one prompt. A request looks all of them up in one batch,
//! and puts what is missing behind those that were found in another one. With `told` behind the policies, that batch
//! says which key its first one follows. With `apart` a request asks first which keys exist, and looks up only those.

#![expect(clippy::print_stdout, reason = "an example prints what it finds")]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use mooncrate_core::catalog::{Catalog, Config, InBatch, Start, Writer};
use mooncrate_core::error::PutError;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::plan::{Evidence, Notice, Order, OrderResult, SegmentOffer};
use mooncrate_core::{
    Generation, HostId, Incarnation, LeaderEpoch, Medium, NodeId, Now, PutConfig, PutToken, Seal,
    SegmentId, TenantId, ZoneId, seal,
};
use std::error::Error;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;

struct Store {
    catalog: Catalog,
    now: Now,
    /// Time in lookups and in puts.
    took: [Duration; 2],
    open: Vec<(Vec<u8>, PutToken)>,
    puts: u64,
}

impl Store {
    fn new(policy: PolicyKind, blocks: u32) -> Result<Self, Box<dyn Error>> {
        let (high_permille, low_permille) = (1000, 1000);
        let config = Config { policy, high_permille, low_permille, ..Config::default() };
        let now = Now(1_000_000_000);
        let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, now);
        let offer = SegmentOffer {
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            node: NodeId(1),
            medium: Medium::Dram,
            bytes: u64::from(blocks) * seal::extent_bytes(BLOCK),
            slots: blocks,
            host: HostId(1),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence::default(),
        };
        catalog.mount(now, NodeId(1), std::slice::from_ref(&offer))?;
        catalog.announce(now, offer.segment, offer.incarnation, &[], true)?;
        Ok(Self { catalog, now, took: [Duration::ZERO; 2], open: Vec::new(), puts: 0 })
    }

    fn obey(&mut self) {
        for (_, order) in self.catalog.take_orders() {
            let Order { segment, incarnation, slot, generation, .. } = order;
            let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
            let notice = Notice { segment, incarnation, slot, generation, result };
            self.catalog.notice(self.now, &notice);
        }
    }

    fn start(&mut self, batch: InBatch<'_>, key: &[u8]) -> Result<(), Box<dyn Error>> {
        let (config, writer) = (PutConfig::default(), Writer::UNSEEN);
        loop {
            match self.catalog.put_start_in(self.now, writer, batch, key, BLOCK, &config) {
                Ok(plan) => {
                    self.open.push((key.to_vec(), plan.token));
                    return Ok(());
                }
                Err(PutError::Reclaiming { .. }) => self.obey(),
                Err(PutError::Exists) => return Ok(()),
                // There are no more open puts than a tenant may have.
                Err(PutError::Busy { .. }) if !self.open.is_empty() => self.end()?,
                Err(refused) => return Err(refused.into()),
            }
        }
    }

    /// Ends the puts that are open.
    fn end(&mut self) -> Result<(), Box<dyn Error>> {
        for (key, token) in std::mem::take(&mut self.open) {
            self.catalog.put_end(self.now, &key[..], token, &[Seal(1)])?;
            self.puts += 1;
        }
        Ok(())
    }

    /// Blocks that a prompt finds.
    fn serve(&mut self, prompt: &[[u8; 8]], ways: &[String]) -> Result<usize, Box<dyn Error>> {
        self.now = self.now.plus(Duration::from_millis(1));
        let keys: Vec<&[u8]> = prompt.iter().map(|key| &key[..]).collect();
        let began = Instant::now();
        let mut asked = &keys[..];
        if ways.iter().any(|way| way == "apart") {
            let exist = self.catalog.exist_many(self.now, TenantId::DEFAULT, &keys);
            asked = &keys[..exist.iter().take_while(|exists| **exists == Ok(true)).count()];
        }
        let located = self.catalog.locate_many(self.now, TenantId::DEFAULT, asked, 0);
        self.took[0] += began.elapsed();
        let found = located.iter().take_while(|located| located.is_ok()).count();
        let missing = &keys[found..];
        let began = Instant::now();
        for (at, key) in missing.iter().enumerate() {
            let mut batch = InBatch::of(missing, at);
            if at == 0 && ways.iter().any(|way| way == "told") {
                batch.after = found.checked_sub(1).map(|last| keys[last]);
            }
            self.start(batch, key)?;
        }
        self.end()?;
        self.took[1] += began.elapsed();
        Ok(found)
    }
}

/// The blocks of each prompt.
fn load(text: &str) -> Result<Vec<Vec<[u8; 8]>>, Box<dyn Error>> {
    let prompt = |line: &str| {
        let (_, list) = line.split_once("\"hash_ids\":").ok_or("no hash_ids")?;
        let (_, list) = list.split_once('[').ok_or("no list")?;
        let (list, _) = list.split_once(']').ok_or("no end of the list")?;
        let ids = list.split(',').map(str::trim).filter(|id| !id.is_empty());
        let keys: Result<Vec<_>, _> = ids.map(|id| id.parse().map(u64::to_le_bytes)).collect();
        Ok(keys?)
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(prompt).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [trace, sizes, policies, ways @ ..] = &args[..] else {
        return Err("usage: replay TRACE BLOCKS,… POLICY,… [told] [apart]".into());
    };
    let prompts = load(&std::fs::read_to_string(trace)?)?;
    let asked: usize = prompts.iter().map(Vec::len).sum();
    for blocks in sizes.split(',') {
        for policy in policies.split(',') {
            let mut store = Store::new(policy.parse()?, blocks.parse()?)?;
            let mut found = 0;
            for prompt in &prompts {
                // The end of a prompt that is longer than the memory is not kept.
                let kept = &prompt[..prompt.len().min(blocks.parse()?)];
                found += store.serve(kept, ways)?;
            }
            store.catalog.audit()?;
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let (percent, per_key, per_put) = (
                100.0 * found as f64 / asked as f64,
                store.took[0].as_secs_f64() * 1e9 / asked as f64,
                store.took[1].as_secs_f64() * 1e9 / store.puts.max(1) as f64,
            );
            println!(
                "{blocks} blocks, {policy}: {percent:.2} % found; a key looked up {per_key:.0} ns, a put {per_put:.0} ns"
            );
        }
    }
    Ok(())
}
