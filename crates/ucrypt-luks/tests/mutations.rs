//! Valid headers with seeded damage always give a result: no panic, no read beyond the image, no
//! buffer larger than the format allows.

mod common;

use common::targets::{Looked, look};
use common::{edit, flip, json_text, put_json, seal, small_luks1, small_luks2};
use fastrand::Rng;

#[derive(Default, Debug)]
struct Tally {
    refused: u32,
    read: u32,
    opened: u32,
}

impl Tally {
    fn try_image(&mut self, bytes: &[u8]) {
        let looked = look(bytes);
        self.refused += u32::from(looked == Looked::Refused);
        self.read += u32::from(looked != Looked::Refused);
        self.opened += u32::from(looked == Looked::Opened);
    }
}

#[test]
fn luks1_headers_with_flipped_bytes() {
    let image = small_luks1();
    let mut tally = Tally::default();
    for seed in 0..1000 {
        let mut image = image.clone();
        flip(&mut image[..592], &mut Rng::with_seed(seed));
        tally.try_image(&image);
    }
    assert!(tally.refused > 100 && tally.read > 100 && tally.opened > 0, "{tally:?}");
}

#[test]
fn luks2_binary_headers_with_flipped_bytes_and_right_checksums() {
    let image = small_luks2();
    let mut tally = Tally::default();
    for seed in 0..1000 {
        let (mut image, mut random) = (image.clone(), Rng::with_seed(seed));
        for copy in image[..0x8000].chunks_mut(0x4000) {
            flip(&mut copy[..448], &mut random);
            seal(copy);
        }
        tally.try_image(&image);
    }
    assert!(tally.refused > 10 && tally.read > 100 && tally.opened > 0, "{tally:?}");
}

#[test]
fn luks2_copies_with_flipped_bytes() {
    let image = small_luks2();
    let mut tally = Tally::default();
    for seed in 0..500 {
        let (mut image, mut random) = (image.clone(), Rng::with_seed(seed));
        flip(&mut image[..0x4000], &mut random);
        if random.bool() {
            flip(&mut image[0x4000..0x8000], &mut random);
        }
        tally.try_image(&image);
    }
    assert!(tally.refused > 100 && tally.opened > 100, "{tally:?}");
}

#[test]
fn luks2_json_with_edits_and_right_checksums() {
    let image = small_luks2();
    let json = json_text(&image);
    let mut tally = Tally::default();
    for seed in 0..4000 {
        let (mut image, mut random, mut json) = (image.clone(), Rng::with_seed(seed), json.clone());
        for _ in 0..=random.usize(..2) {
            if !json.is_empty() {
                edit(&mut json, &mut random);
            }
        }
        put_json(&mut image, &json);
        tally.try_image(&image);
    }
    assert!(tally.refused > 1000 && tally.read > 100 && tally.opened > 0, "{tally:?}");
}

#[test]
fn images_cut_off_anywhere() {
    for image in [small_luks1(), small_luks2()] {
        let mut random = Rng::with_seed(1);
        let mut tally = Tally::default();
        for length in (0..1100).chain((0..200).map(|_| random.usize(..image.len()))) {
            tally.try_image(&image[..length]);
        }
        assert!(tally.refused > 1000, "{tally:?}");
    }
}

#[test]
fn noise_behind_the_magic() {
    let mut tally = Tally::default();
    for seed in 0..500 {
        let mut random = Rng::with_seed(seed);
        let mut image = vec![0; 0x8000 + random.usize(..0x8000)];
        random.fill(&mut image);
        image[..6].copy_from_slice(b"LUKS\xba\xbe");
        image[6..8].copy_from_slice(&[0, 1 + (seed % 2) as u8]);
        if seed % 4 == 1 {
            image[8..16].copy_from_slice(&0x4000_u64.to_be_bytes());
        }
        tally.try_image(&image);
    }
    assert_eq!(tally.refused, 500);
}
