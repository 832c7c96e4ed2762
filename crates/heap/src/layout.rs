//! What lies where in a heap, when every rank has the same: a pure function of the parts, which each rank
//! evaluates for itself. The group compares the hashes before anybody stores.

use mooncrate_core::Extent;

/// A named run of bytes in every rank's heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is for.
    pub name: &'static str,
    /// How long it is.
    pub bytes: u64,
    /// What its offset is a multiple of: a power of two.
    pub align: u64,
}

/// Why parts make no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No bytes, or an alignment that is no power of two.
    #[error("part {0:?} has no bytes, or an alignment that is no power of two")]
    BadPart(&'static str),
    /// Two parts of one name.
    #[error("two parts are called {0:?}")]
    Twice(&'static str),
    /// The end lies beyond 2^64.
    #[error("the parts are longer than 2^64 bytes")]
    TooLong,
}

/// Parts with their places: in the order given, each at the next multiple of its alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    parts: Vec<(Part, Extent)>,
    bytes: u64,
}

impl Layout {
    /// Finds a place for each part.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Result<Self, LayoutError> {
        let (mut placed, mut end) = (Vec::<(Part, Extent)>::new(), 0u64);
        for part in parts {
            if part.bytes == 0 || !part.align.is_power_of_two() {
                return Err(LayoutError::BadPart(part.name));
            }
            if placed.iter().any(|(other, _)| other.name == part.name) {
                return Err(LayoutError::Twice(part.name));
            }
            let offset = end.checked_next_multiple_of(part.align).ok_or(LayoutError::TooLong)?;
            let extent = Extent::new(offset, part.bytes).ok_or(LayoutError::TooLong)?;
            end = extent.end();
            placed.push((part, extent));
        }
        Ok(Self { parts: placed, bytes: end })
    }

    /// Where a part lies; `None`: there is none of that name.
    pub fn place(&self, name: &str) -> Option<Extent> {
        self.parts.iter().find(|(part, _)| part.name == name).map(|(_, extent)| *extent)
    }

    /// Bytes of a heap that holds all of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same for the same parts in the same order, different otherwise: FNV-1a over names, places and
    /// lengths. Ranks compare it when they meet.
    pub fn hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for (part, extent) in &self.parts {
            add(&(part.name.len() as u64).to_le_bytes());
            add(part.name.as_bytes());
            add(&extent.offset().to_le_bytes());
            add(&extent.len().to_le_bytes());
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn part(name: &'static str, bytes: u64, align: u64) -> Part {
        Part { name, bytes, align }
    }

    #[test]
    fn parts_follow_each_other_aligned() {
        let layout = Layout::new([part("signals", 100, 64), part("rows", 4096, 256)]).unwrap();
        assert_eq!(layout.place("signals"), Extent::new(0, 100));
        assert_eq!(layout.place("rows"), Extent::new(256, 4096));
        assert_eq!(layout.place("columns"), None);
        assert_eq!(layout.bytes(), 4352);
    }

    #[test]
    fn another_layout_has_another_hash() {
        let hash = |parts: &[Part]| Layout::new(parts.to_vec()).unwrap().hash();
        let two = hash(&[part("a", 64, 64), part("b", 64, 64)]);
        assert_eq!(two, hash(&[part("a", 64, 64), part("b", 64, 64)]));
        assert_ne!(two, hash(&[part("b", 64, 64), part("a", 64, 64)]));
        assert_ne!(two, hash(&[part("a", 64, 64), part("b", 65, 64)]));
        assert_ne!(two, hash(&[part("a", 64, 64), part("b", 64, 128)]));
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Layout::new([part("a", 0, 64)]), Err(LayoutError::BadPart("a")));
        assert_eq!(Layout::new([part("a", 1, 3)]), Err(LayoutError::BadPart("a")));
        assert_eq!(Layout::new([part("a", 1, 1), part("a", 1, 1)]), Err(LayoutError::Twice("a")));
        assert_eq!(
            Layout::new([part("a", u64::MAX, 1), part("b", 1, 64)]),
            Err(LayoutError::TooLong)
        );
    }
}
