//! A LUKS1 header as text, in the layout of cryptsetup's `luksDump`, and as JSON.

use super::header::{Header, Keyslot, State};
use crate::dump::{hex, line, put_hex, put_hex_line};
use crate::json::Json;
use crate::volume::SECTOR_BYTES;

impl Header {
    pub(crate) fn dump(&self, path: &str) -> String {
        let mut out = String::new();
        line!(&mut out, "LUKS header information for {path}\n");
        line!(&mut out, "Version:       \t1");
        line!(&mut out, "Cipher name:   \t{}", self.cipher_name);
        line!(&mut out, "Cipher mode:   \t{}", self.cipher_mode);
        line!(&mut out, "Hash spec:     \t{}", self.hash);
        line!(&mut out, "Payload offset:\t{}", self.payload_offset);
        line!(&mut out, "MK bits:       \t{}", u64::from(self.key_bytes) * 8);
        out.push_str("MK digest:     \t");
        put_hex_line(&mut out, &self.digest);
        out.push_str("\nMK salt:       \t");
        put_hex(&mut out, &self.digest_salt, "               \t");
        line!(&mut out, "MK iterations: \t{}", self.digest_iterations);
        line!(&mut out, "UUID:          \t{}\n", self.uuid);
        for (number, keyslot) in self.keyslots.iter().enumerate() {
            dump_keyslot(&mut out, number, keyslot);
        }
        out
    }

    pub(crate) fn dump_json(&self) -> Json {
        let keyslots = self.keyslots.iter().enumerate();
        let keyslots = keyslots.map(|(number, keyslot)| keyslot_json(number, keyslot)).collect();
        Json::object([
            ("type", "luks1".into()),
            ("version", 1_u32.into()),
            ("uuid", self.uuid.to_string().as_str().into()),
            ("cipher_name", self.cipher_name.as_str().into()),
            ("cipher_mode", self.cipher_mode.as_str().into()),
            ("hash", self.hash.as_str().into()),
            ("data_offset", self.data_offset().into()),
            ("key_bits", (u64::from(self.key_bytes) * 8).into()),
            (
                "digest",
                Json::object([
                    ("iterations", self.digest_iterations.into()),
                    ("salt", hex(&self.digest_salt)),
                    ("digest", hex(&self.digest)),
                ]),
            ),
            ("keyslots", Json::Array(keyslots)),
        ])
    }
}

fn dump_keyslot(out: &mut String, number: usize, keyslot: &Keyslot) {
    match keyslot.state {
        State::Active => line!(out, "Key Slot {number}: ENABLED"),
        State::Inactive => {
            line!(out, "Key Slot {number}: DISABLED");
            return;
        }
        State::Unknown(word) => line!(out, "Key Slot {number}: INVALID ({word:#010x})"),
    }
    line!(out, "\tIterations:         \t{}", keyslot.iterations);
    out.push_str("\tSalt:               \t");
    put_hex(out, &keyslot.salt, "\t                      \t");
    line!(out, "\tKey material offset:\t{}", keyslot.material_offset);
    line!(out, "\tAF stripes:            \t{}", keyslot.stripes);
}

fn keyslot_json(number: usize, keyslot: &Keyslot) -> Json {
    let mut members = vec![
        ("id".to_owned(), Json::from(number as u64)),
        ("active".to_owned(), Json::Bool(keyslot.is_active())),
        ("area_offset".to_owned(), (u64::from(keyslot.material_offset) * SECTOR_BYTES).into()),
        ("stripes".to_owned(), keyslot.stripes.into()),
    ];
    if let State::Unknown(word) = keyslot.state {
        members.push(("invalid_state".to_owned(), word.into()));
    }
    if !keyslot.is_free() {
        members.push(("iterations".to_owned(), keyslot.iterations.into()));
        members.push(("salt".to_owned(), hex(&keyslot.salt)));
    }
    members.into()
}
