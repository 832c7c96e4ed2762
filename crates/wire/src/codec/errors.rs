//! How errors travel: a code and two numbers, and they come back as the same enum. Families have
//! ranges of their own, so that a code means one thing in the whole protocol.
//!
//! ```text
//! u16 code | u64 first number | u64 second number      unused numbers are zero
//! ```

use super::{Field, Reader};
use crate::error::{DataError, DecodeError, Refusal, RefusalCode};
use mooncrate_core::Incarnation;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::key::KeyError;
use mooncrate_core::plan::Medium;

/// What travels.
type Coded = (u16, u64, u64);

fn put_coded((code, first, second): Coded, out: &mut Vec<u8>) {
    code.put(out);
    first.put(out);
    second.put(out);
}

fn take_coded(from: &mut Reader<'_>) -> Result<Coded, DecodeError> {
    Ok((u16::take(from)?, u64::take(from)?, u64::take(from)?))
}

fn unknown(code: u16) -> DecodeError {
    DecodeError::BadValue { what: "an error code", value: u64::from(code) }
}

/// A number that is a `u32` in the error; more would be a second encoding of nothing.
fn narrow(number: u64) -> Result<u32, DecodeError> {
    u32::try_from(number)
        .map_err(|_| DecodeError::BadValue { what: "a number of an error", value: number })
}

/// The medium with this code.
fn medium_of(number: u64) -> Result<Medium, DecodeError> {
    let medium = Medium::ALL.into_iter().find(|medium| u64::from(*medium as u8) == number);
    medium.ok_or(DecodeError::BadValue { what: "a medium", value: number })
}

const fn key_code(error: KeyError) -> Coded {
    match error {
        KeyError::Empty => (1, 0, 0),
        KeyError::TooLong { bytes } => (2, bytes as u64, 0),
    }
}

fn key_error((code, first, _): Coded) -> Option<KeyError> {
    match code {
        1 => Some(KeyError::Empty),
        2 => Some(KeyError::TooLong { bytes: first as usize }),
        _ => None,
    }
}

/// Both directions of a family, with the check that the numbers mean something.
macro_rules! coded {
    ($name:ident, $code:ident, $error:ident) => {
        impl<'a> Field<'a> for $name {
            const BYTES_MIN: usize = 18;
            fn put(&self, out: &mut Vec<u8>) {
                put_coded($code(*self), out);
            }
            fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
                let coded = take_coded(from)?;
                let error = $error(coded)?;
                // One encoding per value: a number that the error does not carry must be zero.
                if $code(error) == coded { Ok(error) } else { Err(unknown(coded.0)) }
            }
        }
    };
}
coded!(PutError, put_code, put_error);
coded!(GetError, get_code, get_error);
coded!(RemoveError, remove_code, remove_error);
coded!(MountError, mount_code, mount_error);
coded!(DataError, data_code, data_error);
coded!(CopyError, copy_code, copy_error);

fn put_code(error: PutError) -> Coded {
    match error {
        PutError::Key(error) => key_code(error),
        PutError::Exists => (0x10, 0, 0),
        PutError::InProgress { after_ms } => (0x11, after_ms.into(), 0),
        PutError::TooLarge { len } => (0x12, len, 0),
        PutError::LargerThanAnySegment { wanted, largest } => (0x13, wanted, largest),
        PutError::BadReplicas { wanted } => (0x14, wanted.into(), 0),
        PutError::TooFewNodes { wanted, nodes } => (0x15, wanted.into(), nodes.into()),
        PutError::NoSegments => (0x16, 0, 0),
        PutError::Busy { after_ms } => (0x17, after_ms.into(), 0),
        PutError::Reclaiming { after_ms } => (0x18, after_ms.into(), 0),
        PutError::Rebuilding { after_ms } => (0x19, after_ms.into(), 0),
        PutError::NoSuchPut => (0x1a, 0, 0),
        PutError::Held { after_ms } => (0x1b, after_ms.into(), 0),
        PutError::Replacing { after_ms } => (0x1c, after_ms.into(), 0),
        PutError::BadSeals { stripes, seals } => (0x1d, stripes.into(), seals.into()),
        PutError::Quota { quota, total } => (0x1e, quota, total),
        PutError::HardFull { limit, total } => (0x1f, limit, total),
        PutError::NoMedium { medium } => (0x70, u64::from(medium as u8), 0),
    }
}

