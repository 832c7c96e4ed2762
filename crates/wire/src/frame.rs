//! The frame: 32 bytes of header, a body of at most 8 MiB, and on data links perhaps an attachment
//! (raw bytes of a value) right behind the body.
//!
//! ```text
//!  0 magic "MCR1"   4 version u8   5 kind u8   6 flags u16   8 request u64
//! 16 body_bytes u32   20 deadline_ms u32   24 body_crc u32   28 header_crc u32
//! 32 body …           body_bytes + 32 attachment …
//! ```
//!
//! Both checksums are CRC-32C. The attachment has none here: the object's seal covers it from end
//! to end. The first eight bytes of a body that may have an attachment are the attachment's length.
//!
//! What must stay true: this header, and the hello, keep their layout in every version of the
//! protocol, so that two versions can always tell each other who they are.

use crate::error::FrameError;
use crate::kind::Kind;
use mooncrate_core::limits::VALUE_BYTES_MAX;
use std::mem::{align_of, offset_of, size_of};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"MCR1";
/// Bytes of a header.
pub const FRAME_HEADER_BYTES: usize = 32;
/// Bytes of the largest body.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// Bytes of the largest attachment.
pub const ATTACHMENT_BYTES_MAX: u64 = VALUE_BYTES_MAX;
/// Version byte of hello frames and of refusals of a hello: the part that never changes.
pub const VERSION_HELLO: u8 = 0;
/// Oldest version this build speaks.
pub const VERSION_MIN: u8 = 8;
/// Newest version this build speaks.
pub const VERSION_MAX: u8 = 8;

/// Raw bytes follow the body.
pub const ATTACHED: u16 = 1;
/// This frame answers the request of the same number.
pub const REPLY: u16 = 2;
const FLAGS_KNOWN: u16 = ATTACHED | REPLY;

/// Which request a reply answers. Unique on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RequestId(pub u64);

/// The header as it travels. One that [`FrameHeader::parse`] returned is valid.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    flags: U16,
    request: U64,
    body_bytes: U32,
    deadline_ms: U32,
    body_crc: U32,
    header_crc: U32,
}

const _: () = assert!(size_of::<FrameHeader>() == FRAME_HEADER_BYTES);
const _: () = assert!(align_of::<FrameHeader>() == 1);
const _: () = assert!(offset_of!(FrameHeader, request) == 8);
const _: () = assert!(offset_of!(FrameHeader, body_bytes) == 16);
const _: () = assert!(offset_of!(FrameHeader, header_crc) == 28);

/// What the sender of a frame decides; lengths and checksums follow from the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Agreed version, or [`VERSION_HELLO`].
    pub version: u8,
    /// What it is about.
    pub kind: Kind,
    /// Whether it answers.
    pub reply: bool,
    /// Whose request.
    pub request: RequestId,
    /// Milliseconds the caller still waits; `u32::MAX`: for ever; 0 in replies.
    pub deadline_ms: u32,
}

