//! Tests the command from outside: real processes and real images, judged by third-party programs.
//!
//! Every test has its own directory and runtime directory ([`scratch`]). Whatever it starts, mounts
//! or attaches ends with it, even if it fails. A missing tool fails the test and names the command
//! that installs it. Tests of devices and mounts need root, and fail without.

#![forbid(unsafe_code)]

mod aligned;
mod bad_headers;
mod bad_images;
mod book;
mod book_commands;
mod busy;
mod container;
mod crash;
mod cryptsetup_to_ucrypt;
mod csi;
mod dashboard;
mod demo;
mod doctor;
mod endings;
mod full_backend;
mod fuse;
mod header_kills;
mod held_exec;
mod hung_image;
mod image;
mod installed;
mod key_residue;
mod lab;
mod lab_advise;
mod lab_exports;
mod lab_page;
mod lab_targets;
mod lifecycle;
mod load;
mod logs;
mod loop_device;
mod memory;
mod metrics;
mod mount;
mod namespace;
mod nbd;
mod nbd_client;
mod nbd_kills;
mod nbd_programs;
mod nbd_users;
mod operations;
mod other_users;
mod overwrites;
mod pages;
mod passphrase_keyring;
mod passphrase_table;
mod passphrases;
mod persistent;
mod pinned;
mod plain;
mod plain_keys;
mod process;
mod programs;
mod qemu;
mod random_client;
mod random_numbers;
mod resume;
mod scratch;
mod secrets;
mod server;
mod server_secrets;
mod streams;
mod suspend;
mod system_calls;
mod terminal;
mod termination;
mod top;
mod ucrypt_to_cryptsetup;
mod ucrypttab;
mod usage;
#[path = "../luks/user_key.rs"]
mod user_key;
mod users;
mod without_root;
