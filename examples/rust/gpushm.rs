// SPDX-License-Identifier: Apache-2.0
//! What share.rs needs of gpushm, over the declarations that bindgen makes of gpushm/gpushm.h:
//! handles that end when they are dropped, and results instead of codes.
use gpushm_sys as c;
use std::fmt;
use std::mem::size_of;

/// Options and results that begin with their size; all else is 0, the default.
macro_rules! sized {
    ($structure:ident) => {{
        // Numbers, texts, pointers that may be null: 0 is a value of each.
        let mut made: c::$structure = unsafe { std::mem::zeroed() };
        made.struct_size = size_of::<c::$structure>() as _;
        made
    }};
}

fn text(text: &str) -> c::gpushm_string {
    c::gpushm_string {
        data: text.as_ptr().cast(),
        size: text.len() as _,
    }
}

/// Safety: `text` lives as long as what it was got from.
unsafe fn owned(text: c::gpushm_string) -> String {
    if text.size == 0 {
        return String::new();
    }
    let bytes = std::slice::from_raw_parts(text.data.cast::<u8>(), text.size as usize);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Why an operation failed.
pub struct Error(*mut c::gpushm_error);

// An error never changes.
unsafe impl Send for Error {}
unsafe impl Sync for Error {}

impl Error {
    fn last() -> Self {
        unsafe { Error(c::gpushm_error_dup(c::gpushm_last_error())) }
    }
    pub fn code(&self) -> c::gpushm_errc {
        unsafe { c::gpushm_error_code(self.0) }
    }
    /// As docs/errors.md has it: "no_such_segment".
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

// Functions may be called from any thread; what ends a handle has it alone.
unsafe impl Send for Client {}
unsafe impl Sync for Client {}

impl Client {
    /// An empty `socket_path`: where gpushm looks for brokers.
    pub fn connect(socket_path: &str, timeout_ms: i64) -> Result<Self> {
        let mut options = sized!(gpushm_connect_options);
        options.socket_path = text(socket_path);
        options.timeout_ms = timeout_ms;
        let mut made = std::ptr::null_mut();
        check(unsafe { c::gpushm_client_connect(&options, &mut made) })?;
        Ok(Client(made))
    }

    /// Memory that nobody else sees before `Segment::publish`.
    pub fn create(&self, name: &str, size_bytes: u64, device: &str) -> Result<Segment> {
        let mut options = sized!(gpushm_create_options);
        options.size_bytes = size_bytes;
        options.device = text(device);
        let mut made = std::ptr::null_mut();
        check(unsafe { c::gpushm_client_create(self.0, text(name), &options, &mut made) })?;
        Ok(Segment(made))
    }

    /// A published segment, for reading. Waits for its name.
    pub fn open(&self, name: &str, timeout_ms: i64) -> Result<Segment> {
        let mut options = sized!(gpushm_open_options);
        options.timeout_ms = timeout_ms;
        let mut opened = std::ptr::null_mut();
        check(unsafe { c::gpushm_client_open(self.0, text(name), &options, &mut opened) })?;
        Ok(Segment(opened))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        unsafe { c::gpushm_client_close(self.0) }
    }
}

/// Memory that is mapped into this process. There are no slices of it: other processes, and GPUs,
/// may write it at any time.
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
    /// What it was published with.
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
