//! The Debian packages that a comparison needs.

/// Who is compared with, and what that needs.
pub const PACKAGES: &[&str] = &["nfs-ganesha", "nfs-ganesha-vfs", "nfs-common", "rpcbind"];

/// Where our server keeps its locks if it is to keep them there.
pub const POSTGRES: &[&str] = &["postgresql"];
