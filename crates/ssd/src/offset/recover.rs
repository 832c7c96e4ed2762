//! Finding records again after a restart (S3). Lanes look through parts of the file (`look.rs`); what they
//! found is taken over part by part, in the order of the file.

use super::evict::zeros;
use super::look::{Looker, SEARCH_BYTES, Seen, Spot, Walked};
use super::{BLOCK, Held, OneFile, SHARDS, Shard, ShardHasher, Shared, Space, shard_of};
use crate::backend::{OpenError, Progress, Record, RecordId, Recovery};
use crate::config::Config;
use crate::disk::{Disk, File, Open};
use crate::identity::{self, Identity};
use crate::lanes::{in_order, waiting};
use crate::reading::Reader;
use crate::record::Kind;
use mooncrate_core::Extent;
use mooncrate_core::alloc::{Allocation, LiveRuns};
use mooncrate_lock::{Condvar, Mutex};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

const DATA: &str = "kv_cache.data";
/// Bytes of a part: many, because a lane begins in the midst of something, unless the file is short.
const PART_BYTES_MIN: u64 = 1 << 20;
const PART_BYTES_MAX: u64 = 32 << 20;
/// More lanes than these find nothing sooner.
const LANES_MAX: usize = 16;
/// Parts that lanes may look through for nothing before they stop, and what it takes to go on: so many
/// records in a part.
const CREDIT_MAX: i64 = 16;
const MANY: usize = 16;
/// The smallest limit that leaves room for anything.
const LIMIT_BYTES_MIN: u64 = 64 << 10;

impl OneFile {
    /// Opens a directory and tells each record that verified.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: &Config,
        found: &mut dyn FnMut(Record),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, Recovery), OpenError> {
        let limit = config.limit_bytes;
        if limit < LIMIT_BYTES_MIN {
            return Err(OpenError::TooSmall { limit, least: LIMIT_BYTES_MIN });
        }
        let is_ours = |name: &str| name == DATA;
        let identity = Identity::open(&disk, Kind::Offset, config.token, 1 << 16, is_ours)?;
        let wanted = (limit - identity::BYTES_MAX) / BLOCK * BLOCK;
        let file = open_file(disk.as_ref())?;
        let reader = Reader::default();
        let looker = Looker {
            disk: disk.as_ref(),
            file: &file,
            len: file.len()? / BLOCK * BLOCK,
            token: identity.token,
            verify_values: config.verify_values,
            reader: &reader,
        };
        let scan = Scan {
            looker: &looker,
            spots: Vec::new(),
            live: HashMap::new(),
            dead: Vec::new(),
            known: 0,
            recovery: Recovery::default(),
            found,
            progress,
        };
        let Scan { spots, recovery, .. } = scan.run(&identity)?;
        let live = spots.into_iter().flatten();
        let end = live.clone().last().map_or(0, |live| live.spot.end());
        if end > wanted {
            return Err(OpenError::TooSmall { limit, least: end + identity::BYTES_MAX });
        }
        if file.len()? != wanted {
            file.set_len(wanted)?;
        }
        // What a killed process wrote is seen, and durable only now: a record that is told, and a dead one
        // whose removal is answered from now on (G6).
        file.sync_data()?;
        disk.sync_dir(Path::new(""))?;
        let (space, shards) = space_of(wanted, live);
        let shared = Shared {
            disk,
            config: config.clone(),
            identity,
            reader,
            file,
            file_bytes: wanted,
            bad: AtomicBool::new(false),
            shards: shards.map(Mutex::new),
            hasher: ShardHasher::default(),
            space: Mutex::new(space),
            pause: Condvar::new(),
        };
        Ok((Self(Arc::new(shared)), recovery))
    }
}

fn open_file(disk: &dyn Disk) -> io::Result<Arc<dyn File>> {
    match disk.open(Path::new(DATA), Open::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.open(Path::new(DATA), Open::Create)
        }
        opened => opened,
    }
}

/// The space with these records in it, and an index of them.
fn space_of(capacity: u64, live: impl Iterator<Item = Live>) -> (Space, [Shard; SHARDS]) {
    let mut runs = LiveRuns::new(capacity);
    let mut shards: [Vec<Arc<Held>>; SHARDS] = std::array::from_fn(|_| Vec::new());
    let (mut order, mut value_bytes) = (Vec::new(), 0);
    let hasher = ShardHasher::default();
    for Live { id, spot } in live {
        let Spot { serial, shape, offset } = spot;
        let extent = Extent::new(offset, spot.bytes()).expect("it lies inside of the file");
        let handle = runs.add(extent).expect("it lies at whole blocks inside of the file");
        let place = Allocation { extent, handle };
        value_bytes += shape.value;
        order.push((serial, id));
        shards[shard_of(&hasher, id)].push(Arc::new(Held { id, serial, shape, place }));
    }
    let free = runs.build().expect("a scan goes from the end of a record to the next one");
    let space = Space {
        free,
        order: order.into_iter().collect(),
        hidden: BTreeMap::new(),
        pending: HashSet::new(),
        leaving: Vec::new(),
        value_bytes,
    };
    (space, shards.map(|held| held.into_iter().map(|held| (held.id, held)).collect()))
}

