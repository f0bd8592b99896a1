//! The actions on LUKS headers, as cryptsetup has them: `luksFormat`, `luksDump`, `isLuks`,
//! `luksUUID`. What a header is and how it is made is `ucrypt-luks`'; here are the options, the
//! prompts and the images.

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
