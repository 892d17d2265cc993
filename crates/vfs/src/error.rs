//! Errors of file-system operations: one per NFSv3 status (RFC 1813, section 2.6).

/// Why an operation was refused or failed. Each variant names the NFSv3 status that it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `NFS3ERR_PERM`: only the owner or root may do this.
    #[error("not owner")]
    NotOwner,
    /// `NFS3ERR_NOENT`: the directory has no entry of this name.
    #[error("no such file or directory")]
    NotFound,
    /// `NFS3ERR_IO`: the storage failed.
    #[error("input or output error")]
    Io,
    /// `NFS3ERR_NXIO`.
    #[error("no such device or address")]
    NoDevice,
    /// `NFS3ERR_ACCES`: the caller lacks permission.
    #[error("permission denied")]
    Denied,
    /// `NFS3ERR_EXIST`: the name is taken.
    #[error("file exists")]
    Exists,
    /// `NFS3ERR_XDEV`: a rename or hard link to another file system.
    #[error("crosses file systems")]
    CrossesFileSystems,
    /// `NFS3ERR_NOTDIR`.
    #[error("not a directory")]
    NotADirectory,
    /// `NFS3ERR_ISDIR`.
    #[error("is a directory")]
    IsADirectory,
    /// `NFS3ERR_INVAL`: an argument, or an operation that this type of file does not have.
    #[error("invalid argument")]
    Invalid,
    /// `NFS3ERR_FBIG`: beyond the largest file size.
    #[error("file too large")]
    TooLarge,
    /// `NFS3ERR_NOSPC`.
    #[error("no space left")]
    NoSpace,
    /// `NFS3ERR_ROFS`.
    #[error("read-only file system")]
    ReadOnly,
    /// `NFS3ERR_MLINK`.
    #[error("too many links")]
    TooManyLinks,
    /// `NFS3ERR_NAMETOOLONG`.
    #[error("name too long")]
    NameTooLong,
    /// `NFS3ERR_NOTEMPTY`.
    #[error("directory not empty")]
    NotEmpty,
    /// `NFS3ERR_DQUOT`.
    #[error("quota exceeded")]
    Quota,
    /// `NFS3ERR_STALE`: the object no longer exists, or its id is not of this file system.
    #[error("stale file handle")]
    Stale,
    /// `NFS3ERR_BADHANDLE`: the MAC or the format is wrong. Returned by
    /// [`HandleKey::verify`](crate::HandleKey::verify), not by file systems.
    #[error("not a file handle")]
    BadHandle,
    /// `NFS3ERR_NOT_SYNC`: the guard of a SETATTR no longer matches.
    #[error("the change time has moved")]
    NotSynchronised,
    /// `NFS3ERR_BAD_COOKIE`: the cookie or its verifier is no longer valid; the client lists the
    /// directory from the start.
    #[error("invalid directory cookie")]
    BadCookie,
    /// `NFS3ERR_NOTSUPP`.
    #[error("not supported")]
    NotSupported,
    /// `NFS3ERR_TOOSMALL`: not one directory entry fits into the reply. Returned by the server.
    #[error("the reply does not fit")]
    TooSmall,
    /// `NFS3ERR_BADTYPE`: this type of file cannot be created.
    #[error("unsupported file type")]
    BadType,
    /// `NFS3ERR_JUKEBOX`: temporarily impossible; the client retries after some seconds.
    #[error("try again later")]
    TryLater,
    /// The operation cannot finish without blocking. Valid only under
    /// [`BlockingMode::Nonblocking`](crate::BlockingMode): the server repeats the call on a worker
    /// thread, so nothing may have been changed. Under `MayBlock` the client gets
    /// `NFS3ERR_JUKEBOX`.
    #[error("would block")]
    WouldBlock,
}

/// The result of a file-system operation.
pub type Result<T> = std::result::Result<T, Error>;

