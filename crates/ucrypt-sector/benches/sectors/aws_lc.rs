//! AWS-LC, the fastest library that can be had: EVP with the key set once and an IV per sector.

use std::{hint::black_box, ptr::null};

use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CipherInit_ex, EVP_CipherUpdate,
    EVP_aes_256_xts,
};

use super::{Row, aligned, row};

struct Context(*mut EVP_CIPHER_CTX);

impl Context {
    fn new(encrypt: bool) -> Self {
        let key: Vec<u8> = (0..64).collect();
        // SAFETY: the key is as long as AES-256-XTS wants, and the context is a fresh one.
        unsafe {
            let context = EVP_CIPHER_CTX_new();
            assert!(!context.is_null());
            let cipher = EVP_aes_256_xts();
            let null_engine = std::ptr::null_mut();
            let done = EVP_CipherInit_ex(
                context,
                cipher,
                null_engine,
                key.as_ptr(),
                [0; 16].as_ptr(),
                encrypt.into(),
            );
            assert_eq!(done, 1);
            Self(context)
        }
    }

    fn crypt(&self, sector_size: usize, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len());
        let sectors = src.chunks_exact(sector_size).zip(dst.chunks_exact_mut(sector_size));
        for (number, (src, dst)) in sectors.enumerate() {
            let iv = (number as u128).to_le_bytes();
            let mut len = 0;
            // SAFETY: source and destination have the length that is given; -1 keeps the direction.
            unsafe {
                EVP_CipherInit_ex(self.0, null(), std::ptr::null_mut(), null(), iv.as_ptr(), -1);
                EVP_CipherUpdate(
                    self.0,
                    dst.as_mut_ptr(),
                    &raw mut len,
                    src.as_ptr(),
                    sector_size as i32,
                );
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it came from `EVP_CIPHER_CTX_new`.
        unsafe { EVP_CIPHER_CTX_free(self.0) }
    }
}

pub(crate) fn rows<'a>(sector_size: usize, len: usize) -> Vec<Row<'a>> {
    [true, false]
        .map(|encrypt| {
            let (context, src, dst) = (Context::new(encrypt), aligned(len), aligned(len));
            let what = if encrypt { "encrypt" } else { "decrypt" };
            row(format!("aes-xts-plain64 {sector_size} AWS-LC {what}"), len, move || {
                context.crypt(sector_size, black_box(src), black_box(dst));
            })
        })
        .into()
}
