//! A JSON value that preserves the metadata of a LUKS2 header: the order of members, unknown members,
//! and the spelling of every number and string survive a rewrite. Dumps use it too, for the order.
//!
//! Parsing ([`parse`]) is strict where a header would be ambiguous: a duplicate key is an error. The
//! nesting depth is bounded; the JSON area bounds the size. Strings need not be UTF-8: cryptsetup stores
//! what it is given, such as the description of a key in Latin-1.

use std::fmt::{self, Write as _};
use std::ops::Deref;

mod parse;

pub use parse::JsonError;

/// A JSON value whose objects keep the order of their members.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the kinds of JSON values")]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(Text),
    Array(Vec<Json>),
    Object(Vec<(Text, Json)>),
}

/// A number as it is spelled, of any size and precision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number(String);

impl Number {
    /// The value of a whole number that is not negative and has no fraction or exponent.
    pub fn as_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

/// A string. Two are equal if they have the same characters, however these are spelled.
#[derive(Debug, Clone)]
pub struct Text {
    /// With replacement characters for what is no UTF-8.
    value: String,
    /// What stands between the quotes, if this program would write it in another way.
    spelling: Option<Box<[u8]>>,
}

impl Text {
    /// The string that is spelled so between its quotes.
    fn spelled(value: &[u8], spelling: &[u8]) -> Self {
        let value = String::from_utf8_lossy(value).into_owned();
        let is_ours = escaped(&value).as_bytes() == spelling;
        Self { value, spelling: (!is_ours).then(|| spelling.into()) }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        match &self.spelling {
            Some(spelling) => out.extend_from_slice(spelling),
            None => out.extend_from_slice(escaped(&self.value).as_bytes()),
        }
        out.push(b'"');
    }
}

/// The characters between the quotes.
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for char in value.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            control if control < ' ' => {
                let _: fmt::Result = write!(out, "\\u{:04x}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.value
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.value == other
    }
}

impl From<String> for Text {
    fn from(value: String) -> Self {
        Self { value, spelling: None }
    }
}

impl From<&str> for Text {
    fn from(value: &str) -> Self {
        value.to_owned().into()
    }
}

impl Json {
    /// Parses a text that must hold exactly one value.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        parse::parse(text)
    }

    /// The member `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => {
                members.iter().find(|(name, _)| *name == *key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// As [`get`](Self::get), to change the member.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => {
                members.iter_mut().find(|(name, _)| *name == *key).map(|(_, value)| value)
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
            members.push((key.into(), value));
        }
    }

    /// Removes the member `key` of an object, if it is there.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Self::Object(members) = self {
            members.retain(|(name, _)| *name != *key);
        }
    }

    /// An object with these members.
    pub(crate) fn object<const N: usize>(members: [(&str, Self); N]) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// An array of strings.
    pub(crate) fn strings(items: &[&str]) -> Self {
        Self::Array(items.iter().map(|item| Self::from(*item)).collect())
    }

    /// The bytes without white space, as a header stores them.
    pub fn to_stored(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.compact(&mut out);
        out
    }

    /// As [`to_stored`](Self::to_stored), with replacement characters for what is no UTF-8.
    pub fn to_compact(&self) -> String {
        String::from_utf8_lossy(&self.to_stored()).into_owned()
    }

    fn compact(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend(b"null"),
            Self::Bool(value) => out.extend(if *value { &b"true"[..] } else { b"false" }),
            Self::Number(number) => out.extend(number.0.as_bytes()),
            Self::String(text) => text.write(out),
            Self::Array(items) => {
                compact_items(out, *b"[]", items, |out, item| item.compact(out));
            }
            Self::Object(members) => {
                compact_items(out, *b"{}", members, |out, (key, value)| {
                    key.write(out);
                    out.push(b':');
                    value.compact(out);
                });
            }
        }
    }

    /// The text in lines, in the layout of cryptsetup's `--dump-json-metadata`, with replacement
    /// characters for what is no UTF-8.
    pub fn to_pretty(&self) -> String {
        let mut out = Vec::new();
        self.pretty(&mut out, 0);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn pretty(&self, out: &mut Vec<u8>, level: usize) {
        match self {
            Self::Array(items) => pretty_items(out, level, *b"[]", items, |out, item| {
                item.pretty(out, level + 1);
            }),
            Self::Object(members) => {
                pretty_items(out, level, *b"{}", members, |out, (key, value)| {
                    key.write(out);
                    out.push(b':');
                    value.pretty(out, level + 1);
                });
            }
            plain => plain.compact(out),
        }
    }
}

