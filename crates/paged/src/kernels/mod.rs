//! The kernels of the paged cache: what moves K and V rows on a GPU, without a copy through the host.
//!
//! | kernel | what it moves | used for |
//! |---|---|---|
//! | [`append`](Kernels::append) | rows of new tokens of one layer → their slots | each step of the model |
//! | [`gather`](Kernels::gather) | blocks by table → a contiguous buffer | spill, transfer, attention without paging |
//! | [`scatter`](Kernels::scatter) | a contiguous buffer → blocks by table | load after a spill |
//! | [`copy_blocks`](Kernels::copy_blocks) | blocks → other blocks, all layers | copy on write, relocation |
//! | [`compact`](Kernels::compact) | single tokens → slots of new blocks, all layers | dropping tokens of a sequence |
//!
//! Each kernel is three files: `x.cu` (and the PTX made from it, committed beside it), `x.rs` that
//! launches it, and `x_oracle.rs`, the same on host memory. Kernel and oracle agree byte for byte.
//!
//! What must stay true: a launch is checked before it is queued, and a kernel checks every index that it
//! reads from device memory: a bad one is counted ([`Kernels::refused`]) and nothing is written for it.
//! So no list, however wrong, makes a kernel write outside of the memory that it was given. Kernels never
//! trap, and wait for nothing but the end of the work before them in the stream, which alone orders them.
//!
//! Deliberately absent: knowledge of sequences, of layouts by name, and of element types. Strides are
//! data ([`BlockRows`]); a row is bytes.

mod append;
mod append_oracle;
mod compact;
mod compact_oracle;
mod copy_blocks;
mod copy_blocks_oracle;
mod gather;
mod gather_oracle;
mod launch;
mod list;
mod rows;
mod space;

pub use append::NewRows;
pub use append_oracle::{HostRows, append_oracle};
pub use compact_oracle::compact_oracle;
pub use copy_blocks_oracle::copy_blocks_oracle;
pub use gather_oracle::{gather_oracle, scatter_oracle};
pub use list::{BlockPair, DeviceList, Entries, Entry, RowMove, Slot, TargetBlock};
pub use rows::{BlockRows, Shape};
pub use space::BlockSpace;

use mooncrate_gpu::{DeviceBuffer, Gpu, GpuError, Kernel, Module, Stream};

/// Why a launch was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The driver refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// An address, a length or a stride is no multiple of the 16 bytes that a thread moves at once.
    #[error("{what} is {value}, which is no multiple of {unit}")]
    Misaligned {
        /// Which one.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it must be a multiple of.
        unit: u64,
    },
    /// An index reaches outside.
    #[error("{what} {index} does not exist: there are {count}")]
    OutOfRange {
        /// What the index names.
        what: &'static str,
        /// The index.
        index: i64,
        /// How many there are, counted from 0.
        count: u64,
    },
    /// Memory is too short for what it is said to hold.
    #[error("{what} needs {needed} bytes, but has {given}")]
    TooShort {
        /// Which memory.
        what: &'static str,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are there.
        given: u64,
    },
    /// Two writes to one place, or a read of a place that is written in the same launch.
    #[error("{what} {index} {conflict}")]
    Conflict {
        /// What the index names.
        what: &'static str,
        /// The index.
        index: i64,
        /// What is wrong with it.
        conflict: &'static str,
    },
    /// Strides or shapes that fit no memory, or not each other.
    #[error("{0}")]
    Shape(String),
}

/// The kernels, loaded on one GPU and ready to run.
#[derive(Debug)]
pub struct Kernels {
    append: Kernel,
    gather: Kernel,
    scatter: Kernel,
    copy_blocks: Kernel,
    compact: Kernel,
    /// How many entries of lists were refused since the kernels were loaded: one `u32`. Only kernels
    /// write it.
    refused: DeviceBuffer,
}

impl Kernels {
    /// Loads all kernels. This compiles PTX and takes some milliseconds: once per process.
    pub fn load(gpu: &Gpu) -> Result<Self, KernelError> {
        let gather = Module::load(gpu, gather::PTX)?;
        let refused = DeviceBuffer::new(gpu, 4)?;
        let stream = Stream::new(gpu)?;
        refused.span().write(&[0; 4], &stream)?;
        Ok(Self {
            append: Module::load(gpu, append::PTX)?.kernel("append_rows")?,
            gather: gather.kernel("gather_blocks")?,
            scatter: gather.kernel("scatter_blocks")?,
            copy_blocks: Module::load(gpu, copy_blocks::PTX)?.kernel("copy_blocks")?,
            compact: Module::load(gpu, compact::PTX)?.kernel("compact_rows")?,
            refused,
        })
    }

