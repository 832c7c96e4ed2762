//! The first exchange of a link. Never a panic, never two encodings of one value.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mooncrate_wire::fuzzing::hello(bytes));
