//! Reading records back, and not believing the disk: head, label, place and every byte are verified before
//! a load is `Ok` (S11).
//!
//! A large value goes straight into the caller's memory and its head into ours, in one batch. Of a part, the
//! slices that it covers are read; where it begins or ends inside of one, that slice goes through our memory,
//! because only whole slices can be verified.

use crate::disk::{Disk, File, ReadAt};
use crate::record::{FIXED_BYTES, HEAD_BYTES_MAX, Head, SMALL_BYTES, Shape, Site};
use crate::room::{Lent, Rooms};
use crate::{ALIGN, Load, LoadError, RecordId};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::{Seal, seal};
use mooncrate_mem::crc::crc;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A head, or a whole small record, with what shares its blocks.
const NEAR_BYTES: usize = HEAD_BYTES_MAX + SMALL_BYTES as usize + 2 * ALIGN;
/// Loads that are read at a time: more would only hold more memory.
const BATCH: usize = 64;
/// Slices that are read at a time when a whole record is checked.
const CHECK_SLICES: u64 = 4;

const BLOCK: u64 = ALIGN as u64;

/// Reads for one backend; holds the memory that passes between reads.
#[derive(Debug)]
pub(crate) struct Reader {
    near: Rooms,
    slices: Rooms,
}

/// A load whose record was found.
#[derive(Debug)]
pub(crate) struct Found<'l, 'a> {
    pub(crate) site: Site,
    pub(crate) file: Arc<dyn File>,
    pub(crate) load: &'l mut Load<'a>,
}

/// What is read for one load.
struct Plan {
    shape: Shape,
    /// Where the head starts in its room.
    head_at: usize,
    head: Lent,
    /// Slices of which a part is wanted, with their numbers.
    edges: Vec<(u64, Lent)>,
    /// Slices that are wanted as a whole: in the value.
    direct: Option<Range<u64>>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { near: Rooms::new(NEAR_BYTES, BATCH), slices: Rooms::new(SLICE_BYTES as usize, 8) }
    }
}

impl Reader {
    /// Reads and verifies. The loads were checked against the index: length, label length, bounds.
    pub(crate) fn load(&self, disk: &dyn Disk, found: &mut [Found<'_, '_>]) {
        for batch in found.chunks_mut(BATCH) {
            let mut plans: Vec<Plan> = batch.iter().map(|found| self.plan(found)).collect();
            let results = read(disk, batch, &mut plans);
            for ((found, plan), result) in batch.iter_mut().zip(&plans).zip(results) {
                found.load.result = result.and_then(|()| {
                    let Found { site, load, .. } = found;
                    if verified(plan, *site, load) || canary_takes(plan, load) {
                        Ok(())
                    } else {
                        Err(LoadError::Corrupt)
                    }
                });
            }
        }
    }

    fn plan(&self, found: &Found<'_, '_>) -> Plan {
        let Found { site, load, .. } = found;
        let shape = Shape::new(load.label.len(), load.len);
        let from = site.offset - site.offset % BLOCK;
        let near = if shape.is_small() { shape.bytes() } else { shape.value_at() as u64 };
        let mut head = self.near.take();
        head.set_len(((site.offset + near).next_multiple_of(BLOCK) - from) as usize);
        let head_at = (site.offset - from) as usize;
        let mut plan = Plan { shape, head_at, head, edges: Vec::new(), direct: None };
        if shape.is_small() {
            return plan;
        }
        if load.want == 0 {
            if load.sums.is_some() && seal::slices(load.len) == 1 {
                // Its sum stands nowhere: it must be taken.
                plan.edges.push((0, self.edge(0, load.len)));
            }
            return plan;
        }
        let end = load.start + load.want;
        let (first, last) = (load.start / SLICE_BYTES, (end - 1) / SLICE_BYTES);
        let starts_inside = load.start != slice(first, load.len).start;
        let ends_inside = end != slice(last, load.len).end;
        let mut whole = first..last + 1;
        if starts_inside || (first == last && ends_inside) {
            plan.edges.push((first, self.edge(first, load.len)));
            whole.start += 1;
        }
        if ends_inside && !whole.is_empty() {
            plan.edges.push((last, self.edge(last, load.len)));
            whole.end -= 1;
        }
        if !whole.is_empty() {
            let start = slice(whole.start, load.len).start;
            plan.direct = Some(start..slice(whole.end - 1, load.len).end);
        }
        plan
    }

