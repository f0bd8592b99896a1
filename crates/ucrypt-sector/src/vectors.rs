//! Tests the modes against published vectors, below the public interface: the vectors have lengths
//! and IVs that no sector has.
//!
//! Each file names its source. The kernel took the vectors of Adiantum from google/adiantum, and
//! the first of `xts(aes)` from IEEE 1619.

use cipher::InOutBuf;

use crate::{
    CipherSpec, Kernel,
    iv::IvGenerator,
    keyed::{Keyed, keys},
};

/// One entry of a vector file.
#[derive(Default)]
struct Vector {
    key: Vec<u8>,
    iv: Vec<u8>,
    plaintext: Vec<u8>,
    ciphertext: Vec<u8>,
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("a hex digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn parse(file: &str) -> Vec<Vector> {
    let lines = file.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
    let entries = lines.split(|line| line.is_empty()).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let mut vector = Vector::default();
            for line in entry {
                let (name, value) = line.split_once('=').expect("name = value");
                let value = unhex(value.trim());
                match name.trim() {
                    "key" => vector.key = value,
                    "iv" => vector.iv = value,
                    "pt" => vector.plaintext = value,
                    "ct" => vector.ciphertext = value,
                    name => panic!("unknown field {name}"),
                }
            }
            vector
        })
        .collect()
}

/// Checks each vector as one sector, in both directions, with every kernel that takes its length.
fn check(spec: &str, file: &str) {
    let spec: CipherSpec = spec.parse().expect("a specification");
    let vectors = parse(file);
    assert!(!vectors.is_empty());
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_available()) {
        for (index, vector) in vectors.iter().enumerate() {
            // Only the portable modes take sectors of any number of blocks.
            if kernel == Kernel::Portable || vector.plaintext.len().is_multiple_of(512) {
                check_one(&spec, kernel, vector, &format!("{spec} by {kernel}, vector {index}"));
            }
        }
    }
}

fn check_one(spec: &CipherSpec, kernel: Kernel, vector: &Vector, name: &str) {
    let keys = keys(spec, kernel, &vector.key, 512).expect("a key of a fit length");
    let [Keyed { mode, iv: iv_generator }] = &keys[..] else { panic!("one key") };
    let len = vector.plaintext.len();
    let mut iv = vector.iv.clone();
    iv.resize(mode.iv_len(), 0);
    if let IvGenerator::Essiv(salted) = &iv_generator {
        salted.encrypt_blocks(&mut iv);
    }
    let mut out = vec![0; len];
    let data = InOutBuf::new(&vector.plaintext, &mut out).expect("one length");
    mode.encrypt(&mut iv.clone(), data, len);
    assert_eq!(out, vector.ciphertext, "encryption, {name}");
    mode.decrypt(&mut iv, out.as_mut_slice().into(), len);
    assert_eq!(out, vector.plaintext, "decryption, {name}");
}

macro_rules! vectors {
    ($($test:ident: $spec:literal, $file:literal;)+) => {
        $(#[test]
        fn $test() {
            check($spec, include_str!(concat!("../tests/vectors/", $file)));
        })+
    };
}

