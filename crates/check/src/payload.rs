//! Stamped payloads: bytes that say whose they are.
//!
//! ```text
//!   a line of 64 bytes, little-endian
//!   0         8          16     20      24                                            64
//!   ├ put_id ─┼ key hash ┼ line ┼ crc32c ┼ 40 bytes of generator output ───────────────┤
//!   put_id = run:16 | client:16 | sequence:32
//! ```
//!
//! The checksum is CRC-32C (Castagnoli, crate `crc32c`) over the other 60 bytes. The generator is
//! splitmix64 in counter mode over (`put_id`, key hash, line), so any line can be made without the
//! ones before it, on a CPU or a GPU. A tail shorter than a line is the prefix of the line that
//! would stand there.
//!
//! What must stay true: a stamp means the same for ever (tests pin it), and [`examine`] accepts a
//! value exactly when each of its bytes is what [`fill`] wrote for one put of this key. It cannot
//! know the length that was put: a cut value is a valid prefix, and the oracle compares lengths.

use mooncrate_core::KeyHash;
use std::fmt;

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;
/// Values shorter than this cannot name their put.
pub const NAMED_BYTES_MIN: usize = 8;

const AT_KEY: usize = 8;
const AT_LINE: usize = 16;
const AT_CRC: usize = 20;
const AT_BODY: usize = 24;
const BODY_WORDS: usize = 5;
/// The golden ratio: splitmix64's step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Names one put of one run: no two puts share it, whatever their keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId(u64);

impl PutId {
    /// The `sequence`-th put of `client` in `run`.
    pub const fn new(run: u16, client: u16, sequence: u32) -> Self {
        Self((run as u64) << 48 | (client as u64) << 32 | sequence as u64)
    }

    /// As it stands in a line.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As it stands in a line.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Which run of the rig.
    pub const fn run(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Which client of that run.
    pub const fn client(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Which put of that client.
    pub const fn sequence(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for PutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.run(), self.client(), self.sequence())
    }
}

impl fmt::Debug for PutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PutId({self})")
    }
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blame {
    /// A sound line of another key.
    Foreign,
    /// A sound line of another put of this key, and so is every line before it: the whole value
    /// belongs to that put. Only [`examine_as`] can say so, because only it knows what to expect.
    Stale,
    /// A sound line of another put of this key than the lines before it.
    Torn,
    /// A sound line of this put that belongs elsewhere in the value.
    Shifted,
    /// No sound line at all. A tear inside a line looks like this too.
    Rotten,
}

/// The names that stand in a line, as far as it is long enough to hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The put.
    pub put: PutId,
    /// The key; `None` in a tail of fewer than 16 bytes.
    pub key: Option<KeyHash>,
    /// The line number; `None` in a tail of fewer than 20 bytes.
    pub line: Option<u32>,
}

/// The first line of a value that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is {blame:?}: expected {}, found {}", shown(*.expected), shown_stamp(*.found))]
pub struct BadLine {
    /// Where it stands.
    pub line: u32,
    /// What it is.
    pub blame: Blame,
    /// The put that should stand there; `None` if no line before it named one.
    pub expected: Option<PutId>,
    /// What stands there; not to be trusted when it is rotten. `None` in a tail that cannot say.
    pub found: Option<Stamp>,
}

fn shown(put: Option<PutId>) -> String {
    put.map_or_else(|| "any put of this key".to_owned(), |put| format!("put {put}"))
}

fn shown_stamp(stamp: Option<Stamp>) -> String {
    let Some(stamp) = stamp else { return "too few bytes to tell".to_owned() };
    let key = stamp.key.map_or_else(|| "?".to_owned(), |key| format!("{:016x}", key.0));
    let line = stamp.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
    format!("put {} key {key} line {line}", stamp.put)
}

/// Fills a whole value.
pub fn fill(value: &mut [u8], put: PutId, key: KeyHash) {
    fill_range(value, 0, put, key);
}

