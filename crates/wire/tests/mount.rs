//! MOUNT messages, encoded by this crate and by nfs3_types.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use judge::Source;
use lockkeeper_wire::mount::*;
use lockkeeper_wire::{Decode, Encode};
use nfs3_types::mount::{
    MOUNT_PROGRAM, dirpath, export_node, exports, fhandle3, mountbody, mountlist, mountres3,
    mountres3_ok, mountstat3, name,
};
use nfs3_types::xdr_codec::{List, Unpack};
use support::{SEEDS, compare, opaque, same_values};

#[test]
fn paths_agree() {
    compare(|ours: &Path| dirpath(opaque(ours)));
}

#[test]
fn mnt_replies_agree() {
    compare(|ours: &MntReply| match &ours.0 {
        Ok(mounted) => mountres3::Ok(mountres3_ok {
            fhandle: fhandle3(opaque(&mounted.root)),
            auth_flavors: mounted.flavours.clone(),
        }),
        Err(status) => mountres3::Err(mountstat3::unpack(&mut &status.to_bytes()[..]).unwrap().0),
    });
}

#[test]
fn dumps_agree() {
    compare(|ours: &Mounts| -> mountlist<'static, 'static> {
        List(
            ours.0
                .iter()
                .map(|mount| mountbody {
                    ml_hostname: name(opaque(&mount.host)),
                    ml_directory: dirpath(opaque(&mount.path)),
                })
                .collect(),
        )
    });
}

#[test]
fn export_lists_agree() {
    compare(|ours: &ExportList| -> exports<'static, 'static> {
        List(
            ours.0
                .iter()
                .map(|export| export_node {
                    ex_dir: dirpath(opaque(&export.path)),
                    ex_groups: List(export.clients.iter().map(|c| name(opaque(c))).collect()),
                })
                .collect(),
        )
    });
}

#[test]
fn both_know_the_same_statuses() {
    same_values::<MountStatus, mountstat3>();
}

#[test]
fn both_number_the_procedures_alike() {
    same_numbers(judge::programs::MOUNT3, "MOUNT::");
    same_numbers(judge::programs::MOUNT1, "MOUNT1::");
}

fn same_numbers(ours: &[judge::programs::Procedure], prefix: &str) {
    for procedure in ours {
        let theirs = MOUNT_PROGRAM::try_from(procedure.number).unwrap();
        let their_name = format!("{theirs:?}").replace("MOUNTPROC3_", prefix);
        assert_eq!(procedure.name.to_uppercase().trim_end_matches('S'), their_name);
    }
}

/// No other crate has version 1; RFC 1094 appendix A: a status, then 32 bytes without a length.
#[test]
fn version_1_answers_with_a_bare_handle_of_32_bytes() {
    for seed in SEEDS {
        let ours: MntReply1 = Source::new(seed).any();
        let bytes = ours.to_bytes();
        match &ours.0 {
            Ok(handle) => assert_eq!(bytes, [&[0; 4], &handle[..]].concat()),
            Err(status) => assert_eq!(bytes, (*status as u32).to_be_bytes()[..]),
        }
        assert_eq!(MntReply1::from_bytes(bytes), Ok(ours));
    }
}
