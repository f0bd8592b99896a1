//! The rows of a group.

use ucrypt_sector::{CipherSpec, Kernel, SectorCipher, SectorOptions};

use crate::{
    Direction, Row, Work,
    buffer::Buffer,
    evp::{aws_lc, openssl},
    limit, rust_crypto,
};

/// The rows of all implementations that support `work`. The rows of ucrypt run with `kernel`.
pub fn all(work: Work, kernel: Kernel) -> Vec<Row> {
    let mut rows = Vec::new();
    let is_aes = work.spec.starts_with("aes-");
    if is_aes {
        rows.extend(limits(work, kernel));
    }
    rows.push(ours(work, kernel));
    if is_aes && work.len > work.sector_size {
        rows.push(ours_in_place(work, kernel));
    }
    rows.extend(aws_lc::row(work));
    rows.extend(openssl::row(work));
    // The crates select their instructions themselves and cannot be restricted.
    if kernel == Kernel::best() {
        rows.extend(rust_crypto::row(work));
    }
    rows
}

/// The limits that no cipher can exceed.
fn limits(work: Work, kernel: Kernel) -> Vec<Row> {
    if work.len == work.sector_size {
        return Vec::new();
    }
    let rounds = limit::rounds(kernel).map(|rounds| {
        Row::new(limit::NAME, move || {
            std::hint::black_box(rounds(work.len / 16));
        })
    });
    let memcpy = Row::copying("limit, memcpy", work.len, |src, dst| dst.copy_from_slice(src));
    rounds.into_iter().chain([memcpy]).collect()
}

fn cipher(work: Work, kernel: Kernel) -> SectorCipher {
    let spec: CipherSpec = work.spec.parse().expect("a specification");
    let key = Work::key(spec.key_sizes().iter().next_back().unwrap_or(0));
    let sector_size = work.sector_size as u32;
    let options = SectorOptions { sector_size, ..SectorOptions::default() };
    SectorCipher::with_kernel(&spec, &key, options, kernel).expect("a key")
}

fn ours(work: Work, kernel: Kernel) -> Row {
    let cipher = cipher(work, kernel);
    Row::copying(format!("ucrypt, {kernel}"), work.len, move |src, dst| {
        match work.direction {
            Direction::Encrypt => cipher.encrypt(0, src, dst),
            Direction::Decrypt => cipher.decrypt(0, src, dst),
        }
        .expect("whole sectors");
    })
}

fn ours_in_place(work: Work, kernel: Kernel) -> Row {
    let cipher = cipher(work, kernel);
    let mut data = Buffer::new(work.len);
    Row::new(format!("ucrypt, {kernel}, in place"), move || {
        let data = std::hint::black_box(data.get_mut());
        match work.direction {
            Direction::Encrypt => cipher.encrypt_in_place(0, data),
            Direction::Decrypt => cipher.decrypt_in_place(0, data),
        }
        .expect("whole sectors");
    })
}
