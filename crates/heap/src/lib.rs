//! span: one heap per rank, which every rank of a group can address.
//!
//! ```text
//!  rank 0 ─┐                       process of rank 1 has mapped     bases of rank 1
//!  rank 1 ─┼─ Group: meet, gather,   heap 0 │ heap 1 │ heap 2  ──►  [ b0, b1, b2 ]
//!  rank 2 ─┘  wait, part             remote = bases[to] + (mine − bases[me])
//! ```
//!
//! Each process has its own table of [`Bases`]: where it has mapped the heap of every rank. That table is
//! all that a kernel needs to reach another rank's memory, and it is the contract of the kernels of IRIS.
//! Offsets are the same everywhere, addresses are not: nothing but `(rank, offset)` ever travels.
//!
//! | backend | memory of a rank | ranks are |
//! |---|---|---|
//! | [`Heap::host`] | a memfd, passed by descriptor | processes |
//! | [`Heap::cuda`] | device memory, passed by descriptor, or by CUDA IPC where that does not work | processes |
//! | [`Heap::host_ranks`], [`Heap::cuda_ranks`] | the same, in one process | threads, or streams |
//!
//! Local words: a **rank** is one participant with its own heap; a **group** is the processes of all ranks;
//! the **hub** is rank 0, where they meet.
//!
//! **What must stay true.** A group is complete or it is an error: nobody passes [`Group::gather`] before
//! all ranks have come to it. Every wait has a deadline, and its end names the ranks that were missing.
//! The first failure is everybody's: the hub tells all others, and later calls repeat it.
//!
//! **Deliberately absent.** Keys and objects; barriers on the GPU, which belong to those who launch kernels;
//! other machines; threads.

mod error;
mod frame;
mod group;
mod heap;
mod hub;
mod layout;
mod rank;

pub use error::{Failure, GroupError, HeapError};
pub use group::{Group, GroupSpec, Shared, Watch};
pub use heap::{Bases, Heap};
pub use layout::{Layout, LayoutError, Part};
pub use rank::{RANKS_MAX, Rank, Ranks, World};
