//! `convert`: LUKS1 to LUKS2 and back, in place.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ucrypt_backend::{FileBackend, OpenOptions};
use ucrypt_luks::{
    Conversion, Format, Header, ReadAt, finish_conversion, room_for_luks2, settle_cache, to_luks1,
    to_luks2,
};

use super::backup::save;
use super::change::{changed, is_same_volume};
use super::confirm::confirm_on_keys;
use super::image::{Grown, HeaderImage, check_same, grow, lock_opened, open_to_look, reserve};
use crate::failure::Failure;
use crate::progress::write_shown;
use crate::secrecy;
use crate::stdio::say_line;
use crate::volume::is_same;

/// Arguments of `convert`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// The image: a file or a block device, which nobody uses
    image: PathBuf,
    /// The version that the header is to have
    #[arg(short = 'M', long = "type", value_enum, ignore_case = true, value_name = "TYPE")]
    kind: Kind,
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Save the old header in this new file first
    #[arg(long, value_name = "FILE")]
    header_backup_file: Option<PathBuf>,
    /// Ask nothing
    #[arg(short = 'q', long)]
    batch_mode: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Luks1,
    Luks2,
}

impl ConvertArgs {
    fn place(&self) -> &Path {
        self.header.as_ref().unwrap_or(&self.image)
    }

    fn format(&self) -> Format {
        match self.kind {
            Kind::Luks1 => Format::Luks1,
            Kind::Luks2 => Format::Luks2,
        }
    }

    /// Opens image and header so that nobody else can use them.
    fn open(&self) -> Result<Opened, Failure> {
        let options = OpenOptions::default();
        let header = FileBackend::open(self.place(), options)?;
        let data = self.is_detached().then(|| FileBackend::open(&self.image, options));
        Ok(Opened { header, _data: data.transpose()? })
    }

    /// Reads the header and plans its conversion. There is none if the header has the version
    /// already, and no interrupted conversion has left something.
    fn plan(&self, image: &dyn ReadAt) -> Result<Option<(Header, Conversion)>, Failure> {
        let place = self.place().display();
        let (header, damage) =
            Header::read(image).map_err(|error| Failure::from(error).about(&place))?;
        let mut random = secrecy::random;
        let plan = match (&header, self.kind) {
            (Header::Luks1(header), Kind::Luks2) => to_luks2(header, image, &mut random),
            (Header::Luks2(header), Kind::Luks1) => {
                to_luks1(header, damage.as_ref(), image, &mut random)
            }
            (Header::Luks1(_), Kind::Luks1) | (Header::Luks2(_), Kind::Luks2) => {
                let left =
                    finish_conversion(&header, damage.as_ref(), image, &mut random).transpose();
                let Some(plan) = left else { return Ok(None) };
                plan
            }
        };
        let plan = plan.map_err(|error| Failure::from(error).about(&place))?;
        if !plan.survives && self.header_backup_file.is_none() {
            return Err(Failure::wrong(format!(
                "{place}: there is no room to keep a second copy of a keyslot, so an interruption \
                 would destroy keys; remove a keyslot, or use --header-backup-file FILE, from which \
                 luksHeaderRestore gets everything back"
            )));
        }
        Ok(Some((header, plan)))
    }

    /// Whether the header has a file of its own. Naming the image itself is the same as naming none.
    fn is_detached(&self) -> bool {
        self.header.as_ref().is_some_and(|header| !is_same(header, &self.image))
    }

    /// The length that the file of a header has to have for its conversion. It grows only where no
    /// data follows the header.
    fn needed(&self, image: &dyn ReadAt) -> Option<u64> {
        let (Ok((Header::Luks1(header), _)), Kind::Luks2) = (Header::read(image), self.kind) else {
            return None;
        };
        let data = header.data_offset();
        let is_alone = self.is_detached() || data == 0 || image.len() < data;
        let may_grow = is_alone && self.place().is_file();
        room_for_luks2(&header).filter(|room| may_grow && *room > image.len())
    }

    /// Says that there is nothing to do. This is no error: an interrupted conversion that is run
    /// again comes here if only the end was missing.
    fn is_done(&self) {
        let (place, name) = (self.place().display(), self.format().name());
        say_line(format_args!("{place}: the header is {name} already"));
    }

    /// What is about to happen, in cryptsetup's words.
    fn warning(&self, plan: &Conversion) -> String {
        let format = self.format().name().to_uppercase();
        let image = self.image.display();
        let warning = format!("This operation will convert {image} to {format} format.");
        if plan.lost.is_empty() {
            return warning;
        }
        format!("{warning}\nThis is lost: {}.", plan.lost.join(", "))
    }
}

/// An image that nobody else uses.
struct Opened {
    header: FileBackend,
    _data: Option<FileBackend>,
}

/// Carries out `convert`.
pub(crate) fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let look = open_to_look(args.place())?;
    let image = HeaderImage(&look);
    let needed = args.needed(&image);
    let Some((before, asked)) = args.plan(&Grown { image, len: needed.unwrap_or(0) })? else {
        args.is_done();
        return Ok(());
    };
    drop(args.open()?);
    confirm_on_keys(&args.warning(&asked), args.batch_mode, ", device was NOT converted")?;
    if let Some(len) = needed {
        grow(args.place(), &look, len)?;
    }
    let opened = args.open()?;
    let lock = lock_opened(&opened.header, args.place())?;
    check_same(&look, lock.file(), args.place())?;
    settle_cache(&HeaderImage(&opened.header))
        .map_err(|error| Failure::from(error).about(args.place().display()))?;
    // The header may have changed while a person was asked.
    let medium = HeaderImage(&opened.header);
    let Some((header, plan)) = args.plan(&medium)? else {
        args.is_done();
        return Ok(());
    };
    if !is_same_volume(&before, &header) || asked.lost != plan.lost {
        return Err(changed());
    }
    reserve(&lock, args.place(), &plan.writes)?;
    if let Some(path) = &args.header_backup_file {
        save(&header, &medium, path)?;
    }
    let what = format!("converting {}", args.place().display());
    write_shown(&what, &medium, &plan.writes).map_err(|error| {
        let failure = Failure::from(error);
        let remedy = match &args.header_backup_file {
            Some(path) if !plan.survives => {
                format!("luksHeaderRestore --header-backup-file {}", path.display())
            }
            _ => "run this again".to_owned(),
        };
        Failure {
            message: format!("{}; the header is half converted: {remedy}", failure.message),
            ..failure
        }
    })
}
