//! The steps of a layer: kernels, and the same on host memory.
//!
//! | kernel | what it does |
//! |---|---|
//! | `ep_dispatch` | tokens and metadata rows of this rank → all ranks, then a signal |
//! | `ep_wait` | looks at the signals of all ranks until they are there, or the time is over |
//! | `ep_pack` | what came, in the order of this rank's experts |
//! | `ep_give_back` | sums over this rank's experts → the rank of the token, then a signal |
//! | `ep_combine` | sums over ranks → the output |
//! | `ep_leave` | a rank gives its communicator up: poison at the others |
//! | `ep_up`, `ep_down` | experts: two products and the gate between them |
//! | `ep_scale` | experts for tests: each element times a number of the expert's own |
//! | `ep_compare` | counts what is wrong in an output, for tests and figures |
//!
//! Each kernel is `x.cu` (and the PTX made from it, committed beside it) and `x_oracle.rs`, the same on host
//! memory (of `ep_scale` it is [`crate::oracle::scale_expert`]); `launch.rs` launches all of them. Kernel and oracle
//! agree byte for byte, also in what they leave in the heaps of others when a step fails; only products of experts
//! differ on a GPU, within the rounding of bf16, because a tensor core adds up in a way of its own. The CPU backend
//! runs the oracles.
//!
//! What must stay true: data kernels never wait; `ep_wait` is one block per rank (E8), and lets its successor
//! start only after its wait is over. A signal follows the last byte of all blocks. A data kernel that meets bad
//! input writes nothing out of range, and its last block poisons the group instead of signalling.

mod combine_oracle;
mod dispatch_oracle;
mod experts_oracle;
mod give_back_oracle;
mod launch;
mod leave_oracle;
mod pack_oracle;
mod wait_oracle;

pub use combine_oracle::combine_oracle;
pub use dispatch_oracle::{Batch, NOT_ROUTED, dispatch_oracle};
pub use experts_oracle::{Weights, expert_oracle, experts_oracle};
pub use give_back_oracle::give_back_oracle;
pub use launch::{EpKernels, Tuning};
pub(crate) use launch::{RawBatch, RawExperts, RawStep};
pub use leave_oracle::leave_oracle;
pub use pack_oracle::{Packed, pack_oracle};
pub use wait_oracle::{begin, fail, failed, look_oracle, next_phase, pass, tag_now};

#[cfg(test)]
mod tests {
    //! What the committed PTX promises; the compiler is not needed for this.

    use super::launch::{COMBINE, COMPARE, DISPATCH, EXPERTS, GIVE_BACK, LEAVE, PACK, SCALE, WAIT};

    const ALL: [(&str, &str); 9] = [
        ("dispatch", DISPATCH),
        ("wait", WAIT),
        ("pack", PACK),
        ("give_back", GIVE_BACK),
        ("combine", COMBINE),
        ("scale", SCALE),
        ("experts", EXPERTS),
        ("compare", COMPARE),
        ("leave", LEAVE),
    ];

    /// Every kernel of every file, by its own name.
    fn kernels() -> impl Iterator<Item = (&'static str, &'static str)> {
        ALL.iter()
            .flat_map(|(_, ptx)| ptx.split(".visible .entry").skip(1))
            .map(|kernel| (kernel.split('(').next().unwrap_or_default().trim(), kernel))
    }

    #[test]
    fn every_kernel_is_looked_at() {
        let names: Vec<&str> = kernels().map(|(name, _)| name).collect();
        let all = [
            "ep_dispatch",
            "ep_wait",
            "ep_pack",
            "ep_give_back",
            "ep_combine",
            "ep_scale",
            "ep_up",
            "ep_down",
            "ep_compare",
            "ep_leave",
        ];
        assert_eq!(names, all);
    }

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

    /// All stores of data, then the barrier of the block, then the count of blocks, then the fence at system
    /// scope, and then the signals.
    #[test]
    fn a_signal_follows_the_last_byte_of_all_blocks() {
        for (name, ptx) in [("dispatch", DISPATCH), ("give_back", GIVE_BACK)] {
            let data = places(ptx, |op| op.starts_with("st.global.v4."));
            let barrier = places(ptx, |op| op.starts_with("bar."));
            let count = places(ptx, |op| op == "atom.acq_rel.gpu.global.add.u64");
            let fence = places(ptx, |op| op == "fence.acq_rel.sys");
            let signal = places(ptx, |op| op == "st.relaxed.sys.global.u64");
            assert_eq!(count.len(), 1, "{name}");
            assert!(!data.is_empty() && !signal.is_empty() && !fence.is_empty(), "{name}");
            assert!(data.last() < barrier.last(), "{name}: a byte is stored after the barrier");
            assert!(barrier.last() < count.first() && count.first() < fence.first(), "{name}");
            assert!(fence.first() < signal.first(), "{name}");
        }
    }

