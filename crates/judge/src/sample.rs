//! Sample values of every message: each variant, attributes present and absent, odd lengths.

use wire::mount::{
    Export, ExportList, HostName, MntReply, MntReply1, Mount, MountOk, MountStatus, Mounts, Path,
};
use wire::nfs3::reply::ReadLinkOk;
use wire::nfs3::*;
use wire::rpc::{AuthStatus, Credential, Groups, MachineName, SysCredential};
use wire::rpcbind::{Address, Addresses, Binding, Bindings, Mapping, Mappings, Text};
use wire::xdr::Decode;

use crate::source::{Any, Source};

macro_rules! structs {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Any for $name {
            fn any(source: &mut Source) -> Self {
                Self { $($field: source.any()),* }
            }
        }
    )*};
}

structs! {
    Time { seconds, nanoseconds }
    Device { major, minor }
    Attributes {
        kind, mode, links, uid, gid, size, used, device, filesystem, fileid, accessed, modified,
        changed
    }
    WccAttributes { size, modified, changed }
    Wcc { before, after }
    NewAttributes { mode, uid, gid, size, accessed, modified }

    DirOpArgs { dir, name }
    GetAttrArgs { object }
    SetAttrArgs { object, new, guard }
    AccessArgs { object, access }
    ReadLinkArgs { object }
    ReadArgs { file, offset, count }
    CreateArgs { at, how }
    MkDirArgs { at, new }
    SymLinkArgs { at, new, text }
    MkNodArgs { at, what }
    RenameArgs { from, to }
    LinkArgs { file, to }
    ReadDirArgs { dir, cookie, verifier, count }
    ReadDirPlusArgs { dir, cookie, verifier, dir_count, max_count }
    FsArgs { root }
    CommitArgs { file, offset, count }

    LookupOk { object, attributes, dir }
    AccessOk { attributes, access }
    ReadLinkOk { attributes, text }
    WriteOk { wcc, count, stability, verifier }
    CreateOk { object, attributes, dir }
    RenameWcc { from, to }
    LinkWcc { attributes, dir }
    Entry { fileid, name, cookie }
    EntryPlus { fileid, name, cookie, attributes, handle }
    Entries { attributes, verifier, entries, eof }
    EntriesPlus { attributes, verifier, entries, eof }
    FsStatus {
        attributes, bytes_total, bytes_free, bytes_available, files_total, files_free,
        files_available, stable_seconds
    }
    FsInformation {
        attributes, read_max, read_preferred, read_multiple, write_max, write_preferred,
        write_multiple, readdir_preferred, file_size_max, time_step, properties
    }
    PathConfiguration {
        attributes, links_max, name_max, no_truncation, chown_restricted, case_insensitive,
        case_preserving
    }
    CommitOk { wcc, verifier }

    Mount { host, path }
    Export { path, clients }
    Mapping { program, version, protocol, port }
    Binding { program, version, netid, address, owner }
    Address { address, netid, semantics, family, protocol }
    SysCredential { stamp, machine, uid, gid, groups }
}

macro_rules! lists {
    ($($name:ident)*) => {$(
        impl Any for $name {
            fn any(source: &mut Source) -> Self {
                Self(source.any())
            }
        }
    )*};
}

lists! { Mounts ExportList Mappings Bindings Addresses }

macro_rules! byte_strings {
    ($($name:ident: $kind:ident;)*) => {$(
        impl Any for $name {
            fn any(source: &mut Source) -> Self {
                Self(source.$kind(Self::MAX as usize))
            }
        }
    )*};
}

byte_strings! {
    Handle: bytes;
    Name: bytes;
    LinkText: bytes;
    Path: bytes;
    HostName: bytes;
    MachineName: bytes;
    Text: text;
}

/// The values of enumerations lie in one of these ranges: Unix error numbers, and those that NFS
/// added.
fn enumerated<T: Decode>(source: &mut Source) -> T {
    loop {
        let candidate = match source.below(90) {
            n @ ..80 => n as u32,
            n => 10_000 + (n as u32 - 80),
        };
        if let Ok(value) = T::from_bytes(bytes::Bytes::copy_from_slice(&candidate.to_be_bytes())) {
            return value;
        }
    }
}

macro_rules! enumerations {
    ($($name:ident)*) => {$(
        impl Any for $name {
            fn any(source: &mut Source) -> Self {
                enumerated(source)
            }
        }
    )*};
}

enumerations! { Status FileType Stability MountStatus AuthStatus }

mod locks;

