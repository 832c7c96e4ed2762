//! reach: GPUs, through the CUDA driver that is found at run time.
//!
//! A build needs nothing of CUDA. The driver library is loaded on the first call of [`Gpu::open`];
//! a machine without one gets [`GpuError::NoDriver`], never a panic. All types of the binding
//! (`cudarc`) stay inside this crate.
//!
//! ```text
//! Gpu ─┬─ Stream ── Event            order of work, time of work
//!      ├─ DeviceBuffer ─┐
//!      ├─ AddressRange ─┼─► Span     a run of device memory: copy, fill, address for kernels
//!      ├─ IpcBuffer ────┘
//!      ├─ PinnedBuffer               page-locked host memory, plain bytes to Rust
//!      ├─ Pinned                     page-locks memory that somebody else mapped
//!      ├─ Transit                    a pinned buffer with a stream: bytes on their way
//!      ├─ ForeignStream              a stream of another library, to order copies against (to queue on: a Stream)
//!      ├─ SharedMemory               physical memory that another process can import by descriptor
//!      ├─ Module ── Kernel           PTX text to functions that can be launched
//!      └─ Graph                      recorded work of a stream, launched as one
//! ```
//!
//! **What must stay true.** Every object holds a [`Gpu`], so the context outlives what was made in it.
//! Rust never holds a reference into device memory: unordered work on it gives unspecified bytes, never
//! undefined behaviour. Host memory is different. A copy from or to an ordinary slice has ended when
//! the call returns; a copy that goes on in the background owns its [`PinnedBuffer`] ([`Pending`]).
//! Whatever could break this (kernels and graphs, which follow any address they were given) is
//! `unsafe` to launch. Objects that free or unmap device memory wait for the whole device first. A thread that
//! calls in here keeps its own context, and nothing here ends a recording of others (see `bound.rs`).
//!
//! **Deliberately absent.** Keys, segments and clusters; a default stream of our own; managed memory; memory pools
//! of the driver (an allocation here is rare and large); textures; more than the primary context;
//! FABRIC handles and multicast (refused on the machines we know); compiling CUDA C++ at run time.
//! A child made by `fork` must not touch any of these objects: CUDA does not survive a fork.

mod bound;
mod device;
mod driver;
mod error;
mod foreign;
mod graph;
mod ipc;
mod memory;
mod module;
mod pinned;
mod shared;
mod span;
mod stream;
mod transit;

pub use device::{Gpu, Peer};
pub use error::GpuError;
pub use foreign::{ForeignStream, Found, device_of, driver_is_loaded, look};
pub use graph::Graph;
pub use ipc::{IPC_HANDLE_BYTES, IpcBuffer, IpcHandle};
pub use memory::DeviceBuffer;
pub use module::{Kernel, Launch, Module, Param, Plain};
pub use pinned::{Pending, Pinned, PinnedBuffer};
pub use shared::{AddressRange, SharedMemory};
pub use span::Span;
pub use stream::{Event, Stream};
pub use transit::Transit;
