//! Reads the heads of events and of GetRecords' answers. Their records are counted, and not decoded.

use memchr::memmem;

use crate::json::{Declined, Name, Read, Reader, set};
use crate::rows::Number;

const NUMBER_NAME: &[u8] = b"\"SequenceNumber\"";
const MOST_DIGITS: usize = 200;

/// The head of an event behind which its shard goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Head<'a> {
    pub continuation: &'a str,
    pub behind: u64,
    pub records: usize,
    /// Number of the last record.
    pub last: Option<&'a str>,
}

/// An answer behind which its shard goes on.
#[derive(Debug, PartialEq)]
pub struct Answer<'a> {
    pub iterator: &'a str,
    pub behind: u64,
    pub records: usize,
    pub last: Option<&'a str>,
    /// Bytes of data and keys, as Kinesis counts them.
    pub size: usize,
}

/// Reads the head of an event. One that ends its shard is declined.
pub fn head(payload: &[u8]) -> Read<Head<'_>> {
    let (mut continuation, mut behind, mut records, mut children) = (None, None, None, None);
    let mut reader = Reader::new(payload);
    reader.object(|reader, name| match name {
        Name::Other(b"ContinuationSequenceNumber") => set(&mut continuation, reader.string()?),
        Name::Other(b"MillisBehindLatest") => set(&mut behind, reader.count()?),
        Name::Other(b"Records") => {
            let mut count = 0;
            reader.array(|reader| {
                count += 1;
                reader.object(|reader, _| reader.skip())
            })?;
            set(&mut records, count)
        }
        Name::Other(b"ChildShards") => set(&mut children, reader.nothing()?),
        _ => reader.skip(),
    })?;
    reader.end()?;
    let continuation = Number::new(continuation.ok_or(Declined)?)?;
    let records = records.unwrap_or(0);
    let last = if records > 0 { last_number(payload)? } else { None };
    if last.is_some_and(|last| last > continuation) {
        return Err(Declined);
    }
    Ok(Head { continuation: continuation.text()?, behind: behind.unwrap_or(0), records, last: last.map(|last| last.text()).transpose()? })
}

/// Reads an answer of GetRecords. One that ends its shard is declined.
pub fn answer(body: &[u8]) -> Read<Answer<'_>> {
    let (mut iterator, mut behind, mut records, mut children) = (None, None, None, None);
    let (mut last, mut size) = (None, 0);
    let mut reader = Reader::new(body);
    reader.object(|reader, name| match name {
        Name::Other(b"NextShardIterator") => set(&mut iterator, reader.string()?),
        Name::Other(b"MillisBehindLatest") => set(&mut behind, reader.count()?),
        Name::Other(b"Records") => {
            let mut count = 0;
            reader.array(|reader| {
                let (number, bytes) = polled(reader)?;
                count += 1;
                size += bytes;
                last = Some(number);
                Ok(())
            })?;
            set(&mut records, count)
        }
        Name::Other(b"ChildShards") => set(&mut children, reader.nothing()?),
        _ => reader.skip(),
    })?;
    reader.end()?;
    let iterator = std::str::from_utf8(iterator.filter(|text| !text.is_empty()).ok_or(Declined)?).map_err(|_| Declined)?;
    let last = last.map(|digits| Number::new(digits)?.text()).transpose()?;
    Ok(Answer { iterator, behind: behind.unwrap_or(0), records: records.ok_or(Declined)?, last, size })
}

/// The number of a record, and the bytes of its data and key.
fn polled<'a>(reader: &mut Reader<'a>) -> Read<(&'a [u8], usize)> {
    let (mut data, mut number, mut key) = (None, None, None);
    reader.object(|reader, name| match name {
        Name::Data => set(&mut data, reader.skip_string()?),
        Name::Number => set(&mut number, reader.string()?),
        Name::Key => set(&mut key, reader.skip_string()?),
        _ => reader.skip(),
    })?;
    // With its quotes, to a few bytes.
    let data = (data.ok_or(Declined)? + 2) * 3 / 4;
    Ok((number.ok_or(Declined)?, data + key.unwrap_or(0)))
}