fn put_error(coded: Coded) -> Result<PutError, DecodeError> {
    let (code, first, second) = coded;
    if let Some(error) = key_error(coded) {
        return Ok(PutError::Key(error));
    }
    Ok(match code {
        0x10 => PutError::Exists,
        0x11 => PutError::InProgress { after_ms: narrow(first)? },
        0x12 => PutError::TooLarge { len: first },
        0x13 => PutError::LargerThanAnySegment { wanted: first, largest: second },
        0x14 => PutError::BadReplicas { wanted: narrow(first)? },
        0x15 => PutError::TooFewNodes { wanted: narrow(first)?, nodes: narrow(second)? },
        0x16 => PutError::NoSegments,
        0x17 => PutError::Busy { after_ms: narrow(first)? },
        0x18 => PutError::Reclaiming { after_ms: narrow(first)? },
        0x19 => PutError::Rebuilding { after_ms: narrow(first)? },
        0x1a => PutError::NoSuchPut,
        0x1b => PutError::Held { after_ms: narrow(first)? },
        0x1c => PutError::Replacing { after_ms: narrow(first)? },
        0x1d => PutError::BadSeals { stripes: narrow(first)?, seals: narrow(second)? },
        0x1e => PutError::Quota { quota: first, total: second },
        0x1f => PutError::HardFull { limit: first, total: second },
        0x70 => PutError::NoMedium { medium: medium_of(first)? },
        _ => return Err(unknown(code)),
    })
}

fn get_code(error: GetError) -> Coded {
    match error {
        GetError::Key(error) => key_code(error),
        GetError::NotFound => (0x20, 0, 0),
        GetError::Rebuilding { after_ms } => (0x21, after_ms.into(), 0),
    }
}

fn get_error(coded: Coded) -> Result<GetError, DecodeError> {
    if let Some(error) = key_error(coded) {
        return Ok(GetError::Key(error));
    }
    Ok(match coded.0 {
        0x20 => GetError::NotFound,
        0x21 => GetError::Rebuilding { after_ms: narrow(coded.1)? },
        code => return Err(unknown(code)),
    })
}

fn remove_code(error: RemoveError) -> Coded {
    match error {
        RemoveError::Key(error) => key_code(error),
        RemoveError::NotFound => (0x30, 0, 0),
        RemoveError::Leased { left_ms } => (0x31, left_ms.into(), 0),
        RemoveError::Deferred { after_ms } => (0x32, after_ms.into(), 0),
        RemoveError::InProgress => (0x33, 0, 0),
        RemoveError::Rebuilding { after_ms } => (0x34, after_ms.into(), 0),
    }
}

fn remove_error(coded: Coded) -> Result<RemoveError, DecodeError> {
    if let Some(error) = key_error(coded) {
        return Ok(RemoveError::Key(error));
    }
    Ok(match coded.0 {
        0x30 => RemoveError::NotFound,
        0x31 => RemoveError::Leased { left_ms: narrow(coded.1)? },
        0x32 => RemoveError::Deferred { after_ms: narrow(coded.1)? },
        0x33 => RemoveError::InProgress,
        0x34 => RemoveError::Rebuilding { after_ms: narrow(coded.1)? },
        code => return Err(unknown(code)),
    })
}

fn mount_code(error: MountError) -> Coded {
    match error {
        MountError::StaleIncarnation { last, over } => (0x40, last.0, over.into()),
        MountError::ForeignSegment => (0x41, 0, 0),
        MountError::BadOffer { bytes, slots } => (0x42, bytes, slots.into()),
        MountError::TooManySegments { count } => (0x43, count.into(), 0),
        MountError::UnknownNode => (0x44, 0, 0),
        MountError::BadAnnouncement { slot } => (0x45, slot.into(), 0),
    }
}

fn mount_error((code, first, second): Coded) -> Result<MountError, DecodeError> {
    Ok(match code {
        0x40 => MountError::StaleIncarnation { last: Incarnation(first), over: second == 1 },
        0x41 => MountError::ForeignSegment,
        0x42 => MountError::BadOffer { bytes: first, slots: narrow(second)? },
        0x43 => MountError::TooManySegments { count: narrow(first)? },
        0x44 => MountError::UnknownNode,
        0x45 => MountError::BadAnnouncement { slot: narrow(first)? },
        _ => return Err(unknown(code)),
    })
}