fn compact_items<T>(
    out: &mut Vec<u8>,
    [open, close]: [u8; 2],
    items: &[T],
    mut item: impl FnMut(&mut Vec<u8>, &T),
) {
    out.push(open);
    for (number, value) in items.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        item(out, value);
    }
    out.push(close);
}

fn pretty_items<T>(
    out: &mut Vec<u8>,
    level: usize,
    [open, close]: [u8; 2],
    items: &[T],
    mut item: impl FnMut(&mut Vec<u8>, &T),
) {
    out.push(open);
    for (number, value) in items.iter().enumerate() {
        out.extend(if number == 0 { &b"\n"[..] } else { b",\n" });
        out.extend("  ".repeat(level + 1).as_bytes());
        item(out, value);
    }
    out.push(b'\n');
    out.extend("  ".repeat(level).as_bytes());
    out.push(close);
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<u32> for Json {
    fn from(number: u32) -> Self {
        Self::Number(Number(number.to_string()))
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(Number(number.to_string()))
    }
}

impl From<Vec<(String, Self)>> for Json {
    fn from(members: Vec<(String, Self)>) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
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
        assert_eq!(json.to_compact(), text);
    }

    #[test]
    fn numbers_and_strings_keep_their_spelling() {
        let text = r#"{"n":[123456789012345678901234567890,-0,1.50,1e+3,0.1E-9,18446744073709551616],
            "s":["\/","\u0041\ud83d\ude00\u001f","ä\b\f\n\r\t\"\\","\u007f"],"\u006b":null}"#;
        let compact: String = text.split("\n            ").collect();
        let json = Json::parse(text.as_bytes()).unwrap();
        assert_eq!(json.to_compact(), compact);
        assert_eq!(json.get("k"), Some(&Json::Null));
        let Json::Array(strings) = json.get("s").unwrap() else { panic!() };
        assert_eq!(strings[..2], ["/".into(), "A😀\u{1f}".into()]);
        let Json::Array(numbers) = json.get("n").unwrap() else { panic!() };
        let values = numbers.iter().map(|number| match number {
            Json::Number(number) => number.as_u64(),
            _ => None,
        });
        assert!(values.into_iter().all(|value| value.is_none()));
        let again = Json::parse(json.to_compact().as_bytes()).unwrap();
        assert_eq!(again.to_compact(), compact);
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for bad in [
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "--1",
            "0x1",
            "nul",
            "truefalse",
            "[1,]",
            "[,1]",
            "[1 2]",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            "{a:1}",
            "'a'",
            r#""a"#,
            r#""\x""#,
            "NaN",
            r#""\u12g4""#,
            r#""\ud800""#,
            r#""\udc00\ud800""#,
            r#""\ud800\u0041""#,
            "\"\t\"",
            "/**/1",
            "[1]]",
            "{",
            "[",
            "-",
            "",
        ] {
            assert!(Json::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_that_programs_read_in_two_ways_is_refused_at_any_level() {
        assert!(problem(r#"{"a":1,"a":2}"#).contains("\"a\" occurs twice"));
        assert!(problem(r#"{"x":[{"b":1,"c":2,"b":3}]}"#).contains("\"b\" occurs twice"));
        assert!(problem(r#"{"x":[{"type\u0000":1}]}"#).contains("\"type\\0\" has a NUL"));
        assert!(
            Json::parse(br#"{"x":"a\u0000b"}"#).is_ok(),
            "what is in a token of others is kept"
        );
    }

    #[test]
    fn the_depth_is_bounded() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(Json::parse(nested(32).as_bytes()).is_ok());
        assert!(problem(&nested(33)).contains("more than 32 levels"));
        // A value in the innermost array is one level deeper.
        assert!(problem(&nested(32).replace("[]", "[1]")).contains("more than 32 levels"));
        assert!(Json::parse(nested(31).replace("[]", "[1]").as_bytes()).is_ok());
        assert!(Json::parse("[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn something_behind_the_value_is_refused() {
        assert!(Json::parse(b"{} x").is_err());
        assert!(Json::parse(b"").is_err());
        assert!(Json::parse(b"{\"a\":1\xff}").is_err());
    }

    #[test]
    fn strings_of_any_bytes_survive() {
        let text = b"{\"type\":\"x\",\"caf\xe9\":[\"\xff\\u00e9\xc3\xa9\xc3\"]}";
        let json = Json::parse(text).unwrap();
        assert_eq!(json.to_stored(), text);
        let Some(Json::Array(items)) = json.get("caf\u{fffd}") else { panic!("{json:?}") };
        assert_eq!(items[..], ["\u{fffd}\u{e9}\u{e9}\u{fffd}".into()]);
    }
}
