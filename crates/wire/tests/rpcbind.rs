//! rpcbind messages, encoded by this crate and by onc-rpcbind; version 2 also by nfs3_types.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::fmt::Debug;

use judge::{Any, Source};
use lockkeeper_wire::rpcbind::*;
use lockkeeper_wire::{Decode, Encode};
use onc_rpcbind::{RpcbAddrEntry, RpcbEntry, RpcbList};
use onc_xdr::{List, Pack, Unpack};
use support::{SEEDS, compare};

/// As [`support::agree`], for the XDR of onc-rpcbind.
fn agree<Ours, Theirs>(to_theirs: impl Fn(&Ours) -> Theirs)
where
    Ours: Any + Encode + Decode + PartialEq + Debug,
    Theirs: Pack + Unpack,
{
    let pack = |theirs: &Theirs| {
        let mut bytes = Vec::new();
        theirs.pack(&mut bytes).unwrap();
        bytes
    };
    for seed in SEEDS {
        let ours: Ours = Source::new(seed).any();
        let our_bytes = ours.to_bytes();
        let their_bytes = pack(&to_theirs(&ours));
        assert_eq!(our_bytes, their_bytes, "{ours:?}");
        assert_eq!(Ours::from_bytes(their_bytes.into()).as_ref(), Ok(&ours));
        let (understood, length) = Theirs::unpack(&mut &our_bytes[..]).unwrap();
        assert_eq!(length, our_bytes.len(), "{ours:?}");
        assert_eq!(pack(&understood), our_bytes, "{ours:?}");
    }
}

fn string(ours: &Text) -> String {
    String::from_utf8(ours.to_vec()).unwrap()
}

fn binding(ours: &Binding) -> RpcbEntry {
    RpcbEntry {
        program: ours.program,
        version: ours.version,
        netid: string(&ours.netid),
        addr: string(&ours.address),
        owner: string(&ours.owner),
    }
}

fn their_mapping(ours: &Mapping) -> onc_rpcbind::mapping {
    let Mapping { program, version, protocol, port } = *ours;
    onc_rpcbind::mapping { prog: program, vers: version, prot: protocol, port }
}

#[test]
fn mappings_of_version_2_agree() {
    agree(their_mapping);
    agree(|ours: &Mappings| -> onc_rpcbind::pmaplist {
        List(ours.0.iter().map(their_mapping).collect())
    });
}

#[test]
fn mappings_of_version_2_agree_with_nfs3_types() {
    use nfs3_types::portmap::{mapping, pmaplist};
    let convert = |ours: &Mapping| mapping {
        prog: ours.program,
        vers: ours.version,
        prot: ours.protocol,
        port: ours.port,
    };
    compare(convert);
    compare(|ours: &Mappings| -> pmaplist {
        nfs3_types::xdr_codec::List(ours.0.iter().map(convert).collect())
    });
}

#[test]
fn bindings_of_versions_3_and_4_agree() {
    agree(binding);
    agree(|ours: &Bindings| -> RpcbList { List(ours.0.iter().map(binding).collect()) });
}

#[test]
fn address_lists_of_version_4_agree() {
    agree(|ours: &Addresses| -> onc_rpcbind::RpcbAddrList {
        List(
            ours.0
                .iter()
                .map(|address| RpcbAddrEntry {
                    maddr: string(&address.address),
                    nc_netid: string(&address.netid),
                    nc_semantics: address.semantics,
                    nc_protofmly: string(&address.family),
                    nc_proto: string(&address.protocol),
                })
                .collect(),
        )
    });
}

#[test]
fn numbers_agree() {
    assert_eq!(
        (PROGRAM, V2, PORT),
        (onc_rpcbind::PROGRAM, onc_rpcbind::VERSION, onc_rpcbind::PMAP_PORT)
    );
    assert_eq!((PROTOCOL_TCP, PROTOCOL_UDP), (onc_rpcbind::IPPROTO_TCP, onc_rpcbind::IPPROTO_UDP));
    for procedure in judge::programs::RPCBIND2 {
        let theirs = onc_rpcbind::PMAP_PROG::try_from(procedure.number).unwrap();
        let name = format!("{theirs:?}").replace("PMAPPROC_", "RPCBIND2::");
        assert_eq!(procedure.name.to_uppercase(), name);
    }
}
