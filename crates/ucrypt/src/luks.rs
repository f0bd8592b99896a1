//! The actions on LUKS headers, as in cryptsetup. `ucrypt-luks` reads, makes and changes headers;
//! this module has the options, the prompts and the images.

mod backup;
mod change;
mod config;
mod confirm;
mod convert;
mod format;
mod format_args;
#[cfg(test)]
mod fuzzed;
mod image;
mod keys;
mod new_key_args;
mod pbkdf_args;
mod rotate;
mod show;
mod token;

pub(crate) use backup::{BackupArgs, RestoreArgs, WholeArgs, backup, erase, repair, restore};
pub(crate) use change::{disable_locks, has_to_store, store_flags};
pub(crate) use config::{ConfigArgs, UuidArgs, config, uuid};
pub(crate) use confirm::{confirm, confirm_at};
pub(crate) use convert::{ConvertArgs, run as convert};
pub(crate) use format::run as format;
pub(crate) use format_args::FormatArgs;
pub(crate) use image::HeaderImage;
pub(crate) use keys::{
    AddKeyArgs, ChangeKeyArgs, ConvertKeyArgs, KillSlotArgs, RemoveKeyArgs, add, change,
    convert_key, kill_slot, remove,
};
pub(crate) use new_key_args::check_bits;
pub(crate) use rotate::{RotateKeyArgs, run as rotate};
pub(crate) use show::{DumpArgs, IsLuksArgs, Kind, dump, is_luks};
pub(crate) use token::{TokenArgs, token};
