// SPDX-License-Identifier: Apache-2.0
//! The part of gpushm that share.rs needs, over the declarations that bindgen generates from
//! gpushm/gpushm.h: handles that are closed when dropped, and results instead of codes.
use gpushm_sys as c;
use std::fmt;
use std::mem::size_of;

/// Options and results: `struct_size` is set, all other members are 0, the default.
macro_rules! sized {
    ($structure:ident) => {{
        // Safe: numbers, strings and nullable pointers, for which 0 is valid.
        let mut value: c::$structure = unsafe { std::mem::zeroed() };
        value.struct_size = size_of::<c::$structure>() as _;
        value
    }};
}

fn text(text: &str) -> c::gpushm_string {
    c::gpushm_string {
        data: text.as_ptr().cast(),
        size: text.len() as _,
    }
}

/// Safety: the object that owns `text` must be alive.
unsafe fn owned(text: c::gpushm_string) -> String {
    if text.size == 0 {
        return String::new();
    }
    let bytes = std::slice::from_raw_parts(text.data.cast::<u8>(), text.size as usize);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Why an operation failed.
pub struct Error(*mut c::gpushm_error);

// Errors are immutable.
unsafe impl Send for Error {}
unsafe impl Sync for Error {}

impl Error {
    fn last() -> Self {
        unsafe { Error(c::gpushm_error_dup(c::gpushm_last_error())) }
    }
    pub fn code(&self) -> c::gpushm_errc {
        unsafe { c::gpushm_error_code(self.0) }
    }
    /// The name in docs/errors.md, for instance "no_such_segment".
    pub fn name(&self) -> String {
        unsafe { owned(c::gpushm_errc_name(self.code())) }
    }
    pub fn cause(&self) -> String {
        unsafe { owned(c::gpushm_error_cause(self.0)) }
    }
    pub fn next_step(&self) -> String {
        unsafe { owned(c::gpushm_error_next_step(self.0)) }
    }
}

impl Drop for Error {
    fn drop(&mut self) {
        unsafe { c::gpushm_error_free(self.0) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(&unsafe { owned(c::gpushm_error_message(self.0)) })
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn check(code: c::gpushm_errc) -> Result<()> {
    if code == c::gpushm_errc::GPUSHM_OK {
        Ok(())
    } else {
        Err(Error::last())
    }
}

/// A connection to a broker.
pub struct Client(*mut c::gpushm_client);

// Functions may be called from any thread; `drop` has exclusive access.
unsafe impl Send for Client {}
unsafe impl Sync for Client {}

impl Client {
    /// An empty `socket_path` selects the default socket.
    pub fn connect(socket_path: &str, timeout_ms: i64) -> Result<Self> {
        let mut options = sized!(gpushm_connect_options);
        options.socket_path = text(socket_path);
        let mut handle = std::ptr::null_mut();
        check(unsafe { c::gpushm_client_connect(&options, timeout_ms, &mut handle) })?;
        Ok(Client(handle))
    }

    /// Creates a segment that no other client sees before `Segment::publish`.
    pub fn create(&self, name: &str, size_bytes: u64, device: &str) -> Result<Segment> {
        let mut options = sized!(gpushm_create_options);
        options.size_bytes = size_bytes;
        options.device = text(device);
        let mut handle = std::ptr::null_mut();
        check(unsafe { c::gpushm_client_create(self.0, text(name), &options, &mut handle) })?;
        Ok(Segment(handle))
    }

    /// Opens a published segment for reading. Waits up to `timeout_ms` for its name.
    pub fn open(&self, name: &str, timeout_ms: i64) -> Result<Segment> {
        let options = sized!(gpushm_open_options);
        let mut handle = std::ptr::null_mut();
        check(unsafe {
            c::gpushm_client_open(self.0, text(name), &options, timeout_ms, &mut handle)
        })?;
        Ok(Segment(handle))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        unsafe { c::gpushm_client_close(self.0) }
    }
}

/// Memory mapped into this process. Not accessible as a slice: other processes and GPUs may write
/// it at any time.
pub struct Segment(*mut c::gpushm_segment);

unsafe impl Send for Segment {}
unsafe impl Sync for Segment {}

impl Segment {
    pub fn size_bytes(&self) -> u64 {
        unsafe { c::gpushm_segment_size_bytes(self.0) }
    }
    pub fn name(&self) -> String {
        unsafe { owned(c::gpushm_segment_name(self.0)) }
    }
    /// The metadata given to `publish`.
    pub fn metadata(&self) -> Result<Vec<u8>> {
        let mut data = std::ptr::null();
        let mut size = 0;
        check(unsafe { c::gpushm_segment_metadata(self.0, &mut data, &mut size) })?;
        if size == 0 {
            return Ok(Vec::new());
        }
        Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size as usize) }.to_vec())
    }
    pub fn publish(&self, metadata: &[u8]) -> Result<()> {
        check(unsafe {
            c::gpushm_segment_publish(self.0, metadata.as_ptr().cast(), metadata.len() as _)
        })
    }
    pub fn read(&self, offset_bytes: u64, to: &mut [u8]) -> Result<()> {
        check(unsafe {
            c::gpushm_segment_read(self.0, offset_bytes, to.as_mut_ptr().cast(), to.len() as _)
        })
    }
    pub fn write(&self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        check(unsafe {
            c::gpushm_segment_write(self.0, offset_bytes, from.as_ptr().cast(), from.len() as _)
        })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        unsafe { c::gpushm_segment_close(self.0) }
    }
}
