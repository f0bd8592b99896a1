//! No kernel touches a byte before or after its buffers: inaccessible pages surround them.

#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "mappings and their protection")]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use ucrypt_sector::{CipherSpec, Kernel, SectorCipher, SectorOptions};

const PAGE: usize = 4096;

/// Accessible pages between two guard pages.
struct Guarded {
    start: *mut u8,
    pages: usize,
}

impl Guarded {
    fn new(pages: usize) -> Self {
        let len = (pages + 2) * PAGE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping; there are no references to its first and last page.
        unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE)
                .expect("a mapping");
            mprotect(start, PAGE, MprotectFlags::empty()).expect("a guard");
            mprotect(start.byte_add(len - PAGE), PAGE, MprotectFlags::empty()).expect("a guard");
            Self { start: start.cast(), pages }
        }
    }

    /// `len` bytes at the very start or the very end of the accessible pages.
    fn at(&mut self, end: bool, len: usize) -> &mut [u8] {
        let room = self.pages * PAGE;
        assert!(len <= room);
        let offset = PAGE + if end { room - len } else { 0 };
        // SAFETY: the bytes lie between the guard pages, and `self` is borrowed as long.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and no borrow of it is left.
        unsafe { munmap(self.start.cast(), (self.pages + 2) * PAGE).expect("unmapped") }
    }
}

#[test]
fn no_kernel_leaves_its_buffers() {
    let pages = 36 * 512 / PAGE + 1;
    let (mut src, mut dst) = (Guarded::new(pages), Guarded::new(pages));
    for spec in [
        "aes-xts-plain64",
        "aes-cbc-essiv:sha256",
        "aes-ecb",
        "serpent-xts-plain64",
        "serpent-ecb",
        "camellia-cbc-plain64",
        "camellia-ecb",
        "twofish-xts-plain64",
        "twofish-cbc-plain64",
        "twofish-ecb",
    ] {
        let spec: CipherSpec = spec.parse().unwrap();
        let key: Vec<u8> = (0..spec.key_sizes().iter().next_back().unwrap() as u8).collect();
        for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_available()) {
            let cipher =
                SectorCipher::with_kernel(&spec, &key, SectorOptions::default(), kernel).unwrap();
            for sectors in 1..=36 {
                for end in [false, true] {
                    let (src, dst) = (src.at(end, sectors * 512), dst.at(end, sectors * 512));
                    src.fill(sectors as u8);
                    cipher.encrypt(0, src, dst).unwrap();
                    cipher.encrypt_in_place(0, src).unwrap();
                    assert_eq!(src, dst, "{spec} by {kernel}");
                    cipher.decrypt(0, src, dst).unwrap();
                    cipher.decrypt_in_place(0, src).unwrap();
                    assert_eq!(src, dst, "{spec} by {kernel}");
                    assert!(src.iter().all(|byte| *byte == sectors as u8), "{spec} by {kernel}");
                }
            }
        }
    }
}
