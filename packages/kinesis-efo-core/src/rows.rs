//! Rows of payloads, column by column, and the range that they are cut to.

use std::borrow::Cow;

use base64_simd::STANDARD;

use crate::json::{Declined, Name, Read, Reader, once, set};

/// The first bytes of every KPL aggregate.
const MAGIC: &[u8] = b"\xf3\x89\x9a\xc2";
const MOST_DIGITS: usize = 200;
const MICROSECONDS: f64 = 1e6;
/// Integers up to here are exact as floats.
const MOST_MICROSECONDS: f64 = 9007199254740992.0;

/// A sequence number as Kinesis writes it. Compares as a number: one with more digits is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number<T> {
    length: usize,
    digits: T,
}

impl<'a> Number<&'a [u8]> {
    pub fn new(digits: &'a [u8]) -> Read<Self> {
        let canonical = digits.len() == 1 || digits.first() != Some(&b'0');
        // Without a way out of the loop, the compiler vectorizes it.
        let all_digits = digits.iter().fold(true, |all, byte| all & byte.is_ascii_digit());
        if canonical && all_digits && (1..=MOST_DIGITS).contains(&digits.len()) {
            Ok(Number { length: digits.len(), digits })
        } else {
            Err(Declined)
        }
    }

    pub fn text(&self) -> Read<&'a str> {
        std::str::from_utf8(self.digits).map_err(|_| Declined)
    }

    pub fn owned(&self) -> Number<Vec<u8>> {
        Number { length: self.length, digits: self.digits.to_vec() }
    }
}

impl Number<Vec<u8>> {
    fn borrowed(&self) -> Number<&[u8]> {
        Number { length: self.length, digits: &self.digits }
    }

    pub fn digits(&self) -> &[u8] {
        &self.digits
    }
}

/// What of a shard is still wanted.
#[derive(Default)]
pub struct Range {
    /// The last record that was taken; nothing up to it is taken again.
    pub floor: Option<Number<Vec<u8>>>,
    /// The last record that is wanted.
    pub ceiling: Option<Number<Vec<u8>>>,
}

/// A column of values of any length.
pub struct Texts {
    pub ends: Vec<i32>,
    pub bytes: Vec<u8>,
}

impl Default for Texts {
    fn default() -> Self {
        Texts { ends: vec![0], bytes: Vec::new() }
    }
}

impl Texts {
    /// Ends the value whose bytes are there.
    pub fn close(&mut self) {
        // `Rows::add` sees to it that the bytes of a batch are fewer.
        self.ends.push(self.bytes.len() as i32);
    }

    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.close();
    }

    /// Adds a value so many times.
    pub fn repeat(&mut self, value: &[u8], times: usize) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&value.repeat(times));
        self.ends.extend((1..=times).map(|each| (begin + each * value.len()) as i32));
    }

    fn truncate(&mut self, rows: usize) {
        self.ends.truncate(rows + 1);
        self.bytes.truncate(self.ends[rows] as usize);
    }

    /// An empty column with room for a little more than this one holds.
    fn successor(&self) -> Self {
        let mut ends = Vec::with_capacity(self.ends.len());
        ends.push(0);
        Texts { ends, bytes: Vec::with_capacity(self.bytes.len() / 8 * 9) }
    }
}

/// What a payload brought.
#[derive(Debug, PartialEq)]
pub struct Brought {
    /// Its records that lie in the range.
    pub kept: usize,
    /// All its records.
    pub records: usize,
    /// Whether it reaches the end of the range.
    pub done: bool,
}

#[derive(Default)]
pub struct Rows {
    pub data: Texts,
    pub keys: Texts,
    pub numbers: Texts,
    pub times: Vec<i64>,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// These rows, and in their place none.
    pub fn take(&mut self) -> Rows {
        let empty = Rows {
            data: self.data.successor(),
            keys: self.keys.successor(),
            numbers: self.numbers.successor(),
            times: Vec::with_capacity(self.times.len()),
        };
        std::mem::replace(self, empty)
    }