vectors! {
    aes_xts_agrees_with_ieee_1619: "aes-xts-plain64", "xts-aes.txt";
    aes_xts_agrees_with_nist: "aes-xts-plain64", "xts-aes-nist.txt";
    aes_xts_agrees_with_wycheproof: "aes-xts-plain64", "xts-aes-wycheproof.txt";
    aes_cbc_essiv_agrees_with_the_kernel: "aes-cbc-essiv:sha256", "essiv-cbc-aes-sha256.txt";
    adiantum_xchacha12_agrees_with_google_adiantum: "xchacha12,aes-adiantum-plain64", "adiantum-xchacha12-aes.txt";
    adiantum_xchacha20_agrees_with_google_adiantum: "xchacha20,aes-adiantum-plain64", "adiantum-xchacha20-aes.txt";
    aes_cbc_agrees_with_the_kernel: "aes-cbc-plain64", "cbc-aes.txt";
    aria_cbc_agrees_with_the_kernel: "aria-cbc-plain64", "cbc-aria.txt";
    blowfish_cbc_agrees_with_the_kernel: "blowfish-cbc-plain64", "cbc-blowfish.txt";
    camellia_cbc_agrees_with_the_kernel: "camellia-cbc-plain64", "cbc-camellia.txt";
    cast5_cbc_agrees_with_the_kernel: "cast5-cbc-plain64", "cbc-cast5.txt";
    cast6_cbc_agrees_with_the_kernel: "cast6-cbc-plain64", "cbc-cast6.txt";
    des3_ede_cbc_agrees_with_the_kernel: "des3_ede-cbc-plain64", "cbc-des3_ede.txt";
    serpent_cbc_agrees_with_the_kernel: "serpent-cbc-plain64", "cbc-serpent.txt";
    sm4_cbc_agrees_with_the_kernel: "sm4-cbc-plain64", "cbc-sm4.txt";
    twofish_cbc_agrees_with_the_kernel: "twofish-cbc-plain64", "cbc-twofish.txt";
    aes_ctr_agrees_with_the_kernel: "aes-ctr-plain64", "ctr-aes.txt";
    aria_ctr_agrees_with_the_kernel: "aria-ctr-plain64", "ctr-aria.txt";
    blowfish_ctr_agrees_with_the_kernel: "blowfish-ctr-plain64", "ctr-blowfish.txt";
    camellia_ctr_agrees_with_the_kernel: "camellia-ctr-plain64", "ctr-camellia.txt";
    cast5_ctr_agrees_with_the_kernel: "cast5-ctr-plain64", "ctr-cast5.txt";
    cast6_ctr_agrees_with_the_kernel: "cast6-ctr-plain64", "ctr-cast6.txt";
    des3_ede_ctr_agrees_with_the_kernel: "des3_ede-ctr-plain64", "ctr-des3_ede.txt";
    serpent_ctr_agrees_with_the_kernel: "serpent-ctr-plain64", "ctr-serpent.txt";
    sm4_ctr_agrees_with_the_kernel: "sm4-ctr-plain64", "ctr-sm4.txt";
    twofish_ctr_agrees_with_the_kernel: "twofish-ctr-plain64", "ctr-twofish.txt";
    aes_ecb_agrees_with_the_kernel: "aes-ecb", "ecb-aes.txt";
    aria_ecb_agrees_with_the_kernel: "aria-ecb", "ecb-aria.txt";
    blowfish_ecb_agrees_with_the_kernel: "blowfish-ecb", "ecb-blowfish.txt";
    camellia_ecb_agrees_with_the_kernel: "camellia-ecb", "ecb-camellia.txt";
    cast5_ecb_agrees_with_the_kernel: "cast5-ecb", "ecb-cast5.txt";
    cast6_ecb_agrees_with_the_kernel: "cast6-ecb", "ecb-cast6.txt";
    des3_ede_ecb_agrees_with_the_kernel: "des3_ede-ecb", "ecb-des3_ede.txt";
    serpent_ecb_agrees_with_the_kernel: "serpent-ecb", "ecb-serpent.txt";
    sm4_ecb_agrees_with_the_kernel: "sm4-ecb", "ecb-sm4.txt";
    twofish_ecb_agrees_with_the_kernel: "twofish-ecb", "ecb-twofish.txt";
    aes_hctr2_agrees_with_the_kernel: "aes-hctr2-plain64", "hctr2-aes.txt";
    aes_lrw_agrees_with_the_kernel: "aes-lrw-plain64", "lrw-aes.txt";
    camellia_lrw_agrees_with_the_kernel: "camellia-lrw-plain64", "lrw-camellia.txt";
    cast6_lrw_agrees_with_the_kernel: "cast6-lrw-plain64", "lrw-cast6.txt";
    serpent_lrw_agrees_with_the_kernel: "serpent-lrw-plain64", "lrw-serpent.txt";
    twofish_lrw_agrees_with_the_kernel: "twofish-lrw-plain64", "lrw-twofish.txt";
    camellia_xts_agrees_with_the_kernel: "camellia-xts-plain64", "xts-camellia.txt";
    cast6_xts_agrees_with_the_kernel: "cast6-xts-plain64", "xts-cast6.txt";
    serpent_xts_agrees_with_the_kernel: "serpent-xts-plain64", "xts-serpent.txt";
    twofish_xts_agrees_with_the_kernel: "twofish-xts-plain64", "xts-twofish.txt";
}
