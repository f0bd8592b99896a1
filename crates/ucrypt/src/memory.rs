//! Memory for key derivations, and what people are told of it. [`ucrypt_image::memory`] has the rules.

use ucrypt_image::memory::{self, Bytes};
pub(crate) use ucrypt_image::memory::{bound_kib, check_keyslots, check_unlock};
use ucrypt_luks::{Pbkdf, PbkdfKind};

use crate::machine::machine;
use crate::stdio::{say, say_line};

/// Has every key derivation of this process ask here first. With `debug`, says so each time.
pub(crate) fn guard(debug: bool) {
    ucrypt_luks::guard_memory(move |bytes| {
        if debug {
            say(&format!("# Deriving a key with {} of memory.\n", Bytes(bytes)));
        }
        memory::permit(bytes, &|| say_line("waiting for the memory of other key derivations"))
    });
}

/// Says that a new keyslot costs less than asked for, and why.
pub(crate) fn tell_of_bound(pbkdf: &Pbkdf) {
    let bound = machine().memory_kib;
    if pbkdf.kind == PbkdfKind::Pbkdf2 || pbkdf.memory_kib <= bound {
        return;
    }
    let because = memory::bound_by(bound)
        .unwrap_or_else(|| "that is half of what this machine has free".into());
    say_line(format_args!(
        "Argon2 takes at most {} here instead of {}: {because}",
        Bytes(u64::from(bound) << 10),
        Bytes(u64::from(pbkdf.memory_kib) << 10)
    ));
}
