//! Splits the bytes of an event stream into frames (https://smithy.io/2.0/aws/amazon-eventstream.html), and verifies them.

use std::borrow::Cow;
use std::mem;

use crc32fast::Hasher;

use crate::json::{Declined, Read};

const PRELUDE: usize = 12;
const CHECKSUM: usize = 4;
const LEAST: usize = PRELUDE + CHECKSUM;
const MOST: usize = 24 << 20;

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
        self.begun.try_reserve_exact(self.missing()).map_err(|_| Declined)?;
        self.take(chunk, self.missing());
        if self.missing() > 0 {
            return Ok(None);
        }
        self.awaited = 0;
        Ok(Some(Cow::Owned(mem::take(&mut self.begun))))
    }

    /// All bytes that were not given out: those of a frame that is declined, if it was, those before it, and those of the chunk behind.
    pub fn rest(&mut self, declined: &[u8], chunk: &[u8]) -> Vec<u8> {
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
