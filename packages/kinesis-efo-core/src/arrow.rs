//! Hands columns to Arrow through its C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), without copies.
//!
//! All `unsafe` that this needs is here, and nowhere else but for the payload's bytes in `lib`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

const NULLABLE: i64 = 2;

/// A column: its name, its type in Arrow's words, and its buffers behind the one of nulls, of which there are none.
pub struct Column {
    pub name: &'static CStr,
    pub format: &'static CStr,
    pub buffers: Vec<Buffer>,
}

/// Memory that Arrow keeps until it needs it no more.
pub enum Buffer {
    Bytes(Vec<u8>),
    Offsets(Vec<i32>),
    Longs(Vec<i64>),
}

impl Buffer {
    fn address(&self) -> *const c_void {
        match self {
            Buffer::Bytes(values) => values.as_ptr().cast(),
            Buffer::Offsets(values) => values.as_ptr().cast(),
            Buffer::Longs(values) => values.as_ptr().cast(),
        }
    }
}

/// `struct ArrowSchema`.
#[repr(C)]
pub struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    children_count: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
pub struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    buffers_count: i64,
    children_count: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private: *mut c_void,
}

// SAFETY: what the pointers lead to belongs to the struct alone, and may be released in any thread.
unsafe impl Send for Schema {}
// SAFETY: as above.
unsafe impl Send for Array {}

/// What the pointers of a `Schema` lead to.
struct SchemaParts {
    children: Vec<*mut Schema>,
}

/// What the pointers of an `Array` lead to.
struct ArrayParts {
    addresses: Vec<*const c_void>,
    children: Vec<*mut Array>,
    _owned: Vec<Buffer>,
}

impl Schema {
    /// The schema of a batch with these columns.
    pub fn of(columns: &[Column]) -> Self {
        let fields = columns.iter().map(|column| Schema::new(column.format, column.name, NULLABLE, Vec::new()));
        Schema::new(c"+s", c"", 0, fields.collect())
    }

    fn new(format: &'static CStr, name: &'static CStr, flags: i64, children: Vec<Schema>) -> Self {
        let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
        let mut parts = Box::new(SchemaParts { children });
        Schema {
            format: format.as_ptr(),
            name: name.as_ptr(),
            metadata: ptr::null(),
            flags,
            children_count: parts.children.len() as i64,
            children: parts.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private: Box::into_raw(parts).cast(),
        }
    }
}

impl Array {
    /// A batch of these columns, with so many rows.
    pub fn of(columns: Vec<Column>, rows: usize) -> Self {
        let arrays = columns.into_iter().map(|column| Array::new(rows, column.buffers, Vec::new()));
        Array::new(rows, Vec::new(), arrays.collect())
    }

    fn new(rows: usize, owned: Vec<Buffer>, children: Vec<Array>) -> Self {
        // The first buffer would say which values are null.
        let addresses = std::iter::once(ptr::null()).chain(owned.iter().map(Buffer::address)).collect();
        let children = children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect();
        let mut parts = Box::new(ArrayParts { addresses, children, _owned: owned });
        Array {
            length: rows as i64,
            null_count: 0,
            offset: 0,
            buffers_count: parts.addresses.len() as i64,
            children_count: parts.children.len() as i64,
            buffers: parts.addresses.as_mut_ptr(),
            children: parts.children.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private: Box::into_raw(parts).cast(),
        }
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it has not been released, else there would be no callback.
            unsafe { release(self) }
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it has not been released, else there would be no callback.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: the interface calls this once, with a struct that `Schema::new` filled. Children that were moved elsewhere have no callback
    // any more, so that dropping them frees the struct alone.
    unsafe {
        let parts = Box::from_raw((*schema).private.cast::<SchemaParts>());
        for child in parts.children {
            drop(Box::from_raw(child));
        }
        (*schema).release = None;
    }
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: as in `release_schema`.
    unsafe {
        let parts = Box::from_raw((*array).private.cast::<ArrayParts>());
        for child in parts.children {
            drop(Box::from_raw(child));
        }
        (*array).release = None;
    }
}
