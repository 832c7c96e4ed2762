//! What a start may find on a disk: heads, books, whole files. Never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mooncrate_ssd::fuzzing::head(bytes);
    mooncrate_ssd::fuzzing::books(bytes);
    mooncrate_ssd::fuzzing::recovery(bytes);
});
