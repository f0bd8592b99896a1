//! JSON text to values (RFC 8259).

use std::collections::HashSet;
use std::fmt;

use super::{Json, Number, Text};

/// Levels of values that json-c, and so cryptsetup, reads; the outermost value is the first.
const DEPTH_MAX: usize = 32;

/// Why a text is not JSON, and at which byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    problem: String,
    at: usize,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.problem, self.at)
    }
}

impl std::error::Error for JsonError {}

type Result<T> = std::result::Result<T, JsonError>;

/// Parses a text that must hold exactly one value.
pub(super) fn parse(text: &[u8]) -> Result<Json> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(1)?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => parser.broken("something follows the value"),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn broken<T>(&self, problem: impl Into<String>) -> Result<T> {
        Err(JsonError { problem: problem.into(), at: self.at })
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `byte` if it is next.
    fn takes(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.takes(byte) {
            return Ok(());
        }
        self.broken(format!("no '{}'", char::from(byte)))
    }

    fn value(&mut self, level: usize) -> Result<Json> {
        self.skip_space();
        if level > DEPTH_MAX {
            return self.broken(format!("more than {DEPTH_MAX} levels"));
        }
        match self.peek() {
            Some(b'{') => self.object(level),
            Some(b'[') => self.array(level),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Json> {
        let words =
            [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
        for (word, value) in words {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        self.broken("no value")
    }

    fn array(&mut self, level: usize) -> Result<Json> {
        self.expect(b'[')?;
        let mut items = Vec::new();
        self.skip_space();
        if self.takes(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(level + 1)?);
            self.skip_space();
            if self.takes(b']') {
                return Ok(Json::Array(items));
            }
            self.expect(b',')?;
        }
    }

    fn object(&mut self, level: usize) -> Result<Json> {
        self.expect(b'{')?;
        let mut members: Vec<(Text, Json)> = Vec::new();
        let mut keys = HashSet::new();
        self.skip_space();
        if self.takes(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            let key = self.string()?;
            if !keys.insert(String::from(&*key)) {
                return self.broken(format!("the key \"{}\" occurs twice", key.escape_debug()));
            }
            if key.contains('\0') {
                // cryptsetup's parser ends it there: another key for it than here.
                return self.broken(format!("the key \"{}\" has a NUL", key.escape_debug()));
            }
            self.skip_space();
            self.expect(b':')?;
            members.push((key, self.value(level + 1)?));
            self.skip_space();
            if self.takes(b'}') {
                return Ok(Json::Object(members));
            }
            self.expect(b',')?;
        }
    }

    fn number(&mut self) -> Result<Json> {
        let start = self.at;
        self.takes(b'-');
        if !self.takes(b'0') {
            self.digits()?;
        }
        if self.takes(b'.') {
            self.digits()?;
        }
        if self.takes(b'e') || self.takes(b'E') {
            let _ = self.takes(b'+') || self.takes(b'-');
            self.digits()?;
        }
        if self.peek().is_some_and(|next| next.is_ascii_digit()) {
            return self.broken("a number begins with 0");
        }
        // Digits and signs only.
        Ok(Json::Number(Number(String::from_utf8_lossy(&self.text[start..self.at]).into_owned())))
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while self.peek().is_some_and(|next| next.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.broken("no digit") } else { Ok(()) }
    }

    fn string(&mut self) -> Result<Text> {
        self.expect(b'"')?;
        let start = self.at;
        let mut value = Vec::new();
        loop {
            let Some(byte) = self.peek() else { return self.broken("a string has no end") };
            self.at += 1;
            match byte {
                b'"' => return Ok(Text::spelled(&value, &self.text[start..self.at - 1])),
                b'\\' => value.extend(self.escape()?.encode_utf8(&mut [0; 4]).as_bytes()),
                control if control < b' ' => return self.broken("a control character in a string"),
                plain => value.push(plain),
            }
        }
    }

    /// The character that is written behind a backslash.
    fn escape(&mut self) -> Result<char> {
        let Some(byte) = self.peek() else { return self.broken("a string has no end") };
        let plain = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode();
            }
            _ => return self.broken("an unknown escape"),
        };
        self.at += 1;
        Ok(plain)
    }

    /// A character by its UTF-16 code units.
    fn unicode(&mut self) -> Result<char> {
        let first = self.four_digits()?;
        let mut units = vec![first];
        if (0xd800..0xdc00).contains(&first) {
            self.expect(b'\\')?;
            self.expect(b'u')?;
            units.push(self.four_digits()?);
        }
        match char::decode_utf16(units).next() {
            Some(Ok(char)) => Ok(char),
            _ => self.broken("half of a character"),
        }
    }

    fn four_digits(&mut self) -> Result<u16> {
        let digits = self.text.get(self.at..self.at + 4);
        let is_hex = |digits: &&[u8]| digits.iter().all(u8::is_ascii_hexdigit);
        let Some(digits) = digits.filter(is_hex) else {
            return self.broken("no four hex digits");
        };
        let digits = digits.iter().fold(0, |value, digit| {
            value << 4 | char::from(*digit).to_digit(16).unwrap_or(0) as u16
        });
        self.at += 4;
        Ok(digits)
    }
}