/// Fills the part of a value that starts at `from_byte`, so that chunks and slices can be written
/// on their own.
pub fn fill_range(part: &mut [u8], from_byte: u64, put: PutId, key: KeyHash) {
    let source = Source::new(put, key);
    let mut line = line_number(from_byte);
    let skip = (from_byte % LINE_BYTES as u64) as usize;
    let head = if skip == 0 { 0 } else { part.len().min(LINE_BYTES - skip) };
    let (head, rest) = part.split_at_mut(head);
    if !head.is_empty() {
        head.copy_from_slice(&source.line(line)[skip..skip + head.len()]);
        line += 1;
    }
    let (lines, tail) = rest.as_chunks_mut();
    for target in lines {
        *target = source.line(line);
        line += 1;
    }
    if !tail.is_empty() {
        let len = tail.len();
        tail.copy_from_slice(&source.line(line)[..len]);
    }
}

/// Names the put whose bytes these are, or the first line that is wrong. `None`: fewer than
/// [`NAMED_BYTES_MIN`] bytes, which name nobody.
pub fn examine(value: &[u8], key: KeyHash) -> Result<Option<PutId>, BadLine> {
    let Some(put) = word(value, 0).map(PutId) else { return Ok(None) };
    // The first line names the put; if it cannot be trusted, nothing is expected.
    let first = &value[..value.len().min(LINE_BYTES)];
    if first != &Source::new(put, key).line(0)[..first.len()] {
        return Err(blame(first, 0, key, None));
    }
    compare(value, put, key)?;
    Ok(Some(put))
}

/// As [`examine`], for a caller that knows which put it must see. Values too short to name their
/// put are compared as well.
pub fn examine_as(value: &[u8], put: PutId, key: KeyHash) -> Result<(), BadLine> {
    compare(value, put, key).map_err(|bad| match bad.blame {
        // Sound as a whole, so no line stands beside a line of another put.
        Blame::Torn if examine(value, key).is_ok() => BadLine { blame: Blame::Stale, ..bad },
        _ => bad,
    })
}

fn compare(value: &[u8], put: PutId, key: KeyHash) -> Result<(), BadLine> {
    let source = Source::new(put, key);
    let (lines, tail) = value.as_chunks();
    let mut at = 0;
    for found in lines {
        if *found != source.line(at) {
            return Err(blame(found, at, key, Some(put)));
        }
        at += 1;
    }
    if tail != &source.line(at)[..tail.len()] {
        return Err(blame(tail, at, key, Some(put)));
    }
    Ok(())
}

/// Says what a line is that is not `expected`'s line number `line`.
#[cold]
fn blame(found: &[u8], line: u32, key: KeyHash, expected: Option<PutId>) -> BadLine {
    let stamp = word(found, 0).map(|put| Stamp {
        put: PutId(put),
        key: word(found, AT_KEY).map(KeyHash),
        line: found.get(AT_LINE..AT_CRC).map(|b| u32::from_le_bytes(four(b))),
    });
    // Sound: the line that these names would give is the line that stands here.
    let sound = stamp.filter(|stamp| {
        let source = Source::new(stamp.put, stamp.key.unwrap_or(key));
        found == &source.line(stamp.line.unwrap_or(line))[..found.len()]
    });
    let blame = match sound {
        Some(s) if s.key.is_some_and(|found| found != key) => Blame::Foreign,
        Some(s) if expected.is_some_and(|put| put != s.put) => Blame::Torn,
        Some(s) if s.line.is_some_and(|found| found != line) => Blame::Shifted,
        // Not sound. (A sound line of this put in its place would be no bad line.)
        _ => Blame::Rotten,
    };
    BadLine { line, blame, expected, found: stamp }
}

/// What the lines of one value have in common.
struct Source {
    head: [u8; AT_LINE],
    /// Of `head`: the checksum goes on from here for each line.
    head_crc: u32,
    seed: u64,
}

