//! Dead hosts of the local network: what is sent to them waits in our send buffers for seconds,
//! because the system still looks for them. That must not keep others waiting. Needs root.

use super::*;
use std::time::Instant;
use testbed::namespace::Namespace;
use testbed::peer::{Answer, script};
use wire::nsm;

/// Fewer than the kernel's neighbour table holds.
const DEAD: u16 = 700;

#[test]
fn dead_neighbours_do_not_delay_the_living() {
    let network = Namespace::new().unwrap();
    for command in [
        "link add wire0 type veth peer name wire1",
        "link set wire0 up",
        "link set wire1 up",
        "addr add 10.99.0.1/16 dev wire0",
    ] {
        network.ip(command).unwrap();
    }
    let took = network.enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ours: IpAddr = "10.99.0.1".parse().unwrap();
            let mut host = Host::bind(ours, 0, RpcbindKind::Full).await;
            host.tcp(nsm::PROGRAM, 1, script(|_| Answer::results(&()))).await;
            let rpcbind_port = host.rpcbind_port;
            let mut fixture = Fixture::with(
                peer::Settings { rpcbind_port, ..peer::Settings::default() },
                Settings::default(),
            )
            .await;
            for number in 0..DEAD {
                let [high, low] = number.to_be_bytes();
                let dead = Ipv4Addr::new(10, 99, 1 + high, low).into();
                fixture.callbacks.send_notice(notice(dead, &[(ours, "server")]));
            }
            // Until the dead hosts have been called twice.
            tokio::time::sleep(Duration::from_millis(700)).await;
            let start = Instant::now();
            for _ in 0..20 {
                let result = fixture.notice(notice(ours, &[(ours, "server")])).await;
                assert_eq!(result, NoticeResult::Answered);
            }
            start.elapsed()
        })
    });
    // One after the other: if each waited for the dead hosts, it would take a minute.
    assert!(took < Duration::from_secs(10), "{took:?}");
}