impl FrameHeader {
    /// Checks a header completely, before anything is allocated for its body.
    pub fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let header: Self = zerocopy::transmute!(*bytes);
        // The magic first: whoever speaks another protocol here should be told so.
        if header.magic != MAGIC {
            return Err(FrameError::Magic { found: header.magic });
        }
        let computed = crc32c::crc32c(&bytes[..offset_of!(FrameHeader, header_crc)]);
        if computed != header.header_crc.get() {
            return Err(FrameError::HeaderCrc { stated: header.header_crc.get(), computed });
        }
        let kind = Kind::from_code(header.kind);
        let greets = header.version == VERSION_HELLO && kind.is_some_and(Kind::greets);
        if !greets && !(VERSION_MIN..=VERSION_MAX).contains(&header.version) {
            return Err(FrameError::Version { found: header.version });
        }
        let kind = kind.ok_or(FrameError::Kind { found: header.kind })?;
        let flags = header.flags.get();
        if flags & !FLAGS_KNOWN != 0 {
            return Err(FrameError::Flags { found: flags });
        }
        if flags & ATTACHED != 0 && !kind.may_attach(flags & REPLY != 0) {
            return Err(FrameError::NoAttachmentHere { kind });
        }
        if header.body_bytes() > BODY_BYTES_MAX {
            return Err(FrameError::TooLarge { bytes: header.body_bytes() as u64 });
        }
        Ok(header)
    }

    /// Agreed version of the link, or [`VERSION_HELLO`].
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// What it is about.
    pub fn kind(&self) -> Kind {
        Kind::from_code(self.kind).expect("parse accepted the kind")
    }

    /// Whether it answers a request.
    pub fn is_reply(&self) -> bool {
        self.flags.get() & REPLY != 0
    }

    /// Whether an attachment follows.
    pub fn is_attached(&self) -> bool {
        self.flags.get() & ATTACHED != 0
    }

    /// Whose request.
    pub fn request(&self) -> RequestId {
        RequestId(self.request.get())
    }

    /// Milliseconds the caller still waits.
    pub fn deadline_ms(&self) -> u32 {
        self.deadline_ms.get()
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes.get() as usize
    }

    /// Checks the body and returns the bytes of its attachment.
    fn accept(&self, body: &[u8]) -> Result<u64, FrameError> {
        let computed = crc32c::crc32c(body);
        if computed != self.body_crc.get() {
            return Err(FrameError::BodyCrc { stated: self.body_crc.get(), computed });
        }
        if !self.kind().may_attach(self.is_reply()) {
            return Ok(0);
        }
        let bytes = attachment_bytes(body).ok_or(FrameError::NoAttachmentLength)?;
        if bytes > ATTACHMENT_BYTES_MAX {
            return Err(FrameError::TooLarge { bytes });
        }
        if (bytes > 0) != self.is_attached() {
            return Err(FrameError::AttachmentFlag { bytes });
        }
        Ok(bytes)
    }
}

/// The length that stands at the start of a body that may have an attachment.
fn attachment_bytes(body: &[u8]) -> Option<u64> {
    body.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
}

/// One frame found in a run of bytes.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its header, valid.
    pub header: FrameHeader,
    /// Where its body lies.
    pub body: Range<usize>,
    /// Bytes of the attachment that follows `consumed`; they are read by whoever wants them.
    pub attached: u64,
    /// Bytes of header and body.
    pub consumed: usize,
}

/// Looks for one frame at the start of `bytes`. `None`: more bytes are needed. An error is final:
/// the stream is out of step and must be closed.
pub fn decode_frame(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
    let Some(head) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(None) };
    let header = FrameHeader::parse(head)?;
    let consumed = FRAME_HEADER_BYTES + header.body_bytes();
    let Some(body) = bytes.get(FRAME_HEADER_BYTES..consumed) else { return Ok(None) };
    let attached = header.accept(body)?;
    Ok(Some(Frame { header, body: FRAME_HEADER_BYTES..consumed, attached, consumed }))
}

