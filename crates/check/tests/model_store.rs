//! Order of building, step 1: the rig passes a store that is surely right and catches one that is
//! surely wrong (canary 4), before it judges anything real.

use mooncrate_check::model::{ModelStore, ModelToken, Publish};
use mooncrate_check::oracle::Counts;
use mooncrate_check::{
    Blame, Event, Got, OpId, Oracle, OracleConfig, PutId, Rule, Violation, What, payload,
};
use mooncrate_core::rng::Rng;
use mooncrate_core::{KeyHash, Now};

const CLIENTS: u16 = 6;
const KEYS: u64 = 12;
const CHUNK_BYTES: usize = 256;
const VALUE_BYTES_MAX: u64 = 2000;
const CAPACITY: u64 = 12_000;

/// One client: idle, or in the middle of a put. Everything else is one step of the model.
#[derive(Clone, Copy)]
struct Writing {
    key: KeyHash,
    put: PutId,
    token: ModelToken,
    len: usize,
    written: usize,
}

struct Rig {
    store: ModelStore,
    oracle: Oracle,
    rng: Rng,
    clients: Vec<(Option<Writing>, u32)>,
    at: Now,
    ops: u64,
    evicts: bool,
}

impl Rig {
    fn new(publish: Publish, seed: u64, evicts: bool) -> Self {
        let config = OracleConfig { no_loss: !evicts, ..OracleConfig::default() };
        Self {
            store: ModelStore::new(publish, CAPACITY),
            oracle: Oracle::new(config),
            rng: Rng::new(seed),
            clients: vec![(None, 0); usize::from(CLIENTS)],
            at: Now(0),
            ops: 0,
            evicts,
        }
    }

    fn run(mut self, steps: u32) -> Result<Counts, Box<Violation>> {
        for _ in 0..steps {
            self.step()?;
            self.store.audit().check().expect("the model's accounts are right");
        }
        for key in 0..KEYS {
            self.store.remove(KeyHash(key));
        }
        self.store.audit().check_drained(0).expect("nothing is left");
        Ok(self.oracle.counts())
    }

    fn tell(&mut self, key: KeyHash, what: What) -> Result<(), Box<Violation>> {
        self.at.0 += 1;
        self.oracle.observe(&Event { at: self.at, key, what })
    }

    fn step(&mut self) -> Result<(), Box<Violation>> {
        let client = self.rng.below(CLIENTS.into()) as u16;
        if let Some(writing) = self.clients[usize::from(client)].0 {
            return self.write_on(client, writing);
        }
        let key = KeyHash(self.rng.below(KEYS));
        self.ops += 1;
        let op = OpId(self.ops);
        match self.rng.below(100) {
            0..40 => self.put(client, key),
            40..90 => {
                self.tell(key, What::GetBegan { get: op })?;
                let got = self.store.get(key).map_or(Got::Miss, |value| Got::of(&value, key));
                self.tell(key, What::GetEnded { get: op, got })
            }
            90..95 if self.evicts => {
                self.store.remove(key);
                Ok(())
            }
            _ => {
                self.tell(key, What::RemoveBegan { remove: op })?;
                self.store.remove(key);
                self.tell(key, What::RemoveEnded { remove: op })
            }
        }
    }

    fn put(&mut self, client: u16, key: KeyHash) -> Result<(), Box<Violation>> {
        let len = self.rng.below(VALUE_BYTES_MAX) as usize;
        let slot = usize::from(client);
        self.clients[slot].1 += 1;
        let put = PutId::new(1, client, self.clients[slot].1);
        self.tell(key, What::PutBegan { put, len: len as u64 })?;
        let Ok(token) = self.store.put_start(key, len) else {
            return self.tell(key, What::PutRefused { put });
        };
        self.clients[slot].0 = Some(Writing { key, put, token, len, written: 0 });
        Ok(())
    }

    fn write_on(&mut self, client: u16, mut writing: Writing) -> Result<(), Box<Violation>> {
        let Writing { key, put, token, len, written } = writing;
        if written < len {
            let mut chunk = vec![0; CHUNK_BYTES.min(len - written)];
            payload::fill_range(&mut chunk, written as u64, put, key);
            if self.store.put_chunk(key, token, &chunk) {
                writing.written += chunk.len();
                self.clients[usize::from(client)].0 = Some(writing);
                return Ok(());
            }
        } else if self.store.put_end(key, token) {
            self.clients[usize::from(client)].0 = None;
            return self.tell(key, What::PutEnded { put });
        }
        // A remove or an eviction struck the put before its end.
        self.clients[usize::from(client)].0 = None;
        self.tell(key, What::PutUnknown { put })
    }
}

#[test]
fn the_model_passes_with_and_without_eviction() {
    for evicts in [false, true] {
        for seed in 0..20 {
            let counts = Rig::new(Publish::AfterLastByte, seed, evicts)
                .run(20_000)
                .unwrap_or_else(|violation| panic!("seed {seed}, evicts {evicts}: {violation}"));
            // The rig reaches what it claims to judge.
            assert!(counts.puts > 300 && counts.hits > 1000, "{counts:?}");
            assert!(counts.removes > 300 && counts.misses > 300, "{counts:?}");
            assert!(counts.puts_refused > 300 && counts.puts_unknown > 30, "{counts:?}");
        }
    }
}

/// Canary 4: whoever publishes before the last chunk is caught, soon and under every seed.
#[test]
fn publishing_before_the_last_chunk_is_caught() {
    let mut blames = Vec::new();
    for seed in 0..20 {
        let rig = Rig::new(Publish::BeforeLastChunk, seed, true);
        let violation = rig.run(20_000).expect_err("the canary was not caught");
        assert_eq!(violation.rule, Rule::C1, "{violation}");
        let Some(What::GetEnded { got: Got::Bad(bad), .. }) =
            violation.events.last().map(|event| event.what)
        else {
            panic!("a half-written value has a bad line: {violation}");
        };
        blames.push(bad.blame);
    }
    assert!(blames.contains(&Blame::Foreign), "reused bytes of other keys: {blames:?}");
    assert!(blames.contains(&Blame::Rotten), "bytes that were never written: {blames:?}");
}
