//! Reads, shows and unlocks a header.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucrypt_fuzz::header(input));
