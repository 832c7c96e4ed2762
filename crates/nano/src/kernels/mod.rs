//! The kernels of the cache: what moves values between the heaps of ranks, and what changes their words.
//!
//! | kernel | what it does |
//! |---|---|
//! | [`words`](Kernels::words), [`act`](Kernels::act), [`reap`](Kernels::reap) | steps on control words: open, publish, pin, evict … |
//! | [`push`](Kernels::push), [`commit`](Kernels::commit) | bytes of this rank → a value of any rank, and ready |
//! | [`read`](Kernels::read) | a pinned value of any rank → memory of this rank, and unpin |
//! | [`sums`](Kernels::sums) | the checksum of each page |
//! | [`fill`](Kernels::fill), [`verify`](Kernels::verify) | lines that say whose they are, for tests |
//! | [`upload`](Kernels::upload), [`download`](Kernels::download) | pinned host memory ↔ device memory |
//!
//! Each kernel is three files: `x.cu` (and the PTX made from it, committed beside it), `x.rs` that launches
//! it, and `x_oracle.rs`, the same on host memory. Kernel and oracle agree byte for byte.
//!
//! What must stay true: a control word changes by compare-and-swap at system scope, in the ways of
//! `core::word` and no other, so a late producer or reader is refused, never believed. A value becomes ready
//! after the last byte of all blocks of the launch that publishes it (N2), and a pin is given back after
//! the last load of all blocks. Extents are checked before a launch is queued. No kernel waits for another
//! one, and none traps.
//!
//! Deliberately absent: keys, and waiting. A kernel that finds a value not ready says so in its outcome.

mod host;
mod launch;
mod outcome;
mod push;
mod push_oracle;
mod read;
mod read_oracle;
mod stamp;
mod stamp_oracle;
mod sums;
mod sums_oracle;
mod value;
mod words;
mod words_oracle;

pub use outcome::{Counter, Counts, Outcome, OutcomeAt, Outcomes};
pub use push::Push;
pub use push_oracle::{commit_oracle, push_oracle};
pub use read::Read;
pub use read_oracle::read_oracle;
pub use stamp_oracle::{LINE_BYTES, fill_oracle, verify_oracle};
pub use sums_oracle::sums_oracle;
pub use value::Value;
pub use words::{Action, FEW, Step, Steps};
pub use words_oracle::{reap_oracle, word_oracle, words_oracle};

use crate::layout::HeapLayout;
use mooncrate_gpu::{DeviceBuffer, Gpu, GpuError, Kernel, Module};
use mooncrate_heap::Rank;

/// Why a launch was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The driver refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// An address or an offset is no multiple of the 16 bytes that a thread moves at once.
    #[error("{what} is {value}, which is no multiple of 16")]
    Misaligned {
        /// Which one.
        what: &'static str,
        /// What it is.
        value: u64,
    },
    /// A run of bytes that is not where it may be.
    #[error("{what}: {bytes} bytes at {offset} reach outside of {begin}..{end}")]
    OutOfBounds {
        /// Which one.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
        /// Where it may begin.
        begin: u64,
        /// Where it must have ended.
        end: u64,
    },
    /// Memory is too short for what it is to hold.
    #[error("{what} needs {needed}, but has {given}")]
    TooShort {
        /// Which memory.
        what: &'static str,
        /// What is needed.
        needed: u64,
        /// What is there.
        given: u64,
    },
    /// There is no such rank, or its heap is in host memory.
    #[error("the heap of {0} is not on a GPU")]
    NoHeap(Rank),
    /// Arguments that do not fit each other.
    #[error("{0}")]
    Shape(String),
}

/// The kernels, loaded on one GPU and ready to run, for heaps of one layout.
#[derive(Debug)]
pub struct Kernels {
    layout: HeapLayout,
    words: Kernel,
    few: Kernel,
    reap: Kernel,
    push: Kernel,
    read: Kernel,
    fill: Kernel,
    verify: Kernel,
    sums: Kernel,
    copy: Kernel,
    /// What `sums` multiplies with.
    tables: DeviceBuffer,
}

impl Kernels {
    /// Loads all kernels. This compiles PTX and takes some milliseconds: once per process.
    pub fn load(gpu: &Gpu, layout: HeapLayout) -> Result<Self, KernelError> {
        let (words, stamp) = (Module::load(gpu, words::PTX)?, Module::load(gpu, stamp::PTX)?);
        Ok(Self {
            layout,
            words: words.kernel("word_steps")?,
            few: words.kernel("few_steps")?,
            reap: words.kernel("reap_pins")?,
            push: Module::load(gpu, push::PTX)?.kernel("push_pages")?,
            read: Module::load(gpu, read::PTX)?.kernel("read_value")?,
            fill: stamp.kernel("fill_lines")?,
            verify: stamp.kernel("verify_lines")?,
            sums: Module::load(gpu, sums::PTX)?.kernel("page_sums")?,
            copy: Module::load(gpu, host::PTX)?.kernel("copy_bytes")?,
            tables: sums::upload(gpu)?,
        })
    }

    /// Where headers and payload lie in the heaps that they work on.
    pub fn layout(&self) -> &HeapLayout {
        &self.layout
    }
}

#[cfg(test)]
mod tests {
    //! What the committed PTX promises; the compiler is not needed for this.

    use super::{host, push, read, stamp, sums, words};

    const ALL: [(&str, &str); 6] = [
        ("words", words::PTX),
        ("push", push::PTX),
        ("read", read::PTX),
        ("stamp", stamp::PTX),
        ("sums", sums::PTX),
        ("host", host::PTX),
    ];
    /// Those that move values, with what they may move byte by byte: the rest after the last full piece.
    const COPIES: [(&str, &str); 3] =
        [("push", push::PTX), ("read", read::PTX), ("host", host::PTX)];

