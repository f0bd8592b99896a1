//! The pages that belong to no action: `ucrypt-containers`(7) and `ucrypt-formats`(7).

use std::io;

use clap_mangen::roff::{Roff, bold, roman};

/// A page of section 7.
pub(super) struct Topic {
    /// The page is `ucrypt-NAME`; its examples are those of NAME.
    pub(super) name: &'static str,
    about: &'static str,
    parts: &'static [Part],
    /// The pages that it refers to, with their sections.
    see_also: &'static [(&'static str, &'static str)],
}

/// A part of a page: a heading, paragraphs, and terms with their meaning.
struct Part {
    heading: &'static str,
    paragraphs: &'static [&'static str],
    terms: &'static [(&'static str, &'static str)],
}

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        name: "containers",
        about: "volumes in containers, and the rights that each export needs",
        parts: CONTAINERS,
        see_also: &[("ucrypt", "8"), ("ucrypt-open", "8"), ("ucrypt-doctor", "8")],
    },
    Topic {
        name: "formats",
        about: "the formats, ciphers and sector sizes that ucrypt knows",
        parts: FORMATS,
        see_also: &[("ucrypt", "8"), ("ucrypt-luksFormat", "8"), ("cryptsetup", "8")],
    },
];

const CONTAINERS: &[Part] = &[
    Part {
        heading: "DESCRIPTION",
        paragraphs: &[
            "ucrypt needs no privileges in a container: reading, writing, keys, headers and NBD sockets work \
             with the rights that Docker and Podman give by default. ucrypt open without --as serves a volume \
             by the first of ublk, loop, FUSE file and NBD socket that works there, and says why it is not the \
             usual one. It finds that out before it asks for a passphrase. ucrypt doctor shows the same.",
        ],
        terms: &[],
    },
    Part {
        heading: "RIGHTS",
        paragraphs: &["What each export needs beside the default rights:"],
        terms: &[
            (
                "NBD socket",
                "Nothing. Other containers reach the socket through a shared directory, as the server's user \
                 or as who has write permission on the socket.",
            ),
            (
                "vhost-user-blk",
                "Nothing. The virtual machine monitor reaches the socket as above, and shares the guest's \
                 memory through it.",
            ),
            (
                "FUSE file",
                "--device /dev/fuse --cap-add SYS_ADMIN. The file is seen in this container only, unless its directory \
                 is on a volume that is shared (rshared).",
            ),
            (
                "loop device",
                "/dev/loop-control, the nodes of free loop devices, /dev/fuse and CAP_SYS_ADMIN; docs/containers.md \
                 has the options. The device belongs to the machine and outlives the container, unless the \
                 container runs ucrypt close.",
            ),
            (
                "ublk device",
                "/dev/ublk-control, the nodes of the devices, CAP_SYS_ADMIN and io_uring, in Linux 6.5 or \
                 newer; in practice --privileged. The device belongs to the machine, as a loop device does.",
            ),
        ],
    },
    Part {
        heading: "SECCOMP",
        paragraphs: &[
            "Podman's default profile forbids io_uring, and so does that of Docker since version 25. Requests then go through threads, which \
             is slower, and ublk is not there. A profile that also permits io_uring_setup, io_uring_enter and \
             io_uring_register is enough; docs/containers.md in /usr/share/doc/ucrypt has a command that makes one.",
        ],
        terms: &[],
    },
    Part {
        heading: "LIMITS",
        paragraphs: &[],
        terms: &[
            (
                "memory",
                "Unlocking takes what the keyslot asks for, up to 1 GiB with Argon2. A new keyslot takes at most \
                 half of the container's memory. A keyslot for small containers is made with --pbkdf pbkdf2 or \
                 --pbkdf-memory.",
            ),
            (
                "locked memory",
                "The limit is 8 MiB by default, and nothing is locked. With --cap-add IPC_LOCK or --ulimit \
                 memlock=-1 keys and data stay out of swap.",
            ),
            (
                "stopping",
                "SIGTERM flushes and ends a server. Give the container at least 40 seconds: --stop-timeout 40, \
                 or terminationGracePeriodSeconds: 40 in Kubernetes.",
            ),
        ],
    },
];

