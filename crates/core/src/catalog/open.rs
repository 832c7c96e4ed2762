//! Puts that are open: by age for the watchdog, by tenant for its bounds, by writer for its end.
//!
//! A writer is whoever the master can see leave: a process with links to it. When the last of them is gone,
//! nobody can end its puts any more, so they are given up at once, as the watchdog would later: owners are
//! told to abort, and a range whose writer may still store to it stays with its owner until that one knows
//! better (R7).

use super::Catalog;
use super::objects::{EntryId, Stage};
use crate::error::PutError;
use crate::ids::{ObjectId, TenantId};
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Parts of a thousand of all slots that open puts of a tenant may take while it is alone: whoever comes
/// next finds one.
const SLOTS_ALONE_PERMILLE: u32 = 875;
/// Hint for a tenant that has too much open.
const TOO_MUCH_OPEN_MS: u32 = 10;

/// Who writes: a number that the master makes of the name that a peer gave itself. Two that say the same name
/// are one writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer(pub u64);

impl Writer {
    /// Somebody whose end nobody sees, such as the master's own process.
    pub const UNSEEN: Self = Self(0);
}

/// A put that is open.
#[derive(Clone, Copy, Debug)]
struct Open {
    entry: EntryId,
    tenant: TenantId,
    writer: Writer,
    /// Of all its copies, when it began.
    bytes: u64,
    slots: u64,
}

/// How much a tenant has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOf {
    /// Puts.
    pub puts: usize,
    /// Their bytes, of all copies.
    pub bytes: u64,
    /// Their slots, of all copies: an empty value takes one, too.
    pub slots: u64,
}

/// Open puts.
#[derive(Debug, Default)]
pub(super) struct OpenPuts {
    /// In the order of their start: the watchdog looks at the oldest only.
    queue: VecDeque<(Now, EntryId, ObjectId)>,
    open: BTreeMap<ObjectId, Open>,
    tenants: BTreeMap<TenantId, OpenOf>,
    /// Puts of writers whose end is seen.
    writers: BTreeMap<Writer, BTreeSet<ObjectId>>,
}

impl OpenPuts {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    fn of(&self, tenant: TenantId) -> OpenOf {
        self.tenants.get(&tenant).copied().unwrap_or_default()
    }

    /// One put ended. Its place in the queue is skipped when its time comes, or dropped early when
    /// it stands at the head.
    fn ended(&mut self, object: ObjectId) {
        let put = self.open.remove(&object).expect("a put ends once");
        let of = self.tenants.get_mut(&put.tenant).expect("it has an open put");
        of.puts -= 1;
        of.bytes -= put.bytes;
        of.slots -= put.slots;
        if of.puts == 0 {
            self.tenants.remove(&put.tenant);
        }
        if let Some(others) = self.writers.get_mut(&put.writer) {
            others.remove(&object);
            if others.is_empty() {
                self.writers.remove(&put.writer);
            }
        }
        while let Some((_, _, object)) = self.queue.front()
            && !self.open.contains_key(object)
        {
            self.queue.pop_front();
        }
    }

    /// The oldest put whose time is over.
    fn expired(&mut self, now: Now) -> Option<EntryId> {
        loop {
            let &(deadline, entry, object) = self.queue.front()?;
            if deadline > now {
                return None;
            }
            self.queue.pop_front();
            if self.open.contains_key(&object) {
                return Some(entry);
            }
        }
    }
}

impl Catalog {
    /// Puts that were started and not ended.
    pub fn open_puts(&self) -> usize {
        self.open.len()
    }

    /// What a tenant has open.
    pub fn open_of(&self, tenant: TenantId) -> OpenOf {
        self.open.of(tenant)
    }

    /// Whether a tenant may open one more put of so many bytes and slots. One always has room.
    pub(super) fn check_open(
        &self,
        tenant: TenantId,
        bytes: u64,
        slots: u64,
    ) -> Result<(), PutError> {
        let puts = self.open.of(tenant).puts;
        let some = puts > 0 || self.tenant(tenant).aborted > 0;
        let too_much = || self.opens_too_much(tenant, bytes, slots);
        if some && (puts >= self.config.open_puts_max || too_much()) {
            return Err(PutError::Busy { after_ms: TOO_MUCH_OPEN_MS });
        }
        Ok(())
    }

    /// Whether a tenant may plan a put anew: what it has given up for that counts.
    pub(super) fn check_open_again(&self, tenant: TenantId) -> Result<(), PutError> {
        if self.tenant(tenant).aborted > 0 && self.opens_too_much(tenant, 0, 0) {
            return Err(PutError::Busy { after_ms: TOO_MUCH_OPEN_MS });
        }
        Ok(())
    }

    /// Whether a tenant would have too many bytes or slots open. What it gave up counts until it is free, because
    /// its writer may still store there. Bytes are bounded where others want the pool as well: whoever is alone
    /// in it may fill it. Of the slots it leaves some in any case: they can be taken without a byte.
    fn opens_too_much(&self, tenant: TenantId, bytes: u64, slots: u64) -> bool {
        let alone = self.tenants().all(|(other, _)| other == tenant);
        let (open, given_up) = (self.open.of(tenant), self.tenant(tenant));
        let permille = self.config.open_permille;
        let all_bytes = open.bytes.saturating_add(given_up.aborted).saturating_add(bytes);
        let all_slots = open.slots + given_up.aborted_slots + slots;
        let of_slots = if alone { permille.max(SLOTS_ALONE_PERMILLE) } else { permille };
        !alone && all_bytes > self.segments.share_of_memory(permille)
            || slots > 0 && all_slots > self.segments.share_of_slots(of_slots)
    }

    /// A put begins.
    pub(super) fn open_put_of(&mut self, now: Now, id: EntryId, writer: Writer) {
        let entry = self.objects.entry(id);
        let (object, tenant) = (entry.object, entry.tenant);
        let bytes = self.charge_of(entry).total();
        let slots = entry.parts.as_slice().len() as u64;
        let of = self.open.tenants.entry(tenant).or_default();
        of.puts += 1;
        of.bytes += bytes;
        of.slots += slots;
        if writer != Writer::UNSEEN {
            self.open.writers.entry(writer).or_default().insert(object);
        }
        self.open.open.insert(object, Open { entry: id, tenant, writer, bytes, slots });
        self.open.queue.push_back((now.plus(self.config.put_timeout), id, object));
    }

    /// Books that an open put is over.
    pub(super) fn close_put(&mut self, object: ObjectId) {
        self.open.ended(object);
    }

    /// Ends puts whose time is over, so many at most.
    pub(super) fn watch_puts(&mut self, now: Now, most: usize) {
        for _ in 0..most {
            let Some(id) = self.open.expired(now) else { return };
            self.counters.puts_expired += 1;
            self.abort_put(now, id);
        }
    }

    /// Ends puts of a writer that is gone, so many at most; whether none is left.
    pub fn writer_gone(&mut self, now: Now, writer: Writer, most: usize) -> bool {
        let puts = self.open.writers.get(&writer);
        let puts: Vec<ObjectId> = puts.into_iter().flatten().take(most).copied().collect();
        for object in puts {
            let id = self.open.open[&object].entry;
            debug_assert_eq!(self.objects.entry(id).stage, Stage::Writing);
            self.counters.puts_expired += 1;
            self.abort_put(now, id);
        }
        !self.open.writers.contains_key(&writer)
    }

    /// How many puts of each tenant are booked as open, for the audit.
    pub(super) fn booked_open(&self) -> &BTreeMap<TenantId, OpenOf> {
        &self.open.tenants
    }
}
