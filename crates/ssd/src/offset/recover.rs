//! Finding records again after a restart (S3): from head to head, and block by block where there is none.

use super::evict::zeros;
use super::{Held, OneFile, ShardHasher, Shared, Space};
use crate::ALIGN;
use crate::backend::{OpenError, Progress, Record, RecordId, Recovery};
use crate::config::Config;
use crate::disk::{Disk, File, Open};
use crate::identity::{self, Identity};
use crate::laying;
use crate::reading::{Reader, read_one};
use crate::record::{Head, Kind, Shape, Site};
use crate::room::Room;
use mooncrate_core::Extent;
use mooncrate_core::alloc::{Allocation, LiveRuns};
use mooncrate_lock::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const DATA: &str = "kv_cache.data";
const BLOCK: u64 = ALIGN as u64;
/// Bytes that are read at a time where nothing is found.
const CHUNK_BYTES: u64 = 1 << 20;
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
        let len = file.len()? / BLOCK * BLOCK;
        let scan = Scan {
            disk: disk.as_ref(),
            file: &file,
            len,
            token: identity.token,
            config,
            reader: Reader::default(),
            live: BTreeMap::new(),
            dead: Vec::new(),
            recovery: Recovery::default(),
            found,
            progress,
        };
        let Scan { live, recovery, reader, .. } = scan.run(&identity)?;
        let end = live.values().map(Spot::end).max().unwrap_or(0);
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
        let (space, held) = space_of(wanted, live);
        let shared = Shared {
            disk,
            config: config.clone(),
            identity,
            reader,
            file,
            file_bytes: wanted,
            bad: AtomicBool::new(false),
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            hasher: ShardHasher::default(),
            space: Mutex::new(space),
            pause: Condvar::new(),
        };
        for held in held {
            shared.link(held);
        }
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

/// The space with these records in it.
fn space_of(capacity: u64, live: BTreeMap<RecordId, Spot>) -> (Space, Vec<Arc<Held>>) {
    let mut runs = LiveRuns::new(capacity);
    let held = live.into_iter().map(|(id, spot)| {
        let Spot { serial, shape, offset } = spot;
        let extent = Extent::new(offset, spot.bytes()).expect("it lies inside of the file");
        let handle = runs.add(extent).expect("it lies at whole blocks inside of the file");
        let place = Allocation { extent, handle };
        Arc::new(Held { id, serial, shape, place })
    });
    let held = held.collect();
    let free = runs.build().expect("a scan goes from the end of a record to the next one");
    let space = Space {
        free,
        order: BTreeMap::new(),
        hidden: BTreeMap::new(),
        pending: HashSet::new(),
        leaving: Vec::new(),
        value_bytes: 0,
    };
    (space, held)
}

/// A record that was found.
#[derive(Clone, Copy)]
struct Spot {
    serial: u64,
    shape: Shape,
    offset: u64,
}

impl Spot {
    fn bytes(&self) -> u64 {
        laying::rounded(self.shape.bytes())
    }

    fn end(&self) -> u64 {
        self.offset + self.bytes()
    }
}

/// A recovery under way.
struct Scan<'a> {
    disk: &'a dyn Disk,
    file: &'a Arc<dyn File>,
    len: u64,
    token: u64,
    config: &'a Config,
    reader: Reader,
    live: BTreeMap<RecordId, Spot>,
    /// Blocks with heads that are no records, or cannot be read: zeros go there before anything else does.
    dead: Vec<u64>,
    recovery: Recovery,
    found: &'a mut dyn FnMut(Record),
    progress: &'a mut dyn FnMut(Progress),
}