/// The last sequence number in the text of an event; None if it is none. Quotes within keys and data are escaped.
fn last_number(payload: &[u8]) -> Read<Option<Number<&[u8]>>> {
    let Some(at) = memmem::rfind(payload, NUMBER_NAME) else { return Ok(None) };
    let behind = payload[at + NUMBER_NAME.len()..].trim_ascii_start();
    let Some(value) = behind.strip_prefix(b":").map(<[u8]>::trim_ascii_start) else { return Ok(None) };
    let Some(text) = value.strip_prefix(b"\"") else { return Ok(None) };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=MOST_DIGITS).contains(&digits) || text.get(digits) != Some(&b'"') {
        return Ok(None);
    }
    Number::new(&text[..digits]).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: &str =
        r#"{"Data":"eA==","PartitionKey":"k","SequenceNumber":"41"},{"Data":"eHg=","PartitionKey":"\"","SequenceNumber":"42"}"#;

    fn event(continuation: &str, records: &str, more: &str) -> String {
        format!(r#"{{"ContinuationSequenceNumber":{continuation},"MillisBehindLatest":7,"Records":[{records}]{more}}}"#)
    }

    fn polled(iterator: &str, records: &str, more: &str) -> String {
        format!(r#"{{"NextShardIterator":{iterator},"MillisBehindLatest":7,"Records":[{records}]{more}}}"#)
    }

    #[test]
    fn a_head_says_how_far_an_event_reads() {
        let expected = Head { continuation: "42", behind: 7, records: 2, last: Some("42") };
        for more in ["", r#","ChildShards":null"#, r#","ChildShards":[]"#, r#","Other":{"a":[1.5,"\n"]}"#] {
            assert_eq!(head(event(r#""42""#, RECORDS, more).as_bytes()), Ok(expected.clone()), "{more}");
        }
        let empty = Head { continuation: "0", behind: 0, records: 0, last: None };
        assert_eq!(head(br#"{"ContinuationSequenceNumber":"0"}"#), Ok(empty));
    }

    #[test]
    fn a_head_that_is_unusual_is_declined() {
        for (continuation, records, more) in [
            ("null", "", r#","ChildShards":[{}]"#),
            ("null", "", ""),
            (r#""""#, "", ""),
            (r#""042""#, "", ""),
            (r#""4x""#, "", ""),
            ("42", "", ""),
            (r#""42""#, "", r#","ChildShards":[{}]"#),
            (r#""41""#, RECORDS, ""),
            (r#""42""#, r#"{"SequenceNumber":"042"}"#, ""),
            (r#""42""#, "1", ""),
            (r#""42""#, "{},", ""),
            (r#""42""#, r#"{"x":1"#, ""),
            (r#""42""#, "", r#","Records":[]"#),
            (r#""42""#, "", r#","MillisBehindLatest":0"#),
            (r#""42""#, "", r#","ContinuationSequenceNumber":"42""#),
            (r#""42""#, "", r#","ChildShards":null,"ChildShards":null"#),
            (r#""42""#, "", r#","x":[[[[1]]]]"#),
            (r#""42""#, "", "}"),
        ] {
            assert_eq!(head(event(continuation, records, more).as_bytes()), Err(Declined), "{continuation} {records} {more}");
        }
        assert_eq!(head(b"{}"), Err(Declined));
    }

    #[test]
    fn the_last_number_is_the_last_of_the_text() {
        let long = format!(r#""SequenceNumber":"{}""#, "1".repeat(MOST_DIGITS + 1));
        for (text, last) in [
            (r#""SequenceNumber":"41","SequenceNumber" :\t"42""#, Some("42")),
            (r#""SequenceNumber":"41","Key":"SequenceNumber""#, None),
            (r#""SequenceNumber":"""#, None),
            (r#""SequenceNumber":"4x""#, None),
            (r#""SequenceNumber":"42"#, None),
            (r#""SequenceNumber":42"#, None),
            (r#""SequenceNumber""#, None),
            ("", None),
            (&long, None),
        ] {
            let text = text.replace(r"\t", "\t");
            let found = last_number(text.as_bytes()).unwrap().map(|found| found.text().unwrap());
            assert_eq!(found, last, "{text}");
        }
        assert_eq!(last_number(br#""SequenceNumber":"042""#), Err(Declined));
    }

    #[test]
    fn an_answer_says_where_to_go_on_and_what_it_weighs() {
        let expected = Answer { iterator: "i", behind: 7, records: 2, last: Some("42"), size: 2 * (6 * 3 / 4) + 1 + 2 };
        assert_eq!(answer(polled(r#""i""#, RECORDS, r#","ChildShards":[]"#).as_bytes()), Ok(expected));
        let empty = Answer { iterator: "i", behind: 0, records: 0, last: None, size: 0 };
        assert_eq!(answer(br#"{"Records":[],"NextShardIterator":"i"}"#), Ok(empty));
        let odd = r#"{"Data":"","SequenceNumber":"x"},{"Data":"","SequenceNumber":"42"}"#;
        assert_eq!(answer(polled(r#""i""#, odd, "").as_bytes()).unwrap().size, 2, "without keys");
    }

    #[test]
    fn an_answer_that_is_unusual_is_declined() {
        for (iterator, records, more) in [
            ("null", "", r#","ChildShards":[{}]"#),
            (r#""""#, "", ""),
            ("7", "", ""),
            (r#""i""#, "", r#","ChildShards":[{}]"#),
            (r#""i""#, r#"{"Data":"","SequenceNumber":"042"}"#, ""),
            (r#""i""#, r#"{"Data":"","SequenceNumber":42}"#, ""),
            (r#""i""#, r#"{"Data":null,"SequenceNumber":"42"}"#, ""),
            (r#""i""#, r#"{"Data":""}"#, ""),
            (r#""i""#, r#"{"SequenceNumber":"42"}"#, ""),
            (r#""i""#, r#"{"Data":"","Data":"","SequenceNumber":"42"}"#, ""),
            (r#""i""#, "", r#","Records":[]"#),
            (r#""i""#, "", "}"),
        ] {
            assert_eq!(answer(polled(iterator, records, more).as_bytes()), Err(Declined), "{iterator} {records} {more}");
        }
        assert_eq!(answer(br#"{"NextShardIterator":"i"}"#), Err(Declined));
        assert_eq!(answer(br#"{"Records":[]}"#), Err(Declined));
    }
}