const FORMATS: &[Part] = &[
    Part {
        heading: "DESCRIPTION",
        paragraphs: &[
            "The formats are those of cryptsetup(8) and of the kernel's dm-crypt. Headers and data can be used by \
             either program, without a conversion.",
        ],
        terms: &[
            ("LUKS1", "Opened and made. Eight keyslots with PBKDF2; sectors of 512 bytes."),
            (
                "LUKS2",
                "Opened and made; the default of luksFormat. Two copies of the header, up to 32 keyslots with \
                 PBKDF2, Argon2i or Argon2id, tokens, labels, sectors of 512 to 4096 bytes.",
            ),
            (
                "plain",
                "Opened, by options of open or by a table line of dm-crypt (--table). There is no header: cipher, \
                 key size and hash have to be those that the volume was made with, and a wrong key gives noise.",
            ),
        ],
    },
    Part {
        heading: "CIPHERS",
        paragraphs: &[
            "A specification names cipher, mode and IV, such as aes-xts-plain64 (the default), \
             aes-cbc-essiv:sha256 or capi:xts(aes)-plain64.",
        ],
        terms: &[
            (
                "ciphers",
                "aes, serpent, twofish, camellia, aria, sm4, cast5, cast6, blowfish, des3_ede, \
                 xchacha12,aes and xchacha20,aes (Adiantum), cipher_null.",
            ),
            ("modes", "xts, lrw, cbc, ctr, pcbc, ecb, hctr2, adiantum."),
            (
                "IVs",
                "null, plain, plain64, plain64be, benbi, essiv:HASH, eboiv, elephant, lmk, tcw. lmk and tcw \
                 need sectors of 512 bytes.",
            ),
        ],
    },
    Part {
        heading: "SECTOR SIZES",
        paragraphs: &[
            "512, 1024, 2048 and 4096 bytes. luksFormat takes 4096 where the length of the data is a multiple of \
             it; larger sectors are faster. The IV counts units of 512 bytes, or whole sectors with \
             --iv-large-sectors.",
        ],
        terms: &[],
    },
    Part {
        heading: "WHAT IS REFUSED",
        paragraphs: &["By name, before anything is written:"],
        terms: &[
            ("integrity", "LUKS2 with dm-integrity, authenticated ciphers, and the IV random."),
            ("OPAL", "LUKS2 on disks that encrypt themselves."),
            (
                "reencryption",
                "A volume in the middle of a reencryption; cryptsetup reencrypt finishes it. luksDump, \
                 luksHeaderBackup and open --test-passphrase work.",
            ),
            (
                "unknown requirements",
                "A LUKS2 header that asks for something that this version does not know.",
            ),
            (
                "ambiguous signatures",
                "A header of which one copy is damaged, on an image that bears the signature of something else.",
            ),
            ("other formats", "loop-AES, TrueCrypt, VeraCrypt, BitLocker, FileVault 2."),
            (
                "weak keys",
                "For a new volume: XTS with two equal halves, triple DES with two equal neighbours.",
            ),
        ],
    },
];

/// The page of a topic.
pub(super) fn page(topic: &Topic) -> io::Result<Vec<u8>> {
    let name = format!("ucrypt-{}", topic.name);
    let version = concat!("ucrypt ", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", [name.as_str(), "7", "", version, "Miscellaneous"]);
    // Names of system calls are copied from here.
    roff.control("nh", []);
    roff.control("SH", ["NAME"]).text([roman(format!("{name} - {}", topic.about))]);
    for part in topic.parts {
        roff.control("SH", [part.heading]);
        for paragraph in part.paragraphs {
            roff.control("PP", []).text([roman(*paragraph)]);
        }
        for (term, meaning) in part.terms {
            roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
        }
    }
    super::examples_of(&mut roff, topic.name);
    super::see_also(&mut roff, topic.see_also);
    let mut out = Vec::new();
    roff.to_writer(&mut out)?;
    Ok(out)
}
