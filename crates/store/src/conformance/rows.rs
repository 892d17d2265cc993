//! Rows for tests: over all ids, every field takes every form.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use keeper::bytes::{FileKey, Name, OwnerTag};
use keeper::change::{Change, Client, Lock, Protocol, Reboot, Registrant, Share};
use keeper::identity::{
    ClientId, Epoch, Incarnation, LockId, Owner, OwnerNamespace, ShareId, Transport,
};
use keeper::range::Range;
use keeper::request::{Access, Callback, Mode};

fn address(host: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8))
}

/// A client with this id; over all ids, every field takes every form.
pub fn client(id: u64) -> Change {
    let registrant = (id.is_multiple_of(2)).then(|| Registrant {
        callback: Callback {
            name: Name::from("watcher"),
            program: 100_021,
            version: 4,
            procedure: 16,
        },
        watched: Name::new(b"\0odd\xffname"),
        private: [id as u8; 16],
    });
    Change::Client(Arc::new(Client {
        id: ClientId(id),
        protocol: match id % 4 {
            0 | 2 => Protocol::NSM,
            3 => Protocol::new("lease").unwrap_or(Protocol::NLM),
            _ => Protocol::NLM,
        },
        address: address(id),
        name: Name::from("alice.example.com"),
        incarnation: Incarnation(u32::MAX),
        reboot: (id.is_multiple_of(3)).then_some(Reboot {
            from: Incarnation(1),
            to: Incarnation(u32::MAX),
            before: LockId(id),
        }),
        monitored: !id.is_multiple_of(5),
        fenced: id.is_multiple_of(4),
        used: vec![address(200), "2001:db8::1".parse().unwrap_or(address(201))],
        registered_at_ms: u64::MAX,
        epoch: Epoch(3),
        registrant,
    }))
}

fn owner(host: u64) -> Arc<Owner> {
    Arc::new(Owner {
        host: ClientId(host),
        namespace: OwnerNamespace::new(address(200), Transport::Udp, 4),
        number: u32::MAX,
        tag: OwnerTag::new(&[0, 255, b'@']),
    })
}

/// A lock with this id and host; over all ids, every field takes every form.
pub fn lock(id: u64, host: u64) -> Change {
    let range = Range::between(id, if id.is_multiple_of(2) { u64::MAX } else { id + 9 });
    Change::Lock(Lock {
        id: LockId(id),
        file: FileKey::new(&id.to_be_bytes()),
        owner: owner(host),
        range: range.unwrap_or(Range::ALL),
        mode: if id.is_multiple_of(3) { Mode::Shared } else { Mode::Exclusive },
        incarnation: Incarnation(id as u32),
        monitored: !id.is_multiple_of(7),
        since_ms: id,
    })
}

/// A share reservation with this id and host.
pub fn share(id: u64, host: u64) -> Change {
    Change::Share(Share {
        id: ShareId(id),
        file: FileKey::new(b""),
        owner: owner(host),
        access: Access { read: true, write: id.is_multiple_of(2) },
        deny: Access { read: false, write: true },
        incarnation: Incarnation::UNKNOWN,
        since_ms: 0,
    })
}

/// A pseudo-random batch that depends on `number` only.
pub fn batch(number: u64) -> Vec<Change> {
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let size = draw(6) + 1;
    let one = |draw: &mut dyn FnMut(u64) -> u64| match draw(40) {
        0 => client(draw(20)),
        1 => Change::ClientGone(ClientId(draw(20))),
        2 => Change::IdsBelow(number),
        3 => share(draw(20), 1),
        4..20 => Change::LockGone(LockId(draw(300))),
        _ => lock(draw(300), draw(20)),
    };
    (0..size).map(|_| one(&mut draw)).collect()
}
