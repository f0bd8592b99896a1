//! `config` and `luksUUID --uuid`: labels, priorities, the UUID.

use clap::ValueEnum;
use serde_json::json;
use ucrypt_luks::luks2;

use super::change::HeaderArgs;
use super::confirm::confirm_on_keys;
use crate::failure::Failure;
use crate::secrecy;
use crate::stdio::{print, say};

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    header: HeaderArgs,
    /// Label of the header; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Subsystem label of the header; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    subsystem: Option<String>,
    /// When a keyslot is tried
    #[arg(long, value_enum, value_name = "PRIORITY", requires = "key_slot")]
    priority: Option<Priority>,
    /// The keyslot of --priority
    #[arg(short = 'S', long, value_name = "NUMBER", requires = "priority")]
    key_slot: Option<u32>,
}

/// Arguments of `luksUUID`.
#[derive(Debug, clap::Args)]
pub(crate) struct UuidArgs {
    #[command(flatten)]
    header: HeaderArgs,
    /// Set this UUID instead of printing the present one
    #[arg(long, value_name = "UUID")]
    uuid: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "uuid")]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Priority {
    /// Only if it is named by number
    Ignore,
    /// After the preferred ones
    Normal,
    /// First
    Prefer,
}

/// Carries out `config`.
pub(crate) fn config(args: &ConfigArgs) -> Result<(), Failure> {
    if args.label.is_none() && args.subsystem.is_none() && args.priority.is_none() {
        return Err(Failure::wrong(
            "config needs --label TEXT, --subsystem TEXT, or --priority PRIORITY with --key-slot NUMBER",
        ));
    }
    let locked = args.header.lock()?;
    let header = locked.header.luks2("labels and priorities")?;
    tell_of_cut("--label", args.label.as_deref());
    tell_of_cut("--subsystem", args.subsystem.as_deref());
    let mut change = header.change(locked.damage.as_ref())?;
    if let Some(label) = &args.label {
        change.set_label(label)?;
    }
    if let Some(subsystem) = &args.subsystem {
        change.set_subsystem(subsystem)?;
    }
    if let (Some(priority), Some(number)) = (args.priority, args.key_slot) {
        change.set_priority(number, priority.into())?;
    }
    let (_, writes) = change.finish(&mut secrecy::random)?;
    locked.carry_out(&writes)
}

/// Says that a header does not hold all of a label.
pub(super) fn tell_of_cut(option: &str, label: Option<&str>) {
    if label.is_some_and(|label| label.len() > luks2::LABEL_MAX) {
        let max = luks2::LABEL_MAX;
        say(&format!("WARNING: Only the first {max} bytes of {option} are stored.\n"));
    }
}

impl From<Priority> for luks2::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Ignore => Self::Ignore,
            Priority::Normal => Self::Normal,
            Priority::Prefer => Self::Prefer,
        }
    }
}

/// Carries out `luksUUID`.
pub(crate) fn uuid(args: &UuidArgs) -> Result<(), Failure> {
    let (look, header) = args.header.look()?;
    let Some(uuid) = &args.uuid else {
        let uuid = header.uuid().to_string();
        let shown = if args.json { json!({ "uuid": uuid }).to_string() } else { uuid };
        return print(&format!("{shown}\n"));
    };
    confirm_on_keys("Do you really want to change UUID of device?", args.header.batch_mode, "")?;
    let locked = args.header.lock()?;
    locked.check_volume(&look, &header)?;
    let damage = locked.damage.as_ref();
    let change = locked.header.change_uuid(damage, Some(uuid), &mut secrecy::random)?;
    locked.carry_out(&change.writes)
}