    fn edge(&self, number: u64, len: u64) -> Lent {
        let Range { start, end } = slice(number, len);
        let mut room = self.slices.take();
        room.set_len((end - start).next_multiple_of(BLOCK) as usize);
        room
    }

    /// Reads a whole record and compares it with what its own head says: `None` if there is no such head.
    pub(crate) fn check(
        &self,
        disk: &dyn Disk,
        file: &Arc<dyn File>,
        site: Site,
        id: RecordId,
        shape: Shape,
    ) -> io::Result<bool> {
        let from = site.offset - site.offset % BLOCK;
        let mut near = self.near.take();
        near.set_len(((site.offset + shape.head() as u64).next_multiple_of(BLOCK) - from) as usize);
        read_one(disk, file, from, &mut near)?;
        match Head::decode(&near[(site.offset - from) as usize..], site) {
            Some(head) if head.id == id && head.shape() == shape => {
                self.check_value(disk, file, site.offset, &head)
            }
            _ => Ok(false),
        }
    }

    /// Whether this is the value of a small record.
    pub(crate) fn is_value(head: &Head<'_>, value: &[u8]) -> bool {
        canary::on(Canary::RecoveryWithoutCrc) || seal_of_one(value) == head.seal
    }

    /// Reads the value behind a head at `offset` and compares it.
    pub(crate) fn check_value(
        &self,
        disk: &dyn Disk,
        file: &Arc<dyn File>,
        offset: u64,
        head: &Head<'_>,
    ) -> io::Result<bool> {
        if canary::on(Canary::RecoveryWithoutCrc) {
            return Ok(true);
        }
        let (shape, len) = (head.shape(), head.len);
        let start = offset + shape.value_at() as u64;
        if shape.is_small() {
            let from = start - start % BLOCK;
            let mut near = self.near.take();
            near.set_len(((start + len).next_multiple_of(BLOCK) - from) as usize);
            read_one(disk, file, from, &mut near)?;
            let value = &near[(start - from) as usize..][..len as usize];
            return Ok(Self::is_value(head, value));
        }
        let mut sums = Vec::with_capacity(seal::slices(len) as usize);
        for first in (0..seal::slices(len)).step_by(CHECK_SLICES as usize) {
            let last = seal::slices(len).min(first + CHECK_SLICES);
            let mut rooms: Vec<Lent> = (first..last).map(|number| self.edge(number, len)).collect();
            let reads = (first..last).zip(&mut rooms).map(|(number, room)| {
                let offset = start + slice(number, len).start;
                ReadAt { file, offset, into: room, result: Ok(()) }
            });
            let mut reads: Vec<ReadAt<'_>> = reads.collect();
            disk.read(&mut reads);
            reads.into_iter().try_for_each(|read| read.result)?;
            sums.extend((first..last).zip(&rooms).map(|(number, room)| {
                let Range { start, end } = slice(number, len);
                crc(&room[..(end - start) as usize])
            }));
        }
        Ok(Seal::over(len, sums) == head.seal)
    }

