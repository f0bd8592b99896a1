//! The examples of the man pages. The tests run those of each page in a directory with
//! `disk.img` (LUKS2, its passphrase in `key` and on standard input; for `mount`, with a file system),
//! `old.img` (without content), `new.key`, `header.backup` and the directory `mnt`.

/// What an example shows, and its command line.
type Example = (&'static str, &'static str);

/// The examples of each page, `ucrypt-NAME`, in an order in which they can be run.
pub(crate) const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "ucrypt",
        &[
            ("Make a volume. The passphrase is asked for:", "ucrypt luksFormat old.img"),
            ("Open it; the path of the disk is printed:", "ucrypt open old.img work"),
            ("See what it does:", "ucrypt status work"),
            ("Close it:", "ucrypt close work"),
        ],
    ),
    (
        "close",
        &[
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            ("Close whatever is open:", "ucrypt close --all"),
            ("Open it again:", "ucrypt open --key-file key --as nbd disk.img work"),
            (
                "Close it once its users have gone; new ones are turned away:",
                "ucrypt close --deferred work",
            ),
        ],
    ),
    (
        "list",
        &[
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            ("See what is open, with exact sizes:", "ucrypt list --bytes"),
            ("The same for a script:", "ucrypt list --json"),
            ("End it:", "ucrypt close work"),
        ],
    ),
    ("top", &[("Watch what all open volumes do, every five seconds:", "ucrypt top --delay 5")]),
    (
        "resize",
        &[
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            (
                "Make its image larger, and then the volume:",
                "truncate -s +1M disk.img; ucrypt resize work",
            ),
            ("End it:", "ucrypt close work"),
        ],
    ),
    (
        "luksSuspend",
        &[
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            ("Before the machine sleeps, wipe its key from memory:", "ucrypt luksSuspend work"),
            ("Afterwards, give it its key again:", "ucrypt luksResume --key-file key work"),
            ("End it:", "ucrypt close work"),
        ],
    ),
    (
        "convert",
        &[
            ("Make a LUKS1 volume:", "ucrypt luksFormat -q --type luks1 --key-file key old.img"),
            (
                "Turn its header into LUKS2; data and passphrases stay:",
                "ucrypt convert -q --type luks2 old.img",
            ),
        ],
    ),
    (
        "benchmark",
        &[
            (
                "Measure two ciphers, with keys of 256 bits:",
                "ucrypt benchmark -c aes-xts-plain64 -c serpent-xts-plain64 -s 256",
            ),
            ("Measure a key derivation:", "ucrypt benchmark --pbkdf pbkdf2"),
        ],
    ),
    (
        "demo",
        &[("See what encryption costs here, with a volume of 64 MiB:", "ucrypt demo --size 64M")],
    ),
    (
        "lab",
        &[
            ("See which measurements there are:", "ucrypt lab list"),
            ("Repeat them all, small:", "ucrypt lab run --quick"),
        ],
    ),
    ("lab-list", &[("See which measurements there are, and what they ask:", "ucrypt lab list")]),
    ("lab-run", &[("Repeat one measurement, small:", "ucrypt lab run --quick instant")]),
    (
        "lab-sim",
        &[
            (
                "Simulate one measurement on a machine with four cores:",
                "ucrypt lab sim --quick --cores 4 instant",
            ),
            (
                "See which policy is the best where, on the machine of 2020 with an Optane drive:",
                "ucrypt lab sim --preset optane2020 --quick heat-map",
            ),
        ],
    ),
    (
        "lab-advise",
        &[("See what a volume loses, and what to change:", "ucrypt lab advise disk.img")],
    ),
    (
        "lab-report",
        &[("Make a page of what lab run has kept:", "ucrypt lab report ucrypt-lab-results")],
    ),
    (
        "open",
        &[
            ("Open a volume. The passphrase is asked for:", "ucrypt open disk.img work"),
            ("See what is open:", "ucrypt list"),
            ("End it:", "ucrypt close work"),
            (
                "Serve it to NBD clients, with a passphrase from a file:",
                "ucrypt open --key-file key --as nbd disk.img work",
            ),
            ("End it too:", "ucrypt close work"),
            (
                "Check a passphrase; nothing is written or served:",
                "ucrypt open --test-passphrase disk.img",
            ),
        ],
    ),
    (
        "mount",
        &[
            (
                "Mount the file system of a volume. The passphrase is asked for:",
                "ucrypt mount --name work disk.img mnt",
            ),
            ("Unmount and close it:", "ucrypt umount mnt"),
        ],
    ),
    (
        "umount",
        &[
            ("Mount a volume to look at it:", "ucrypt mount -o ro --name work disk.img mnt"),
            ("Unmount and close it, by its directory or by its name:", "ucrypt umount work"),
        ],
    ),
    (
        "attach",
        &[
            (
                "Write a table:",
                "echo \"work $(realpath disk.img) $(realpath key) luks,as=nbd\" > table",
            ),
            ("Look for mistakes in it:", "ucrypt attach --check --ucrypttab table"),
            ("Open what it names:", "ucrypt attach --all --ucrypttab table"),
            ("Close it:", "ucrypt detach --all --ucrypttab table"),
        ],
    ),
    (
        "detach",
        &[
            ("Close what the table names:", "touch table; ucrypt detach --all --ucrypttab table"),
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            (
                "Close it, once its users have gone, for whom it waits a minute:",
                "ucrypt detach --wait 60 work",
            ),
        ],
    ),
    (
        "serve",
        &[(
            "Serve a volume on a Unix socket while a program runs:",
            "ucrypt serve --key-file key --nbd unix:disk.sock disk.img > ready & \
             until grep -q sock ready; do sleep 0.1; done; \
             nbdinfo 'nbd+unix:///?socket=disk.sock'; kill $!; wait $!",
        )],
    ),
    (
        "read",
        &[(
            "Show the first sector of the decrypted volume:",
            "ucrypt read --offset 0 --length 512 disk.img | od -c | head",
        )],
    ),
    (
        "write",
        &[(
            "Encrypt a file system image into the volume:",
            "ucrypt write --key-file key disk.img < old.img",
        )],
    ),
    (
        "status",
        &[
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            ("See how it is served, and what it does:", "ucrypt status work"),
            ("Ask for a figure in a script:", "ucrypt status --json work | grep in_flight"),
            ("End it:", "ucrypt close work"),
        ],
    ),
    (
        "luksResume",
        &[
            ("Open a volume:", "ucrypt open --key-file key --as nbd disk.img work"),
            ("Wipe its key from memory; requests wait:", "ucrypt luksSuspend work"),
            ("Give it its key again:", "ucrypt luksResume --key-file key work"),
            ("End it:", "ucrypt close work"),
        ],
    ),
    (
        "token",
        &[(
            "Have open look for the passphrase in the kernel's keyring:",
            "ucrypt token add --key-description archive disk.img",
        )],
    ),
    (
        "luksFormat",
        &[
            ("Make a LUKS2 volume. The passphrase is asked for:", "ucrypt luksFormat old.img"),
            (
                "For machines with little memory, and without questions:",
                "ucrypt luksFormat -q --pbkdf pbkdf2 --key-file key old.img",
            ),
        ],
    ),
    (
        "luksDump",
        &[
            ("Show a header:", "ucrypt luksDump disk.img"),
            ("Its JSON area:", "ucrypt luksDump --dump-json-metadata disk.img"),
        ],
    ),
    (
        "isLuks",
        &[("Ask in a script:", "if ucrypt isLuks --type luks2 disk.img; then echo yes; fi")],
    ),
    (
        "luksUUID",
        &[(
            "Give a copy of a volume a UUID of its own:",
            "ucrypt luksUUID -q --uuid 4d9f2c4e-9a3f-4d0a-8f0e-1f2d3c4b5a69 disk.img",
        )],
    ),
    (
        "luksAddKey",
        &[(
            "Add the passphrase of a second file:",
            "ucrypt luksAddKey --key-file key disk.img new.key",
        )],
    ),
    (
        "luksChangeKey",
        &[("Replace a passphrase:", "ucrypt luksChangeKey --key-file key disk.img new.key")],
    ),
    (
        "luksRemoveKey",
        &[
            ("With two keys, remove one:", "ucrypt luksAddKey --key-file key disk.img new.key"),
            ("It is named by its passphrase:", "ucrypt luksRemoveKey disk.img key"),
        ],
    ),
    (
        "luksKillSlot",
        &[
            ("With two keys, remove one:", "ucrypt luksAddKey --key-file key disk.img new.key"),
            ("It is named by its number:", "ucrypt luksKillSlot --key-file key disk.img 1"),
        ],
    ),
    (
        "luksConvertKey",
        &[(
            "Make a keyslot usable with little memory:",
            "ucrypt luksConvertKey --key-file key --pbkdf pbkdf2 disk.img",
        )],
    ),
    (
        "luksRotateKey",
        &[(
            "Replace a passphrase; can be run again after an interruption:",
            "ucrypt luksRotateKey --json --key-file key --new-keyfile new.key disk.img",
        )],
    ),
    ("config", &[("Give a volume a label:", "ucrypt config --label archive disk.img")]),
    (
        "luksHeaderBackup",
        &[(
            "Save the header and its keyslots:",
            "ucrypt luksHeaderBackup --header-backup-file saved disk.img",
        )],
    ),
    (
        "luksHeaderRestore",
        &[(
            "Put a saved header back:",
            "ucrypt luksHeaderRestore -q --header-backup-file header.backup disk.img",
        )],
    ),
    ("repair", &[("Look for damage, and repair it after a question:", "ucrypt repair disk.img")]),
    ("erase", &[("Make a volume unreadable for ever:", "ucrypt erase -q disk.img")]),
    ("doctor", &[("See why a volume cannot be opened as a device:", "ucrypt doctor")]),
    (
        "completions",
        &[(
            "For bash, for one user:",
            "ucrypt completions bash > ~/.local/share/bash-completion/completions/ucrypt",
        )],
    ),
    (
        "containers",
        &[
            ("See which exports the rights of this container permit:", "ucrypt doctor"),
            (
                "Make a volume that opens in a container with little memory:",
                "ucrypt luksFormat -q --pbkdf pbkdf2 --key-file key old.img",
            ),
            (
                "Serve it in the foreground, as the program of a container:",
                "ucrypt serve --key-file key --nbd unix:disk.sock disk.img > ready & \
                 until grep -q sock ready; do sleep 0.1; done; kill $!; wait $!",
            ),
            (
                "Copy data out without an export:",
                "ucrypt read --key-file key --length 1M disk.img > data",
            ),
        ],
    ),
    (
        "formats",
        &[
            (
                "Make a volume that programs which know only LUKS1 can open:",
                "ucrypt luksFormat -q --type luks1 --key-file key old.img",
            ),
            (
                "Make one for a processor without instructions for AES:",
                "ucrypt luksFormat -q --cipher xchacha20,aes-adiantum-plain64 --key-size 256 --key-file key \
                 old.img",
            ),
            ("See what a volume has:", "ucrypt luksDump old.img"),
            (
                "Open a plain volume, whose key is a file of random bytes:",
                "head -c 64 /dev/urandom > plain.key; truncate -s 8M plain.dat; \
                 ucrypt open --type plain --cipher aes-xts-plain64 --key-size 512 --key-file plain.key \
                 --as nbd plain.dat work",
            ),
            ("End it:", "ucrypt close work"),
        ],
    ),
];
