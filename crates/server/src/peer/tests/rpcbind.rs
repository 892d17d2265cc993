//! A lock manager registered with Debian's rpcbind, over IPv6. Needs root.

use super::*;
use client::Options;
use client::rpcbind::{RpcTransport, Rpcbind};
use keeper::identity::Transport;
use testbed::debian::Machine;
use testbed::namespace::Namespace;
use wire::nlm;
use wire::rpcbind::{Binding, v4};

#[test]
fn a_lock_manager_is_found_by_each_transport_over_ipv6() {
    let network = Namespace::new().unwrap();
    let machine = Machine::boot(&network).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    let find = async || {
        let ip = "::1".parse().unwrap();
        let options = Options { reserved_port: true, ..Options::default() };
        let rpcbind = "[::1]:111".parse().unwrap();
        let mut rpcbind = Rpcbind::connect(rpcbind, RpcTransport::Tcp, &options).await.unwrap();
        for (netid, address) in [("tcp6", "::.2.1"), ("udp6", "::.2.2")] {
            let (program, version) = (nlm::PROGRAM, nlm::V4);
            let [netid, address, owner] = [netid, address, "superuser"].map(Into::into);
            let binding = Binding { program, version, netid, address, owner };
            assert!(rpcbind.call::<v4::Set>(&binding).await.unwrap());
        }
        for (transport, port) in [(Transport::Tcp, 513), (Transport::Udp, 514)] {
            let to = LockManager { host: ip, ours: ip, version: nlm::V4 };
            let found = peers(111).find_port(to.service(transport), ip, soon()).await;
            assert_eq!(found, Ok(port));
        }
    };
    network.enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(find());
    });
}