/// Appends one frame to `out`; `encode` appends its body. On an error `out` is as it was.
pub fn encode_frame(
    out: &mut Vec<u8>,
    stamp: Stamp,
    encode: impl FnOnce(&mut Vec<u8>),
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    encode(out);
    let body = &out[start + FRAME_HEADER_BYTES..];
    if body.len() > BODY_BYTES_MAX {
        let bytes = body.len() as u64;
        out.truncate(start);
        return Err(FrameError::TooLarge { bytes });
    }
    let attached = stamp.kind.may_attach(stamp.reply) && attachment_bytes(body) != Some(0);
    let mut header = FrameHeader {
        magic: MAGIC,
        version: stamp.version,
        kind: stamp.kind as u8,
        flags: U16::new(if stamp.reply { REPLY } else { 0 } | if attached { ATTACHED } else { 0 }),
        request: U64::new(stamp.request.0),
        body_bytes: U32::new(body.len() as u32),
        deadline_ms: U32::new(stamp.deadline_ms),
        body_crc: U32::new(crc32c::crc32c(body)),
        header_crc: U32::ZERO,
    };
    let covered = &header.as_bytes()[..offset_of!(FrameHeader, header_crc)];
    header.header_crc = U32::new(crc32c::crc32c(covered));
    out[start..start + FRAME_HEADER_BYTES].copy_from_slice(header.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: Stamp = Stamp {
        version: VERSION_MIN,
        kind: Kind::Ping,
        reply: false,
        request: RequestId(7),
        deadline_ms: 1000,
    };

    fn frame(stamp: Stamp, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(&mut out, stamp, |out| out.extend_from_slice(body)).unwrap();
        out
    }

    /// Changes header bytes and makes the checksum right again.
    fn forged(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[..28]).to_le_bytes();
        bytes[28..32].copy_from_slice(&crc);
        bytes
    }

    #[test]
    fn a_frame_comes_back() {
        let bytes = frame(PING, b"body");
        let found = decode_frame(&bytes).unwrap().unwrap();
        assert_eq!(found.header.kind(), Kind::Ping);
        assert_eq!(found.header.request(), RequestId(7));
        assert_eq!(found.header.deadline_ms(), 1000);
        assert!(!found.header.is_reply() && !found.header.is_attached());
        assert_eq!(&bytes[found.body], b"body");
        assert_eq!((found.consumed, found.attached), (36, 0));
    }

    /// The layout may never change: these bytes are in the format page too.
    #[test]
    fn the_bytes_are_pinned() {
        let bytes = frame(PING, b"");
        let shown: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = shown.join(" ");
        let page = include_str!("../../../docs/formats/frame.md");
        assert!(page.contains(&shown), "docs/formats/frame.md lacks `{shown}`");
        assert!(
            shown.starts_with("4d 43 52 31 08 10 00 00 07 00 00 00 00 00 00 00 00 00 00 00 e8")
        );
    }

    #[test]
    fn a_cut_frame_waits_for_more() {
        let bytes = frame(PING, b"body");
        for cut in 0..bytes.len() {
            assert!(decode_frame(&bytes[..cut]).unwrap().is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = frame(PING, b"some body");
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn wrong_headers_are_named() {
        let good = frame(PING, b"");
        assert!(matches!(decode_frame(&[b'G'; 32]), Err(FrameError::Magic { .. })));
        let other = forged(good.clone(), |b| b[4] = 9);
        assert_eq!(decode_frame(&other).unwrap_err(), FrameError::Version { found: 9 });
        // Version 0 is for hello frames only.
        let other = forged(good.clone(), |b| b[4] = VERSION_HELLO);
        assert_eq!(decode_frame(&other).unwrap_err(), FrameError::Version { found: 0 });
        let other = forged(good.clone(), |b| b[5] = 0xee);
        assert_eq!(decode_frame(&other).unwrap_err(), FrameError::Kind { found: 0xee });
        let other = forged(good.clone(), |b| b[7] = 0x80);
        assert_eq!(decode_frame(&other).unwrap_err(), FrameError::Flags { found: 0x8000 });
        let other = forged(good.clone(), |b| b[6] = 1);
        assert_eq!(
            decode_frame(&other).unwrap_err(),
            FrameError::NoAttachmentHere { kind: Kind::Ping }
        );
        // Refused by the header alone: nobody waits for, or allocates, the body.
        let other = forged(good, |b| b[16..20].copy_from_slice(&0x80_0001_u32.to_le_bytes()));
        assert_eq!(decode_frame(&other).unwrap_err(), FrameError::TooLarge { bytes: 0x80_0001 });
    }

    #[test]
    fn an_oversized_body_is_not_sent() {
        let mut out = b"kept".to_vec();
        let grown =
            encode_frame(&mut out, PING, |out| out.resize(out.len() + BODY_BYTES_MAX + 1, 0));
        assert!(matches!(grown, Err(FrameError::TooLarge { .. })));
        assert_eq!(out, b"kept");
    }

    #[test]
    fn the_flag_and_the_length_of_an_attachment_agree() {
        let write = Stamp { kind: Kind::Write, ..PING };
        let bytes = frame(write, &5_u64.to_le_bytes());
        assert_eq!(decode_frame(&bytes).unwrap().unwrap().attached, 5);
        let unflagged = forged(bytes, |b| b[6] = 0);
        assert_eq!(decode_frame(&unflagged).unwrap_err(), FrameError::AttachmentFlag { bytes: 5 });
        let short = forged(frame(PING, b"1234"), |b| (b[5], b[6]) = (Kind::Write as u8, 1));
        assert_eq!(decode_frame(&short).unwrap_err(), FrameError::NoAttachmentLength);
        let huge = frame(write, &(ATTACHMENT_BYTES_MAX + 1).to_le_bytes());
        assert!(matches!(decode_frame(&huge), Err(FrameError::TooLarge { .. })));
    }
}
