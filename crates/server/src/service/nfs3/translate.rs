//! Conversions between the types of NFSv3 and of the file systems.

use vfs::{AttributeChange, Error, Export, FileKind, Stability};
use wire::nfs3::{self, FileType, Status, Wcc};

pub(super) fn status(error: Error) -> Status {
    match error {
        Error::NotOwner => Status::Perm,
        Error::NotFound => Status::NoEnt,
        Error::Io => Status::Io,
        Error::NoDevice => Status::NxIo,
        Error::Denied => Status::Acces,
        Error::Exists => Status::Exist,
        Error::CrossesFileSystems => Status::XDev,
        Error::NotADirectory => Status::NotDir,
        Error::IsADirectory => Status::IsDir,
        Error::Invalid => Status::Inval,
        Error::TooLarge => Status::FBig,
        Error::NoSpace => Status::NoSpc,
        Error::ReadOnly => Status::RoFs,
        Error::TooManyLinks => Status::MLink,
        Error::NameTooLong => Status::NameTooLong,
        Error::NotEmpty => Status::NotEmpty,
        Error::Quota => Status::DQuot,
        Error::Stale => Status::Stale,
        Error::BadHandle => Status::BadHandle,
        Error::NotSynchronised => Status::NotSync,
        Error::BadCookie => Status::BadCookie,
        Error::NotSupported => Status::NotSupp,
        Error::TooSmall => Status::TooSmall,
        Error::BadType => Status::BadType,
        Error::TryLater | Error::WouldBlock => Status::Jukebox,
    }
}

pub(super) fn attributes(a: &vfs::Attributes, export: &Export) -> nfs3::Attributes {
    nfs3::Attributes {
        kind: match a.kind {
            FileKind::Regular => FileType::Regular,
            FileKind::Directory => FileType::Directory,
            FileKind::Block => FileType::Block,
            FileKind::Character => FileType::Character,
            FileKind::Symlink => FileType::Symlink,
            FileKind::Socket => FileType::Socket,
            FileKind::Fifo => FileType::Fifo,
        },
        mode: a.mode,
        links: a.links,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        used: a.used,
        device: nfs3::Device { major: a.device.major, minor: a.device.minor },
        filesystem: export.filesystem.id().0,
        fileid: a.fileid,
        accessed: time(a.accessed),
        modified: time(a.modified),
        changed: time(a.changed),
    }
}

/// NFSv3 has 32 bits for seconds; later times wrap, as in other servers.
fn time(time: vfs::Time) -> nfs3::Time {
    nfs3::Time { seconds: time.seconds as u32, nanoseconds: time.nanoseconds }
}

pub(super) fn time_from(time: nfs3::Time) -> vfs::Time {
    vfs::Time { seconds: i64::from(time.seconds), nanoseconds: time.nanoseconds }
}

pub(super) fn wcc(change: &AttributeChange, export: &Export) -> Wcc {
    Wcc {
        before: change.before.map(|before| nfs3::WccAttributes {
            size: before.size,
            modified: time(before.modified),
            changed: time(before.changed),
        }),
        after: change.after.map(|after| attributes(&after, export)),
    }
}

/// Fails if a time has a billion nanoseconds or more.
pub(super) fn new_attributes(new: &nfs3::NewAttributes) -> Result<vfs::NewAttributes, Error> {
    Ok(vfs::NewAttributes {
        mode: new.mode.map(|mode| mode & 0o7777),
        uid: new.uid,
        gid: new.gid,
        size: new.size,
        accessed: set_time(new.accessed)?,
        modified: set_time(new.modified)?,
    })
}

fn set_time(time: nfs3::SetTime) -> Result<vfs::SetTime, Error> {
    Ok(match time {
        nfs3::SetTime::Keep => vfs::SetTime::Keep,
        nfs3::SetTime::ServerTime => vfs::SetTime::Now,
        nfs3::SetTime::To(time) if time.nanoseconds >= 1_000_000_000 => return Err(Error::Invalid),
        nfs3::SetTime::To(time) => vfs::SetTime::To(time_from(time)),
    })
}

pub(super) fn stability(stability: nfs3::Stability) -> Stability {
    match stability {
        nfs3::Stability::Unstable => Stability::Unstable,
        nfs3::Stability::DataSync => Stability::Data,
        nfs3::Stability::FileSync => Stability::File,
    }
}

pub(super) fn stability_reached(stability: Stability) -> nfs3::Stability {
    match stability {
        Stability::Unstable => nfs3::Stability::Unstable,
        Stability::Data => nfs3::Stability::DataSync,
        Stability::File => nfs3::Stability::FileSync,
    }
}
