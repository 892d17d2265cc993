//! How the process keeps memory: buffers of up to a mebibyte come and go with every READ and WRITE.

/// What an arena may keep for the next buffer before it gives it back to the system.
const KEPT_BYTES: i32 = 64 << 20;

/// By default the C library returns such a buffer to the system as soon as it is freed and asks
/// for it again a moment later; clearing its pages then costs more than reading the file does.
#[allow(unsafe_code)]
pub fn keep_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers, before any other thread is there.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES / 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}
