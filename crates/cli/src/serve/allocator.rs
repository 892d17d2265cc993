//! malloc settings for buffers of up to 1 MiB, allocated and freed by every READ and WRITE.

/// Free memory that an arena keeps before returning it to the system.
const KEPT_BYTES: i32 = 64 << 20;

/// By default glibc maps and unmaps each such buffer; zeroing its pages then costs more than reading
/// the file.
#[allow(unsafe_code)]
pub(crate) fn keep_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two integers; called before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES / 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}
