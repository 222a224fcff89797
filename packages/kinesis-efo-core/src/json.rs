//! Reads the JSON that Kinesis writes, without a tree. It declines whatever else JSON allows: no value here can be read in two ways.

use memchr::{memchr, memchr2};

/// The payload has something that is left to Python.
#[derive(Debug, PartialEq)]
pub struct Declined;

pub type Read<T> = Result<T, Declined>;

/// Most digits of a number: so many fit into a float without rounding.
const MOST_DIGITS: usize = 15;
/// Powers of ten that are exact as floats: one multiplication or division by them rounds once, and so correctly.
const EXACT_POWERS: [f64; 23] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22];
/// Bytes of a string that are looked at one by one, before its end is searched.
const SHORT: usize = 32;
/// How deep a value may be that is skipped: as deep as what Kinesis says of child shards.
const MOST_DEPTH: usize = 4;

pub struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Reader { text, at: 0 }
    }

    /// Reads an object: `member` is called behind each name and its colon, and reads the value.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &'a [u8]) -> Read<()>) -> Read<()> {
        self.expect(b'{')?;
        if self.skipped(b'}') {
            return Ok(());
        }
        loop {
            let name = self.name()?;
            self.expect(b':')?;
            member(self, name)?;
            if !self.skipped(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Reads an array: `element` is called before each element, and reads it.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        self.expect(b'[')?;
        if self.skipped(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.skipped(b',') {
                return self.expect(b']');
            }
        }
    }

    /// Reads the name of a member. Comparing it with the one that Kinesis writes with this letter is faster than searching its end.
    fn name(&mut self) -> Read<&'a [u8]> {
        self.space();
        let usual = match self.text.get(self.at + 1) {
            Some(b'A') => self.usual(b"\"ApproximateArrivalTimestamp\""),
            Some(b'D') => self.usual(b"\"Data\""),
            Some(b'E') => self.usual(b"\"EncryptionType\""),
            Some(b'P') => self.usual(b"\"PartitionKey\""),
            Some(b'S') => self.usual(b"\"SequenceNumber\""),
            _ => None,
        };
        usual.map_or_else(|| self.string(), Ok)
    }

    /// Reads a name, if it is this one. Its length is known to the compiler, which compares whole words.
    #[inline(always)]
    fn usual<const N: usize>(&mut self, quoted: &[u8; N]) -> Option<&'a [u8]> {
        let found = self.text[self.at..].first_chunk::<N>().filter(|found| *found == quoted)?;
        self.at += N;
        Some(&found[1..N - 1])
    }

    /// Reads a string of UTF-8 without escapes and control characters.
    pub fn string(&mut self) -> Read<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        // Most strings are short and of ASCII.
        let plain = |byte: &u8| (b' '..=b'~').contains(byte) && !matches!(byte, b'"' | b'\\');
        let end = rest.iter().take(SHORT).position(|byte| !plain(byte));
        if let Some(length) = end.filter(|end| rest[*end] == b'"') {
            self.at += length + 1;
            return Ok(&rest[..length]);
        }
        let length = memchr2(b'"', b'\\', rest).ok_or(Declined)?;
        let found = &rest[..length];
        // Without a way out of the loop, the compiler vectorizes it.
        let control = found.iter().fold(false, |control, byte| control | (*byte < b' '));
        if control || rest[length] == b'\\' || std::str::from_utf8(found).is_err() {
            return Err(Declined);
        }
        self.at += length + 1;
        Ok(found)
    }

    /// Reads up to the next quote. Whoever takes the text refuses what no string without escapes has.
    pub fn unchecked_string(&mut self) -> Read<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let length = memchr(b'"', rest).ok_or(Declined)?;
        self.at += length + 1;
        Ok(&rest[..length])
    }

    /// Reads a number that is rounded at most once.
    pub fn number(&mut self) -> Read<f64> {
        self.space();
        let negative = self.is(b'-');
        self.at += usize::from(negative);
        let mut mantissa = 0_u64;
        let whole = self.digits(&mut mantissa)?;
        if whole.len() > 1 && whole[0] == b'0' {
            return Err(Declined);
        }
        let (mut digits, mut power) = (whole.len(), 0_i32);
        if self.is(b'.') {
            self.at += 1;
            let fraction = self.digits(&mut mantissa)?.len();
            digits += fraction;
            power -= fraction as i32;
        }
        if self.is(b'e') || self.is(b'E') {
            self.at += 1;
            let sign = if self.is(b'-') { -1 } else { 1 };
            self.at += usize::from(self.is(b'-') || self.is(b'+'));
            let mut exponent = 0_u64;
            if self.digits(&mut exponent)?.len() > 3 {
                return Err(Declined);
            }
            power += sign * exponent as i32;
        }
        let exact = EXACT_POWERS.get(power.unsigned_abs() as usize).ok_or(Declined)?;
        if digits > MOST_DIGITS {
            return Err(Declined);
        }
        let value = if power < 0 { mantissa as f64 / exact } else { mantissa as f64 * exact };
        Ok(if negative { -value } else { value })
    }

    /// Skips a value of any kind.
    pub fn skip(&mut self) -> Read<()> {
        self.skip_within(MOST_DEPTH)
    }

    /// Checks that nothing follows.
    pub fn end(&mut self) -> Read<()> {
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(Declined) }
    }

    fn skip_within(&mut self, depth: usize) -> Read<()> {
        let inner = depth.checked_sub(1).ok_or(Declined)?;
        self.space();
        match self.text.get(self.at) {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'{') => self.object(|reader, _| reader.skip_within(inner)),
            Some(b'[') => self.array(|reader| reader.skip_within(inner)),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => self.number().map(|_| ()),
        }
    }

    fn word(&mut self, word: &[u8]) -> Read<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Declined);
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads one digit or more onto a number, which is right for as many as are allowed.
    fn digits(&mut self, number: &mut u64) -> Read<&'a [u8]> {
        let begin = self.at;
        while let Some(byte @ b'0'..=b'9') = self.text.get(self.at) {
            *number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            self.at += 1;
        }
        if self.at == begin { Err(Declined) } else { Ok(&self.text[begin..self.at]) }
    }

    fn is(&self, byte: u8) -> bool {
        self.text.get(self.at) == Some(&byte)
    }

    fn skipped(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.is(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Read<()> {
        if self.skipped(byte) { Ok(()) } else { Err(Declined) }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Read<f64> {
        let mut reader = Reader::new(text.as_bytes());
        let value = reader.number()?;
        reader.end()?;
        Ok(value)
    }

    #[test]
    fn a_number_is_the_float_next_to_it_or_declined() {
        for text in ["0", "-0", "1.5", "1.700000000123E9", "17e+8", "1.7e-3", "999999999999999", "1e22", "0.0000015", " 7"] {
            assert_eq!(number(text).unwrap().to_bits(), text.trim().parse::<f64>().unwrap().to_bits(), "{text}");
        }
        for text in ["", "-", "01", "1.", ".5", "+1", "1e", "1e23", "1e9999", "9999999999999999", "1 2", "NaN"] {
            assert_eq!(number(text), Err(Declined), "{text}");
        }
    }

    #[test]
    fn a_string_has_no_escapes_no_control_characters_and_is_utf8() {
        let string = |text: &'static [u8]| Reader::new(text).string();
        assert_eq!(string(b" \"k\xc3\xa9y\""), Ok(&b"k\xc3\xa9y"[..]));
        for text in [&b"\"a"[..], b"\"a\\n\"", b"\"a\n\"", b"\"\xff\"", b"a\""] {
            assert_eq!(string(text), Err(Declined), "{text:?}");
        }
    }

    #[test]
    fn short_and_long_strings_are_read_alike() {
        for length in 0..3 * SHORT {
            for (last, expected) in
                [("x", true), ("\x7f", true), ("\u{e9}", true), (" ", true), ("\\n", false), ("\n", false), ("\x1f", false)]
            {
                let value = "k".repeat(length) + last;
                let text = format!("\"{value}\"");
                let mut reader = Reader::new(text.as_bytes());
                assert_eq!(reader.string(), if expected { Ok(value.as_bytes()) } else { Err(Declined) }, "{text:?}");
                assert!(!expected || reader.end().is_ok());
                assert_eq!(Reader::new(&text.as_bytes()[..text.len() - 1]).string(), Err(Declined), "no end: {text:?}");
            }
        }
    }

    #[test]
    fn names_are_those_that_are_written() {
        let usual = ["ApproximateArrivalTimestamp", "Data", "EncryptionType", "PartitionKey", "SequenceNumber"];
        for name in usual.into_iter().chain(["", "A", "Dat", "Data2", "Extra", "Partitionkey", "S", "other"]) {
            let text = format!(" {{\"{name}\":1}}");
            let mut found = Vec::new();
            let mut reader = Reader::new(text.as_bytes());
            let read = reader.object(|reader, name| {
                found.push(name);
                reader.skip()
            });
            assert_eq!((read, found), (Ok(()), vec![name.as_bytes()]));
            let cut = text.trim_end_matches("\":1}");
            assert_eq!(Reader::new(cut.as_bytes()).object(|reader, _| reader.skip()), Err(Declined), "{cut}");
        }
    }

    #[test]
    fn a_value_of_any_kind_is_skipped_up_to_a_depth() {
        let skipped = |text: &'static str| {
            let mut reader = Reader::new(text.as_bytes());
            reader.skip()?;
            reader.end()
        };
        for text in ["null", "true", "false", "-1.5e3", "\"x\"", "[]", "{}", "[[[1]]]", "{\"a\": [1, {\"b\": 2}]} "] {
            assert_eq!(skipped(text), Ok(()), "{text}");
        }
        for text in ["", "nul", "[1,]", "{\"a\":1,}", "{\"a\" 1}", "[1 2]", "[[[[1]]]]", "{", "1 1"] {
            assert_eq!(skipped(text), Err(Declined), "{text}");
        }
    }
}