    pub fn truncate(&mut self, rows: usize) {
        self.data.truncate(rows);
        self.keys.truncate(rows);
        self.numbers.truncate(rows);
        self.times.truncate(rows);
    }

    /// Adds the records of a payload that lie in a range, and moves the range's beginning behind them. If the payload is declined,
    /// nothing changes.
    pub fn add(&mut self, payload: &[u8], range: &mut Range, aggregates: bool) -> Read<Brought> {
        // No column takes more bytes of a payload than it has.
        if self.data.bytes.len() + self.keys.bytes.len() + self.numbers.bytes.len() + payload.len() > i32::MAX as usize {
            return Err(Declined);
        }
        let before = self.len();
        if self.data.bytes.capacity() == 0 {
            // Most of a payload may be data, and a column without room would move again and again.
            self.data.bytes.reserve(payload.len() / 4 * 3);
        }
        let brought = self.read(payload, range, aggregates);
        if brought.is_err() {
            self.truncate(before);
        }
        brought
    }

    fn read(&mut self, payload: &[u8], range: &mut Range, aggregates: bool) -> Read<Brought> {
        let mut floor = range.floor.as_ref().map(Number::borrowed);
        let ceiling = range.ceiling.as_ref().map(Number::borrowed);
        let (begin, mut records, mut last, mut passed) = (self.len(), None, None, false);
        let mut reader = Reader::new(payload);
        reader.object(|reader, name| {
            if !matches!(name, Name::Other(b"Records")) {
                return reader.skip();
            }
            once(&records)?;
            let mut count = 0;
            reader.array(|reader| {
                let record = Record::read(reader)?;
                let number = Number::new(record.number)?;
                count += 1;
                // Broken data is an error even if the record is not wanted.
                let start = self.data.bytes.len();
                // Decoding makes room for this value and no more: the column would move with each of them.
                self.data.bytes.reserve(record.data.len() / 4 * 3);
                STANDARD.decode_append(record.data, &mut self.data.bytes).map_err(|_| Declined)?;
                passed = passed || (ceiling.is_some() && ceiling < Some(number) && floor < Some(number));
                if passed || floor >= Some(number) {
                    self.data.bytes.truncate(start);
                } else {
                    if aggregates && self.data.bytes[start..].starts_with(MAGIC) {
                        return Err(Declined);
                    }
                    self.data.close();
                    self.keys.push(&record.key);
                    self.numbers.push(record.number);
                    self.times.push(record.time);
                    floor = Some(number);
                }
                last = Some(number);
                Ok(())
            })?;
            records = Some(count);
            Ok(())
        })?;
        reader.end()?;
        let done = ceiling.is_some() && last >= ceiling;
        let floor = floor.map(|number| number.owned());
        range.floor = floor;
        Ok(Brought { kept: self.len() - begin, records: records.unwrap_or(0), done })
    }
}

/// A record as it is in a payload.
struct Record<'a> {
    data: &'a [u8],
    number: &'a [u8],
    key: Cow<'a, [u8]>,
    time: i64,
}

impl<'a> Record<'a> {
    fn read(reader: &mut Reader<'a>) -> Read<Self> {
        let (mut data, mut number, mut key, mut time) = (None, None, None, None);
        reader.object(|reader, name| match name {
            Name::Data => set(&mut data, reader.unchecked_string()?),
            Name::Number => set(&mut number, reader.unchecked_string()?),
            Name::Key => set(&mut key, reader.text()?),
            Name::Time => set(&mut time, microseconds(reader.number()?)?),
            _ => reader.skip(),
        })?;
        Ok(Record { data: data.ok_or(Declined)?, number: number.ok_or(Declined)?, key: key.ok_or(Declined)?, time: time.ok_or(Declined)? })
    }
}