/// Aligned, because the checksum takes whole words from aligned addresses only.
#[repr(align(8))]
struct Aligned([u8; 8 + 8 * BODY_WORDS]);

impl Source {
    fn new(put: PutId, key: KeyHash) -> Self {
        let mut head = [0; AT_LINE];
        head[..AT_KEY].copy_from_slice(&put.0.to_le_bytes());
        head[AT_KEY..].copy_from_slice(&key.0.to_le_bytes());
        let seed = mix(put.0.wrapping_add(STEP)) ^ mix(key.0 ^ STEP).rotate_left(32);
        Self { head, head_crc: crc32c::crc32c(&head), seed }
    }

    #[inline]
    fn line(&self, line: u32) -> [u8; LINE_BYTES] {
        let first = u64::from(line) * BODY_WORDS as u64;
        let body: [u64; BODY_WORDS] = std::array::from_fn(|at| {
            let count = first + at as u64 + 1;
            mix(self.seed.wrapping_add(count.wrapping_mul(STEP)))
        });
        // The line number and the body side by side, so that one call checks both.
        let mut checked = Aligned([0; 8 + 8 * BODY_WORDS]);
        checked.0[4..8].copy_from_slice(&line.to_le_bytes());
        let mut out = [0; LINE_BYTES];
        for at in 0..BODY_WORDS {
            let word = body[at].to_le_bytes();
            checked.0[8 + 8 * at..][..8].copy_from_slice(&word);
            out[AT_BODY + 8 * at..][..8].copy_from_slice(&word);
        }
        let crc = crc32c::crc32c_append(self.head_crc, &checked.0[4..]);
        out[..AT_LINE].copy_from_slice(&self.head);
        out[AT_LINE..AT_CRC].copy_from_slice(&line.to_le_bytes());
        out[AT_CRC..AT_BODY].copy_from_slice(&crc.to_le_bytes());
        out
    }
}

/// splitmix64's finish: every bit of the input moves every bit of the output.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn line_number(byte: u64) -> u32 {
    u32::try_from(byte / LINE_BYTES as u64).expect("no value comes near 256 GiB")
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
}

