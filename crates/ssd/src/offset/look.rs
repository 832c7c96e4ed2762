//! Looking for records in parts of the data file at a start, by several lanes (`lanes.rs`): from head to
//! head, and block by block where there is none.
//!
//! A lane does not know where the first record of its part begins: a value may lie over the part's start. It
//! looks at each block until it finds a head. If the record before the part ends where no head was found yet,
//! what the lane found is what a walk over the whole file finds; `recover.rs` compares that. In the midst of
//! a very long value there is nothing to find, so a lane gives up soon.
//!
//! What must stay true: nothing is changed here and nothing is told, so lanes may be ahead of what counts.

use super::BLOCK;
use crate::backend::RecordId;
use crate::disk::{Disk, File};
use crate::laying;
use crate::reading::Reader;
use crate::record::{Head, Kind, Shape, Site};
use crate::window::{WINDOW_BYTES, Window};
use mooncrate_core::Seal;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a lane looks through for the first head of its part.
pub(super) const SEARCH_BYTES: u64 = 2 << 20;
/// Bytes that are read at a time where nothing was found for a while: a disk reads several windows at once.
const FAR_BYTES: u64 = 8 << 20;

/// A record that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) serial: u64,
    pub(super) shape: Shape,
    pub(super) offset: u64,
}

impl Spot {
    pub(super) fn bytes(&self) -> u64 {
        laying::rounded(self.shape.bytes())
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes()
    }
}

/// What is told about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) id: RecordId,
    pub(super) spot: Spot,
    pub(super) seal: Seal,
    /// Where its label begins, of those of the walk.
    pub(super) label: usize,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) seen: Vec<Seen>,
    pub(super) labels: Vec<u8>,
    /// Blocks with heads that are no records, or that cannot be read.
    pub(super) dead: Vec<u64>,
    /// Where it ended, or gave up: all before is known.
    pub(super) end: u64,
}

impl Walked {
    pub(super) fn label(&self, seen: &Seen) -> &[u8] {
        &self.labels[seen.label..][..seen.spot.shape.label]
    }
}

/// Looks for records.
#[derive(Debug)]
pub(super) struct Looker<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) file: &'a Arc<dyn File>,
    pub(super) len: u64,
    pub(super) token: u64,
    pub(super) verify_values: bool,
    pub(super) reader: &'a Reader,
}

impl Looker<'_> {
    /// Walks over a part: from a head, or from where none has to be. Gives up after `search` bytes without one.
    pub(super) fn walk(&self, part: Range<u64>, search: Option<u64>) -> Walked {
        let mut all = Walked { end: part.start, ..Walked::default() };
        let far = if search.is_some() { WINDOW_BYTES } else { FAR_BYTES };
        let far = far.min(part.end - part.start);
        let mut window = Window::new(self.disk, self.file, self.len, far);
        // A large record is often followed by the next one: a block is enough to see. Small ones and free
        // space are read in larger parts.
        let mut ahead = WINDOW_BYTES;
        // Where the window ends, and bytes without a head that were looked at.
        let (mut until, mut lost) = (part.start, 0);
        while all.end < part.end {
            if all.end >= until {
                if search.is_some_and(|most| all.seen.is_empty() && lost >= most) {
                    break;
                }
                all.end = self.data_from(all.end);
                if all.end >= part.end {
                    // The next part may begin there.
                    all.end = part.end;
                    break;
                }
                let bytes = ahead.min(far).min(part.end - all.end);
                until = all.end + bytes;
                if window.fill(all.end, bytes).is_err() {
                    // Which block is it? It must not come back to life later.
                    window.fill_block_by_block(all.end, bytes, |offset| {
                        tracing::warn!(
                            offset,
                            "a block of the data file cannot be read; it is overwritten"
                        );
                        all.dead.push(offset);
                    });
                }
                ahead = (2 * ahead).clamp(WINDOW_BYTES, FAR_BYTES);
            }
            let offset = all.end;
            if let Some(spot) = self.look(offset, window.near(offset), &mut all) {
                (all.end, lost) = (spot.end(), 0);
                ahead = if spot.shape.is_small() { WINDOW_BYTES } else { BLOCK };
            } else {
                all.end += BLOCK;
                lost += BLOCK;
            }
        }
        all
    }

    /// Space that was never written to need not be read.
    fn data_from(&self, offset: u64) -> u64 {
        let data = self.file.data_from(offset).unwrap_or(offset);
        offset.max(data / BLOCK * BLOCK).min(self.len)
    }

    /// The record at `offset`, if there is one.
    fn look(&self, offset: u64, near: &[u8], all: &mut Walked) -> Option<Spot> {
        let site = Site { kind: Kind::Offset, token: self.token, serial: 0, offset };
        let shape = Head::peek(near, site)?;
        let read = if shape.head() <= near.len() {
            None
        } else {
            self.reader.head(self.disk, self.file, self.len, site).unwrap_or(None)
        };
        let bytes = read.as_ref().map_or(near, |(read, at)| &read[*at..]);
        let head = Head::decode_any_serial(bytes, site).filter(|head| {
            // The first block of a small record holds a part of its value, and may have been torn.
            let check = head.shape().is_small() || self.verify_values;
            let value = || match head.value_in(bytes) {
                Some(value) => Ok(Reader::is_value(head, value)),
                None => self.reader.check_value(self.disk, self.file, offset, head),
            };
            offset + laying::rounded(head.shape().bytes()) <= self.len
                && (!check || value().unwrap_or(false))
        });
        let Some(head) = head else {
            all.dead.push(offset);
            return None;
        };
        let spot = Spot { serial: head.serial, shape: head.shape(), offset };
        let (id, seal, label) = (head.id, head.seal, all.labels.len());
        all.seen.push(Seen { id, spot, seal, label });
        all.labels.extend_from_slice(head.label);
        Some(spot)
    }
}