fn microseconds(seconds: f64) -> Read<i64> {
    let found = (seconds * MICROSECONDS).round_ties_even();
    if (0.0..MOST_MICROSECONDS).contains(&found) { Ok(found as i64) } else { Err(Declined) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(digits: &str) -> Number<&[u8]> {
        Number::new(digits.as_bytes()).unwrap()
    }

    fn payload(records: &[(&str, &str)]) -> Vec<u8> {
        let records: Vec<String> = records
            .iter()
            .map(|(number, data)| {
                format!(
                    "{{\"SequenceNumber\":\"{number}\",\"Data\":\"{data}\",\"PartitionKey\":\"k\",\"ApproximateArrivalTimestamp\":1.5}}"
                )
            })
            .collect();
        format!("{{\"Records\":[{}]}}", records.join(",")).into_bytes()
    }

    fn range(floor: &str, ceiling: &str) -> Range {
        Range { floor: Some(number(floor).owned()), ceiling: Some(number(ceiling).owned()) }
    }

    #[test]
    fn numbers_compare_as_numbers() {
        assert!(number("9") < number("10"));
        assert!(number("10") < number("11"));
        assert_eq!(number("0"), number("0"));
        let long = "1".repeat(MOST_DIGITS + 1);
        for digits in ["", "00", "07", "-1", "1_0", " 7", "x", &long] {
            assert_eq!(Number::new(digits.as_bytes()), Err(Declined), "{digits}");
        }
    }

    #[test]
    fn a_value_is_repeated_as_often_as_asked() {
        for (value, times) in [("", 3), ("ab", 0), ("ab", 1), ("ab", 2), ("abc", 7), ("abc", 1000)] {
            let mut column = Texts::default();
            column.push(b"x");
            column.repeat(value.as_bytes(), times);
            assert_eq!(column.bytes, ("x".to_owned() + &value.repeat(times)).into_bytes());
            assert_eq!(column.ends.len(), times + 2);
            assert_eq!(column.ends.last().copied(), Some(column.bytes.len() as i32));
        }
    }

    #[test]
    fn records_are_cut_to_the_range_and_taken_once() {
        let (mut rows, mut range) = (Rows::default(), range("3", "20"));
        let brought = rows.add(&payload(&[("3", "eA=="), ("9", "eQ=="), ("9", "eQ=="), ("10", "eg==")]), &mut range, true);
        assert_eq!(brought, Ok(Brought { kept: 2, records: 4, done: false }));
        let brought = rows.add(&payload(&[("20", "YQ==")]), &mut range, true);
        assert_eq!(brought, Ok(Brought { kept: 1, records: 1, done: true }));
        let brought = rows.add(&payload(&[("21", "Yg=="), ("22", "Yg==")]), &mut range, true);
        assert_eq!(brought, Ok(Brought { kept: 0, records: 2, done: true }));
        assert_eq!((&rows.data.bytes[..], &rows.data.ends[..]), (&b"yza"[..], &[0, 1, 2, 3][..]));
        assert_eq!((&rows.numbers.bytes[..], &rows.numbers.ends[..]), (&b"91020"[..], &[0, 1, 3, 5][..]));
        assert_eq!(rows.times, [1_500_000; 3]);
    }

    #[test]
    fn a_declined_payload_changes_nothing() {
        let (mut rows, mut range) = (Rows::default(), range("3", "20"));
        rows.add(&payload(&[("4", "eA==")]), &mut range, true).unwrap();
        let aggregate = "84mawg==";
        for records in [[("5", "eA=="), ("6", "%")], [("5", "eA=="), ("x", "eA==")], [("5", "eA=="), ("6", aggregate)]] {
            assert_eq!(rows.add(&payload(&records), &mut range, true), Err(Declined));
            assert_eq!((rows.len(), rows.data.bytes.len(), rows.keys.ends.len()), (1, 1, 2));
            assert_eq!(range.floor.as_ref().map(Number::digits), Some(&b"4"[..]));
        }
        assert_eq!(rows.add(&payload(&[("5", aggregate)]), &mut range, false).unwrap().kept, 1);
    }
}
