//! Pinned headers: whoever controls the image may answer every read in another way.

mod common;

use std::cell::RefCell;
use std::io;

use common::{PASSPHRASE, roomy_luks2, small_luks1};
use ucrypt_luks::{Error, Hash, Header, HeaderCopy, HeaderDigest, ReadAt};

/// An image that counts how often each byte was read, and from the second time on answers with
/// another header.
struct Changing {
    first: Vec<u8>,
    later: Vec<u8>,
    reads: RefCell<Vec<u8>>,
}

impl ReadAt for Changing {
    fn len(&self) -> u64 {
        self.first.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let mut reads = self.reads.borrow_mut();
        for (at, byte) in (start..).zip(buf) {
            *byte = if reads[at] == 0 { self.first[at] } else { self.later[at] };
            reads[at] += 1;
        }
        Ok(())
    }
}

/// The same volume with another data offset and cipher, or with what is left of it.
fn tampered(image: &[u8]) -> Vec<u8> {
    image.iter().map(|byte| byte ^ 0x55).collect()
}

#[test]
fn nothing_of_a_pinned_header_is_read_twice() {
    for image in [small_luks1(), roomy_luks2()] {
        let reads = RefCell::new(vec![0; image.len()]);
        let changing = Changing { later: tampered(&image), first: image.clone(), reads };
        let copy = HeaderCopy::read(&changing).unwrap();
        let after = changing.reads.borrow().clone();
        assert_eq!(after.iter().max(), Some(&1), "a byte was read twice");
        let (header, damage) = Header::read(&copy).unwrap();
        assert!(damage.is_none());
        let opened = header.unlock(&copy, PASSPHRASE, None).unwrap();
        header.check_strictly(None).unwrap();
        assert_eq!(*changing.reads.borrow(), after, "the image was read again");
        let honest = Header::read(&image).unwrap().0.unlock(&image, PASSPHRASE, None).unwrap();
        assert_eq!((opened.volume_key, opened.segments), (honest.volume_key, honest.segments));
        // Every byte of the header was read, and so counts in the digest.
        let len = usize::try_from(copy.len()).unwrap();
        assert!(after[..len].iter().all(|reads| *reads == 1));
        assert_eq!(copy.digest().to_string(), sha256(&image[..len]));
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Hash::Sha256.digest(&[bytes]);
    let hex = digest.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    format!("sha256:{hex}")
}

#[test]
fn every_bit_of_a_header_counts() {
    for image in [small_luks1(), roomy_luks2()] {
        let copy = HeaderCopy::read(&image).unwrap();
        let pinned = copy.digest();
        copy.check(pinned).unwrap();
        let len = usize::try_from(copy.len()).unwrap();
        let mut random = fastrand::Rng::with_seed(91);
        for _ in 0..200 {
            let at = random.usize(..len);
            let mut changed = image.clone();
            changed[at] ^= 1 << random.u32(..8);
            // Most changes break the header; none passes for the pinned one.
            let Ok(copy) = HeaderCopy::read(&changed) else { continue };
            let refused = copy.check(pinned);
            assert!(matches!(refused, Err(Error::OtherHeader { .. })), "byte {at}");
        }
        let mut data = image.clone();
        *data.last_mut().unwrap() ^= 1;
        HeaderCopy::read(&data).unwrap().check(pinned).unwrap();
    }
}

#[test]
fn digests_are_written_in_one_way() {
    let text = format!("sha256:{}", "0aF5".repeat(16));
    let digest: HeaderDigest = text.parse().unwrap();
    assert_eq!(digest.to_string(), text.to_lowercase());
    let lost = &text[..text.len() - 1];
    for bad in ["", "sha256:", lost, "sha1:00", &format!("{text}0"), &text.replace("0a", "+a")] {
        assert!(bad.parse::<HeaderDigest>().is_err(), "{bad}");
    }
}

#[test]
fn a_header_with_a_damaged_copy_has_no_digest() {
    let mut image = roomy_luks2();
    let Header::Luks2(header) = Header::read(&image).unwrap().0 else { panic!() };
    let secondary = usize::try_from(header.binary.header_size).unwrap();
    image[secondary + 5000] ^= 1;
    let refused = HeaderCopy::read(&image).unwrap_err();
    assert!(matches!(refused, Error::Strict(_)), "{refused}");
}
