//! A JSON value that preserves the metadata of a LUKS2 header: the order of members, unknown members,
//! and the spelling of every number and string survive a rewrite. Dumps use it too, for the order.
//!
//! Parsing ([`parse`]) is strict where a header would be ambiguous: a duplicate key is an error. The
//! nesting depth is bounded; the JSON area bounds the size.

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
    value: String,
    /// What stands between the quotes, if this program would write it in another way.
    spelling: Option<Box<str>>,
}

impl Text {
    /// The string that is spelled so between its quotes.
    fn spelled(value: String, spelling: &str) -> Self {
        let is_ours = escaped(&value) == spelling;
        Self { value, spelling: (!is_ours).then(|| spelling.into()) }
    }

    fn write(&self, out: &mut String) {
        out.push('"');
        match &self.spelling {
            Some(spelling) => out.push_str(spelling),
            None => out.push_str(&escaped(&self.value)),
        }
        out.push('"');
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

    /// The text without white space, as a header stores it.
    pub fn to_compact(&self) -> String {
        let mut out = String::new();
        self.compact(&mut out);
        out
    }

    fn compact(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(number) => out.push_str(&number.0),
            Self::String(text) => text.write(out),
            Self::Array(items) => {
                compact_items(out, ('[', ']'), items, |out, item| item.compact(out));
            }
            Self::Object(members) => {
                compact_items(out, ('{', '}'), members, |out, (key, value)| {
                    key.write(out);
                    out.push(':');
                    value.compact(out);
                });
            }
        }
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
                    key.write(out);
                    out.push(':');
                    value.pretty(out, level + 1);
                });
            }
            plain => plain.compact(out),
        }
    }
}

fn compact_items<T>(
    out: &mut String,
    (open, close): (char, char),
    items: &[T],
    mut item: impl FnMut(&mut String, &T),
) {
    out.push(open);
    for (number, value) in items.iter().enumerate() {
        if number > 0 {
            out.push(',');
        }
        item(out, value);
    }
    out.push(close);
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
    fn a_key_that_occurs_twice_is_refused_at_any_level() {
        assert!(problem(r#"{"a":1,"a":2}"#).contains("\"a\" occurs twice"));
        assert!(problem(r#"{"x":[{"b":1,"c":2,"b":3}]}"#).contains("\"b\" occurs twice"));
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
        assert!(Json::parse(b"{\"a\":\"\xff\"}").is_err());
    }
}
