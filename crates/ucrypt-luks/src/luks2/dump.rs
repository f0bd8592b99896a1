//! A LUKS2 header as text, in the layout of cryptsetup's `luksDump`.

use super::copies::Header;
use super::metadata::{
    Config, Digest, DigestKind, Keyslot, KeyslotKind, Metadata, Priority, Segment, SegmentKind,
    Token,
};
use crate::dump::{line, put_hex};
use crate::fields::FieldText;
use crate::json::Json;
use crate::kdf::Kdf;

/// Indentation of hex dumps in keyslots and digests.
const INDENT: &str = "\t            ";

impl Priority {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignored",
            Self::Normal => "normal",
            Self::Prefer => "preferred",
        }
    }
}

impl Metadata {
    /// The digests that a keyslot belongs to, in order.
    pub(crate) fn digests_of_keyslot(&self, keyslot: u32) -> Vec<u32> {
        let belongs = |(_, digest): &(&u32, &Digest)| digest.keyslots.contains(&keyslot);
        self.digests.iter().filter(belongs).map(|(number, _)| *number).collect()
    }

    /// Whether a keyslot holds a key that no segment uses.
    pub(crate) fn is_unbound(&self, keyslot: u32) -> bool {
        let used = |number: &u32| {
            self.digests.get(number).is_some_and(|digest| !digest.segments.is_empty())
        };
        !self.digests_of_keyslot(keyslot).iter().any(used)
    }
}

impl Header {
    pub(crate) fn dump(&self) -> String {
        let (binary, metadata) = (&self.binary, &self.metadata);
        let or = |text: &FieldText, absent: &str| {
            if text.is_empty() { absent.to_owned() } else { text.to_string() }
        };
        let mut out = String::new();
        line!(&mut out, "LUKS header information");
        line!(&mut out, "Version:       \t2");
        line!(&mut out, "Epoch:         \t{}", binary.sequence_id);
        line!(&mut out, "Metadata area: \t{} [bytes]", binary.header_size);
        line!(&mut out, "Keyslots area: \t{} [bytes]", metadata.config.keyslots_size);
        line!(&mut out, "UUID:          \t{}", or(&binary.uuid, "(no UUID)"));
        line!(&mut out, "Label:         \t{}", or(&binary.label, "(no label)"));
        line!(&mut out, "Subsystem:     \t{}", or(&binary.subsystem, "(no subsystem)"));
        dump_config(&mut out, &metadata.config);
        line!(&mut out, "Data segments:");
        for (number, segment) in &metadata.segments {
            dump_segment(&mut out, *number, segment);
        }
        line!(&mut out, "Keyslots:");
        for (number, keyslot) in &metadata.keyslots {
            dump_keyslot(&mut out, *number, keyslot, metadata);
        }
        line!(&mut out, "Tokens:");
        for (number, token) in &metadata.tokens {
            dump_token(&mut out, *number, token);
        }
        line!(&mut out, "Digests:");
        for (number, digest) in &metadata.digests {
            dump_digest(&mut out, *number, digest);
        }
        out
    }
}

/// Joins words, each followed by a space.
fn words(words: &[String]) -> String {
    words.iter().flat_map(|word| [word.as_str(), " "]).collect()
}

fn dump_config(out: &mut String, config: &Config) {
    let none = config.flags.is_empty();
    let flags = if none { "(no flags)".to_owned() } else { words(&config.flags) };
    line!(out, "Flags:       \t{flags}");
    if !config.requirements.is_empty() {
        line!(out, "Requirements:\t{}", words(&config.requirements));
    }
    out.push('\n');
}

fn dump_segment(out: &mut String, number: u32, segment: &Segment) {
    line!(out, "  {number}: {}", segment.kind.name());
    line!(out, "\toffset: {} [bytes]", segment.offset);
    if let Some(size) = segment.size {
        line!(out, "\tlength: {size} [bytes]");
    } else {
        line!(out, "\tlength: (whole device)");
    }
    if let SegmentKind::Crypt { encryption, sector_size, integrity, .. } = &segment.kind {
        line!(out, "\tcipher: {encryption}");
        line!(out, "\tsector: {sector_size} [bytes]");
        if let Some(integrity) = integrity {
            line!(out, "\tintegrity: {integrity}");
        }
    }
    if !segment.flags.is_empty() {
        line!(out, "\tflags : {}", segment.flags.join(", "));
    }
    out.push('\n');
}

fn dump_keyslot(out: &mut String, number: u32, keyslot: &Keyslot, metadata: &Metadata) {
    let unbound = if metadata.is_unbound(number) { " (unbound)" } else { "" };
    line!(out, "  {number}: {}{unbound}", keyslot.kind.name());
    line!(out, "\tKey:        {} bits", u64::from(keyslot.key_size) * 8);
    line!(out, "\tPriority:   {}", keyslot.priority.name());
    if let KeyslotKind::Luks2 { kdf, salt, af, encryption, area_key_size } = &keyslot.kind {
        line!(out, "\tCipher:     {encryption}");
        line!(out, "\tCipher key: {} bits", u64::from(*area_key_size) * 8);
        dump_kdf(out, kdf);
        out.push_str("\tSalt:       ");
        put_hex(out, salt, INDENT);
        line!(out, "\tAF stripes: {}", af.stripes);
        line!(out, "\tAF hash:    {}", af.hash);
    }
    line!(out, "\tArea offset:{} [bytes]", keyslot.area.offset);
    line!(out, "\tArea length:{} [bytes]", keyslot.area.size);
    for digest in metadata.digests_of_keyslot(number) {
        line!(out, "\tDigest ID:  {digest}");
    }
}

fn dump_kdf(out: &mut String, kdf: &Kdf) {
    line!(out, "\tPBKDF:      {}", kdf.name());
    match kdf {
        Kdf::Pbkdf2 { hash, iterations } => {
            line!(out, "\tHash:       {hash}");
            line!(out, "\tIterations: {iterations}");
        }
        Kdf::Argon2 { time, memory_kib, lanes, .. } => {
            line!(out, "\tTime cost:  {time}");
            line!(out, "\tMemory:     {memory_kib}");
            line!(out, "\tThreads:    {lanes}");
        }
        Kdf::Unknown(_) => {}
    }
}

fn dump_token(out: &mut String, number: u32, token: &Token) {
    line!(out, "  {number}: {}", token.kind);
    if let ("luks2-keyring", Some(Json::String(description))) =
        (token.kind.as_str(), token.json.get("key_description"))
    {
        line!(out, "\tKey description: {}", description.escape_debug());
    }
    for keyslot in &token.keyslots {
        line!(out, "\tKeyslot:    {keyslot}");
    }
}

fn dump_digest(out: &mut String, number: u32, digest: &Digest) {
    match &digest.kind {
        DigestKind::Pbkdf2(pbkdf2) => {
            line!(out, "  {number}: pbkdf2");
            line!(out, "\tHash:       {}", pbkdf2.hash);
            line!(out, "\tIterations: {}", pbkdf2.iterations);
            out.push_str("\tSalt:       ");
            put_hex(out, &pbkdf2.salt, INDENT);
            out.push_str("\tDigest:     ");
            put_hex(out, &pbkdf2.digest, INDENT);
        }
        DigestKind::Other(name) => line!(out, "  {number}: {name}"),
    }
}
