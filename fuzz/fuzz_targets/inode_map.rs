//! The file of the inode map.
#![no_main]

use std::sync::LazyLock;

use tempfile::TempDir;

/// On tmpfs where there is one.
static DIRECTORY: LazyLock<TempDir> = LazyLock::new(|| {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| vfs::local::fuzz::check(DIRECTORY.path(), data));
