//! Reads what Kinesis sends for `kinesis_efo`, which has the same in Python: frames of event streams, heads of events and of GetRecords'
//! answers, and records, which become Arrow batches.
//!
//! What is unusual is declined: a KPL aggregate, the end of a shard, a value that is missing, anything that is wrong. Python reads that, so
//! its rows and its errors are Python's.

mod arrow;
mod frames;
mod heads;
mod json;
mod rows;

use std::borrow::Cow;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict};

use arrow::{Array, Buffer, Column, Schema};
use frames::{Incoming, Value};
use rows::{Number, Range, Rows, Texts};

/// What the library must expect of this module; another number is another interface.
const INTERFACE: u32 = 1;

/// Bytes of a payload from which other threads may run meanwhile. Below, getting the interpreter's lock back could take longer.
const WORTH_RELEASING: usize = 16 << 10;

/// The same in a fetcher's loop, which many threads may make wait for the lock: it reads this much in a twentieth of a millisecond.
const WORTH_RELEASING_IN_A_LOOP: usize = 512 << 10;

/// Rows of one shard within a batch.
struct Stretch {
    stream: String,
    shard: String,
    rows: usize,
}

/// The rows of a batch under way.
#[pyclass(module = "kinesis_efo_core")]
struct Batch {
    aggregates: bool,
    range: Range,
    rows: Rows,
    stretches: Vec<Stretch>,
}

#[pymethods]
impl Batch {
    /// aggregates: whether KPL aggregates are to be taken apart, and so declined.
    #[new]
    fn new(aggregates: bool) -> Self {
        Batch { aggregates, range: Range::default(), rows: Rows::default(), stretches: Vec::new() }
    }

    /// Takes records of a shard from now on, behind the number `floor` and up to `ceiling`. Returns whether it can.
    #[pyo3(signature = (stream, shard, floor, ceiling))]
    fn begin(&mut self, stream: String, shard: String, floor: Option<&str>, ceiling: Option<&str>) -> bool {
        let (Ok(floor), Ok(ceiling)) = (number(floor), number(ceiling)) else { return false };
        self.range = Range { floor, ceiling };
        self.stretches.pop_if(|last| last.rows == 0);
        self.stretches.push(Stretch { stream, shard, rows: 0 });
        true
    }

    /// Takes the records of a payload. Returns how many lie in the range, how many there are, and whether the end of the range is reached;
    /// None if the payload is declined.
    fn add(&mut self, py: Python<'_>, payload: &Bound<'_, PyAny>) -> PyResult<Option<(usize, usize, bool)>> {
        let buffer = PyUntypedBuffer::get(payload)?;
        let Some(stretch) = self.stretches.last_mut() else { return Ok(None) };
        if !buffer.readonly() || !buffer.is_c_contiguous() || buffer.item_size() != 1 {
            return Ok(None);
        }
        // SAFETY: the buffer holds so many bytes there as long as it lives, and they are read-only: of `bytes`, or of an event that Arrow
        // received.
        let bytes = match buffer.len_bytes() {
            0 => &[],
            length => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>().cast_const(), length) },
        };
        let (rows, range, aggregates) = (&mut self.rows, &mut self.range, self.aggregates);
        let brought = if bytes.len() < WORTH_RELEASING {
            rows.add(bytes, range, aggregates)
        } else {
            py.detach(|| rows.add(bytes, range, aggregates))
        };
        Ok(brought.ok().map(|brought| {
            stretch.rows += brought.kept;
            (brought.kept, brought.records, brought.done)
        }))
    }

    /// Number of the last record that was taken, or where the range began; None if nothing was.
    #[getter]
    fn floor(&self) -> Option<String> {
        let floor = self.range.floor.as_ref()?;
        Some(floor.digits().iter().map(|digit| char::from(*digit)).collect())
    }

    /// Forgets all rows.
    fn clear(&mut self) {
        self.rows.truncate(0);
        self.stretches.clear();
    }

    /// The rows taken so far, for Arrow. Goes on with the same range, without rows.
    fn take(&mut self) -> PyResult<Taken> {
        let last = self.stretches.last().map(|last| Stretch { stream: last.stream.clone(), shard: last.shard.clone(), rows: 0 });
        let stretches = std::mem::replace(&mut self.stretches, last.into_iter().collect());
        let rows = self.rows.take();
        let count = rows.len();
        let columns = vec![
            texts(c"data", c"z", rows.data),
            texts(c"partitionKey", c"u", rows.keys),
            texts(c"sequenceNumber", c"u", rows.numbers),
            longs(c"subSequenceNumber", c"l", vec![0; count]),
            longs(c"approximateArrivalTimestamp", c"tsu:UTC", rows.times),
            texts(c"stream", c"u", repeated(&stretches, |each| &each.stream)?),
            texts(c"shardId", c"u", repeated(&stretches, |each| &each.shard)?),
        ];
        Ok(Taken { columns: Some(columns), rows: count })
    }
}

/// A batch that Arrow takes over, once.
#[pyclass(module = "kinesis_efo_core")]
struct Taken {
    columns: Option<Vec<Column>>,
    rows: usize,
}

