//! Splits the bytes of an event stream into frames (https://smithy.io/2.0/aws/amazon-eventstream.html), and verifies them.

use std::borrow::Cow;
use std::mem;

use crc32fast::Hasher;

use crate::json::{Declined, Read};

const PRELUDE: usize = 12;
const CHECKSUM: usize = 4;
const LEAST: usize = PRELUDE + CHECKSUM;
const MOST: usize = 24 << 20;
/// Longest frame whose pieces are put together here: they are copied once more than in Python, which declines nothing.
const MOST_IN_PIECES: usize = 128 << 10;

/// A header's value. Numbers, times and UUIDs stay raw.
#[derive(Debug, PartialEq)]
pub enum Value<'a> {
    Flag(bool),
    Raw(&'a [u8]),
    Text(&'a str),
}

#[derive(Debug, PartialEq)]
pub struct Frame<'a> {
    pub headers: Vec<(&'a str, Value<'a>)>,
    pub payload: &'a [u8],
}

/// The frame that is under way: what has arrived of it, in one piece.
#[derive(Default)]
pub struct Incoming {
    begun: Vec<u8>,
    awaited: usize,
}

impl Incoming {
    /// Length of the frame; 0 if its prelude has not arrived.
    pub fn awaited(&self) -> usize {
        self.awaited
    }

    /// Bytes of the frame that have not arrived.
    pub fn missing(&self) -> usize {
        self.awaited.saturating_sub(self.begun.len())
    }

    /// The bytes of the next frame that a chunk completes, or None. The chunk is moved on behind what is taken of it.
    pub fn next<'a>(&mut self, chunk: &mut &'a [u8]) -> Read<Option<Cow<'a, [u8]>>> {
        if self.begun.is_empty() {
            let length = length(chunk)?;
            if let Some((whole, behind)) = chunk.split_at_checked(length).filter(|_| length > 0) {
                *chunk = behind;
                return Ok(Some(Cow::Borrowed(whole)));
            }
            self.awaited = length;
        } else if self.awaited == 0 {
            self.take(chunk, PRELUDE - self.begun.len());
            self.awaited = length(&self.begun)?;
        }
        if self.awaited == 0 {
            self.take(chunk, chunk.len());
            return Ok(None);
        }
        if self.awaited > MOST_IN_PIECES {
            return Err(Declined);
        }
        self.begun.reserve_exact(self.missing());
        self.take(chunk, self.missing());
        if self.missing() > 0 {
            return Ok(None);
        }
        self.awaited = 0;
        Ok(Some(Cow::Owned(mem::take(&mut self.begun))))
    }

    /// All bytes that were not given out: those that have arrived, or of a frame that is declined, and those of the chunk behind them.
    pub fn rest(&mut self, declined: &[u8], chunk: &[u8]) -> Vec<u8> {
        self.awaited = 0;
        [&mem::take(&mut self.begun), declined, chunk].concat()
    }

    fn take(&mut self, chunk: &mut &[u8], most: usize) {
        let (taken, behind) = chunk.split_at(most.min(chunk.len()));
        self.begun.extend_from_slice(taken);
        *chunk = behind;
    }
}

/// Reads a whole frame, if its checksum is right.
pub fn read(whole: &[u8]) -> Read<Frame<'_>> {
    let (body, checksum) = whole.split_last_chunk::<CHECKSUM>().ok_or(Declined)?;
    if crc(body) != u32::from_be_bytes(*checksum) {
        return Err(Declined);
    }
    let headers = number(&body[4..]) as usize;
    let (block, payload) = body[PRELUDE..].split_at(headers);
    Ok(Frame { headers: read_headers(block)?, payload })
}

/// Length of the frame that begins with these bytes; 0 if they are too few to tell.
fn length(begin: &[u8]) -> Read<usize> {
    let Some(prelude) = begin.first_chunk::<PRELUDE>() else { return Ok(0) };
    let (total, headers) = (number(prelude) as usize, number(&prelude[4..]) as usize);
    let right = crc(&prelude[..8]) == number(&prelude[8..]);
    if right && (LEAST..=MOST).contains(&total) && headers <= total - LEAST { Ok(total) } else { Err(Declined) }
}

