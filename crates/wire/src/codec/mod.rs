//! The codec: fields one after another, little-endian, without padding, tags or names.
//!
//! ```text
//! u8 u16 u32 u64     little-endian            bool        u8: 0 or 1, nothing else
//! bytes              u32 length, bytes        text        the same, UTF-8, at most 4096 bytes
//! list of T          u32 count, items         option      u8: 0, or 1 and the value
//! result             u8: 0 and the value, or 1 and an error (u16 code, u64, u64)
//! ```
//!
//! What must stay true: a count is compared with its limit and with the bytes that are left before
//! anything is allocated; every value has exactly one encoding, so that what decodes encodes to the
//! same bytes; nothing here recurses on data.

mod errors;
mod words;

use crate::error::DecodeError;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use std::borrow::Cow;

/// Bytes of the longest text: names, addresses, messages for people.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;

/// What is left of a body.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// The next `count` bytes.
    pub(crate) fn bytes(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(DecodeError::Short { what, missing: count - self.rest.len() });
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(DecodeError::Short { what, missing: N - self.rest.len() });
        };
        self.rest = rest;
        Ok(*taken)
    }

    /// The whole body must have been read.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::TrailingBytes { bytes }),
        }
    }
}

/// A value with one encoding.
pub(crate) trait Field<'a>: Sized {
    /// Fewest bytes a value takes. A list of `n` needs `n` times that many, or it is a lie.
    const BYTES_MIN: usize;
    /// Most values in one list.
    const LIST_MAX: usize = BATCH_ITEMS_MAX;

    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads a value.
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// Reads a value that is a whole body.
pub(crate) fn decode<'a, T: Field<'a>>(body: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(body);
    let value = T::take(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl<'a> Field<'a> for $int {
            const BYTES_MIN: usize = size_of::<$int>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(<$int>::from_le_bytes(from.array(stringify!($int))?))
            }
        }
    )*};
}
integers!(u8 u16 u32 u64);

impl<'a, const N: usize> Field<'a> for [u8; N] {
    const BYTES_MIN: usize = N;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        from.array("fixed bytes")
    }
}

impl<'a> Field<'a> for () {
    const BYTES_MIN: usize = 0;
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<'a> Field<'a> for bool {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadValue { what: "a bool", value: u64::from(value) }),
        }
    }
}

impl<'a> Field<'a> for &'a [u8] {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = u32::take(from)? as usize;
        from.bytes(count, "bytes")
    }
}

pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u32).put(out);
    out.extend_from_slice(bytes);
}

impl<'a> Field<'a> for String {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::take(from)?;
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(DecodeError::TooMany { count: bytes.len() as u64, limit: TEXT_BYTES_MAX });
        }
        Ok(std::str::from_utf8(bytes).map_err(|_| DecodeError::NotText)?.to_owned())
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<'a, T: Field<'a>, E: Field<'a>> Field<'a> for Result<T, E> {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_err().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::take(from)? { Err(E::take(from)?) } else { Ok(T::take(from)?) })
    }
}

impl<'a, T: Field<'a>, U: Field<'a>> Field<'a> for (T, U) {
    const BYTES_MIN: usize = T::BYTES_MIN + U::BYTES_MIN;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((T::take(from)?, U::take(from)?))
    }
}

pub(crate) fn put_list<'a, T: Field<'a>>(items: &[T], out: &mut Vec<u8>) {
    (items.len() as u32).put(out);
    for item in items {
        item.put(out);
    }
}

/// A list of at most `limit` items.
pub(crate) fn take_list<'a, T: Field<'a>>(
    from: &mut Reader<'a>,
    limit: usize,
) -> Result<Vec<T>, DecodeError> {
    let count = u32::take(from)? as usize;
    if count > limit {
        return Err(DecodeError::TooMany { count: count as u64, limit });
    }
    // No overflow: both factors are small. After this check the list cannot take more memory than
    // a fixed multiple of the body that is already here.
    let least = count * T::BYTES_MIN.max(1);
    if least > from.rest.len() {
        return Err(DecodeError::Short { what: "list", missing: least - from.rest.len() });
    }
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(T::take(from)?);
    }
    Ok(items)
}

impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        take_list(from, T::LIST_MAX)
    }
}

/// A list that the sender only borrows: requests are encoded from the caller's own slices.
impl<'a, T: Field<'a> + Clone> Field<'a> for Cow<'a, [T]> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Cow::Owned(take_list(from, T::LIST_MAX)?))
    }
}

/// Fields of a struct, in the order in which they travel: one list for both directions.
macro_rules! fields {
    ($name:ident $(<$lt:lifetime>)? { $($field:ident: $ty:ty),* $(,)? }) => {
        $crate::codec::fields!(
            @list mooncrate_core::limits::BATCH_ITEMS_MAX, $name $(<$lt>)? { $($field: $ty),* }
        );
    };
    (@list $limit:expr, $name:ident $(<$lt:lifetime>)? { $($field:ident: $ty:ty),* $(,)? }) => {
        impl<'a> $crate::codec::Field<'a> for $name $(<$lt>)? {
            const BYTES_MIN: usize = 0 $(+ <$ty as $crate::codec::Field<'a>>::BYTES_MIN)*;
            const LIST_MAX: usize = $limit;
            fn put(&self, _out: &mut Vec<u8>) {
                $($crate::codec::Field::put(&self.$field, _out);)*
            }
            fn take(
                _from: &mut $crate::codec::Reader<'a>,
            ) -> Result<Self, $crate::error::DecodeError> {
                $(let $field = <$ty as $crate::codec::Field<'a>>::take(_from)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(crate) use fields;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_checked_before_memory() {
        // 4096 items would be allowed, but the body cannot hold them.
        let lie = 4096_u32.to_le_bytes();
        assert_eq!(
            decode::<Vec<u64>>(&lie).unwrap_err(),
            DecodeError::Short { what: "list", missing: 4096 * 8 }
        );
        let more = 4097_u32.to_le_bytes();
        assert_eq!(
            decode::<Vec<u64>>(&more).unwrap_err(),
            DecodeError::TooMany { count: 4097, limit: 4096 }
        );
        assert_eq!(
            decode::<&[u8]>(&u32::MAX.to_le_bytes()).unwrap_err(),
            DecodeError::Short { what: "bytes", missing: u32::MAX as usize }
        );
        // Items that take no bytes still cost memory: they count as one byte each.
        assert!(decode::<Vec<()>>(&100_u32.to_le_bytes()).is_err());
    }

    #[test]
    fn every_value_has_one_encoding() {
        assert_eq!(
            decode::<bool>(&[2]).unwrap_err(),
            DecodeError::BadValue { what: "a bool", value: 2 }
        );
        assert_eq!(decode::<u8>(&[1, 2]).unwrap_err(), DecodeError::TrailingBytes { bytes: 1 });
        assert_eq!(decode::<String>(&[1, 0, 0, 0, 0xff]).unwrap_err(), DecodeError::NotText);
        let mut long = 4097_u32.to_le_bytes().to_vec();
        long.extend([b'a'; 4097]);
        assert!(matches!(decode::<String>(&long), Err(DecodeError::TooMany { .. })));
    }
}