    /// Reads the head of a record whose shape is not known. `None`: there is none.
    pub(crate) fn head(
        &self,
        disk: &dyn Disk,
        file: &Arc<dyn File>,
        file_len: u64,
        site: Site,
    ) -> io::Result<Option<(Lent, usize)>> {
        let from = site.offset - site.offset % BLOCK;
        let at = (site.offset - from) as usize;
        let mut near = self.near.take();
        let mut len = (from + 2 * BLOCK).min(file_len).saturating_sub(from);
        loop {
            near.set_len(len as usize);
            read_one(disk, file, from, &mut near)?;
            let Some(bytes) = near.get(at..).filter(|bytes| bytes.len() >= FIXED_BYTES) else {
                return Ok(None);
            };
            let Some(shape) = Head::peek(bytes, site) else { return Ok(None) };
            let need = ((at + shape.head()) as u64).next_multiple_of(BLOCK);
            if need <= len {
                let known = Head::decode_any_serial(bytes, site).is_some();
                return Ok(known.then_some((near, at)));
            }
            if from + need > file_len {
                return Ok(None);
            }
            len = need;
        }
    }
}

/// Whether a load fits the record that was found for it.
pub(crate) fn admit(load: &Load<'_>, shape: Shape) -> Result<(), LoadError> {
    if Shape::new(load.label.len(), load.len) != shape {
        return Err(LoadError::Corrupt);
    }
    let fits = load.start.checked_add(load.want).is_some_and(|end| end <= load.len);
    let room = usize::try_from(load.want).is_ok_and(|want| want <= load.into.len());
    if fits && room { Ok(()) } else { Err(LoadError::OutOfBounds) }
}

/// Whether a check says that the record is bad, rather than that the disk could not read it now.
pub(crate) fn is_bad(checked: &io::Result<bool>) -> bool {
    match checked {
        Ok(good) => !good,
        Err(error) => error.kind() == io::ErrorKind::UnexpectedEof,
    }
}

/// Which bytes of a value of `len` a slice holds.
fn slice(number: u64, len: u64) -> Range<u64> {
    number * SLICE_BYTES..len.min((number + 1) * SLICE_BYTES)
}

/// The seal of a value of at most one slice.
fn seal_of_one(value: &[u8]) -> Seal {
    Seal::over(value.len() as u64, (!value.is_empty()).then(|| crc(value)))
}

/// One read, all of it or an error.
pub(crate) fn read_one(
    disk: &dyn Disk,
    file: &Arc<dyn File>,
    offset: u64,
    into: &mut [u8],
) -> io::Result<()> {
    let mut reads = [ReadAt { file, offset, into, result: Ok(()) }];
    disk.read(&mut reads);
    let [ReadAt { result, .. }] = reads;
    result
}

/// Reads what the plans say, in one batch; one result for each load.
fn read(
    disk: &dyn Disk,
    batch: &mut [Found<'_, '_>],
    plans: &mut [Plan],
) -> Vec<Result<(), LoadError>> {
    let mut owners = Vec::with_capacity(batch.len() * 2);
    let mut reads = Vec::with_capacity(batch.len() * 2);
    for (owner, (found, plan)) in batch.iter_mut().zip(plans).enumerate() {
        let Found { site, file, load } = found;
        let (file, len) = (&*file, load.len);
        let mut add = |offset, into| {
            owners.push(owner);
            reads.push(ReadAt { file, offset, into, result: Ok(()) });
        };
        let value = site.offset + plan.shape.value_at() as u64;
        add(site.offset - site.offset % BLOCK, &mut plan.head[..]);
        for (number, room) in &mut plan.edges {
            add(value + slice(*number, len).start, &mut room[..]);
        }
        if let Some(Range { start, end }) = plan.direct.clone() {
            let wanted = (start - load.start) as usize..(end - load.start) as usize;
            let is_last = end == load.start + load.want;
            let into = room_of(&mut *load.into, wanted, is_last);
            add(value + start, into);
        }
    }
    disk.read(&mut reads);
    let ended: Vec<io::Result<()>> = reads.into_iter().map(|read| read.result).collect();
    let mut results: Vec<Result<(), LoadError>> = batch.iter().map(|_| Ok(())).collect();
    for (owner, result) in owners.into_iter().zip(ended) {
        if let Err(error) = result {
            // A file that ends too early is no failing disk: it has lost what was in it.
            let cut = error.kind() == io::ErrorKind::UnexpectedEof;
            results[owner] = Err(if cut { LoadError::Corrupt } else { LoadError::Disk(error) });
        }
    }
    results
}

