//! The Debian packages that a comparison needs.

/// For servers and waiters to find each other.
pub const RPCBIND: &[&str] = &["rpcbind"];

/// The server to compare with, and its dependencies.
pub const GANESHA: &[&str] =
    &["nfs-ganesha", "nfs-ganesha-vfs", "nfs-common", "rpcbind", "netbase"];

/// The database for our server's locks, if that is measured.
pub const POSTGRES: &[&str] = &["postgresql"];

/// For a newer nfs-ganesha in a directory of its own.
pub const DEBOOTSTRAP: &[&str] = &["debootstrap"];

/// For a link without offloads.
pub const ETHTOOL: &[&str] = &["ethtool"];

/// For counting instructions.
pub const VALGRIND: &[&str] = &["valgrind"];
