//! The Debian packages that a comparison needs.

/// Who is compared with, and what that needs.
pub const PACKAGES: &[&str] = &["nfs-ganesha", "nfs-ganesha-vfs", "nfs-common", "rpcbind"];