/// The wanted part of the target, up to the next whole block where that can be written to.
fn room_of(into: &mut [u8], wanted: Range<usize>, is_last: bool) -> &mut [u8] {
    let whole = wanted.start + (wanted.end - wanted.start).next_multiple_of(ALIGN);
    let address = into.as_ptr().addr() + wanted.start;
    let direct = is_last && whole <= into.len() && address.is_multiple_of(ALIGN);
    &mut into[wanted.start..if direct { whole } else { wanted.end }]
}

/// Whether what was read is the record, and copies what went through our memory.
fn verified(plan: &Plan, site: Site, load: &mut Load<'_>) -> bool {
    let Some(head) = Head::decode(&plan.head[plan.head_at..], site) else { return false };
    let is_it = head.id == load.id
        && head.label == load.label
        && head.len == load.len
        && head.seal == load.seal;
    if !is_it {
        return false;
    }
    let (start, end) = (load.start, load.start + load.want);
    if plan.shape.is_small() {
        let from = plan.head_at + plan.shape.value_at();
        let value = &plan.head[from..from + load.len as usize];
        let sum = (!value.is_empty()).then(|| crc(value));
        if Seal::over(load.len, sum) != head.seal {
            return false;
        }
        give_sums(load, sum);
        load.into[..load.want as usize].copy_from_slice(&value[start as usize..end as usize]);
        return true;
    }
    let mut sums: Vec<u64> = head.table().collect();
    let len = load.len;
    let mut good = |number: u64, bytes: &[u8]| {
        let sum = crc(bytes);
        if sums.is_empty() {
            sums.push(sum);
            return Seal::over(len, [sum]) == head.seal;
        }
        sums.get(number as usize) == Some(&sum)
    };
    if let Some(direct) = plan.direct.clone() {
        let first = direct.start / SLICE_BYTES;
        let bytes = &load.into[(direct.start - start) as usize..(direct.end - start) as usize];
        let mut slices = (first..).zip(bytes.chunks(SLICE_BYTES as usize));
        if !slices.all(|(number, bytes)| good(number, bytes)) {
            return false;
        }
    }
    for (number, room) in &plan.edges {
        let whole = slice(*number, load.len);
        if !good(*number, &room[..(whole.end - whole.start) as usize]) {
            return false;
        }
        let wanted = whole.start.max(start)..whole.end.min(end).max(start);
        let from =
            &room[(wanted.start - whole.start) as usize..(wanted.end - whole.start) as usize];
        load.into[(wanted.start - start) as usize..(wanted.end - start) as usize]
            .copy_from_slice(from);
    }
    give_sums(load, sums);
    true
}

/// With a bug on purpose: takes what was read for the record.
fn canary_takes(plan: &Plan, load: &mut Load<'_>) -> bool {
    if !canary::on(Canary::LoadWithoutVerify) {
        return false;
    }
    let (start, end) = (load.start, load.start + load.want);
    if plan.shape.is_small() {
        let value = &plan.head[plan.head_at + plan.shape.value_at()..][..load.len as usize];
        load.into[..load.want as usize].copy_from_slice(&value[start as usize..end as usize]);
    }
    for (number, room) in &plan.edges {
        let held = slice(*number, load.len);
        let wanted = held.start.max(start)..held.end.min(end).max(start);
        let from = &room[(wanted.start - held.start) as usize..(wanted.end - held.start) as usize];
        load.into[(wanted.start - start) as usize..(wanted.end - start) as usize]
            .copy_from_slice(from);
    }
    true
}

fn give_sums(load: &mut Load<'_>, all: impl IntoIterator<Item = u64>) {
    if let Some(sums) = &mut load.sums {
        sums.clear();
        sums.extend(all);
    }
}
