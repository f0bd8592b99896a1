//! Reads and writes against a model, and what is refused.

use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use ucrypt_lib::{IoError, OpenOptions};

use crate::images::{Image, KEY};

/// Bytes of the volume: more than a long transfer keeps in flight.
const SIZE: usize = 12 << 20;

#[test]
fn random_requests_of_any_length_find_what_was_written() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let image = Image::new(SIZE as u64);
    let volume = image.open();
    let mut model = vec![0; SIZE];
    volume.write_zeroes(0, SIZE as u64).expect("zeroes");
    for _ in 0..60 {
        let longest = [700, 70_000, SIZE][random.usize(..3)];
        let offset = random.usize(..SIZE);
        let len = random.usize(..=longest.min(SIZE - offset));
        let range = offset..offset + len;
        match random.usize(..4) {
            0 => {
                volume.write_zeroes(offset as u64, len as u64).expect("zeroes");
                model[range].fill(0);
            }
            1 | 2 => {
                random.fill(&mut model[range.clone()]);
                volume.write_at(offset as u64, &model[range]).expect("written");
            }
            _ => {
                let mut seen = vec![1; len];
                volume.read_exact_at(offset as u64, &mut seen).expect("read");
                assert!(seen == model[range], "{len} bytes at {offset}");
            }
        }
    }
    volume.flush().expect("flushed");
    drop(volume);
    let mut seen = Vec::new();
    image.open().file().read_to_end(&mut seen).expect("read");
    assert!(seen == model, "after the volume was opened again");
}

#[test]
fn the_end_of_a_volume_is_where_reads_end_and_writes_are_refused() {
    let image = Image::new(1 << 20);
    let volume = image.open();
    let mut buf = [0; 100];
    assert_eq!(volume.read_at((1 << 20) - 40, &mut buf).expect("read"), 40);
    assert_eq!(volume.read_at(1 << 20, &mut buf).expect("read"), 0);
    assert_eq!(volume.read_at(u64::MAX, &mut buf).expect("read"), 0);
    for offset in [(1 << 20) - 99, u64::MAX] {
        let refused = [
            volume.write_at(offset, &buf),
            volume.read_exact_at(offset, &mut buf),
            volume.write_zeroes(offset, 100),
        ];
        for result in refused {
            assert!(
                matches!(result, Err(IoError::OutOfRange { len: 100, size: 1_048_576, .. })),
                "{result:?}"
            );
        }
    }
    for beyond in [(1 << 20) + 1, u64::MAX] {
        volume.write_at(beyond, &[]).expect("nothing to write");
        volume.write_zeroes(beyond, 0).expect("nothing to write");
        volume.read_exact_at(beyond, &mut []).expect("nothing to read");
    }
    assert!(matches!(volume.discard(0, 4096), Err(IoError::NoDiscards)));
    drop(volume);
    let discarding = OpenOptions::new().allow_discards(true);
    let volume = discarding.open(&image.path, KEY).expect("it opens");
    volume.discard(0, 65536).expect("discarded");
    volume.discard(u64::MAX, 0).expect("nothing to discard");
    drop(volume);
    let reading = OpenOptions::new().read_only(true).open(&image.path, KEY).expect("it opens");
    assert!(matches!(reading.write_at(0, &buf), Err(IoError::ReadOnly)));
    assert!(matches!(reading.write_zeroes(0, 1), Err(IoError::ReadOnly)));
    assert!(matches!(reading.discard(0, 1), Err(IoError::ReadOnly)));
    reading.close().expect("nothing to flush");
}

#[test]
fn a_file_seeks_and_ends_like_a_disk() {
    let image = Image::new(1 << 20);
    let mut file = image.open().file();
    assert_eq!(file.seek(SeekFrom::End(-3)).expect("a position"), (1 << 20) - 3);
    assert_eq!(file.write(b"12345").expect("written"), 3);
    assert_eq!(file.write(b"45").unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.read(&mut [0; 10]).expect("read"), 0);
    assert_eq!(file.seek(SeekFrom::Current(-2)).expect("a position"), (1 << 20) - 2);
    let mut end = String::new();
    file.read_to_string(&mut end).expect("text");
    assert_eq!(end, "23");
    assert_eq!(file.seek(SeekFrom::Start(9)).expect("a position"), 9);
    file.seek(SeekFrom::End(1000)).expect("a position");
    assert_eq!(file.write(&[]).expect("nothing to write"), 0);
    assert_eq!(file.seek(SeekFrom::Start(9)).expect("a position"), 9);
    for beyond in [SeekFrom::Current(-10), SeekFrom::End(i64::MIN)] {
        assert_eq!(file.seek(beyond).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(file.stream_position().expect("a position"), 9);
    file.flush().expect("flushed");
}

#[test]
fn a_damaged_header_copy_is_written_again_only_when_the_volume_is_opened_for_writing() {
    let image = Image::new(1 << 20);
    let damage = || {
        let file = fs::File::options().write(true).open(&image.path).expect("the image");
        file.write_all_at(b"damage", 0x4000 + 0x1100).expect("damaged");
    };
    damage();
    let reading = OpenOptions::new().read_only(true).open(&image.path, KEY).expect("it opens");
    assert!(reading.notices()[0].contains("nothing was repaired"), "{:?}", reading.notices());
    drop(reading);
    let writing = image.open();
    assert!(writing.notices()[0].contains("written again"), "{:?}", writing.notices());
    drop(writing);
    assert!(image.open().notices().is_empty());
}

#[test]
fn an_image_that_fails_is_an_error_of_the_request_that_met_it() {
    let image = Image::new(8 << 20);
    let volume = image.open();
    let file = fs::File::options().write(true).open(&image.path).expect("the image");
    file.set_len((16 << 20) + (2 << 20)).expect("truncated");
    let mut buf = vec![0; 5 << 20];
    let error = volume.read_exact_at(0, &mut buf).unwrap_err();
    let IoError::Failed { what: "read", offset, .. } = error else { panic!("{error:?}") };
    assert!(offset >= 1 << 20, "{offset}");
    volume.read_exact_at(0, &mut buf[..2 << 20]).expect("what is there can be read");
    let error = std::io::Error::from(volume.read_exact_at(4 << 20, &mut buf[..1]).unwrap_err());
    assert!(error.to_string().contains("byte 4194304"), "{error}");
}
