//! Reads the JSON that Kinesis writes, without a tree. It declines whatever else JSON allows: no value here can be read in two ways.

use std::borrow::Cow;

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
/// Bytes of a string that are looked at eight by eight, before its end is searched.
const SHORT: usize = 64;
/// Most digits of the exponent of a number that is skipped.
const MOST_EXPONENT_DIGITS: usize = 2;
/// How deep a value may be that is skipped: as deep as what Kinesis says of child shards.
const MOST_DEPTH: usize = 4;

/// The name of a member. Those of records are told apart where they are read: a match on text compares it byte by byte.
#[derive(Debug, PartialEq)]
pub enum Name<'a> {
    Time,
    Data,
    Encryption,
    Key,
    Number,
    Other(&'a [u8]),
}

pub struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Reader { text, at: 0 }
    }

    /// Reads an object: `member` is called behind each name and its colon, and reads the value.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, Name<'a>) -> Read<()>) -> Read<()> {
        self.expect(b'{')?;
        if self.skipped(b'}') {
            return Ok(());
        }
        loop {
            let name = self.name()?;
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

    /// Reads the name of a member and its colon. Comparing them with what Kinesis writes with this letter is faster than searching the end.
    #[inline(always)]
    fn name(&mut self) -> Read<Name<'a>> {
        let usual = match self.text.get(self.at + 1) {
            Some(b'A') => self.usual(b"\"ApproximateArrivalTimestamp\":", Name::Time),
            Some(b'D') => self.usual(b"\"Data\":", Name::Data),
            Some(b'E') => self.usual(b"\"EncryptionType\":", Name::Encryption),
            Some(b'P') => self.usual(b"\"PartitionKey\":", Name::Key),
            Some(b'S') => self.usual(b"\"SequenceNumber\":", Name::Number),
            _ => None,
        };
        usual.map_or_else(|| self.other_name(), Ok)
    }

    /// Reads a name and its colon that are unusual, or have spaces between them.
    #[inline(never)]
    fn other_name(&mut self) -> Read<Name<'a>> {
        let name = self.string()?;
        self.expect(b':')?;
        Ok(match name {
            b"ApproximateArrivalTimestamp" => Name::Time,
            b"Data" => Name::Data,
            b"EncryptionType" => Name::Encryption,
            b"PartitionKey" => Name::Key,
            b"SequenceNumber" => Name::Number,
            other => Name::Other(other),
        })
    }

    /// Reads a name, if it is this one. Its length is known to the compiler, which compares whole words.
    #[inline(always)]
    fn usual<const N: usize>(&mut self, quoted: &[u8; N], name: Name<'a>) -> Option<Name<'a>> {
        self.text[self.at..].first_chunk::<N>().filter(|found| *found == quoted)?;
        self.at += N;
        Some(name)
    }

    /// Reads a string of UTF-8 without escapes and control characters.
    pub fn string(&mut self) -> Read<&'a [u8]> {
        let (found, escapes) = self.written()?;
        if escapes { Err(Declined) } else { Ok(found) }
    }

    /// Reads a string of UTF-8 without control characters, and what its escapes stand for.
    pub fn text(&mut self) -> Read<Cow<'a, [u8]>> {
        let (found, escapes) = self.written()?;
        if escapes { unescaped(found).map(Cow::Owned) } else { Ok(Cow::Borrowed(found)) }
    }

    /// Skips a string of UTF-8 without control characters. Returns how many bytes it is written with.
    #[inline(always)]
    pub fn skip_string(&mut self) -> Read<usize> {
        let (found, escapes) = self.written()?;
        if escapes {
            unescaped(found)?;
        }
        Ok(found.len())
    }

    /// Reads a string of UTF-8 without control characters as it is written, and whether it has escapes. These are not looked at.
    #[inline(always)]
    fn written(&mut self) -> Read<(&'a [u8], bool)> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        // Most strings are short and of ASCII.
        let length = plain(rest);
        if rest.get(length) != Some(&b'"') {
            return self.written_from(length);
        }
        self.at += length + 1;
        Ok((&rest[..length], false))
    }

    /// Reads such a string, of which the first bytes need no second look.
    #[inline(never)]
    fn written_from(&mut self, mut length: usize) -> Read<(&'a [u8], bool)> {
        let (rest, mut escapes) = (&self.text[self.at..], false);
        loop {
            length += memchr2(b'"', b'\\', rest.get(length..).ok_or(Declined)?).ok_or(Declined)?;
            if rest[length] == b'"' {
                break;
            }
            escapes = true;
            length += 2;
        }
        let found = &rest[..length];
        // Without a way out of the loop, the compiler vectorizes it. With a sign, what is beyond ASCII is below zero.
        let ascii = found.iter().fold(true, |ascii, byte| ascii & (*byte as i8 >= 0x20));
        if !ascii && (found.iter().any(|byte| *byte < b' ') || std::str::from_utf8(found).is_err()) {
            return Err(Declined);
        }
        self.at += length + 1;
        Ok((found, escapes))
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

    /// Reads an integer that is not negative and has no more digits than a float could have.
    pub fn count(&mut self) -> Read<u64> {
        self.space();
        let mut value = 0;
        let digits = self.digits(&mut value)?;
        // No fraction and no exponent may follow, with which it could be an integer all the same: whoever goes on finds them.
        if digits.len() > MOST_DIGITS || (digits.len() > 1 && digits[0] == b'0') { Err(Declined) } else { Ok(value) }
    }

    /// Reads what stands for nothing in place of an array: null, or none of its elements.
    pub fn nothing(&mut self) -> Read<()> {
        self.space();
        if self.is(b'n') { self.word(b"null") } else { self.array(|_| Err(Declined)) }
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
            Some(b'"') => self.skip_string().map(|_| ()),
            Some(b'{') => self.object(|reader, _| reader.skip_within(inner)),
            Some(b'[') => self.array(|reader| reader.skip_within(inner)),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => self.skip_number(),
        }
    }

    /// Skips a number that no exponent makes too large for a float.
    fn skip_number(&mut self) -> Read<()> {
        self.at += usize::from(self.is(b'-'));
        let begin = self.at;
        if self.skip_digits()? > 1 && self.text[begin] == b'0' {
            return Err(Declined);
        }
        if self.is(b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if self.is(b'e') || self.is(b'E') {
            self.at += 1;
            self.at += usize::from(self.is(b'-') || self.is(b'+'));
            if self.skip_digits()? > MOST_EXPONENT_DIGITS {
                return Err(Declined);
            }
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Read<usize> {
        let count = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(Declined) } else { Ok(count) }
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
        let rest = &self.text[self.at..];
        let mut count = 0;
        while let Some(byte @ b'0'..=b'9') = rest.get(count) {
            *number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            count += 1;
        }
        self.at += count;
        if count == 0 { Err(Declined) } else { Ok(&rest[..count]) }
    }

    fn is(&self, byte: u8) -> bool {
        self.text.get(self.at) == Some(&byte)
    }

    #[inline(always)]
    fn skipped(&mut self, byte: u8) -> bool {
        if !self.is(byte) {
            self.space();
            if !self.is(byte) {
                return false;
            }
        }
        self.at += 1;
        true
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

/// How many bytes, of the first `SHORT`, a string can have that are of ASCII and need no second look; 0 near the end of the text.
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let Some(block) = bytes.first_chunk::<SHORT>() else { return 0 };
    for at in (0..SHORT).step_by(8) {
        // A byte that is found here may have set the bits of later ones, but of none before it.
        let word = u64::from_le_bytes(std::array::from_fn(|byte| block[at + byte]));
        // Control characters and the quote are what is least if the second bit is turned.
        let low = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
        let backslash = (word ^ (ONES * 0x5c)).wrapping_sub(ONES);
        let found = (low | backslash | word) & (ONES << 7);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
    }
    SHORT
}

/// What a string stands for that is written with escapes.
fn unescaped(mut written: &[u8]) -> Read<Vec<u8>> {
    let mut text = Vec::with_capacity(written.len());
    while let Some(at) = memchr(b'\\', written) {
        text.extend_from_slice(&written[..at]);
        written = &written[at + 1..];
        let (kind, rest) = written.split_first().ok_or(Declined)?;
        written = rest;
        match kind {
            b'"' | b'\\' | b'/' => text.push(*kind),
            b'b' => text.push(8),
            b'f' => text.push(12),
            b'n' => text.push(b'\n'),
            b'r' => text.push(b'\r'),
            b't' => text.push(b'\t'),
            b'u' => {
                let mut code = unit(&mut written)?;
                if (0xd800..0xdc00).contains(&code) {
                    written = written.strip_prefix(b"\\u").ok_or(Declined)?;
                    let low = unit(&mut written)?.checked_sub(0xdc00).filter(|low| *low < 0x400).ok_or(Declined)?;
                    code = 0x10000 + ((code - 0xd800) << 10) + low;
                }
                let one = char::from_u32(code).ok_or(Declined)?;
                text.extend_from_slice(one.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => return Err(Declined),
        }
    }
    text.extend_from_slice(written);
    Ok(text)
}

/// Reads the four hexadecimal digits of an escape.
fn unit(written: &mut &[u8]) -> Read<u32> {
    let (digits, rest) = written.split_first_chunk::<4>().ok_or(Declined)?;
    *written = rest;
    digits.iter().try_fold(0, |code, digit| Ok(code << 4 | char::from(*digit).to_digit(16).ok_or(Declined)?))
}

/// Declines what was given before.
pub fn once<T>(given: &Option<T>) -> Read<()> {
    if given.is_none() { Ok(()) } else { Err(Declined) }
}

/// Takes what is given, and declines it if there was one before.
pub fn set<T>(place: &mut Option<T>, value: T) -> Read<()> {
    once(place)?;
    *place = Some(value);
    Ok(())
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
    fn escapes_stand_for_what_json_says_or_are_declined() {
        let text = |written: &str| {
            let (text, all) = (format!("\"{written}\""), format!("\"{}{written}\"", "k".repeat(2 * SHORT)));
            let value = Reader::new(text.as_bytes()).text().map(|value| String::from_utf8(value.into_owned()).unwrap());
            let long = Reader::new(all.as_bytes()).text().map(|value| String::from_utf8(value.into_owned()).unwrap());
            assert_eq!(long, value.as_ref().map(|value| "k".repeat(2 * SHORT) + value).map_err(|_| Declined), "{written}");
            assert_eq!(Reader::new(text.as_bytes()).skip_string().is_ok(), value.is_ok(), "{written}");
            assert!(!written.contains('\\') || Reader::new(text.as_bytes()).string().is_err(), "{written}");
            value
        };
        for (written, value) in [
            (r#"a\"b"#, "a\"b"),
            (r"\\", "\\"),
            (r"\/\b\f\n\r\t", "/\x08\x0c\n\r\t"),
            (r"\u0000\u00e9\u20AC", "\0é€"),
            (r"\ud83D\udd11x", "\u{1f511}x"),
            (r"\ud800\udc00\udbff\udfff", "\u{10000}\u{10ffff}"),
            (r"é\u00e9", "éé"),
            ("", ""),
        ] {
            assert_eq!(text(written).as_deref(), Ok(value), "{written}");
        }
        for written in [
            r"\",
            r"\x",
            r"\u12",
            r"\u+123",
            r"\u00g0",
            r"\ud800",
            r"\ud800x",
            r"\ud800\n",
            r"\ud800\ud800",
            r"\ud800\ue000",
            r"\udc00",
            "\\\n",
            "\\n\n",
        ] {
            assert_eq!(text(written), Err(Declined), "{written}");
        }
    }

    #[test]
    fn the_end_of_a_string_is_found_wherever_it_is() {
        for byte in 0..=0xff {
            for length in 0..2 * SHORT {
                let mut bytes = vec![b'!'; length];
                bytes.push(byte);
                bytes.resize(3 * SHORT, b'~');
                let special = !(b' '..=0x7f).contains(&byte) || matches!(byte, b'"' | b'\\');
                assert_eq!(plain(&bytes), if special { length.min(SHORT) } else { SHORT }, "{byte} at {length}");
            }
        }
    }

    #[test]
    fn a_count_is_an_integer_of_few_digits() {
        let count = |text: &'static str| {
            let mut reader = Reader::new(text.as_bytes());
            let value = reader.count()?;
            reader.end()?;
            Ok(value)
        };
        for (text, value) in [("0", 0), (" 7 ", 7), ("999999999999999", 999_999_999_999_999)] {
            assert_eq!(count(text), Ok(value), "{text}");
        }
        for text in ["", "-1", "-0", "+1", "01", "00", "1.0", "1e2", "1E2", "1000000000000000", "null", "\"1\""] {
            assert_eq!(count(text), Err(Declined), "{text}");
        }
    }

    #[test]
    fn nothing_is_null_or_no_elements() {
        let nothing = |text: &'static str| {
            let mut reader = Reader::new(text.as_bytes());
            reader.nothing()?;
            reader.end()
        };
        for text in ["null", " []", "[ ]"] {
            assert_eq!(nothing(text), Ok(()), "{text}");
        }
        for text in ["", "nul", "[1]", "[null]", "{}", "0", "\"\""] {
            assert_eq!(nothing(text), Err(Declined), "{text}");
        }
    }

    #[test]
    fn names_are_those_that_are_written() {
        let others = ["", "A", "Dat", "Data2", "Extra", "Partitionkey", "S", "other"];
        let usual = [
            ("ApproximateArrivalTimestamp", Name::Time),
            ("Data", Name::Data),
            ("EncryptionType", Name::Encryption),
            ("PartitionKey", Name::Key),
            ("SequenceNumber", Name::Number),
        ];
        for (name, expected) in usual.into_iter().chain(others.map(|name| (name, Name::Other(name.as_bytes())))) {
            for (before, behind) in [("", ""), (" ", ""), ("", " ")] {
                let text = format!(" {{{before}\"{name}\"{behind}:1}}");
                let mut count = 0;
                let read = Reader::new(text.as_bytes()).object(|reader, found| {
                    assert_eq!(found, expected);
                    count += 1;
                    reader.skip()
                });
                assert_eq!((read, count), (Ok(()), 1), "{text}");
                for end in 0..text.len() {
                    let cut = &text.as_bytes()[..end];
                    assert_eq!(Reader::new(cut).object(|reader, _| reader.skip()), Err(Declined), "{text}, {end}");
                }
            }
        }
    }

    #[test]
    fn a_value_of_any_kind_is_skipped_up_to_a_depth() {
        let skipped = |text: &'static str| {
            let mut reader = Reader::new(text.as_bytes());
            reader.skip()?;
            reader.end()
        };
        for text in [
            "null",
            "true",
            "false",
            "-1.5",
            "0",
            "-0.50",
            "12345678901234567890.5",
            "1.7e9",
            "1E+22",
            "1e-99",
            "\"x\"",
            "\"\\u00e9\\n\"",
            "[]",
            "{}",
            "[[[1]]]",
            "{\"a\": [1, {\"b\": 2}]} ",
        ] {
            assert_eq!(skipped(text), Ok(()), "{text}");
        }
        for text in [
            "-",
            "01",
            "-01",
            "1.",
            ".5",
            "1.x",
            "1e",
            "1e+",
            "1e100",
            "1e1.5",
            "\"\\x\"",
            "",
            "nul",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "[1 2]",
            "[[[[1]]]]",
            "{",
            "1 1",
        ] {
            assert_eq!(skipped(text), Err(Declined), "{text}");
        }
    }
}
