//! One suite for every transport: whatever the path, the same calls give the same answers.
//!
//! ```text
//!   suite ── read write signal view ──► Local | Shared (Unix socket) | Stream (TCP, lanes) ──► owner
//!   rig   ── orders, ticks, flipped bytes ──────────────────────────────────────────► owner
//! ```
//!
//! What differs by design is said where it is tested: `Stream` shows nothing in place, `Shared`
//! reads without asking, `Local` has no peer that could be silent. The `far` ones have the bytes in memory of
//! a device, which is host memory here that only copies reach.
#![expect(clippy::unwrap_used, reason = "helpers of tests; a failed step is a failed test")]

mod batches;
mod crowd;
mod direct;
mod disks;
#[path = "../../../mem/tests/far/double.rs"]
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod double;
mod far;
mod flips;
mod hang_up;
mod large;
mod life;
mod lines;
mod mapped;
mod owner_fails;
mod parts;
mod race;
mod ranges;
mod rig;
mod silence;
mod suite;
mod tally;

/// Each function of the suite as one test per transport.
macro_rules! conformance {
    ($($module:ident :: $test:ident),* $(,)?) => {
        conformance!(@ local, $($module::$test),*);
        conformance!(@ shared, $($module::$test),*);
        conformance!(@ stream, $($module::$test),*);
        conformance!(@ lanes, $($module::$test),*);
        conformance!(@ far_local, $($module::$test),*);
        conformance!(@ far_stream, $($module::$test),*);
        conformance!(@ far_lanes, $($module::$test),*);
    };
    (@ $name:ident, $($module:ident :: $test:ident),*) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    crate::$module::$test(&mut crate::rig::$name());
                }
            )*
        }
    };
}

conformance!(
    suite::every_length_is_bit_exact,
    suite::a_value_in_pieces_is_one_value,
    suite::a_wrong_seal_is_corrupt,
    suite::a_wrong_length_is_never_ok,
    suite::reads_of_what_is_not_there_are_refused,
    suite::writes_to_what_is_not_ours_are_refused,
    suite::a_fenced_owner_serves_nobody,
    suite::a_batch_has_one_result_each,
    suite::a_bad_buffer_spoils_its_own_read_only,
    suite::flipped_bytes_are_found,
    suite::a_bad_value_is_retired_by_its_owner,
    suite::a_restarted_server_is_reached_again,
    batches::values_sent_together_have_one_result_each,
    batches::values_that_are_not_waited_for_leave_nothing_half,
    life::without_a_signal_nothing_is_visible,
    life::a_signal_needs_its_token,
    life::an_aborted_put_waits_for_its_writer,
    life::a_view_keeps_its_bytes,
    life::a_removed_value_is_stale_at_once,
    parts::parts_in_any_order_are_one_value,
    parts::only_what_was_sealed_is_published,
    parts::a_part_past_the_end_is_refused_and_the_put_goes_on,
    parts::a_dropped_open_put_gives_its_range_back,
    parts::an_aborted_open_put_waits_for_its_writer,
    parts::opening_what_is_not_ours_is_refused,
    ranges::every_part_is_bit_exact,
    ranges::a_part_past_the_end_is_out_of_bounds,
    ranges::flips_in_parts_are_found,
    ranges::parts_of_what_is_gone_are_refused,
    ranges::a_batch_may_mix_parts_and_wholes,
    ranges::parts_never_come_from_another_life,
    disks::values_on_disks_are_read_as_others,
    disks::parts_of_values_on_disks,
    disks::flips_on_disks_are_found,
    disks::a_missing_value_on_a_disk_spoils_no_other,
    disks::a_full_staging_memory_is_busy_for_a_while,
    race::readers_never_see_another_life,
    race::many_threads_store_and_read,
);
