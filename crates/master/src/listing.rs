//! Listings and removes by pattern. The lock is held for a slice of the index at a time, to copy keys out of
//! it; a regular expression, which may take long for one key, is asked when the lock is free (G13).

use crate::pattern::Matcher;
use crate::service::Master;
use mooncrate_core::catalog::{ListSlice, RemovedPage};
use mooncrate_core::error::RemoveError;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Key, ObjectId, TenantId};
use mooncrate_wire::CallError;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{List, Listed, Listing, RemoveMatching, Removed};

/// Slices that one request walks.
const SLICES_MAX: usize = 16;
/// Objects on one page of a listing …
const PAGE_MAX: u32 = 1024;
/// … and bytes of their keys: it must fit into a frame.
const PAGE_KEY_BYTES_MAX: usize = 4 << 20;
/// Objects that one step of a remove takes, about.
const MATCHES_MAX: usize = 1024;

impl Master {
    /// One page. A caller whose time is over gets what was found until then.
    pub(crate) fn list_page(
        &self,
        tenant: TenantId,
        ask: &List<'_>,
        deadline: Deadline,
    ) -> Result<Listing, CallError> {
        let pattern = Matcher::new(&ask.pattern)?;
        let matches = |key: &[u8]| pattern.matches(key);
        let (prefix, limit) = (pattern.prefix(), ask.limit.clamp(1, PAGE_MAX) as usize);
        Ok(self.list_where(tenant, (prefix, matches), ask.cursor, limit, deadline))
    }

    fn list_where(
        &self,
        tenant: TenantId,
        (prefix, matches): (&[u8], impl Fn(&[u8]) -> bool),
        mut cursor: u64,
        limit: usize,
        deadline: Deadline,
    ) -> Listing {
        let (mut entries, mut key_bytes) = (Vec::new(), 0);
        // One key at least, or a caller whose turns come late would never get on.
        let mut looked = false;
        for _ in 0..SLICES_MAX {
            let ListSlice { entries: found, next } =
                self.mind().catalog.list_slice(tenant, prefix, cursor, false);
            for (behind, one) in found {
                if looked && deadline.passed(boottime()) {
                    return Listing { entries, next: Some(cursor) };
                }
                (cursor, looked) = (behind, true);
                if !matches(one.key.as_bytes()) {
                    continue;
                }
                key_bytes += one.key.as_bytes().len();
                let (key, len, object) = (one.key, one.len, one.object);
                entries.push(Listed { key, len, object, replicas: one.replicas });
                if entries.len() >= limit || key_bytes >= PAGE_KEY_BYTES_MAX {
                    return Listing { entries, next: Some(behind) };
                }
            }
            match next {
                Some(next) => cursor = next,
                None => return Listing { entries, next: None },
            }
        }
        Listing { entries, next: Some(cursor) }
    }

    /// Removes what matches, one step; what waits for owners is in `waiting`.
    pub(crate) fn start_remove_matching(
        &self,
        tenant: TenantId,
        ask: &RemoveMatching<'_>,
        waiting: &mut Vec<(usize, ObjectId)>,
        deadline: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError> {
        let pattern = Matcher::new(&ask.pattern)?;
        let matches = |key: &[u8]| pattern.matches(key);
        let (from, what) = ((ask.cursor, ask.force), (pattern.prefix(), matches));
        Ok(self.remove_where(tenant, what, from, waiting, deadline))
    }

    fn remove_where(
        &self,
        tenant: TenantId,
        (prefix, matches): (&[u8], impl Fn(&[u8]) -> bool),
        (cursor, force): (u64, bool),
        waiting: &mut Vec<(usize, ObjectId)>,
        deadline: Deadline,
    ) -> Result<Removed, RemoveError> {
        let mut page = RemovedPage { next: Some(cursor), ..RemovedPage::default() };
        let mut walked = 0;
        while let Some(cursor) = page.next {
            let over = walked > 0 && deadline.passed(boottime());
            if walked >= SLICES_MAX || page.waiting.len() >= MATCHES_MAX || over {
                break;
            }
            let ListSlice { entries, mut next } =
                self.mind().catalog.list_slice(tenant, prefix, cursor, true);
            let mut found: Vec<(Key, ObjectId)> = Vec::new();
            for (behind, one) in entries {
                if matches(one.key.as_bytes()) {
                    found.push((one.key, one.object));
                }
                if deadline.passed(boottime()) {
                    next = Some(behind);
                    break;
                }
            }
            let (removed, orders) = {
                let mut mind = self.mind();
                let catalog = &mut mind.catalog;
                let removed = catalog.remove_found(boottime(), tenant, &found, force, &mut page);
                (removed, self.sort_orders(&mut mind))
            };
            self.carry_out(&orders);
            match removed {
                Ok(()) => page.next = next,
                Err(refused) if walked == 0 => return Err(refused),
                // The next step hears why.
                Err(_) => break,
            }
            walked += 1;
        }
        waiting.extend(page.waiting.iter().map(|object| (0, *object)));
        let removed = page.waiting.len() as u64;
        Ok(Removed { removed, deferred: 0, leased: page.leased, next: page.next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::master;
    use mooncrate_wire::message::Pattern;
    use std::collections::BTreeSet;

    const TENANT: TenantId = TenantId::DEFAULT;
    const NEVER: Deadline = Deadline::NEVER;

    /// The story: a regular expression ran over thousands of keys while nobody else could ask the index.
    #[test]
    fn security_patterns_are_compared_while_the_lock_is_free() {
        let master = master(&[b"a", b"b", b"c"]);
        let free = |_: &[u8]| {
            assert!(master.is_idle(), "the lock is held");
            true
        };
        let listed = master.list_where(TENANT, (b"", free), 0, 10, NEVER);
        assert_eq!((listed.entries.len(), listed.next), (3, None));
        let mut waiting = Vec::new();
        let removed = master.remove_where(TENANT, (b"", free), (0, true), &mut waiting, NEVER);
        assert_eq!((removed.unwrap().removed, waiting.len()), (3, 3));
    }

    #[test]
    fn pages_name_every_key_once() {
        let names: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
        let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let master = master(&keys);
        let regex = |text| Pattern::Regex(text);
        for (pattern, expected) in [(regex("^k[0-4].?$"), 45), (regex("9$"), 5), (regex("x"), 0)] {
            for limit in [1, 7, 1000] {
                let (mut cursor, mut found, mut count) = (Some(0), BTreeSet::new(), 0);
                while let Some(at) = cursor {
                    let ask = List { pattern, cursor: at, limit };
                    let page = master.list_page(TENANT, &ask, NEVER).unwrap();
                    count += page.entries.len();
                    found.extend(page.entries.into_iter().map(|listed| listed.key));
                    cursor = page.next;
                }
                assert_eq!((count, found.len()), (expected, expected), "{pattern:?} by {limit}");
            }
        }
        // A caller whose time is over hears where to go on.
        let ask = List { pattern: regex("k"), cursor: 0, limit: 10 };
        let over = boottime().deadline_in(std::time::Duration::ZERO);
        let page = master.list_page(TENANT, &ask, over).unwrap();
        assert_eq!(page.entries.len(), 1, "and gets on");
        assert!(page.next.is_some_and(|next| next > 0));
    }
}
