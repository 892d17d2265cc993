//! The replies of the NFSv3 procedures, encoded by this crate and by nfs3_types.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use lockkeeper_wire::Encode;
use lockkeeper_wire::nfs3::*;
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{List, Unpack, Void};
use support::{compare, device, handle, opaque, option, same_values, time};

fn reply<T, F, Theirs, TheirFailure>(
    ours: &Reply<T, F>,
    done: impl Fn(&T) -> Theirs,
    failed: impl Fn(&F) -> TheirFailure,
) -> Nfs3Result<Theirs, TheirFailure> {
    match ours {
        Ok(body) => Nfs3Result::Ok(done(body)),
        Err(ErrorReply(code, body)) => Nfs3Result::Err((status(*code), failed(body))),
    }
}

/// By number: `both_know_the_same_statuses` makes that enough.
fn status(ours: Status) -> nfsstat3 {
    nfsstat3::unpack(&mut &ours.to_bytes()[..]).unwrap().0
}

fn kind(ours: FileType) -> ftype3 {
    match ours {
        FileType::Regular => ftype3::NF3REG,
        FileType::Directory => ftype3::NF3DIR,
        FileType::Block => ftype3::NF3BLK,
        FileType::Character => ftype3::NF3CHR,
        FileType::Symlink => ftype3::NF3LNK,
        FileType::Socket => ftype3::NF3SOCK,
        FileType::Fifo => ftype3::NF3FIFO,
    }
}

fn attributes(ours: &Attributes) -> fattr3 {
    fattr3 {
        type_: kind(ours.kind),
        mode: ours.mode,
        nlink: ours.links,
        uid: ours.uid,
        gid: ours.gid,
        size: ours.size,
        used: ours.used,
        rdev: device(ours.device),
        fsid: ours.filesystem,
        fileid: ours.fileid,
        atime: time(ours.accessed),
        mtime: time(ours.modified),
        ctime: time(ours.changed),
    }
}

fn maybe(ours: &Option<Attributes>) -> post_op_attr {
    option(ours.as_ref(), attributes)
}

fn wcc(ours: &Wcc) -> wcc_data {
    wcc_data {
        before: option(ours.before, |before| wcc_attr {
            size: before.size,
            mtime: time(before.modified),
            ctime: time(before.changed),
        }),
        after: maybe(&ours.after),
    }
}

fn stable(ours: Stability) -> stable_how {
    match ours {
        Stability::Unstable => stable_how::UNSTABLE,
        Stability::DataSync => stable_how::DATA_SYNC,
        Stability::FileSync => stable_how::FILE_SYNC,
    }
}

#[test]
fn getattr_replies_agree() {
    compare(|ours: &GetAttrReply| -> GETATTR3res {
        reply(ours, |body| GETATTR3resok { obj_attributes: attributes(body) }, |()| Void)
    });
}

#[test]
fn setattr_replies_agree() {
    compare(|ours: &WccReply| -> SETATTR3res {
        reply(
            ours,
            |body| SETATTR3resok { obj_wcc: wcc(body) },
            |body| SETATTR3resfail { obj_wcc: wcc(body) },
        )
    });
}

#[test]
fn lookup_replies_agree() {
    compare(|ours: &LookupReply| -> LOOKUP3res {
        reply(
            ours,
            |body| LOOKUP3resok {
                object: handle(&body.object),
                obj_attributes: maybe(&body.attributes),
                dir_attributes: maybe(&body.dir),
            },
            |body| LOOKUP3resfail { dir_attributes: maybe(body) },
        )
    });
}

#[test]
fn access_replies_agree() {
    compare(|ours: &AccessReply| -> ACCESS3res {
        reply(
            ours,
            |body| ACCESS3resok { obj_attributes: maybe(&body.attributes), access: body.access },
            |body| ACCESS3resfail { obj_attributes: maybe(body) },
        )
    });
}

#[test]
fn readlink_replies_agree() {
    compare(|ours: &ReadLinkReply| -> READLINK3res<'static> {
        reply(
            ours,
            |body| READLINK3resok {
                symlink_attributes: maybe(&body.attributes),
                data: nfspath3(opaque(&body.text)),
            },
            |body| READLINK3resfail { symlink_attributes: maybe(body) },
        )
    });
}

#[test]
fn read_replies_agree() {
    compare(|ours: &ReadReply| -> READ3res<'static> {
        reply(
            ours,
            |body| READ3resok {
                file_attributes: maybe(&body.attributes),
                count: body.data.len() as u32,
                eof: body.eof,
                data: opaque(&body.data),
            },
            |body| READ3resfail { file_attributes: maybe(body) },
        )
    });
}

#[test]
fn write_replies_agree() {
    compare(|ours: &WriteReply| -> WRITE3res {
        reply(
            ours,
            |body| WRITE3resok {
                file_wcc: wcc(&body.wcc),
                count: body.count,
                committed: stable(body.stability),
                verf: writeverf3(body.verifier),
            },
            |body| WRITE3resfail { file_wcc: wcc(body) },
        )
    });
}

/// CREATE, MKDIR, SYMLINK and MKNOD answer alike, and nfs3_types has a type for each.
macro_rules! created {
    ($($test:ident: $res:ident, $done:ident, $failed:ident;)*) => {$(
        #[test]
        fn $test() {
            compare(|ours: &CreateReply| -> $res {
                reply(
                    ours,
                    |body| $done {
                        obj: option(body.object.as_ref(), handle),
                        obj_attributes: maybe(&body.attributes),
                        dir_wcc: wcc(&body.dir),
                    },
                    |body| $failed { dir_wcc: wcc(body) },
                )
            });
        }
    )*};
}

