//! `WritePlan` and `ObjMeta`: where a value is, in numbers that kernels take. Ranks and offsets, never
//! addresses: every process has mapped the heaps elsewhere.

use mooncrate_nano::Place;
use pyo3::prelude::*;

/// The right to write one value: push its pages, publish, commit.
#[pyclass(module = "mooncrate.nano", frozen, eq)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WritePlan(pub(crate) mooncrate_nano::WritePlan);

/// Where a value is.
#[pyclass(module = "mooncrate.nano", frozen, eq)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjMeta {
    pub(crate) key_hash: u64,
    pub(crate) place: Place,
}

/// What both have, by the name that each gives to the owner.
macro_rules! getters {
    ($class:ident, $owner:ident, $name:literal) => {
        #[pymethods]
        impl $class {
            #[getter]
            fn key_hash(&self) -> u64 {
                self.hash()
            }

            /// Whose heap.
            #[getter]
            fn $owner(&self) -> usize {
                self.place().owner.index()
            }

            #[getter]
            fn header_offset(&self) -> u64 {
                self.place().header_offset
            }

            #[getter]
            fn payload_offset(&self) -> u64 {
                self.place().payload_offset
            }

            #[getter]
            fn page_bytes(&self) -> u32 {
                self.place().pages.page_bytes
            }

            #[getter]
            fn n_pages(&self) -> u32 {
                self.place().pages.count()
            }

            #[getter]
            fn last_page_bytes(&self) -> u32 {
                self.place().pages.last_bytes()
            }

            #[getter]
            fn bytes_total(&self) -> u64 {
                self.place().pages.bytes_total
            }

            #[getter]
            fn epoch(&self) -> u32 {
                self.place().epoch
            }

            fn __repr__(&self) -> String {
                let place = self.place();
                format!(
                    concat!(
                        $name,
                        "(",
                        stringify!($owner),
                        "={}, bytes_total={}, header_offset={}, payload_offset={}, epoch={})"
                    ),
                    place.owner.index(),
                    place.pages.bytes_total,
                    place.header_offset,
                    place.payload_offset,
                    place.epoch
                )
            }
        }
    };
}

getters!(WritePlan, dst_rank, "WritePlan");
getters!(ObjMeta, owner_rank, "ObjMeta");

impl WritePlan {
    fn hash(&self) -> u64 {
        self.0.key_hash.0
    }

    fn place(&self) -> &Place {
        &self.0.place
    }
}

impl ObjMeta {
    fn hash(&self) -> u64 {
        self.key_hash
    }

    fn place(&self) -> &Place {
        &self.place
    }
}
