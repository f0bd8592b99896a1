//! The library from outside: images of cryptsetup, judged by cryptsetup, QEMU and libnbd.

#![forbid(unsafe_code)]

mod api;
mod formats;
mod images;
mod locks;
mod requests;
mod secrets;
mod servers;
mod threads;