#[pymethods]
impl Taken {
    /// See "The Arrow PyCapsule Interface".
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &mut self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let columns = self.columns.take().ok_or_else(|| PyValueError::new_err("the batch was taken before"))?;
        Ok((
            PyCapsule::new_with_value(py, Schema::of(&columns), c"arrow_schema")?,
            PyCapsule::new_with_value(py, Array::of(columns, self.rows), c"arrow_array")?,
        ))
    }
}

/// Frames of an event stream, whose bytes come in chunks that are cut anywhere.
#[pyclass(module = "kinesis_efo_core")]
struct Frames {
    incoming: Incoming,
}

#[pymethods]
impl Frames {
    #[new]
    fn new() -> Self {
        Frames { incoming: Incoming::default() }
    }

    /// Takes the next bytes. Returns the frames that they complete, each as its headers and its payload; and, if what follows is declined,
    /// all bytes from there on, which are forgotten.
    fn feed<'py>(&mut self, py: Python<'py>, chunk: &Bound<'py, PyBytes>) -> PyResult<(Vec<Frame<'py>>, Option<Bound<'py, PyBytes>>)> {
        let (mut bytes, mut found) = (chunk.as_bytes(), Vec::new());
        let mut declined = Cow::default();
        while let Ok(next) = self.incoming.next(&mut bytes) {
            let Some(whole) = next else { return Ok((found, None)) };
            let Ok(frame) = released(py, &whole, frames::read) else {
                declined = whole;
                break;
            };
            let headers = PyDict::new(py);
            for (name, value) in frame.headers {
                match value {
                    Value::Flag(value) => headers.set_item(name, value)?,
                    Value::Raw(value) => headers.set_item(name, PyBytes::new(py, value))?,
                    Value::Text(value) => headers.set_item(name, value)?,
                }
            }
            found.push((headers, PyBytes::new(py, frame.payload)));
        }
        let rest = self.incoming.rest(&declined, bytes);
        Ok((found, Some(PyBytes::new(py, &rest))))
    }

    /// Length of the frame that is under way, bytes; 0 if its first bytes have not arrived.
    #[getter]
    fn awaited(&self) -> usize {
        self.incoming.awaited()
    }

    /// Bytes of that frame that have not arrived.
    #[getter]
    fn missing(&self) -> usize {
        self.incoming.missing()
    }

    /// What has arrived of that frame, which is forgotten.
    fn rest<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.incoming.rest(&[], &[]))
    }
}

/// Headers and payload.
type Frame<'py> = (Bound<'py, PyDict>, Bound<'py, PyBytes>);

/// Continuation, lag in milliseconds, records, number of the last one.
type Head<'a> = (&'a str, u64, usize, Option<&'a str>);

/// Iterator, lag in milliseconds, records, number of the last one, bytes of data and keys.
type Answer<'a> = (&'a str, u64, usize, Option<&'a str>, usize);

/// The head of an event; None if it is declined.
#[pyfunction]
fn read_head<'a>(py: Python<'_>, payload: &'a [u8]) -> Option<Head<'a>> {
    let head = released(py, payload, heads::head).ok()?;
    Some((head.continuation, head.behind, head.records, head.last))
}

/// An answer of GetRecords; None if it is declined.
#[pyfunction]
fn read_answer<'a>(py: Python<'_>, body: &'a [u8]) -> Option<Answer<'a>> {
    let answer = released(py, body, heads::answer).ok()?;
    Some((answer.iterator, answer.behind, answer.records, answer.last, answer.size))
}

/// Reads bytes, and lets other threads run meanwhile if they are many.
fn released<'a, T: Send>(py: Python<'_>, bytes: &'a [u8], read: fn(&'a [u8]) -> json::Read<T>) -> json::Read<T> {
    if bytes.len() < WORTH_RELEASING_IN_A_LOOP { read(bytes) } else { py.detach(|| read(bytes)) }
}

fn number(digits: Option<&str>) -> json::Read<Option<Number<Vec<u8>>>> {
    digits.map(|digits| Number::new(digits.as_bytes()).map(|number| number.owned())).transpose()
}

fn texts(name: &'static std::ffi::CStr, format: &'static std::ffi::CStr, values: Texts) -> Column {
    Column { name, format, buffers: vec![Buffer::Offsets(values.ends), Buffer::Bytes(values.bytes)] }
}

fn longs(name: &'static std::ffi::CStr, format: &'static std::ffi::CStr, values: Vec<i64>) -> Column {
    Column { name, format, buffers: vec![Buffer::Longs(values)] }
}

/// The column with a name of each row's shard.
fn repeated(stretches: &[Stretch], name: impl Fn(&Stretch) -> &String) -> PyResult<Texts> {
    let size: usize = stretches.iter().map(|each| each.rows * name(each).len()).sum();
    if i32::try_from(size).is_err() {
        return Err(PyOverflowError::new_err("the names of a batch's shards do not fit into a column"));
    }
    let mut column = Texts::default();
    for each in stretches {
        column.repeat(name(each).as_bytes(), each.rows);
    }
    Ok(column)
}

#[pymodule]
pub fn kinesis_efo_core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(read_head, module)?)?;
    module.add_function(wrap_pyfunction!(read_answer, module)?)?;
    module.add_class::<Frames>()?;
    module.add_class::<Batch>()
}
