//! A LUKS2 header as JSON for programs: the content of `luksDump`, with plain numbers instead of
//! the strings that the header itself uses, and without key material.

use std::collections::BTreeMap;

use super::copies::Header;
use super::metadata::{
    Digest, DigestKind, Keyslot, KeyslotKind, Metadata, Segment, SegmentKind, Token,
};
use crate::dump::hex;
use crate::json::Json;
use crate::kdf::Kdf;

impl Header {
    pub(crate) fn dump_json(&self) -> Json {
        let (binary, metadata) = (&self.binary, &self.metadata);
        Json::object([
            ("type", "luks2".into()),
            ("version", 2_u32.into()),
            ("uuid", binary.uuid.to_string().as_str().into()),
            ("label", binary.label.to_string().as_str().into()),
            ("subsystem", binary.subsystem.to_string().as_str().into()),
            ("epoch", binary.sequence_id.into()),
            ("metadata_size", binary.header_size.into()),
            ("keyslots_size", metadata.config.keyslots_size.into()),
            ("data_offset", metadata.data_offset().into()),
            ("flags", texts(&metadata.config.flags)),
            ("requirements", texts(&metadata.config.requirements)),
            ("segments", list(&metadata.segments, |_, segment| segment_json(segment))),
            (
                "keyslots",
                list(&metadata.keyslots, |id, keyslot| keyslot_json(id, keyslot, metadata)),
            ),
            ("tokens", list(&metadata.tokens, |_, token| token_json(token))),
            ("digests", list(&metadata.digests, |_, digest| digest_json(digest))),
        ])
    }
}

type Members = Vec<(&'static str, Json)>;

/// Numbered objects as an array, each with its number as `id`.
fn list<T>(objects: &BTreeMap<u32, T>, members: impl Fn(u32, &T) -> Members) -> Json {
    let item = |(id, object): (&u32, &T)| {
        let id_member = [("id", (*id).into())];
        let all = id_member.into_iter().chain(members(*id, object));
        Json::Object(all.map(|(key, value)| (key.into(), value)).collect())
    };
    Json::Array(objects.iter().map(item).collect())
}

fn texts(texts: &[String]) -> Json {
    Json::Array(texts.iter().map(|text| text.as_str().into()).collect())
}

fn numbers(numbers: &[u32]) -> Json {
    Json::Array(numbers.iter().map(|number| (*number).into()).collect())
}

fn segment_json(segment: &Segment) -> Members {
    let mut members = vec![
        ("type", segment.kind.name().into()),
        ("offset", segment.offset.into()),
        ("size", segment.size.map_or(Json::Null, Json::from)),
        ("flags", texts(&segment.flags)),
    ];
    if let SegmentKind::Crypt { iv_tweak, encryption, sector_size, integrity } = &segment.kind {
        members.extend([
            ("iv_tweak", (*iv_tweak).into()),
            ("cipher", encryption.as_str().into()),
            ("sector_size", (*sector_size).into()),
            ("integrity", integrity.as_deref().map_or(Json::Null, Json::from)),
        ]);
    }
    members
}

fn keyslot_json(id: u32, keyslot: &Keyslot, metadata: &Metadata) -> Members {
    let mut members = vec![
        ("type", keyslot.kind.name().into()),
        ("key_bits", (u64::from(keyslot.key_size) * 8).into()),
        ("priority", keyslot.priority.name().into()),
        ("unbound", Json::Bool(metadata.is_unbound(id))),
        ("area_offset", keyslot.area.offset.into()),
        ("area_size", keyslot.area.size.into()),
        ("digests", numbers(&metadata.digests_of_keyslot(id))),
    ];
    if let KeyslotKind::Luks2 { kdf, salt, af, encryption, area_key_size } = &keyslot.kind {
        members.extend([
            ("cipher", encryption.as_str().into()),
            ("cipher_key_bits", (u64::from(*area_key_size) * 8).into()),
            ("kdf", kdf_json(kdf, salt)),
            ("af_stripes", af.stripes.into()),
            ("af_hash", af.hash.as_str().into()),
        ]);
    }
    members
}

fn kdf_json(kdf: &Kdf, salt: &[u8]) -> Json {
    let mut members = vec![("type".to_owned(), Json::from(kdf.name()))];
    let mut put = |key: &str, value: Json| members.push((key.to_owned(), value));
    match kdf {
        Kdf::Pbkdf2 { hash, iterations } => {
            put("hash", hash.as_str().into());
            put("iterations", (*iterations).into());
        }
        Kdf::Argon2 { time, memory_kib, lanes, .. } => {
            put("time", (*time).into());
            put("memory_kib", (*memory_kib).into());
            put("lanes", (*lanes).into());
        }
        Kdf::Unknown(_) => {}
    }
    put("salt", hex(salt));
    members.into()
}

fn token_json(token: &Token) -> Members {
    vec![("type", token.kind.as_str().into()), ("keyslots", numbers(&token.keyslots))]
}

fn digest_json(digest: &Digest) -> Members {
    let mut members = vec![
        ("type", digest.kind.name().into()),
        ("keyslots", numbers(&digest.keyslots)),
        ("segments", numbers(&digest.segments)),
    ];
    if let DigestKind::Pbkdf2(pbkdf2) = &digest.kind {
        members.extend([
            ("hash", pbkdf2.hash.as_str().into()),
            ("iterations", pbkdf2.iterations.into()),
            ("salt", hex(&pbkdf2.salt)),
            ("digest", hex(&pbkdf2.digest)),
        ]);
    }
    members
}
