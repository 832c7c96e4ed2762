//! Parts of values.

use crate::{Error, Store};
use mooncrate_client::RangeInto;

/// What became of the ranges of one key, at their own indexes: the bytes read, or why not.
pub type Ranges = Vec<Result<usize, Error>>;

impl Store {
    /// Copies the part of a value that starts at `start` into all of `into`, verified; the bytes copied, or
    /// `None` if there is no value. A part that reaches past the end is an error.
    pub fn get_range(
        &self,
        key: &[u8],
        start: u64,
        into: &mut [u8],
    ) -> Result<Option<usize>, Error> {
        Ok(self.client().get_range(key, start, into)?)
    }

    /// Copies parts of one value after one lookup, all of the same object. A range that reaches past the
    /// end of the value spoils no other.
    pub fn get_ranges(
        &self,
        key: &[u8],
        ranges: &mut [RangeInto<'_>],
    ) -> Result<Option<Ranges>, Error> {
        own(self.client().get_ranges(key, ranges))
    }

    /// The same for many keys; one result each.
    pub fn get_ranges_batch(
        &self,
        items: &mut [(&[u8], &mut [RangeInto<'_>])],
    ) -> Vec<Result<Option<Ranges>, Error>> {
        self.client().get_ranges_batch(items).into_iter().map(own).collect()
    }
}

/// The client's results as this crate's.
fn own(
    found: Result<Option<mooncrate_client::Ranges>, mooncrate_client::Error>,
) -> Result<Option<Ranges>, Error> {
    Ok(found?.map(each))
}

pub(crate) fn each(ranges: mooncrate_client::Ranges) -> Ranges {
    ranges.into_iter().map(|one| one.map_err(Error::from)).collect()
}
