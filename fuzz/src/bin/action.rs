//! Carries out the action that `UCRYPT_FUZZ_ACTION` names on an image.
#![no_main]

use std::sync::LazyLock;

static ACTION: LazyLock<String> =
    LazyLock::new(|| std::env::var("UCRYPT_FUZZ_ACTION").expect("UCRYPT_FUZZ_ACTION"));

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucrypt_fuzz::action(&ACTION, input));