    /// How many entries of lists were refused by kernels since they were loaded, after all work that
    /// is queued on `stream`. More than 0 means a mistake of the caller: those entries moved nothing.
    pub fn refused(&self, stream: &Stream) -> Result<u32, KernelError> {
        let mut word = [0; 4];
        self.refused.span().read(&mut word, stream)?;
        Ok(u32::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    //! What the committed PTX promises; the compiler is not needed for this.

    use super::{append, compact, copy_blocks, gather};

    const ALL: [(&str, &str); 4] = [
        ("append", append::PTX),
        ("gather", gather::PTX),
        ("copy_blocks", copy_blocks::PTX),
        ("compact", compact::PTX),
    ];

    /// The instructions, without their operands and predicates.
    fn operations(ptx: &str) -> impl Iterator<Item = &str> {
        ptx.lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"))
            .filter_map(|line| line.split_whitespace().find(|word| !word.starts_with('@')))
    }

    #[test]
    fn rows_are_moved_16_bytes_at_a_time() {
        for (name, ptx) in ALL {
            let loads = operations(ptx).filter(|op| op.starts_with("ld.global.cg.v4.")).count();
            let stores = operations(ptx).filter(|op| op.starts_with("st.global")).count();
            let wide = operations(ptx).filter(|op| op.starts_with("st.global.v4.")).count();
            // Four in each of the two ways through a tile, per kernel.
            let kernels = ptx.matches(".visible .entry").count();
            assert_eq!((loads, wide), (8 * kernels, 8 * kernels), "{name}");
            assert_eq!(stores, wide, "{name}: every store is wide");
        }
    }

    /// The read-only cache does not see what another GPU or process wrote.
    #[test]
    fn cache_memory_is_read_through_l2() {
        for (name, ptx) in ALL {
            for operation in operations(ptx).filter(|op| op.starts_with("ld.global")) {
                assert!(!operation.contains(".nc"), "{name}: {operation}");
                let list = matches!(operation, "ld.global.u32" | "ld.global.u64");
                assert!(list || operation.contains(".cg."), "{name}: {operation}");
            }
        }
    }

    #[test]
    fn kernels_neither_trap_nor_wait_nor_use_local_memory() {
        for (name, ptx) in ALL {
            for operation in operations(ptx) {
                let word = operation.split(['.', ';']).next().unwrap_or_default();
                let banned = ["trap", "bar", "barrier", "nanosleep", "membar", "fence", "call"];
                let local = operation.starts_with("ld.local") || operation.starts_with("st.local");
                assert!(!banned.contains(&word) && !local, "{name}: {operation}");
            }
        }
    }

    /// They start while the kernel before them still runs. Before the wait nothing is read but parameters, and
    /// nobody branches around it or ends.
    #[test]
    fn kernels_wait_for_the_one_before_them_first_of_all() {
        for (name, ptx) in ALL {
            for kernel in ptx.split(".visible .entry").skip(1) {
                let operations: Vec<&str> = operations(kernel).collect();
                let places = |of: &str| -> Vec<usize> {
                    let is = |place: &usize| operations[*place].starts_with(of);
                    (0..operations.len()).filter(is).collect()
                };
                let waits = places("griddepcontrol.wait");
                assert_eq!(waits.len(), 1, "{name}");
                for later in ["ld.global", "st.", "atom.", "red.", "bra", "ret", "griddepcontrol.l"]
                {
                    let first = places(later).first().copied().unwrap_or(usize::MAX);
                    assert!(waits[0] < first, "{name}: {later}");
                }
                assert_eq!(places("griddepcontrol.launch_dependents").len(), 1, "{name}");
            }
        }
    }

    /// Comments of the compiler name its build; the file is the same wherever it is made.
    #[test]
    fn ptx_names_its_source_and_no_machine() {
        for (name, ptx) in ALL {
            let comments: Vec<&str> = ptx.lines().filter(|line| line.contains("//")).collect();
            assert_eq!(comments.len(), 1, "{name}: {comments:?}");
            assert!(comments[0].starts_with("// Made by `./dev kernels` from"), "{name}");
            assert!(ptx.contains(".target sm_90\n"), "{name}");
        }
    }
}