fn four(bytes: &[u8]) -> [u8; 4] {
    bytes.try_into().expect("four bytes were taken")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash(0x1122_3344_5566_7788);
    const OTHER_KEY: KeyHash = KeyHash(0x99);
    const PUT: PutId = PutId::new(1, 2, 3);
    const OTHER_PUT: PutId = PutId::new(1, 2, 4);

    fn value(len: usize, put: PutId, key: KeyHash) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        fill(&mut bytes, put, key);
        bytes
    }

    fn blame_of(bytes: &[u8]) -> (u32, Blame, Option<PutId>) {
        let bad = examine(bytes, KEY).unwrap_err();
        (bad.line, bad.blame, bad.expected)
    }

    /// The stamp is a format: the GPU's generator and saved histories depend on it.
    #[test]
    fn a_line_means_the_same_for_ever() {
        let line = value(64, PUT, KEY);
        assert_eq!(line[..20], *b"\x03\0\0\0\x02\0\x01\0\x88\x77\x66\x55\x44\x33\x22\x11\0\0\0\0");
        let mut others = line[..20].to_vec();
        others.extend_from_slice(&line[24..]);
        assert_eq!(four(&line[20..24]), crc32c::crc32c(&others).to_le_bytes());
        assert_eq!(crc32c::crc32c(&value(4096, PUT, KEY)), 0xcb11_7762);
    }

    #[test]
    fn every_length_is_named_by_its_put() {
        for len in 0..=200 {
            let bytes = value(len, PUT, KEY);
            assert_eq!(examine(&bytes, KEY), Ok((len >= NAMED_BYTES_MIN).then_some(PUT)), "{len}");
            assert_eq!(examine_as(&bytes, PUT, KEY), Ok(()), "{len}");
        }
    }

    #[test]
    fn any_part_equals_that_part_of_the_whole() {
        let whole = value(517, PUT, KEY);
        for from in 0..=300 {
            for len in [0, 1, 7, 63, 64, 65, 130, 217] {
                let mut part = vec![0; len];
                fill_range(&mut part, from as u64, PUT, KEY);
                assert_eq!(part, whole[from..from + len], "{from}+{len}");
            }
        }
    }

    #[test]
    fn foreign_is_another_keys_line() {
        let mut bytes = value(640, PUT, KEY);
        bytes[320..384].copy_from_slice(&value(640, OTHER_PUT, OTHER_KEY)[320..384]);
        assert_eq!(blame_of(&bytes), (5, Blame::Foreign, Some(PUT)));
        assert_eq!(blame_of(&value(640, PUT, OTHER_KEY)), (0, Blame::Foreign, None));
        assert_eq!(blame_of(&value(30, PUT, OTHER_KEY)), (0, Blame::Foreign, None));
    }

    #[test]
    fn torn_is_two_puts_in_one_value() {
        let mut bytes = value(640, PUT, KEY);
        bytes[128..].copy_from_slice(&value(640, OTHER_PUT, KEY)[128..]);
        let bad = examine(&bytes, KEY).unwrap_err();
        assert_eq!((bad.line, bad.blame, bad.expected), (2, Blame::Torn, Some(PUT)));
        assert_eq!(bad.found.unwrap().put, OTHER_PUT);
        assert_eq!(
            bad.to_string(),
            "line 2 is Torn: expected put 1.2.3, found put 1.2.4 key 1122334455667788 line 2"
        );
    }

    #[test]
    fn stale_is_a_whole_value_of_another_put() {
        let old = value(640, PUT, KEY);
        let bad = examine_as(&old, OTHER_PUT, KEY).unwrap_err();
        assert_eq!((bad.line, bad.blame, bad.expected), (0, Blame::Stale, Some(OTHER_PUT)));
        let mut mixed = old;
        mixed[192..].copy_from_slice(&value(640, OTHER_PUT, KEY)[192..]);
        assert_eq!(examine_as(&mixed, OTHER_PUT, KEY).unwrap_err().blame, Blame::Torn);
    }

    #[test]
    fn shifted_is_a_line_out_of_place() {
        let whole = value(640, PUT, KEY);
        assert_eq!(blame_of(&whole[64..]), (0, Blame::Shifted, None));
        let mut bytes = whole.clone();
        bytes.copy_within(64..128, 256);
        assert_eq!(blame_of(&bytes), (4, Blame::Shifted, Some(PUT)));
    }

    #[test]
    fn rotten_is_any_flipped_bit() {
        // A tail of 24 bytes and more holds its checksum; a shorter one is taken at its word.
        let whole = value(216, PUT, KEY);
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let bad = examine(&bytes, KEY).unwrap_err();
            assert_eq!((bad.line as usize, bad.blame), (bit / 512, Blame::Rotten), "bit {bit}");
        }
        assert_eq!(blame_of(&[0; 64]), (0, Blame::Rotten, None), "never written");
    }

    #[test]
    fn a_tail_is_blamed_as_far_as_it_can_say() {
        let mine = value(64, PUT, KEY);
        for (tail, blame) in [(7, Blame::Rotten), (8, Blame::Torn), (63, Blame::Torn)] {
            let mut bytes = mine.clone();
            bytes.extend_from_slice(&value(128, OTHER_PUT, KEY)[64..64 + tail]);
            let want = (1, blame, Some(PUT));
            assert_eq!(blame_of(&bytes), want, "{tail} bytes");
        }
        let mut bytes = mine.clone();
        bytes.extend_from_slice(&mine[..24]);
        assert_eq!(blame_of(&bytes), (1, Blame::Shifted, Some(PUT)));
        assert_eq!(examine_as(&[1, 2, 3], PUT, KEY).unwrap_err().blame, Blame::Rotten);
    }
}