fn data_code(error: DataError) -> Coded {
    match error {
        DataError::Stale => (0x50, 0, 0),
        DataError::Busy { after_ms } => (0x51, after_ms.into(), 0),
        DataError::OldEpoch => (0x52, 0, 0),
        DataError::BadToken => (0x53, 0, 0),
        DataError::Corrupt => (0x54, 0, 0),
        DataError::OutOfBounds => (0x55, 0, 0),
        DataError::UnknownSegment => (0x56, 0, 0),
        DataError::Unsupported => (0x57, 0, 0),
        DataError::Denied => (0x58, 0, 0),
        DataError::Device => (0x59, 0, 0),
        DataError::Expired => (0x5a, 0, 0),
    }
}

fn data_error((code, first, _): Coded) -> Result<DataError, DecodeError> {
    Ok(match code {
        0x50 => DataError::Stale,
        0x51 => DataError::Busy { after_ms: narrow(first)? },
        0x52 => DataError::OldEpoch,
        0x53 => DataError::BadToken,
        0x54 => DataError::Corrupt,
        0x55 => DataError::OutOfBounds,
        0x56 => DataError::UnknownSegment,
        0x57 => DataError::Unsupported,
        0x58 => DataError::Denied,
        0x59 => DataError::Device,
        0x5a => DataError::Expired,
        _ => return Err(unknown(code)),
    })
}

fn copy_code(error: CopyError) -> Coded {
    match error {
        CopyError::Key(error) => key_code(error),
        CopyError::NotFound => (0x60, 0, 0),
        CopyError::NoSource => (0x61, 0, 0),
        CopyError::NoTarget => (0x62, 0, 0),
        CopyError::NoRoom { after_ms } => (0x63, after_ms.into(), 0),
        CopyError::Busy { after_ms } => (0x64, after_ms.into(), 0),
    }
}

fn copy_error(coded: Coded) -> Result<CopyError, DecodeError> {
    if let Some(error) = key_error(coded) {
        return Ok(CopyError::Key(error));
    }
    Ok(match coded.0 {
        0x60 => CopyError::NotFound,
        0x61 => CopyError::NoSource,
        0x62 => CopyError::NoTarget,
        0x63 => CopyError::NoRoom { after_ms: narrow(coded.1)? },
        0x64 => CopyError::Busy { after_ms: narrow(coded.1)? },
        code => return Err(unknown(code)),
    })
}

impl<'a> Field<'a> for Refusal {
    const BYTES_MIN: usize = 6;
    fn put(&self, out: &mut Vec<u8>) {
        (self.code as u16).put(out);
        self.message.put(out);
        // Only there: a refused hello keeps its layout for ever, and it never has this code.
        if self.code == RefusalCode::NotLeader {
            self.leader.put(out);
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let code = u16::take(from)?;
        let code = RefusalCode::from_code(code).ok_or(unknown(code))?;
        let message = String::take(from)?;
        let knows = code == RefusalCode::NotLeader;
        let leader = if knows { String::take(from)? } else { String::new() };
        Ok(Self { code, message, leader })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode;

    /// The codes are part of the protocol; this list may only grow.
    #[test]
    fn codes_are_distinct_and_come_back() {
        for code in 0..=0x80_u16 {
            let mut body = Vec::new();
            put_coded((code, 0, 0), &mut body);
            let families = [
                decode::<PutError>(&body).map(|e| put_code(e).0).ok(),
                decode::<GetError>(&body).map(|e| get_code(e).0).ok(),
                decode::<RemoveError>(&body).map(|e| remove_code(e).0).ok(),
                decode::<MountError>(&body).map(|e| mount_code(e).0).ok(),
                decode::<DataError>(&body).map(|e| data_code(e).0).ok(),
                decode::<CopyError>(&body).map(|e| copy_code(e).0).ok(),
            ];
            let known = families.iter().flatten().count();
            let expected = match code {
                1 | 2 => 4,
                0x10..=0x21 | 0x30..=0x34 | 0x40..=0x45 | 0x50..=0x5a | 0x60..=0x64 | 0x70 => 1,
                _ => 0,
            };
            assert_eq!(known, expected, "code {code:#x}");
            assert!(families.iter().flatten().all(|back| *back == code));
        }
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        let mut body = Vec::new();
        put_coded((0x10, 1, 0), &mut body);
        assert!(decode::<PutError>(&body).is_err());
        let mut body = Vec::new();
        put_coded((0x17, 1 << 32, 0), &mut body);
        assert!(decode::<PutError>(&body).is_err());
        let mut body = Vec::new();
        put_coded((0x70, 3, 0), &mut body);
        assert!(decode::<PutError>(&body).is_err(), "there are three media");
    }
}
