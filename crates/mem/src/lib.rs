//! hold
pub mod atomic;
pub mod clock;
pub mod crc;
pub mod region;
pub mod sums;
pub mod word;