impl Any for SetTime {
    fn any(source: &mut Source) -> Self {
        match source.below(3) {
            0 => Self::Keep,
            1 => Self::ServerTime,
            _ => Self::To(source.any()),
        }
    }
}

impl Any for CreateHow {
    fn any(source: &mut Source) -> Self {
        match source.below(3) {
            0 => Self::Unchecked(source.any()),
            1 => Self::Guarded(source.any()),
            _ => Self::Exclusive(source.any()),
        }
    }
}

impl Any for Node {
    fn any(source: &mut Source) -> Self {
        match source.below(5) {
            0 => Self::Character(source.any(), source.any()),
            1 => Self::Block(source.any(), source.any()),
            2 => Self::Socket(source.any()),
            3 => Self::Fifo(source.any()),
            _ => Self::Other(
                [FileType::Regular, FileType::Directory, FileType::Symlink][source.below(3)],
            ),
        }
    }
}

impl Any for WriteArgs {
    fn any(source: &mut Source) -> Self {
        let data = source.bytes(2_000);
        Self {
            file: source.any(),
            offset: source.any(),
            count: data.len() as u32,
            stability: source.any(),
            data,
        }
    }
}

impl Any for ReadOk {
    fn any(source: &mut Source) -> Self {
        Self { attributes: source.any(), eof: source.any(), data: source.bytes(2_000) }
    }
}

impl<T: Any> Any for ErrorReply<T> {
    fn any(source: &mut Source) -> Self {
        loop {
            let status = source.any();
            if status != Status::Ok {
                return Self(status, source.any());
            }
        }
    }
}

impl<T: Any, F: Any> Any for std::result::Result<T, ErrorReply<F>> {
    fn any(source: &mut Source) -> Self {
        if source.any() { Ok(source.any()) } else { Err(source.any()) }
    }
}

fn mount_failure(source: &mut Source) -> MountStatus {
    loop {
        let status = source.any();
        if status != MountStatus::Ok {
            return status;
        }
    }
}

impl Any for MountOk {
    fn any(source: &mut Source) -> Self {
        Self { root: source.any(), flavours: source.any() }
    }
}

impl Any for MntReply {
    fn any(source: &mut Source) -> Self {
        Self(if source.any() { Ok(source.any()) } else { Err(mount_failure(source)) })
    }
}

impl Any for MntReply1 {
    fn any(source: &mut Source) -> Self {
        Self(if source.any() { Ok(source.any()) } else { Err(mount_failure(source)) })
    }
}

impl Any for Groups {
    fn any(source: &mut Source) -> Self {
        let count = source.below(Self::MAX + 1);
        Self::new(&(0..count).map(|_| source.any()).collect::<Vec<u32>>())
    }
}

impl Any for Credential {
    fn any(source: &mut Source) -> Self {
        if source.one_in(4) { Self::None } else { Self::Sys(source.any()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;
    use std::mem::discriminant;

    use super::*;

    /// The number of distinct values of `view` over many samples.
    fn seen<T: Any, V: Eq + Hash>(view: impl Fn(T) -> Option<V>) -> usize {
        (0..400).filter_map(|seed| view(Source::new(seed).any())).collect::<HashSet<V>>().len()
    }

    #[test]
    fn every_variant_is_sampled() {
        assert_eq!(seen(|t: SetTime| Some(discriminant(&t))), 3);
        assert_eq!(seen(|how: CreateHow| Some(discriminant(&how))), 3);
        assert_eq!(seen(|node: Node| Some(discriminant(&node))), 5);
        assert_eq!(seen(|kind: FileType| Some(kind)), 7);
        assert_eq!(seen(|stability: Stability| Some(stability)), 3);
        assert_eq!(seen(|groups: Groups| Some(groups.as_slice().len())), 17);
    }

    #[test]
    fn every_status_is_sampled() {
        assert_eq!(seen(|reply: WccReply| Some(reply.map_err(|failed| failed.0).err())), 29);
        assert_eq!(seen(|reply: MntReply| Some(reply.0.err())), 10);
    }

    #[test]
    fn every_padding_and_list_length_is_sampled() {
        assert_eq!(seen(|name: Name| Some(name.len() % 4)), 4);
        assert_eq!(seen(|handle: Handle| (handle.len() == 64).then_some(())), 1);
        assert_eq!(seen(|mounts: Mounts| Some(mounts.0.len())), 5);
        assert_eq!(seen(|w: Wcc| Some((w.before.is_some(), w.after.is_some()))), 4);
    }
}
