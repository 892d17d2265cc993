//! Why a file operation was not done. One value per answer that NFSv3 can give.

/// The reasons, in the vocabulary of the host's error numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("not owner")]
    NotOwner,
    #[error("no such file or directory")]
    NotFound,
    #[error("input or output error")]
    Io,
    #[error("no such device or address")]
    NoDevice,
    #[error("permission denied")]
    Denied,
    #[error("file exists")]
    Exists,
    #[error("crosses file systems")]
    CrossesFileSystems,
    #[error("not a directory")]
    NotADirectory,
    #[error("is a directory")]
    IsADirectory,
    #[error("invalid argument")]
    Invalid,
    #[error("file too large")]
    TooLarge,
    #[error("no space left")]
    NoSpace,
    #[error("read-only file system")]
    ReadOnly,
    #[error("too many links")]
    TooManyLinks,
    #[error("name too long")]
    NameTooLong,
    #[error("directory not empty")]
    NotEmpty,
    #[error("quota exceeded")]
    Quota,
    #[error("the file is gone")]
    Stale,
    #[error("not a file handle")]
    BadHandle,
    #[error("the file was changed by somebody else")]
    NotSynchronised,
    #[error("a cookie of another listing")]
    BadCookie,
    #[error("not supported")]
    NotSupported,
    #[error("the reply does not fit")]
    TooSmall,
    #[error("a type that cannot be made")]
    BadType,
    #[error("try again later")]
    TryLater,
    /// Only for [`Patience::Now`](crate::Patience): ask again with patience.
    #[error("the answer would take time")]
    WouldBlock,
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno as E;
        match errno {
            E::PERM => Self::NotOwner,
            E::NOENT => Self::NotFound,
            E::NXIO => Self::NoDevice,
            E::NODEV => Self::NotSupported,
            // A program that runs on the host: it may do so for ever.
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
            E::MFILE | E::NFILE | E::NOMEM | E::INTR | E::BUSY => Self::TryLater,
            E::AGAIN => Self::WouldBlock,
            _ => Self::Io,
        }
    }
}
