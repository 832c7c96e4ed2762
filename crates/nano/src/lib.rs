//! cache: KV objects in the memory of GPUs. A prefill kernel pushes pages straight into memory that another
//! rank owns and publishes them with one word; any rank pins and reads them in place.
//!
//! Local word: a **page** is the unit in which a value is pushed; all but the last one are full.

mod cache;
mod cuda;
mod duty;
mod error;
pub mod kernels;
mod lane;
mod late;
mod layout;
mod marks;
mod open;
mod owner;
mod plan;
mod reach;
mod room;
mod tally;

pub use cache::{Gone, Nano, NanoConfig, route};
pub use cuda::CudaReach;
pub use error::NanoError;
pub use late::{Held, Hold};
pub use layout::{HeapLayout, PAGE_BYTES, Pages};
pub use marks::Marks;
pub use plan::{Place, WritePlan};
pub use reach::{Flight, HostReach, Reach, Source, Step, Stepped, Target, Touch, When};
pub use room::Usage;
pub use tally::{Stats, Timings};
