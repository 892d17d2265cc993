use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(|six| IpAddr::from(six).to_canonical()),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 120..300)]
}

prop_compose! {
    fn owner()(host: u64, number: u32, ours in address(), udp: bool, version: u8, tag in bytes())
        -> Arc<Owner>
    {
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        let namespace = OwnerNamespace::new(ours, transport, version);
        Arc::new(Owner { host: ClientId(host), namespace, number, tag: OwnerTag::new(&tag) })
    }
}

prop_compose! {
    fn lock()(
        id: u64, file in bytes(), owner in owner(), a: u64, b: u64, exclusive: bool,
        incarnation: u32, monitored: bool, since_ms: u64,
    ) -> Change {
        Change::Lock(Lock {
            id: LockId(id),
            file: FileKey::new(&file),
            owner,
            range: Range::between(a.min(b), a.max(b)).unwrap(),
            mode: if exclusive { Mode::Exclusive } else { Mode::Shared },
            incarnation: Incarnation(incarnation),
            monitored,
            since_ms,
        })
    }
}

prop_compose! {
    fn share()(
        id: u64, file in bytes(), owner in owner(), flags: [bool; 4], incarnation: u32,
        since_ms: u64,
    ) -> Change {
        let [read, write, deny_read, deny_write] = flags;
        Change::Share(Share {
            id: ShareId(id),
            file: FileKey::new(&file),
            owner,
            access: Access { read, write },
            deny: Access { read: deny_read, write: deny_write },
            incarnation: Incarnation(incarnation),
            since_ms,
        })
    }
}

prop_compose! {
    fn registrant()(name in bytes(), watched in bytes(), numbers: [u32; 3], private: [u8; 16])
        -> Registrant
    {
        let [program, version, procedure] = numbers;
        let callback = Callback { name: Name::new(&name), program, version, procedure };
        Registrant { callback, watched: Name::new(&watched), private }
    }
}

prop_compose! {
    fn client()(
        ids: [u64; 3], protocol in "(nlm|nsm|lease|[a-z0-9-]{1,32})", address in address(), name in bytes(), incarnation: u32,
        reboot in option::of(any::<(u32, u32, u64)>()), flags: [bool; 2],
        used in vec(self::address(), 0..9), registrant in option::of(registrant()),
    ) -> Change {
        let reboot = reboot.map(|(from, to, before)| Reboot {
            from: Incarnation(from),
            to: Incarnation(to),
            before: LockId(before),
        });
        Change::Client(Arc::new(Client {
            id: ClientId(ids[0]),
            protocol: Protocol::new(&protocol).unwrap(),
            address,
            name: Name::new(&name),
            incarnation: Incarnation(incarnation),
            reboot,
            monitored: flags[0],
            fenced: flags[1],
            used,
            registered_at_ms: ids[1],
            epoch: Epoch(ids[2]),
            registrant,
        }))
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<u64>(), grace())
            .prop_map(|(epoch, grace)| Change::Started { epoch: Epoch(epoch), grace }),
        Just(Change::GraceEnded),
        Just(Change::Stopped),
        any::<u64>().prop_map(Change::IdsBelow),
        any::<u64>().prop_map(|id| Change::ClientGone(ClientId(id))),
        any::<u64>().prop_map(|id| Change::LockGone(LockId(id))),
        any::<u64>().prop_map(|id| Change::ShareGone(ShareId(id))),
        client(),
        lock(),
        share(),
    ]
}

fn grace() -> impl Strategy<Value = Option<Exactness>> {
    prop::option::of(prop_oneof![
        Just(Exactness::Exact),
        Just(Exactness::Roster),
        Just(Exactness::Open)
    ])
}

