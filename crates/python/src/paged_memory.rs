//! Where the blocks of a `PagedCache` lie: what `memory=` and `device=` say.

use crate::dlpack::Place;
use crate::error::invalid;
use mooncrate_gpu::Gpu;
use mooncrate_paged::{Arena, ArenaError, ArenaShape, CudaArena, HostArena, Pages};
use pyo3::prelude::*;
use std::sync::Arc;

/// The kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Of this process.
    Host,
    /// The same, page-locked for GPUs.
    Pinned,
    /// Of a GPU.
    Cuda,
}

impl Memory {
    const ALL: [Self; 3] = [Self::Host, Self::Pinned, Self::Cuda];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Pinned => "pinned",
            Self::Cuda => "cuda",
        }
    }

    pub(crate) fn of_name(py: Python<'_>, name: &str) -> PyResult<Self> {
        let found = Self::ALL.into_iter().find(|memory| memory.name() == name);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            invalid(py, &format!("there is no memory {name:?}; choose of {all}"))
        })
    }

    /// An arena in such memory. `device` is the number of the GPU; host memory has none.
    pub(crate) fn arena(
        self,
        device: u32,
        shape: ArenaShape,
        blocks: u32,
    ) -> Result<Arc<dyn Arena>, ArenaError> {
        Ok(match self {
            Self::Host => Arc::new(HostArena::anonymous(shape, blocks, Pages::Small)?),
            Self::Pinned => {
                // First the driver: without one nothing is mapped.
                let gpu = Gpu::open(device)?;
                Arc::new(HostArena::anonymous(shape, blocks, Pages::Small)?.pinned(&gpu)?)
            }
            Self::Cuda => Arc::new(CudaArena::new(&Gpu::open(device)?, shape, blocks)?),
        })
    }
}

/// Where the bytes of an arena are.
pub(crate) fn place(arena: &dyn Arena) -> Place {
    if let Some(cuda) = arena.cuda() {
        return Place::Cuda(cuda.span().gpu().ordinal().cast_signed());
    }
    match arena.host().and_then(HostArena::pinned_for) {
        Some(_) => Place::Pinned,
        None => Place::Host,
    }
}

/// The address of an arena's first byte, in the memory where it lies.
pub(crate) fn base(arena: &dyn Arena) -> *mut u8 {
    match (arena.host(), arena.cuda()) {
        (Some(host), _) => host.base().as_ptr(),
        (None, Some(cuda)) => std::ptr::without_provenance_mut(cuda.span().address() as usize),
        (None, None) => unreachable!("an arena is memory of the host or of a GPU"),
    }
}
