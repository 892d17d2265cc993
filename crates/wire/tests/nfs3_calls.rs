//! The arguments of the NFSv3 procedures, encoded by this crate and by nfs3_types.

mod support;

use judge::Source;
use lockkeeper_wire::nfs3::*;
use lockkeeper_wire::{Decode, Encode};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Unpack;
use support::{SEEDS, agree, compare, device, handle, opaque, option, same_values, time};

fn at(ours: &DirOpArgs) -> diropargs3<'static> {
    diropargs3 { dir: handle(&ours.dir), name: filename3(opaque(&ours.name)) }
}

fn new_attributes(ours: &NewAttributes) -> sattr3 {
    sattr3 {
        mode: option(ours.mode, |mode| mode),
        uid: option(ours.uid, |uid| uid),
        gid: option(ours.gid, |gid| gid),
        size: option(ours.size, |size| size),
        atime: match ours.accessed {
            SetTime::Keep => set_atime::DONT_CHANGE,
            SetTime::ServerTime => set_atime::SET_TO_SERVER_TIME,
            SetTime::To(t) => set_atime::SET_TO_CLIENT_TIME(time(t)),
        },
        mtime: match ours.modified {
            SetTime::Keep => set_mtime::DONT_CHANGE,
            SetTime::ServerTime => set_mtime::SET_TO_SERVER_TIME,
            SetTime::To(t) => set_mtime::SET_TO_CLIENT_TIME(time(t)),
        },
    }
}

#[test]
fn getattr_args_agree() {
    compare(|ours: &GetAttrArgs| GETATTR3args { object: handle(&ours.object) });
}

#[test]
fn setattr_args_agree() {
    compare(|ours: &SetAttrArgs| SETATTR3args {
        object: handle(&ours.object),
        new_attributes: new_attributes(&ours.new),
        guard: option(ours.guard, time),
    });
}

#[test]
fn lookup_args_agree() {
    compare(|ours: &DirOpArgs| LOOKUP3args { what: at(ours) });
}

#[test]
fn access_args_agree() {
    compare(|ours: &AccessArgs| ACCESS3args { object: handle(&ours.object), access: ours.access });
}

#[test]
fn readlink_args_agree() {
    compare(|ours: &ReadLinkArgs| READLINK3args { symlink: handle(&ours.object) });
}

#[test]
fn read_args_agree() {
    compare(|ours: &ReadArgs| READ3args {
        file: handle(&ours.file),
        offset: ours.offset,
        count: ours.count,
    });
}

#[test]
fn write_args_agree() {
    compare(|ours: &WriteArgs| WRITE3args {
        file: handle(&ours.file),
        offset: ours.offset,
        count: ours.count,
        stable: match ours.stability {
            Stability::Unstable => stable_how::UNSTABLE,
            Stability::DataSync => stable_how::DATA_SYNC,
            Stability::FileSync => stable_how::FILE_SYNC,
        },
        data: opaque(&ours.data),
    });
}

#[test]
fn create_args_agree() {
    compare(|ours: &CreateArgs| CREATE3args {
        where_: at(&ours.at),
        how: match &ours.how {
            CreateHow::Unchecked(new) => createhow3::UNCHECKED(new_attributes(new)),
            CreateHow::Guarded(new) => createhow3::GUARDED(new_attributes(new)),
            CreateHow::Exclusive(verifier) => createhow3::EXCLUSIVE(createverf3(*verifier)),
        },
    });
}

#[test]
fn mkdir_args_agree() {
    compare(|ours: &MkDirArgs| MKDIR3args {
        where_: at(&ours.at),
        attributes: new_attributes(&ours.new),
    });
}

#[test]
fn symlink_args_agree() {
    compare(|ours: &SymLinkArgs| SYMLINK3args {
        where_: at(&ours.at),
        symlink: symlinkdata3 {
            symlink_attributes: new_attributes(&ours.new),
            symlink_data: nfspath3(opaque(&ours.text)),
        },
    });
}

#[test]
fn mknod_args_agree() {
    for seed in SEEDS {
        let ours: MkNodArgs = Source::new(seed).any();
        let dev = |new, dev| devicedata3 { dev_attributes: new_attributes(new), spec: device(dev) };
        let what = match &ours.what {
            Node::Character(new, d) => mknoddata3::NF3CHR(dev(new, *d)),
            Node::Block(new, d) => mknoddata3::NF3BLK(dev(new, *d)),
            Node::Socket(new) => mknoddata3::NF3SOCK(new_attributes(new)),
            Node::Fifo(new) => mknoddata3::NF3FIFO(new_attributes(new)),
            // nfs3_types decodes this but cannot encode it.
            Node::Other(_) => {
                let bytes = ours.to_bytes();
                let (theirs, length) = MKNOD3args::unpack(&mut &bytes[..]).unwrap();
                assert!(matches!(theirs.what, mknoddata3::default), "{ours:?}");
                assert_eq!(length, bytes.len());
                assert_eq!(MkNodArgs::from_bytes(bytes), Ok(ours));
                continue;
            }
        };
        agree(&ours, &MKNOD3args { where_: at(&ours.at), what });
    }
}

#[test]
fn remove_args_agree() {
    compare(|ours: &DirOpArgs| REMOVE3args { object: at(ours) });
}

#[test]
fn rmdir_args_agree() {
    compare(|ours: &DirOpArgs| RMDIR3args { object: at(ours) });
}

#[test]
fn rename_args_agree() {
    compare(|ours: &RenameArgs| RENAME3args { from: at(&ours.from), to: at(&ours.to) });
}

#[test]
fn link_args_agree() {
    compare(|ours: &LinkArgs| LINK3args { file: handle(&ours.file), link: at(&ours.to) });
}

#[test]
fn readdir_args_agree() {
    compare(|ours: &ReadDirArgs| READDIR3args {
        dir: handle(&ours.dir),
        cookie: ours.cookie,
        cookieverf: cookieverf3(ours.verifier),
        count: ours.count,
    });
}

#[test]
fn readdirplus_args_agree() {
    compare(|ours: &ReadDirPlusArgs| READDIRPLUS3args {
        dir: handle(&ours.dir),
        cookie: ours.cookie,
        cookieverf: cookieverf3(ours.verifier),
        dircount: ours.dir_count,
        maxcount: ours.max_count,
    });
}

#[test]
fn fsstat_args_agree() {
    compare(|ours: &FsArgs| FSSTAT3args { fsroot: handle(&ours.root) });
}

#[test]
fn fsinfo_args_agree() {
    compare(|ours: &FsArgs| FSINFO3args { fsroot: handle(&ours.root) });
}

#[test]
fn pathconf_args_agree() {
    compare(|ours: &FsArgs| PATHCONF3args { object: handle(&ours.root) });
}

#[test]
fn commit_args_agree() {
    compare(|ours: &CommitArgs| COMMIT3args {
        file: handle(&ours.file),
        offset: ours.offset,
        count: ours.count,
    });
}

#[test]
fn both_know_the_same_stabilities() {
    same_values::<Stability, stable_how>();
}

#[test]
fn both_number_the_procedures_alike() {
    for procedure in judge::programs::NFS3 {
        let theirs = NFS_PROGRAM::try_from(procedure.number).unwrap();
        let name = format!("{theirs:?}").replace("NFSPROC3_", "NFS3::");
        assert_eq!(procedure.name.to_uppercase(), name);
    }
    assert_eq!(
        (lockkeeper_wire::nfs3::PROGRAM, lockkeeper_wire::nfs3::VERSION),
        (nfs3_types::nfs3::PROGRAM, nfs3_types::nfs3::VERSION)
    );
}
