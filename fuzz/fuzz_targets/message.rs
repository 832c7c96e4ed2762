//! The body of any message, control or data, request or reply. Never a panic, never two encodings
//! of one value.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mooncrate_wire::fuzzing::message(bytes));