fn read_headers(mut block: &[u8]) -> Read<Vec<(&str, Value<'_>)>> {
    let mut headers = Vec::new();
    while !block.is_empty() {
        let size = cut(&mut block, 1)?[0];
        let name = text(cut(&mut block, size.into())?)?;
        let value = match cut(&mut block, 1)?[0] {
            0 => Value::Flag(true),
            1 => Value::Flag(false),
            2 => Value::Raw(cut(&mut block, 1)?),
            3 => Value::Raw(cut(&mut block, 2)?),
            4 => Value::Raw(cut(&mut block, 4)?),
            5 | 8 => Value::Raw(cut(&mut block, 8)?),
            9 => Value::Raw(cut(&mut block, 16)?),
            6 => Value::Raw(long(&mut block)?),
            7 => Value::Text(text(long(&mut block)?)?),
            _ => return Err(Declined),
        };
        headers.push((name, value));
    }
    Ok(headers)
}

/// What stands behind its length of two bytes.
fn long<'a>(block: &mut &'a [u8]) -> Read<&'a [u8]> {
    let size = cut(block, 2)?;
    cut(block, usize::from(size[0]) << 8 | usize::from(size[1]))
}

fn cut<'a>(block: &mut &'a [u8], size: usize) -> Read<&'a [u8]> {
    let (taken, behind) = block.split_at_checked(size).ok_or(Declined)?;
    *block = behind;
    Ok(taken)
}

fn text(bytes: &[u8]) -> Read<&str> {
    std::str::from_utf8(bytes).map_err(|_| Declined)
}

