//! A JSON value that preserves the metadata of a LUKS2 header: the order of members and unknown
//! members survive a rewrite. Dumps use it too, for the order.
//!
//! Parsing is strict where a header would be ambiguous: a duplicate key is an error. The nesting
//! depth is bounded here; the JSON area bounds the size.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Number;

/// The nesting depth that json-c, and so cryptsetup, reads.
const DEPTH_MAX: usize = 32;

/// A JSON value whose objects keep the order of their members.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the kinds of JSON values")]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses a text that must hold exactly one value.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let value = ValueSeed { depth_left: DEPTH_MAX }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }

    /// The member `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => {
                members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// As [`get`](Self::get), to change the member.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => {
                members.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// Replaces the member `key` of an object in its place, or appends it. Does nothing to other
    /// values.
    pub(crate) fn set(&mut self, key: &str, value: Self) {
        if let Some(member) = self.get_mut(key) {
            *member = value;
        } else if let Self::Object(members) = self {
            members.push((key.to_owned(), value));
        }
    }

    /// Removes the member `key` of an object, if it is there.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Self::Object(members) = self {
            members.retain(|(name, _)| name != key);
        }
    }

    /// An object with these members.
    pub(crate) fn object<const N: usize>(members: [(&str, Self); N]) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// An array of strings.
    pub(crate) fn strings(items: &[&str]) -> Self {
        Self::Array(items.iter().map(|item| Self::from(*item)).collect())
    }

    /// The text without white space, as a header stores it.
    pub fn to_compact(&self) -> String {
        // Serializing strings and numbers to memory cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The text in lines, in the layout of cryptsetup's `--dump-json-metadata`.
    pub fn to_pretty(&self) -> String {
        let mut out = String::new();
        self.pretty(&mut out, 0);
        out
    }

    fn pretty(&self, out: &mut String, level: usize) {
        match self {
            Self::Array(items) => pretty_items(out, level, ('[', ']'), items, |out, item| {
                item.pretty(out, level + 1);
            }),
            Self::Object(members) => {
                pretty_items(out, level, ('{', '}'), members, |out, (key, value)| {
                    let _: fmt::Result = write!(out, "{}:", Self::from(key.as_str()).to_compact());
                    value.pretty(out, level + 1);
                });
            }
            plain => out.push_str(&plain.to_compact()),
        }
    }
}

fn pretty_items<T>(
    out: &mut String,
    level: usize,
    (open, close): (char, char),
    items: &[T],
    mut item: impl FnMut(&mut String, &T),
) {
    out.push(open);
    for (number, value) in items.iter().enumerate() {
        out.push_str(if number == 0 { "\n" } else { ",\n" });
        out.push_str(&"  ".repeat(level + 1));
        item(out, value);
    }
    out.push('\n');
    out.push_str(&"  ".repeat(level));
    out.push(close);
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<u32> for Json {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number.into())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::String(value) => serializer.serialize_str(value),
            Self::Array(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            Self::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (key, value) in members {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

/// Deserializes one value with at most `depth_left` levels of nesting.
#[derive(Clone, Copy)]
struct ValueSeed {
    depth_left: usize,
}

impl ValueSeed {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        let depth_left = self
            .depth_left
            .checked_sub(1)
            .ok_or_else(|| E::custom(format_args!("more than {DEPTH_MAX} levels")))?;
        Ok(Self { depth_left })
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let seed = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(seed)? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let seed = self.deeper()?;
        let mut members = Vec::new();
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                return Err(de::Error::custom(format_args!("the key \"{key}\" occurs twice")));
            }
            members.push((key, map.next_value_seed(seed)?));
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        Json::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn order_and_unknown_members_survive() {
        let text = r#"{"z":1,"a":{"y":[true,null,"\u00e4/"],"b":-5},"m":1.5,"e":{},"f":[]}"#;
        let json = Json::parse(text.as_bytes()).unwrap();
        assert_eq!(json.to_compact(), text.replace("\\u00e4", "ä"));
    }

    #[test]
    fn a_key_that_occurs_twice_is_refused_at_any_level() {
        assert!(problem(r#"{"a":1,"a":2}"#).contains("\"a\" occurs twice"));
        assert!(problem(r#"{"x":[{"b":1,"c":2,"b":3}]}"#).contains("\"b\" occurs twice"));
    }

    #[test]
    fn the_depth_is_bounded() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(Json::parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(problem(&nested(DEPTH_MAX + 1)).contains("more than 32 levels"));
        assert!(Json::parse("[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn something_behind_the_value_is_refused() {
        assert!(Json::parse(b"{} x").is_err());
        assert!(Json::parse(b"").is_err());
        assert!(Json::parse(b"{\"a\":\"\xff\"}").is_err());
    }
}