/// A record that is served.
#[derive(Clone, Copy)]
struct Live {
    id: RecordId,
    spot: Spot,
}

/// A recovery under way: takes over what lanes found.
struct Scan<'a> {
    looker: &'a Looker<'a>,
    /// Records as they lie in the file. Of two copies the one that does not count is `None`.
    spots: Vec<Option<Live>>,
    /// Which of them a record is.
    live: HashMap<RecordId, usize>,
    /// Blocks with heads that are no records, or cannot be read: zeros go there before anything else does.
    dead: Vec<u64>,
    /// Everything before is known.
    known: u64,
    recovery: Recovery,
    found: &'a mut dyn FnMut(Record),
    progress: &'a mut dyn FnMut(Progress),
}

impl Scan<'_> {
    fn run(mut self, identity: &Identity) -> io::Result<Self> {
        let looker = self.looker;
        let lanes = waiting(looker.disk).min(LANES_MAX);
        let part = looker.len / (4 * lanes as u64) / BLOCK * BLOCK;
        let part = part.clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let parts = (0..looker.len).step_by(part as usize);
        let parts = parts.map(|start| start..looker.len.min(start + part));
        // Whether lanes find anything: where parts begin in the midst of very long values they only read a lot.
        let credit = AtomicI64::new(if lanes > 1 { CREDIT_MAX } else { 0 });
        let look = |part: Range<u64>| {
            let tries = lanes > 1 && credit.load(Ordering::Relaxed) > 0;
            let walked = tries.then(|| looker.walk(part.clone(), Some(SEARCH_BYTES)));
            (part, walked.unwrap_or_default())
        };
        in_order(lanes, parts, look, |(part, walked)| {
            let worth = credit.load(Ordering::Relaxed) + self.take(part, &walked);
            credit.store(worth.clamp(0, CREDIT_MAX), Ordering::Relaxed);
            io::Result::Ok(())
        })?;
        self.tell(looker.len);
        self.bury(identity)?;
        Ok(self)
    }

    fn tell(&mut self, done: u64) {
        let (total, records) = (self.looker.len, self.recovery.records);
        (self.progress)(Progress { done, total, records });
    }

    /// Takes over what a lane found in a part, and finds the rest. What the lane found counts if it met no head
    /// before the end of the last record: else it took bytes of a value for one. Says what the lane was worth.
    fn take(&mut self, part: Range<u64>, walked: &Walked) -> i64 {
        let before = self.spots.len();
        let right = walked.seen.first().is_none_or(|first| first.spot.offset >= self.known);
        let used = right && walked.end > self.known;
        if used {
            self.take_walk(walked);
        }
        if self.known < part.end {
            let rest = self.looker.walk(self.known..part.end, None);
            self.take_walk(&rest);
        }
        self.tell(self.known.min(self.looker.len));
        let looked = walked.end > part.start;
        let many = self.spots.len() - before >= MANY;
        if used || (!looked && many) { 1 } else { -i64::from(looked) }
    }

    fn take_walk(&mut self, walked: &Walked) {
        let dead = walked.dead.iter().filter(|offset| **offset >= self.known);
        let before = self.dead.len();
        self.dead.extend(dead);
        self.recovery.dropped += (self.dead.len() - before) as u64;
        for seen in &walked.seen {
            self.take_record(seen, walked);
        }
        self.known = walked.end;
    }

    fn take_record(&mut self, seen: &Seen, walked: &Walked) {
        let Seen { id, spot, seal, .. } = *seen;
        let at = self.spots.len();
        match self.live.entry(id) {
            Entry::Vacant(vacant) => {
                vacant.insert(at);
                self.recovery.records += 1;
                self.recovery.value_bytes += spot.shape.value;
                let label = walked.label(seen).into();
                (self.found)(Record { id, label, len: spot.shape.value, seal });
            }
            // Evicted, offloaded again, and the first copy came back with a crash: the newer one counts.
            Entry::Occupied(mut other) => {
                self.recovery.orphans += 1;
                let (newer, older) = match &mut self.spots[*other.get()] {
                    Some(first) if first.spot.serial > spot.serial => (false, spot.offset),
                    first => (true, first.take().map_or(spot.offset, |first| first.spot.offset)),
                };
                self.dead.push(older);
                if !newer {
                    return;
                }
                other.insert(at);
            }
        }
        self.spots.push(Some(Live { id, spot }));
    }

    /// What is no record must not be taken for one later, when its space is in use again.
    fn bury(&mut self, identity: &Identity) -> io::Result<()> {
        // A block that could not be read may lie in the value of a record that was found by its head: the
        // disk may read it another time, and else the load will tell.
        if self.dead.is_empty() {
            return Ok(());
        }
        let live: Vec<Spot> = self.spots.iter().flatten().map(|live| live.spot).collect();
        self.dead.retain(|offset| {
            let before = live.partition_point(|spot| spot.offset <= *offset);
            before == 0 || live[before - 1].end() <= *offset
        });
        let zeros = zeros();
        // One after the other, the first ones first: two of them may be the head of a record and a block of its
        // value, and a power cut must not leave the head alone.
        self.dead.sort_unstable();
        for &offset in &self.dead {
            identity.write(self.looker.file, offset, &[&zeros])?;
            self.looker.file.sync_data()?;
        }
        Ok(())
    }
}