    /// Only one kernel looks at a word that another rank writes, and it does so by acquire loads.
    #[test]
    fn only_the_wait_looks_at_signals() {
        for (name, ptx) in ALL {
            let looks = places(ptx, |op| op.starts_with("ld.acquire")).len();
            assert_eq!(looks > 0, name == "wait", "{name}");
            let sys = places(ptx, |op| op == "ld.acquire.sys.global.u64").len();
            assert_eq!(looks, sys, "{name}: at system scope");
        }
        assert!(places(WAIT, |op| op.starts_with("atom") || op.starts_with("red")).is_empty());
    }

    /// A kernel waits for the one before it first of all: before the wait nothing is read but parameters, and nobody
    /// branches around it or ends. It lets the next one start after that. The kernel that spins looks at signals
    /// first; it waits before it ends, before it fails, and before it lets the next one start.
    #[test]
    fn kernels_may_start_early_and_wait_first() {
        for (name, kernel) in kernels() {
            let waits = places(kernel, |op| op == "griddepcontrol.wait");
            let lets = places(kernel, |op| op == "griddepcontrol.launch_dependents");
            assert_eq!(lets.len(), 1, "{name}");
            if name == "ep_wait" {
                let looks = places(kernel, |op| op.starts_with("ld.acquire"));
                let last = waits.last().expect("a wait before it ends");
                assert!(looks.iter().all(|look| look < last) && *last < lets[0], "{name}");
                // A record and poison are ordered by a fence, and no fence follows another without a wait.
                let fails = places(kernel, |op| op == "fence.acq_rel.sys");
                assert!(!fails.is_empty() && waits[0] < fails[0], "{name}");
                for two in fails.windows(2) {
                    assert!(waits.iter().any(|wait| two[0] < *wait && *wait < two[1]), "{name}");
                }
                continue;
            }
            assert_eq!(waits.len(), 1, "{name}");
            for later in ["ld.global", "ld.acquire", "st.", "atom.", "red.", "bra", "ret"] {
                let first = places(kernel, |op| op.starts_with(later));
                assert!(first.iter().all(|at| waits[0] < *at), "{name}: {later}");
            }
            assert!(waits[0] < lets[0], "{name}");
        }
    }

    /// Memory that others write is read from L2: the cache of a multiprocessor does not see it.
    #[test]
    fn memory_is_read_through_l2() {
        for (name, kernel) in kernels() {
            for op in operations(kernel).filter(|op| op.starts_with("ld.global")) {
                assert!(op.starts_with("ld.global.cg."), "{name}: {op}");
            }
            assert!(places(kernel, |op| op.contains("volatile")).is_empty(), "{name}");
        }
    }

    #[test]
    fn rows_are_moved_16_bytes_at_a_time() {
        for (name, ptx, loads, stores) in [
            // Two pieces for each of eight ranks, and the metadata; the first two pieces are read ahead.
            ("dispatch", DISPATCH, 4, 17),
            // Two pieces of two results; three of the metadata row, and two of places.
            ("give_back", GIVE_BACK, 4 + 3 + 2, 2),
            ("combine", COMBINE, 8, 1),
        ] {
            assert_eq!(places(ptx, |op| op == "ld.global.cg.v4.u32").len(), loads, "{name}");
            assert_eq!(places(ptx, |op| op == "st.global.v4.u32").len(), stores, "{name}");
        }
        assert_eq!(places(PACK, |op| op == "st.global.v4.u32").len(), 16);
        // Four rows of weights in four chunks, and each with four tiles of tokens, for each of two products.
        assert_eq!(places(EXPERTS, |op| op == "ld.global.cg.v4.u32").len(), 2 * 4 * (4 + 4));
    }

    /// The order of sums is fixed, and nothing is flushed to zero.
    #[test]
    fn sums_round_to_nearest_and_keep_small_numbers() {
        assert!(!places(GIVE_BACK, |op| op == "fma.rn.f32").is_empty());
        assert!(!places(COMBINE, |op| op == "add.rn.f32" || op == "add.f32").is_empty());
        for (name, ptx) in ALL {
            assert!(places(ptx, |op| op.contains(".ftz")).is_empty(), "{name}");
        }
        assert!(places(COMBINE, |op| op.starts_with("fma")).is_empty());
    }

    #[test]
    fn kernels_neither_trap_nor_sleep_nor_use_stale_caches() {
        for (name, ptx) in ALL {
            for op in operations(ptx) {
                let word = op.split('.').next().unwrap_or_default();
                let banned = ["trap", "nanosleep", "membar", "call", "brkpt"];
                assert!(!banned.contains(&word), "{name}: {op}");
                assert!(!op.contains(".nc") && !op.contains(".local"), "{name}: {op}");
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
