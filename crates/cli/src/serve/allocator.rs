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

/// To be called regularly, with the most bytes that buffers held since the last call. After a peak the arenas
/// keep free memory for good, because the threshold above counts only what is at their top: so it is
/// returned once buffers have become few. On a thread of its own, as it takes each arena's lock while it
/// unmaps.
#[allow(unsafe_code)]
pub(crate) fn give_back_after(peak_bytes: usize) {
    use std::sync::atomic::{AtomicBool, Ordering};
    static HAD_PEAK: AtomicBool = AtomicBool::new(false);
    if peak_bytes > 2 * KEPT_BYTES as usize {
        HAD_PEAK.store(true, Ordering::Relaxed);
    } else if HAD_PEAK.swap(false, Ordering::Relaxed) {
        #[cfg(target_env = "gnu")]
        drop(std::thread::Builder::new().name("trim".into()).spawn(|| {
            // SAFETY: takes an integer and has no preconditions.
            unsafe { libc::malloc_trim(KEPT_BYTES as usize) }
        }));
    }
}