created! {
    create_replies_agree: CREATE3res, CREATE3resok, CREATE3resfail;
    mkdir_replies_agree: MKDIR3res, MKDIR3resok, MKDIR3resfail;
    symlink_replies_agree: SYMLINK3res, SYMLINK3resok, SYMLINK3resfail;
    mknod_replies_agree: MKNOD3res, MKNOD3resok, MKNOD3resfail;
}

#[test]
fn remove_replies_agree() {
    compare(|ours: &WccReply| -> REMOVE3res {
        reply(
            ours,
            |body| REMOVE3resok { dir_wcc: wcc(body) },
            |body| REMOVE3resfail { dir_wcc: wcc(body) },
        )
    });
}

#[test]
fn rmdir_replies_agree() {
    compare(|ours: &WccReply| -> RMDIR3res {
        reply(
            ours,
            |body| RMDIR3resok { dir_wcc: wcc(body) },
            |body| RMDIR3resfail { dir_wcc: wcc(body) },
        )
    });
}

#[test]
fn rename_replies_agree() {
    compare(|ours: &RenameReply| -> RENAME3res {
        reply(
            ours,
            |body| RENAME3resok { fromdir_wcc: wcc(&body.from), todir_wcc: wcc(&body.to) },
            |body| RENAME3resfail { fromdir_wcc: wcc(&body.from), todir_wcc: wcc(&body.to) },
        )
    });
}

#[test]
fn link_replies_agree() {
    compare(|ours: &LinkReply| -> LINK3res {
        reply(
            ours,
            |body| LINK3resok {
                file_attributes: maybe(&body.attributes),
                linkdir_wcc: wcc(&body.dir),
            },
            |body| LINK3resfail {
                file_attributes: maybe(&body.attributes),
                linkdir_wcc: wcc(&body.dir),
            },
        )
    });
}

#[test]
fn readdir_replies_agree() {
    fn entry(ours: &Entry) -> entry3<'static> {
        entry3 { fileid: ours.fileid, name: filename3(opaque(&ours.name)), cookie: ours.cookie }
    }
    compare(|ours: &ReadDirReply| -> READDIR3res<'static> {
        reply(
            ours,
            |body| READDIR3resok {
                dir_attributes: maybe(&body.attributes),
                cookieverf: cookieverf3(body.verifier),
                reply: dirlist3 {
                    entries: List(body.entries.iter().map(entry).collect()),
                    eof: body.eof,
                },
            },
            |body| READDIR3resfail { dir_attributes: maybe(body) },
        )
    });
}

#[test]
fn readdirplus_replies_agree() {
    fn entry(ours: &EntryPlus) -> entryplus3<'static> {
        entryplus3 {
            fileid: ours.fileid,
            name: filename3(opaque(&ours.name)),
            cookie: ours.cookie,
            name_attributes: maybe(&ours.attributes),
            name_handle: option(ours.handle.as_ref(), handle),
        }
    }
    compare(|ours: &ReadDirPlusReply| -> READDIRPLUS3res<'static> {
        reply(
            ours,
            |body| READDIRPLUS3resok {
                dir_attributes: maybe(&body.attributes),
                cookieverf: cookieverf3(body.verifier),
                reply: dirlistplus3 {
                    entries: List(body.entries.iter().map(entry).collect()),
                    eof: body.eof,
                },
            },
            |body| READDIRPLUS3resfail { dir_attributes: maybe(body) },
        )
    });
}

#[test]
fn fsstat_replies_agree() {
    compare(|ours: &FsStatReply| -> FSSTAT3res {
        reply(
            ours,
            |body| FSSTAT3resok {
                obj_attributes: maybe(&body.attributes),
                tbytes: body.bytes_total,
                fbytes: body.bytes_free,
                abytes: body.bytes_available,
                tfiles: body.files_total,
                ffiles: body.files_free,
                afiles: body.files_available,
                invarsec: body.stable_seconds,
            },
            |body| FSSTAT3resfail { obj_attributes: maybe(body) },
        )
    });
}

#[test]
fn fsinfo_replies_agree() {
    compare(|ours: &FsInfoReply| -> FSINFO3res {
        reply(
            ours,
            |body| FSINFO3resok {
                obj_attributes: maybe(&body.attributes),
                rtmax: body.read_max,
                rtpref: body.read_preferred,
                rtmult: body.read_multiple,
                wtmax: body.write_max,
                wtpref: body.write_preferred,
                wtmult: body.write_multiple,
                dtpref: body.readdir_preferred,
                maxfilesize: body.file_size_max,
                time_delta: time(body.time_step),
                properties: body.properties,
            },
            |body| FSINFO3resfail { obj_attributes: maybe(body) },
        )
    });
}

#[test]
fn pathconf_replies_agree() {
    compare(|ours: &PathConfReply| -> PATHCONF3res {
        reply(
            ours,
            |body| PATHCONF3resok {
                obj_attributes: maybe(&body.attributes),
                linkmax: body.links_max,
                name_max: body.name_max,
                no_trunc: body.no_truncation,
                chown_restricted: body.chown_restricted,
                case_insensitive: body.case_insensitive,
                case_preserving: body.case_preserving,
            },
            |body| PATHCONF3resfail { obj_attributes: maybe(body) },
        )
    });
}

#[test]
fn commit_replies_agree() {
    compare(|ours: &CommitReply| -> COMMIT3res {
        reply(
            ours,
            |body| COMMIT3resok { file_wcc: wcc(&body.wcc), verf: writeverf3(body.verifier) },
            |body| COMMIT3resfail { file_wcc: wcc(body) },
        )
    });
}

#[test]
fn both_know_the_same_statuses() {
    same_values::<Status, nfsstat3>();
}

#[test]
fn both_know_the_same_file_types() {
    same_values::<FileType, ftype3>();
}
