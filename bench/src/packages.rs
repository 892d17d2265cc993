//! The Debian packages that a comparison needs.

/// What servers and waiters find each other with.
pub const RPCBIND: &[&str] = &["rpcbind"];

/// Who is compared with, and what that needs.
pub const GANESHA: &[&str] = &["nfs-ganesha", "nfs-ganesha-vfs", "nfs-common"];

/// Where our server keeps its locks if it is to keep them there.
pub const POSTGRES: &[&str] = &["postgresql"];

/// What counts instructions.
pub const VALGRIND: &[&str] = &["valgrind"];