/// The number that some bytes begin with. The caller knows that there are four.
fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn crc(bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = b"\x01n\x07\0\x01v";

    fn frame(headers: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut whole = prelude(LEAST + headers.len() + payload.len(), headers.len());
        whole.extend_from_slice(headers);
        whole.extend_from_slice(payload);
        whole.extend(crc(&whole).to_be_bytes());
        whole
    }

    fn prelude(total: usize, headers: usize) -> Vec<u8> {
        let lengths = [(total as u32).to_be_bytes(), (headers as u32).to_be_bytes()].concat();
        [&lengths[..], &crc(&lengths).to_be_bytes()].concat()
    }

    /// The frames of a stream that is cut into chunks, and what is left at its end, or where it is declined.
    fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
        let (mut incoming, mut found) = (Incoming::default(), Vec::new());
        let mut chunks = chunks.into_iter();
        while let Some(mut chunk) = chunks.next() {
            loop {
                match incoming.next(&mut chunk) {
                    Ok(None) => break,
                    Ok(Some(whole)) if read(&whole).is_ok() => found.push(whole.into_owned()),
                    declined => {
                        let whole = declined.ok().flatten().unwrap_or_default();
                        let rest = incoming.rest(&whole, chunk);
                        return (found, chunks.fold(rest, |rest, chunk| [&rest, chunk].concat()), true);
                    }
                }
            }
            assert!(chunk.is_empty());
        }
        (found, incoming.rest(&[], &[]), false)
    }

    #[test]
    fn frames_are_the_same_wherever_they_are_cut() {
        let frames = [frame(PLAIN, b"x"), frame(b"", b""), frame(PLAIN, &[7; 100])];
        let wire = frames.concat();
        for begun in [0, 1, 11, 12, 15, 16, 60, 121] {
            let rest = &frames[2][..begun];
            let stream = [&wire[..], rest].concat();
            for size in 1..=stream.len() {
                assert_eq!(split(stream.chunks(size)), (frames.to_vec(), rest.to_vec(), false), "{begun}, by {size}");
            }
            for at in 0..stream.len() {
                let (one, other) = stream.split_at(at);
                assert_eq!(split([one, other]).0, frames, "{at}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_wrong_is_declined_with_all_behind_it() {
        let (good, last) = (frame(PLAIN, b"x"), frame(PLAIN, b"y"));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let stream = [&good[..], &bad, &last].concat();
            for size in [1, 5, good.len(), good.len() + 3, stream.len()] {
                let expected = (vec![good.clone()], [&bad[..], &last].concat(), true);
                assert_eq!(split(stream.chunks(size)), expected, "{at}, by {size}");
            }
        }
    }

    #[test]
    fn lengths_that_are_impossible_are_declined() {
        for (total, headers) in [(MOST + 1, 0), (LEAST - 1, 0), (u32::MAX as usize, 0), (100, 85)] {
            assert_eq!(length(&prelude(total, headers)), Err(Declined), "{total}, {headers}");
        }
        for (total, headers) in [(MOST, 0), (LEAST, 0), (100, 84)] {
            assert_eq!(length(&prelude(total, headers)), Ok(total), "{total}, {headers}");
            assert_eq!(length(&prelude(total, headers)[..PRELUDE - 1]), Ok(0));
        }
    }

    #[test]
    fn a_frame_under_way_says_what_it_waits_for() {
        let (whole, mut incoming) = (frame(PLAIN, &[7; 100]), Incoming::default());
        for (upto, awaited) in [(11, 0), (12, whole.len()), (60, whole.len())] {
            let mut chunk = &whole[incoming.begun.len()..upto];
            assert_eq!(incoming.next(&mut chunk), Ok(None));
            assert_eq!((incoming.awaited(), incoming.missing()), (awaited, awaited.saturating_sub(upto)));
        }
        assert_eq!(incoming.begun.capacity(), whole.len(), "in one piece from the start");
        assert_eq!(incoming.next(&mut &whole[60..]), Ok(Some(Cow::Borrowed(&whole[..]))));
        assert_eq!((incoming.awaited(), incoming.missing(), incoming.begun.capacity()), (0, 0, 0));
    }

    #[test]
    fn a_long_frame_is_declined_unless_it_comes_in_one_piece() {
        for (longer, taken) in [(0, true), (1, false)] {
            let whole = frame(b"", &vec![7; MOST_IN_PIECES - LEAST + longer]);
            assert_eq!(split([&whole[..]]), (vec![whole.clone()], Vec::new(), false));
            for at in [PRELUDE - 1, PRELUDE, 1000, whole.len() - 1] {
                let (one, other) = whole.split_at(at);
                let expected = if taken { (vec![whole.clone()], Vec::new(), false) } else { (Vec::new(), whole.clone(), true) };
                assert_eq!(split([one, other]), expected, "{longer}, {at}");
            }
        }
        let (mut incoming, whole) = (Incoming::default(), frame(b"", &vec![7; MOST_IN_PIECES]));
        assert_eq!(incoming.next(&mut &whole[..PRELUDE]), Err(Declined));
        incoming.rest(&[], &whole[..PRELUDE]);
        assert_eq!((incoming.awaited(), incoming.missing()), (0, 0));
    }

    #[test]
    fn headers_of_every_kind_are_read_and_what_is_cut_off_is_declined() {
        let values: [(&[u8], Value); 10] = [
            (b"\0", Value::Flag(true)),
            (b"\x01", Value::Flag(false)),
            (b"\x02a", Value::Raw(b"a")),
            (b"\x03ab", Value::Raw(b"ab")),
            (b"\x04abcd", Value::Raw(b"abcd")),
            (b"\x05abcdefgh", Value::Raw(b"abcdefgh")),
            (b"\x06\0\x02hi", Value::Raw(b"hi")),
            (b"\x07\0\x02hi", Value::Text("hi")),
            (b"\x08abcdefgh", Value::Raw(b"abcdefgh")),
            (b"\x09abcdefghijklmnop", Value::Raw(b"abcdefghijklmnop")),
        ];
        for (raw, value) in values {
            let block = [b"\x01n", raw].concat();
            assert_eq!(read_headers(&block), Ok(vec![("n", value)]));
            for end in 1..block.len() {
                assert_eq!(read_headers(&block[..end]), Err(Declined));
            }
        }
        let long = [&b"\x01n\x07\x01\x02"[..], &[b'v'; 258]].concat();
        assert_eq!(read_headers(&long), Ok(vec![("n", Value::Text(&"v".repeat(258)))]));
        for block in [&b"\x01n\x0a"[..], b"\x01\xff\0", b"\x01n\x07\0\x01\xff"] {
            assert_eq!(read_headers(block), Err(Declined));
        }
        let whole = frame(b"\x01a\0\x01b\x01", b"payload");
        assert_eq!(read(&whole).unwrap().headers, [("a", Value::Flag(true)), ("b", Value::Flag(false))]);
        assert_eq!(read(&whole).unwrap().payload, b"payload");
    }
}
