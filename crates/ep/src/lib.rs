//! exchange: tokens of a mixture of experts go to the ranks of their experts, and results come back.
//!
//! ```text
//!            dispatch                 pack · experts · give back            combine
//! rank 0  x ─┬──► recv, meta ═ phase 1 ═ [experts, rows, H] ──► ret ═ phase 2 ═ Σ ─► out
//! rank 1  x ─┼──► of every          all     of this rank         of the     all
//! rank 2  x ─┘    rank             signal                        owner     signal
//! ```
//!
//! Every token has a fixed slot at every rank, so nobody asks for room and nothing is counted by a host. Sums
//! have a fixed order: results are equal bit for bit between runs, ranks, backends and [`oracle::dense`]. Only products
//! of experts differ between a GPU and the host, within the rounding of bf16: tensor cores add up in a way of their own.
//!
//! Local words: a **slot** is the place of one rank's token at every rank; a **phase** is the time until all
//! ranks have done the same part of a layer; **poison** is the word by which a rank tells that it has failed.
//!
//! **What must stay true.** Two phases per layer: nobody stores into memory that another rank still reads (E3).
//! A step ends with results or with an error that names rank, phase, operation and who is missing; the first
//! failure is everybody's, and only a reset of all ranks ends it (E6).
//!
//! **Deliberately absent.** Experts for prefill: [`CudaEp::experts`] is made for decoding, and whoever has a faster grouped
//! product calls it in its place. Other machines, a way to go on without a rank, allocation and counts on the
//! host inside of a step, threads.

pub mod barrier;
pub mod bf16;
mod config;
mod cuda;
mod error;
pub mod fp8;
pub mod heaps;
mod host;
pub mod kernels;
pub mod layout;
mod memory;
pub mod oracle;
pub mod seat;
mod stage;
pub mod workload;

pub use config::{
    ConfigError, EpConfig, HIDDEN_MAX, LOCAL_EXPERTS_MAX, Payload, Shape, TOKENS_MAX, TOP_K_MAX,
};
pub use cuda::{CudaBatch, CudaEp, CudaWeights, Replays, Scratch};
pub use error::EpError;
pub use host::Ep;
pub use kernels::{Batch, EpKernels, NOT_ROUTED, Packed, Tuning, Weights};
pub use layout::EpLayout;