    /// The instructions, without their operands and predicates.
    fn operations(ptx: &str) -> impl Iterator<Item = &str> {
        ptx.lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"))
            .filter_map(|line| line.split_whitespace().find(|word| !word.starts_with('@')))
            .map(|word| word.trim_end_matches(';'))
    }

    fn places(ptx: &str, is: impl Fn(&str) -> bool) -> Vec<usize> {
        operations(ptx).enumerate().filter(|(_, op)| is(op)).map(|(at, _)| at).collect()
    }

    /// N2: all stores of data, then the barrier of the block, then the count of blocks, then the release at
    /// system scope. So it is for the loads of a reader and its unpin. The store of the outcome to host memory comes last.
    #[test]
    fn the_word_changes_after_the_last_byte_of_all_blocks() {
        for (name, ptx) in [("push", push::PTX), ("read", read::PTX)] {
            let stores = places(ptx, |op| op.starts_with("st.global.v4.") || op == "st.global.u8");
            let loads = places(ptx, |op| op.starts_with("ld.global.cg."));
            let barrier = places(ptx, |op| op == "bar.sync");
            let count = places(ptx, |op| op == "atom.acq_rel.gpu.global.add.u32");
            let fence = places(ptx, |op| op == "fence.acq_rel.sys");
            let word = places(ptx, |op| op == "atom.relaxed.sys.global.cas.b64");
            let told = places(ptx, |op| op == "st.release.sys.global.u64");
            let order = [barrier.as_slice(), &count, &fence, &word, &told].map(<[usize]>::len);
            assert_eq!(order, [1; 5], "{name}");
            let data = stores.iter().chain(&loads).max().copied();
            assert!(data < Some(barrier[0]), "{name}: a byte moves after the barrier");
            assert!(barrier[0] < count[0] && count[0] < fence[0] && fence[0] < word[0], "{name}");
            assert!(word[0] < told[0], "{name}");
        }
    }

    /// Those that start while the kernel before them still runs touch nothing before they have waited for it.
    #[test]
    fn kernels_that_start_early_wait_first_of_all() {
        let early = ["word_steps", "few_steps", "push_pages", "read_value", "copy_bytes"];
        let kernels = ALL.iter().flat_map(|(_, ptx)| ptx.split(".visible .entry").skip(1));
        for kernel in kernels {
            let name = kernel.split('(').next().unwrap_or_default().trim();
            let waits = places(kernel, |op| op == "griddepcontrol.wait");
            let lets = places(kernel, |op| op == "griddepcontrol.launch_dependents");
            let expected = usize::from(early.contains(&name));
            assert_eq!([waits.len(), lets.len()], [expected; 2], "{name}");
            let Some(wait) = waits.first() else { continue };
            let first =
                ["ld.global", "ld.acquire", "st.", "atom.", "bra", "ret", "griddepcontrol.l"];
            let touches = places(kernel, |op| first.iter().any(|start| op.starts_with(start)));
            assert!(Some(wait) < touches.first(), "{name}");
        }
    }

    /// No kernel stores to a control word: all 64-bit changes at system scope are compare-and-swaps.
    #[test]
    fn words_change_by_compare_and_swap_at_system_scope() {
        for (name, ptx) in ALL {
            for op in operations(ptx).filter(|op| op.starts_with("atom.")) {
                let word = op.contains(".sys.global.cas.b64");
                let own = op == "atom.acq_rel.gpu.global.add.u32" || op.starts_with("atom.global.");
                assert!(word || own, "{name}: {op}");
            }
        }
        assert_eq!(places(words::PTX, |op| op == "atom.acq_rel.sys.global.cas.b64").len(), 5);
    }

    /// Each compare-and-swap stands in a loop that counts its attempts: nobody stays in it for ever.
    #[test]
    fn attempts_are_counted() {
        for (name, ptx) in ALL {
            let swaps = places(ptx, |op| op.contains(".cas.")).len();
            let bound = |line: &&str| line.contains("setp.lt.u32") && line.ends_with(", 4096;");
            let bounds = ptx.lines().filter(bound).count();
            assert_eq!(swaps, bounds, "{name}");
        }
    }

    #[test]
    fn values_are_moved_16_bytes_at_a_time() {
        for (name, ptx) in COPIES {
            let wide = places(ptx, |op| op == "ld.global.cg.v4.u32").len();
            assert_eq!(wide, 4, "{name}: pieces in flight");
            assert_eq!(places(ptx, |op| op == "st.global.v4.u32").len(), 4, "{name}");
            assert_eq!(places(ptx, |op| op == "ld.global.cg.u8").len(), 1, "{name}: the rest");
            assert_eq!(places(ptx, |op| op == "st.global.u8").len(), 1, "{name}: the rest");
        }
    }

    /// The read-only cache does not see what another GPU or process wrote, and nobody waits by looking
    /// at memory again and again.
    #[test]
    fn kernels_neither_trap_nor_wait_nor_use_stale_caches() {
        for (name, ptx) in ALL {
            for op in operations(ptx) {
                let word = op.split('.').next().unwrap_or_default();
                let banned = ["trap", "nanosleep", "membar", "call", "brkpt"];
                assert!(!banned.contains(&word), "{name}: {op}");
                assert!(!op.contains(".nc") && !op.contains("volatile"), "{name}: {op}");
                assert!(!op.contains(".local"), "{name}: {op}");
                let looks = op.starts_with("ld.acquire") || op.starts_with("ld.relaxed");
                assert!(!looks || name == "words", "{name}: {op}");
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
