//! AWS-LC and OpenSSL through their common interface EVP. The key is set once, an IV per sector.

#![expect(unsafe_code, reason = "they are C")]

/// Declares a module for a library with EVP.
macro_rules! library {
    ($module:ident, $sys:ident, $name:literal) => {
        /// One library through EVP.
        pub(crate) mod $module {
            use std::{
                ffi::CStr,
                ptr::{null, null_mut},
            };

            use $sys::{
                EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new,
                EVP_CIPHER_CTX_set_padding, EVP_CipherInit_ex, EVP_CipherUpdate, EVP_aes_256_cbc,
                EVP_aes_256_xts, OPENSSL_VERSION, OpenSSL_version,
            };

            use crate::{Direction, Row, Work};

            /// The version text of the library.
            pub(crate) fn version() -> String {
                // SAFETY: for this number, the library returns a text that ends with a zero byte.
                let text = unsafe { CStr::from_ptr(OpenSSL_version(OPENSSL_VERSION)) };
                text.to_string_lossy().into_owned()
            }

            struct Context(*mut EVP_CIPHER_CTX);

            impl Context {
                fn new(is_xts: bool, direction: Direction) -> Self {
                    let key = Work::key(if is_xts { 64 } else { 32 });
                    let encrypt = (direction == Direction::Encrypt).into();
                    // SAFETY: the context is new; key and IV have the lengths that the cipher
                    // requires.
                    unsafe {
                        let context = Self(EVP_CIPHER_CTX_new());
                        assert!(!context.0.is_null());
                        let cipher = if is_xts { EVP_aes_256_xts() } else { EVP_aes_256_cbc() };
                        let iv = [0; 16];
                        let done = EVP_CipherInit_ex(
                            context.0,
                            cipher,
                            null_mut(),
                            key.as_ptr(),
                            iv.as_ptr(),
                            encrypt,
                        );
                        assert_eq!(done, 1);
                        EVP_CIPHER_CTX_set_padding(context.0, 0);
                        context
                    }
                }

                fn crypt(&self, number: u64, src: &[u8], dst: &mut [u8]) {
                    assert_eq!(src.len(), dst.len());
                    let iv = u128::from(number).to_le_bytes();
                    let src_len = i32::try_from(src.len()).expect("a sector's length");
                    let mut dst_len = 0;
                    // SAFETY: source and destination have the given length, and without padding
                    // the library writes no more than that; -1 keeps the direction.
                    let done = unsafe {
                        EVP_CipherInit_ex(self.0, null(), null_mut(), null(), iv.as_ptr(), -1)
                            & EVP_CipherUpdate(
                                self.0,
                                dst.as_mut_ptr(),
                                &raw mut dst_len,
                                src.as_ptr(),
                                src_len,
                            )
                    };
                    assert!(done == 1 && dst_len == src_len);
                }
            }

            impl Drop for Context {
                fn drop(&mut self) {
                    // SAFETY: the context came from `EVP_CIPHER_CTX_new`.
                    unsafe { EVP_CIPHER_CTX_free(self.0) }
                }
            }

            /// `None` if the library does not have the cipher.
            pub(crate) fn row(work: Work) -> Option<Row> {
                let is_xts = match work.spec {
                    "aes-xts-plain64" => true,
                    "aes-cbc-plain64" => false,
                    _ => return None,
                };
                let context = Context::new(is_xts, work.direction);
                Some(Row::by_sector($name, work, move |number, src, dst| {
                    context.crypt(number, src, dst);
                }))
            }
        }
    };
}

library!(aws_lc, aws_lc_sys, "AWS-LC");
library!(openssl, openssl_sys, "OpenSSL");
