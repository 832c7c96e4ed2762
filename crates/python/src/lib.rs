//! run: the native half of the Python package `mooncrate`.
//!
//! ```text
//!   mooncrate/__init__.py  Store, View, the exceptions        what people import
//!   mooncrate/aio.py       AsyncStore: the same calls for a loop, on a bounded number of threads
//!   mooncrate/paged.py     PagedCache: the KV blocks of running sequences, in this process
//!   mooncrate/nano.py      NanoKVCache: KV objects in the memory of GPUs, one process for each rank
//!   mooncrate/ep.py        Communicator: tokens of a mixture of experts to their experts and back
//!   mooncrate/_cli.py      the command `mooncrate`, in this very process
//!   mooncrate._native      this crate: arguments in, bytes moved without the GIL, results out
//! ```
//!
//! What must stay true: nothing here waits or moves bytes while it holds the GIL, and nobody who holds
//! something that it waits for wants the GIL, so the two can never wait for each other: no lock of ours
//! is held while Python may run, and making an exception is enough for that. A call of the main thread that
//! waits can be ended by a signal handler ([`wait`]). What a forked child
//! inherits is never used and never dropped ([`fork`]).
//!
//! Deliberately absent: decisions. Retries, placement and verification are in the crates below.

mod answer;
mod answer_methods;
mod batch;
mod buffer;
mod call;
mod calls;
mod command;
mod device;
mod dlpack;
mod ep;
mod ep_error;
mod ep_memory;
mod ep_methods;
mod ep_room;
mod ep_step;
mod error;
mod fork;
mod interpreter;
mod kind;
mod list;
mod methods;
mod nano;
mod nano_error;
mod nano_memory;
mod nano_methods;
mod nano_plan;
mod options;
mod paged;
mod paged_error;
mod paged_geometry;
mod paged_input;
mod paged_memory;
mod paged_methods;
mod paged_tables;
mod paged_view;
mod probe;
mod queue;
mod queue_methods;
mod raw;
mod raw_device;
mod raw_flat;
mod raw_lend;
mod raw_memory;
mod raw_nested;
mod raw_one;
mod raw_ranges;
mod raw_session;
mod raw_sessions;
mod raw_store;
mod raw_wishes;
mod stats;
mod store;
mod view;
mod wait;

use pyo3::prelude::*;

/// What Python imports as `mooncrate._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::answer::Answer;
    #[pymodule_export]
    use crate::command::_cli;
    #[pymodule_export]
    use crate::dlpack::{dlpack_memory, dlpack_tensor};
    #[pymodule_export]
    use crate::ep::EpRank;
    #[pymodule_export]
    use crate::ep_room::EpView;
    #[pymodule_export]
    use crate::list::Listing;
    #[pymodule_export]
    use crate::nano::NanoRank;
    #[pymodule_export]
    use crate::nano_plan::{ObjMeta, WritePlan};
    #[pymodule_export]
    use crate::paged::PagedCache;
    #[pymodule_export]
    use crate::paged_geometry::Geometry;
    #[pymodule_export]
    use crate::paged_tables::BlockTables;
    #[pymodule_export]
    use crate::paged_view::PagedView;
    #[pymodule_export]
    use crate::queue::Calls;
    #[pymodule_export]
    use crate::raw::{memory_access, memory_device, memory_is_usable};
    #[pymodule_export]
    use crate::raw_lend::Lender;
    #[pymodule_export]
    use crate::raw_memory::{Block, BufferHandle, Window};
    #[pymodule_export]
    use crate::raw_ranges::Ranges;
    #[pymodule_export]
    use crate::raw_session::{GetSession, PutSession};
    #[pymodule_export]
    use crate::raw_sessions::Sessions;
    #[pymodule_export]
    use crate::raw_store::Raw;
    #[pymodule_export]
    use crate::store::Store;
    #[pymodule_export]
    use crate::view::View;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::interpreter::is_main(module.py())?;
        crate::fork::watch()?;
        crate::error::load(module.py())?;
        crate::wait::load(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
