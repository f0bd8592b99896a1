//! The actions on LUKS headers, as in cryptsetup: `luksFormat`, `luksDump`, `isLuks`, `luksUUID`.
//! `ucrypt-luks` reads and makes headers; this module has the options, the prompts and the images.

mod confirm;
mod format;
mod format_args;
mod image;
mod show;

pub(crate) use confirm::{confirm, confirm_at};
pub(crate) use format::run as format;
pub(crate) use format_args::FormatArgs;
pub(crate) use image::HeaderImage;
pub(crate) use show::{DumpArgs, IsLuksArgs, UuidArgs, dump, is_luks, uuid};
