//! The machine that this runs on.

/// What it calls itself.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