impl Scan<'_> {
    fn run(mut self, identity: &Identity) -> io::Result<Self> {
        let mut room = Room::new(CHUNK_BYTES as usize);
        // What the room holds of the file.
        let (mut from, mut until) = (0, 0);
        let mut offset = 0;
        // A large record is often followed by the next one: a block is enough to see. Small ones and free
        // space are read in larger parts.
        let mut ahead = CHUNK_BYTES;
        while offset < self.len {
            if offset >= until {
                (from, until) = (offset, (offset + ahead).min(self.len));
                room.set_len((until - from) as usize);
                if read_one(self.disk, self.file, from, &mut room).is_err() {
                    self.read_block_by_block(from, &mut room);
                }
                ahead = CHUNK_BYTES;
                self.tell(offset);
            }
            let near = &room[(offset - from) as usize..];
            if let Some(spot) = self.look(offset, near) {
                offset = spot.end();
                ahead = if spot.shape.is_small() { CHUNK_BYTES } else { BLOCK };
            } else {
                offset += BLOCK;
            }
        }
        self.tell(self.len);
        self.bury(identity)?;
        Ok(self)
    }

    fn tell(&mut self, done: u64) {
        let records = self.recovery.records;
        (self.progress)(Progress { done, total: self.len, records });
    }

    /// A part of the file cannot be read: which block is it? It must not come back to life later.
    fn read_block_by_block(&mut self, from: u64, room: &mut Room) {
        for (offset, block) in (from..).step_by(ALIGN).zip(room.chunks_mut(ALIGN)) {
            if read_one(self.disk, self.file, offset, block).is_err() {
                tracing::warn!(
                    offset,
                    "a block of the data file cannot be read; it is overwritten"
                );
                self.recovery.dropped += 1;
                self.dead.push(offset);
                block.fill(0);
            }
        }
    }

    /// Where the record at `offset` ends, if there is one.
    fn look(&mut self, offset: u64, near: &[u8]) -> Option<Spot> {
        let site = Site { kind: Kind::Offset, token: self.token, serial: 0, offset };
        let shape = Head::peek(near, site)?;
        let read = if shape.head() <= near.len() {
            None
        } else {
            self.reader.head(self.disk, self.file, self.len, site).unwrap_or(None)
        };
        let bytes = read.as_ref().map_or(near, |(read, at)| &read[*at..]);
        let Some(head) = Head::decode_any_serial(bytes, site) else {
            self.recovery.dropped += 1;
            self.dead.push(offset);
            return None;
        };
        let spot = Spot { serial: head.serial, shape: head.shape(), offset };
        // The first block of a small record holds a part of its value, and may have been torn.
        let check = spot.shape.is_small() || self.config.verify_values;
        let good = spot.end() <= self.len
            && (!check
                || match head.value_in(bytes) {
                    Some(value) => Reader::is_value(&head, value),
                    None => (self.reader.check_value(self.disk, self.file, offset, &head))
                        .unwrap_or(false),
                });
        if !good {
            self.recovery.dropped += 1;
            self.dead.push(offset);
            return None;
        }
        match self.live.insert(head.id, spot) {
            None => {
                self.recovery.records += 1;
                self.recovery.value_bytes += head.len;
                (self.found)(head.record());
            }
            // Evicted, offloaded again, and the first copy came back with a crash: the newer one counts.
            Some(other) => {
                let (newer, older) =
                    if other.serial > spot.serial { (other, spot) } else { (spot, other) };
                self.live.insert(head.id, newer);
                self.dead.push(older.offset);
                self.recovery.orphans += 1;
            }
        }
        Some(spot)
    }

    /// What is no record must not be taken for one later, when its space is in use again.
    fn bury(&mut self, identity: &Identity) -> io::Result<()> {
        // A block that could not be read may lie in the value of a record that was found by its head: the
        // disk may read it another time, and else the load will tell.
        let mut live: Vec<(u64, u64)> =
            self.live.values().map(|spot| (spot.offset, spot.end())).collect();
        live.sort_unstable();
        self.dead.retain(|offset| {
            let before = live.partition_point(|(start, _)| start <= offset);
            before == 0 || live[before - 1].1 <= *offset
        });
        if self.dead.is_empty() {
            return Ok(());
        }
        let zeros = zeros();
        // One after the other, the first ones first: two of them may be the head of a record and a block of its
        // value, and a power cut must not leave the head alone.
        self.dead.sort_unstable();
        for &offset in &self.dead {
            identity.write(self.file, offset, &[&zeros])?;
            self.file.sync_data()?;
        }
        Ok(())
    }
}
