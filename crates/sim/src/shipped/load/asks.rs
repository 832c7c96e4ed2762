//! Calls that ask about keys, and the settings of puts.

use super::{LEASE_MS_MAX, Lane, judge, judged};
use mooncrate_check::Got;
use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::{Keep, Looked, PutConfig};
use mooncrate_wire::message::Pattern;
use std::collections::BTreeSet;

/// Pages of a listing before it is given up: the keys of a run need fewer.
const PAGES_MAX: usize = 1_000;

impl Lane {
    /// Settings of a put, beside its replicas.
    pub(super) fn put_config(&mut self, key: usize) -> PutConfig {
        let mut config = self.wishes(key);
        let ttl_ms = 1 + self.rng.below(LEASE_MS_MAX) as u32;
        match self.rng.below(5) {
            0 => config.group = GroupId(1 + self.rng.below(3)),
            1 => config.keep = Keep::Soft { ttl_ms },
            2 => config.preferred = vec![self.segment()],
            3 => config.avoid = vec![self.segment()],
            // Gone after its first get; where nothing may vanish it stays.
            _ if !self.plan.calm => config.expire_ms = ttl_ms,
            _ => {}
        }
        config
    }

    /// Asks about a key, in one of the ways that there are.
    pub(super) fn ask(&mut self, at: usize) {
        let key = judge::key(at);
        let keys = [&key.bytes[..]];
        match self.rng.below(5) {
            0 => self.say(at, &self.client.exists(keys[0])),
            1 => {
                let [hold, places] = [500, 500].map(|share| self.rng.chance(share));
                let looked = self.client.look(&keys, hold, places);
                if let Ok(looked) = &looked
                    && let [Ok(Looked::At(located))] = &looked[..]
                    && located.replicas.is_empty()
                {
                    judge::fail("look", format!("k{at} is there, and no replica of it is"));
                }
                self.say(at, &looked);
            }
            2 => self.say(at, &self.client.path(keys[0])),
            3 => self.say(at, &self.client.stat()),
            _ => drop(self.client.exists_near(&keys)),
        }
    }

    /// Reads what is near, without waiting for anybody.
    pub(super) fn near(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let len_max = self.plan.value_bytes_max as usize;
        let near = if self.rng.chance(500) {
            self.client.get_near(&key.bytes, len_max, |len| vec![0; len])
        } else {
            let mut room = vec![0; len_max];
            self.client.get_into_near(&key.bytes, len_max, &mut room).map(|len| {
                room.truncate(len);
                room
            })
        };
        let got = match near {
            Some(value) => judged(self.plan.flips, Ok(Some(value)), &key),
            // Not near, which says nothing about the value.
            None => Got::Failed,
        };
        judge::get_ended(number, got);
    }

    /// Lists keys, page by page: those that match, and each object once on a page.
    pub(super) fn list(&mut self, at: usize) {
        let prefix = judge::key(at).bytes;
        let text = format!("^{}", String::from_utf8_lossy(&prefix));
        let pattern = match self.rng.below(3) {
            0 => Pattern::Prefix(b""),
            1 => Pattern::Prefix(&prefix),
            _ => Pattern::Regex(&text),
        };
        let begins: &[u8] = if pattern == Pattern::Prefix(b"") { b"" } else { &prefix };
        let (mut cursor, limit) = (0, 1 + self.rng.below(8) as u32);
        for _ in 0..PAGES_MAX {
            let page = self.client.list(pattern, cursor, limit);
            self.say(at, &page);
            let Ok(page) = page else { return };
            let wrong = page.entries.iter().any(|one| !one.key.as_bytes().starts_with(begins));
            let objects: BTreeSet<_> = page.entries.iter().map(|one| one.object).collect();
            if wrong || objects.len() != page.entries.len() || page.entries.len() > limit as usize {
                let text = format!("{:?}, at most {limit}, gave {:?}", pattern, page.entries);
                return judge::fail("list", text);
            }
            match page.next {
                Some(next) => cursor = next,
                None => return,
            }
        }
        judge::fail("list", format!("no last page of {pattern:?} after {PAGES_MAX}"));
    }
}