/// By the number of the operating system, or else by the kind. An error that no variant describes is
/// [`Error::Io`].
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        if let Some(errno) = rustix::io::Errno::from_io_error(&error) {
            return errno.into();
        }
        match error.kind() {
            K::NotFound => Self::NotFound,
            K::PermissionDenied => Self::Denied,
            K::AlreadyExists => Self::Exists,
            K::NotADirectory => Self::NotADirectory,
            K::IsADirectory => Self::IsADirectory,
            K::DirectoryNotEmpty => Self::NotEmpty,
            K::ReadOnlyFilesystem => Self::ReadOnly,
            K::StorageFull => Self::NoSpace,
            K::QuotaExceeded => Self::Quota,
            K::FileTooLarge => Self::TooLarge,
            K::TooManyLinks => Self::TooManyLinks,
            K::CrossesDevices => Self::CrossesFileSystems,
            K::StaleNetworkFileHandle => Self::Stale,
            K::InvalidInput | K::InvalidFilename => Self::Invalid,
            K::Unsupported => Self::NotSupported,
            K::WouldBlock | K::TimedOut | K::Interrupted | K::ResourceBusy => Self::TryLater,
            K::ConnectionAborted | K::ConnectionRefused | K::ConnectionReset => Self::TryLater,
            K::HostUnreachable | K::NetworkUnreachable | K::NotConnected => Self::TryLater,
            K::OutOfMemory => Self::TryLater,
            _ => Self::Io,
        }
    }
}

// For the local file system; not part of the interface.
#[doc(hidden)]
impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno as E;
        match errno {
            E::PERM => Self::NotOwner,
            E::NOENT => Self::NotFound,
            E::NXIO => Self::NoDevice,
            E::NODEV => Self::NotSupported,
            // ETXTBSY: the file is being executed on the host, for an unbounded time. Retrying
            // (`TryLater`) would hang the client.
            E::ACCESS | E::TXTBSY => Self::Denied,
            E::EXIST => Self::Exists,
            E::XDEV => Self::CrossesFileSystems,
            E::NOTDIR => Self::NotADirectory,
            E::ISDIR => Self::IsADirectory,
            E::INVAL | E::LOOP => Self::Invalid,
            E::FBIG | E::OVERFLOW => Self::TooLarge,
            E::NOSPC => Self::NoSpace,
            E::ROFS => Self::ReadOnly,
            E::MLINK => Self::TooManyLinks,
            E::NAMETOOLONG => Self::NameTooLong,
            E::NOTEMPTY => Self::NotEmpty,
            E::DQUOT => Self::Quota,
            E::STALE => Self::Stale,
            E::NOTSUP | E::NOSYS => Self::NotSupported,
            // EAGAIN and the others of this line: from file systems behind a network or a daemon.
            // Operations that must not wait tell EAGAIN apart before it is converted.
            E::AGAIN | E::TIMEDOUT | E::CONNABORTED | E::NOTCONN => Self::TryLater,
            E::MFILE | E::NFILE | E::NOMEM | E::INTR | E::BUSY => Self::TryLater,
            _ => Self::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_file_system_that_cannot_answer_now_is_asked_again_later() {
        for errno in [Errno::AGAIN, Errno::TIMEDOUT, Errno::CONNABORTED, Errno::NOMEM] {
            assert_eq!(Error::from(errno), Error::TryLater, "{errno}");
        }
    }

    #[test]
    fn an_error_of_the_standard_library_becomes_its_status() {
        use std::io::{Error as IoError, ErrorKind};
        let absent = std::fs::read("/nothing/is/here").map_err(Error::from);
        assert_eq!(absent, Err(Error::NotFound));
        for (errno, expected) in [
            (Errno::NOSPC, Error::NoSpace),
            (Errno::DQUOT, Error::Quota),
            (Errno::NOTEMPTY, Error::NotEmpty),
            (Errno::NAMETOOLONG, Error::NameTooLong),
        ] {
            assert_eq!(Error::from(IoError::from(errno)), expected, "{errno}");
        }
        for (kind, expected) in [
            (ErrorKind::ReadOnlyFilesystem, Error::ReadOnly),
            (ErrorKind::TimedOut, Error::TryLater),
            (ErrorKind::UnexpectedEof, Error::Io),
        ] {
            assert_eq!(Error::from(IoError::new(kind, "no number")), expected, "{kind}");
        }
    }
}
