//! The page of the table: `ucrypttab`(5). Its options are those that the parser knows.

use std::io;

use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::ucrypttab::{Meaning, for_pages};

const DESCRIPTION: &[&str] = &[
    "/etc/ucrypttab names the volumes that are opened at boot, one a line, as /etc/crypttab does for \
     cryptsetup. Empty lines, and lines that begin with #, mean nothing. A line has up to four fields, with \
     spaces between them; a space inside of a field is \\040. A line that is wrong is named with its \
     number and stops no other line.",
    "The first field is the name of the volume. It becomes /dev/ucrypt/NAME.",
    "The second is the path of the image or block device, or UUID=, LABEL=, PARTUUID=, PARTLABEL= or ID= and \
     a value, as blkid shows it.",
    "The third is the path of a key file. Without it, or with none or -, it is NAME.key in \
     /etc/cryptsetup-keys.d or /run/cryptsetup-keys.d, if that exists; otherwise a passphrase is asked for: at \
     boot by systemd-ask-password(1), later at the terminal.",
    "The fourth are options with commas between them. One that is not known makes the line wrong; those \
     that begin with x- are for other programs.",
];

const BOOT: &[&str] = &[
    "With systemd, ucrypt-generator makes a service ucrypt@NAME.service of each line (NAME as \
     systemd-escape(1) writes it: a - is \\x2d), which is ready when the device can be used, and ends after \
     its file systems were unmounted. systemctl status shows why one failed. A mount in /etc/fstab names \
     /dev/ucrypt/NAME or, after UUID=, its file system. After a change of the table: systemctl daemon-reload.",
    "Without systemd, an init script calls ucrypt attach --all and ucrypt detach --all.",
];

/// The page.
pub(super) fn page() -> io::Result<Vec<u8>> {
    let version = concat!("ucrypt ", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", ["ucrypttab", "5", "", version, "File formats"]);
    roff.control("SH", ["NAME"]).text([roman("ucrypttab - volumes that ucrypt opens at boot")]);
    roff.control("SH", ["SYNOPSIS"]).text([italic("name"), roman(" "), italic("device")]);
    roff.text([roman("["), italic("key file"), roman(" ["), italic("options"), roman("]]")]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        roff.control("PP", []).text([roman(*paragraph)]);
    }
    roff.control("SH", ["OPTIONS"]);
    for (name, meaning) in for_pages() {
        let (value, text) = match meaning {
            Meaning::Flag(option) => ("", format!("As --{option} of ucrypt open.")),
            Meaning::Value(option) => ("=", format!("As --{option} of ucrypt open.")),
            Meaning::Own(_, text) => ("", text.to_owned()),
            Meaning::Nothing(why) => ("", format!("Accepted, and means nothing: {why}.")),
            Meaning::Refused(_) => continue,
        };
        roff.control("TP", []).text([bold(format!("{name}{value}"))]).text([roman(text)]);
    }
    roff.control("SH", ["NOT SUPPORTED"]);
    for (name, meaning) in for_pages() {
        if let Meaning::Refused(why) = meaning {
            roff.control("TP", []).text([bold(name)]).text([roman(format!("{why}."))]);
        }
    }
    roff.control("SH", ["AT BOOT"]);
    for paragraph in BOOT {
        roff.control("PP", []).text([roman(*paragraph)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("PP", []).control("EX", []);
    roff.text([roman(
        "  work     /srv/work.img                              none            luks",
    )]);
    roff.text([roman(
        "  archive  UUID=4d9f2c4e-9a3f-4d0a-8f0e-1f2d3c4b5a69  /etc/keys/arch  luks,nofail",
    )]);
    roff.control("EE", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("ucrypt-attach"), roman("(8), "), bold("ucrypt-detach"), roman("(8), ")]);
    roff.text([bold("crypttab"), roman("(5)")]);
    let mut out = Vec::new();
    roff.to_writer(&mut out)?;
    Ok(out)
}