prop_compose! {
    fn metadata()(numbers: [u64; 3], flags: [bool; 3], grace in grace()) -> Metadata {
        Metadata {
            epoch: Epoch(numbers[0]),
            ids_below: numbers[1],
            token: Token(numbers[2]),
            in_grace: flags[0],
            stopped_cleanly: flags[1],
            exactness: grace.unwrap_or_default(),
            at_rest: flags[2],
        }
    }
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        8 => change().prop_map(Record::Change),
        1 => metadata().prop_map(Record::Metadata),
        1 => Just(Record::Cleared),
    ]
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    match record {
        Record::Change(change) => encode(change, &mut out),
        Record::Metadata(metadata) => encode_metadata(metadata, &mut out),
        Record::Cleared => encode_cleared(&mut out),
    }
    out
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(record in record()) {
        prop_assert_eq!(decode(&encoded(&record)), Ok(record));
    }

    #[test]
    fn one_record_has_one_form(record in record(), at: prop::sample::Index, with: u8) {
        let mut bytes = encoded(&record);
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(other) = decode(&bytes) {
            prop_assert_eq!(encoded(&other), bytes);
        }
    }

    #[test]
    fn a_record_that_is_truncated_or_continues_is_refused(record in record(), at: prop::sample::Index) {
        let mut bytes = encoded(&record);
        prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(kind in 0..14u8, mut bytes in bytes()) {
        bytes.splice(0..0, [VERSION, kind]);
        if let Ok(record) = decode(&bytes) {
            prop_assert_eq!(encoded(&record), bytes);
        }
    }
}

fn a_lock() -> Vec<u8> {
    let owner = Owner {
        host: ClientId(7),
        namespace: OwnerNamespace::new(IpAddr::from([192, 0, 2, 1]), Transport::Udp, 4),
        number: 9,
        tag: OwnerTag::new(b"tag"),
    };
    let lock = Lock {
        id: LockId(1),
        file: FileKey::new(b"file"),
        owner: Arc::new(owner),
        range: Range::between(2, 3).unwrap(),
        mode: Mode::Exclusive,
        incarnation: Incarnation(5),
        monitored: true,
        since_ms: 6,
    };
    encoded(&Record::Change(Change::Lock(lock)))
}

#[test]
fn a_lock_is_these_bytes() {
    let expected: &[&[u8]] = &[
        &[1, 7],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[3],
        &[5, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 4, 4, 192, 0, 2, 1, 3, b't', b'a', b'g'],
        &[4, b'f', b'i', b'l', b'e'],
    ];
    assert_eq!(a_lock(), expected.concat());
}

#[test]
fn a_record_that_is_never_written_is_refused_by_field() {
    let with = |at: usize, byte: u8| {
        let mut bytes = a_lock();
        bytes[at] = byte;
        decode(&bytes)
    };
    assert_eq!(with(0, 2), Err(RecordError::Version(2)));
    assert_eq!(with(1, 99), Err(RecordError::Kind(99)));
    assert_eq!(with(10, 16), Err(RecordError::Value("flags of a lock", 16)));
    assert!(matches!(with(10, 4), Err(RecordError::Value("flags of a lock", _))));
    assert_eq!(with(31, 1), Err(RecordError::Value("end of a range", 1)));
    assert_eq!(with(51, 2), Err(RecordError::Value("transport", 2)));
    assert_eq!(with(53, 5), Err(RecordError::Value("our address", 5)));
    assert_eq!(with(58, 200), Err(RecordError::Short("owner's tag")));
}

#[test]
fn a_mapped_address_is_written_as_ipv4_and_never_read() {
    let mut out = Vec::new();
    FieldWriter::new(&mut out).address("::ffff:192.0.2.1".parse().unwrap());
    assert_eq!(out, [4, 192, 0, 2, 1]);
    let mapped = [6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1];
    assert!(FieldReader::new(&mapped).address("address").is_err());
}

#[test]
fn counts_are_not_padded_and_do_not_overflow() {
    let count = |bytes: &[u8]| FieldReader::new(bytes).count("count");
    assert_eq!(count(&[0]), Ok(0));
    assert_eq!(count(&[0x80, 1]), Ok(128));
    assert!(count(&[0x80, 0]).is_err());
    assert_eq!(count(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), Ok(u64::MAX));
    assert!(count(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 2]).is_err());
    assert!(count(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 129, 0]).is_err());
}
