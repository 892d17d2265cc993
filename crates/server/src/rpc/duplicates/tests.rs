use super::*;

const TCP: Origin = Origin::Connection(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key(number: u32) -> Key {
    Key {
        from: [10, 0, 0, 1].into(),
        transport: Transport::Tcp,
        reserved_port: true,
        xid: number,
        procedure: (100_003, 3, 12),
        checksum: u64::from(number),
        name: 0,
    }
}

fn udp(address: u8) -> Origin {
    Origin::Address([10, 0, 0, address].into())
}

type Cache = DuplicateCache<u32, &'static str>;

fn cache(per_origin: usize, entries: usize) -> Cache {
    Cache::new(Bounds { per_origin, entries, bytes: 1000 })
}

fn begin(cache: &mut Cache, number: u32, origin: Origin, seconds: u64) -> Begun<&'static str> {
    cache.begin(key(number), origin, number, at(seconds), |a, b| a == b)
}

fn done(cache: &mut Cache, number: u32, origin: Origin, seconds: u64) {
    assert_eq!(begin(cache, number, origin, seconds), Begun::New);
    assert_eq!(waiting(cache.answered(&key(number), "done", 4, at(seconds))), [number]);
}

fn waiting(waiting: Waiting<u32>) -> Vec<u32> {
    waiting.into_iter().collect()
}

#[test]
fn the_reply_goes_to_the_newest_that_wait() {
    let mut cache = cache(100, 100);
    for from in 0..=WAITING_MAX as u32 + 1 {
        cache.begin(key(1), TCP, from, at(0), |a, b| a == b);
    }
    let expected: Vec<u32> = (2..=WAITING_MAX as u32 + 1).collect();
    assert_eq!(waiting(cache.answered(&key(1), "done", 4, at(0))), expected);
}

#[test]
fn a_repeat_gets_the_same_reply_and_one_under_way_gets_it_too() {
    let mut cache = cache(100, 100);
    let begin = |cache: &mut Cache, from| cache.begin(key(1), TCP, from, at(1), |a, b| a == b);
    assert_eq!(begin(&mut cache, 10), Begun::New);
    assert_eq!(begin(&mut cache, 11), Begun::InProgress);
    assert_eq!(begin(&mut cache, 11), Begun::InProgress);
    assert_eq!(waiting(cache.answered(&key(1), "done", 4, at(2))), [10, 11]);
    assert_eq!(begin(&mut cache, 12), Begun::Again("done"));
}

#[test]
fn users_of_a_machine_do_not_share_the_replies_of_its_root() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    let of_user = Key { reserved_port: false, ..key(1) };
    assert_eq!(cache.begin(of_user, TCP, 1, at(0), |a, b| a == b), Begun::New);
}

#[test]
fn a_call_without_a_reply_is_new_when_it_is_repeated() {
    let mut cache = cache(100, 100);
    assert_eq!(begin(&mut cache, 1, TCP, 0), Begun::New);
    assert_eq!(waiting(cache.abandoned(&key(1))), [1]);
    assert_eq!(begin(&mut cache, 1, TCP, 1), Begun::New);
}

#[test]
fn a_connection_is_remembered_until_two_minutes_after_its_end() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    assert_eq!(begin(&mut cache, 1, TCP, 5000), Begun::Again("done"));
    cache.connection_ended(1, at(5000));
    assert_eq!(begin(&mut cache, 1, Origin::Connection(2), 5119), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 1, Origin::Connection(2), 5120), Begun::New);
}

#[test]
fn what_an_ended_connection_asked_is_not_started_again_while_it_is_being_done() {
    let mut cache = cache(100, 100);
    assert_eq!(begin(&mut cache, 1, TCP, 0), Begun::New);
    done(&mut cache, 2, TCP, 0);
    cache.connection_ended(1, at(0));
    let next = Origin::Connection(2);
    assert_eq!(begin(&mut cache, 1, next, 500), Begun::InProgress);
    assert_eq!(begin(&mut cache, 2, next, 500), Begun::New);
    assert_eq!(waiting(cache.answered(&key(1), "done", 4, at(510))), [1]);
    assert_eq!(begin(&mut cache, 1, next, 619), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 1, next, 620), Begun::New);
}

#[test]
fn a_connection_forgets_its_own_oldest_call_only() {
    let mut cache = cache(3, 100);
    done(&mut cache, 99, Origin::Connection(2), 0);
    assert_eq!(begin(&mut cache, 0, TCP, 0), Begun::New);
    for number in 1..=3 {
        done(&mut cache, number, TCP, 0);
    }
    assert_eq!(begin(&mut cache, 99, TCP, 0), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 0, TCP, 0), Begun::InProgress);
    assert_eq!(begin(&mut cache, 3, TCP, 0), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 1, TCP, 0), Begun::New);
}

#[test]
fn datagrams_are_remembered_for_two_minutes_and_never_pushed_out_young() {
    let mut cache = cache(2, 100);
    done(&mut cache, 1, udp(1), 0);
    done(&mut cache, 2, udp(1), 10);
    assert_eq!(begin(&mut cache, 3, udp(1), 29), Begun::Full);
    done(&mut cache, 4, udp(2), 29);
    done(&mut cache, 3, udp(1), 30);
    assert_eq!(begin(&mut cache, 2, udp(1), 129), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 2, udp(1), 130), Begun::New);
}

#[test]
fn a_datagram_that_is_being_done_is_never_started_again() {
    let mut cache = cache(100, 100);
    assert_eq!(begin(&mut cache, 1, udp(1), 0), Begun::New);
    assert_eq!(begin(&mut cache, 1, udp(1), 500), Begun::InProgress);
    assert_eq!(waiting(cache.answered(&key(1), "done", 4, at(500))), [1]);
    assert_eq!(begin(&mut cache, 1, udp(1), 501), Begun::New);
}

#[test]
fn when_all_is_full_old_entries_go_and_young_ones_stay() {
    let mut cache = cache(100, 3);
    for number in 1..=3 {
        done(&mut cache, number, Origin::Connection(u64::from(number)), 0);
    }
    assert_eq!(begin(&mut cache, 4, TCP, 29), Begun::Full);
    assert_eq!(begin(&mut cache, 1, TCP, 29), Begun::Again("done"));
    done(&mut cache, 4, TCP, 30);
    assert_eq!(cache.entries.len(), 3);
    assert_eq!(begin(&mut cache, 3, TCP, 30), Begun::Again("done"));
}

#[test]
fn bytes_are_bounded() {
    let mut cache = cache(100, 100);
    for number in 0..6 {
        assert_eq!(begin(&mut cache, number, TCP, 0), Begun::New);
        cache.answered(&key(number), "long", 200, at(0));
    }
    assert_eq!(begin(&mut cache, 6, TCP, 10), Begun::Full);
    assert_eq!(begin(&mut cache, 6, TCP, 30), Begun::New);
    assert_eq!(begin(&mut cache, 1, TCP, 30), Begun::Again("long"));
}

#[test]
fn a_reply_that_is_given_twice_takes_room_once() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    for _ in 0..3 {
        assert_eq!(waiting(cache.answered(&key(1), "again", 600, at(0))), []);
    }
    assert_eq!(begin(&mut cache, 2, TCP, 0), Begun::New);
}

#[test]
fn a_busy_connection_gives_up_its_own_entries_and_no_others() {
    let mut cache = cache(100, 20);
    done(&mut cache, 99, udp(1), 0);
    for number in 0..50 {
        done(&mut cache, number, TCP, 0);
    }
    assert_eq!(cache.entries.len(), 20);
    assert_eq!(begin(&mut cache, 31, TCP, 0), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 99, udp(1), 0), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 100, udp(1), 0), Begun::Full);
    assert_eq!(begin(&mut cache, 100, Origin::Connection(2), 0), Begun::Full);
}

#[test]
fn a_rebooted_host_is_forgotten_but_not_what_may_be_of_its_new_life() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    done(&mut cache, 2, TCP, 15);
    begin(&mut cache, 3, TCP, 0);
    cache.forget(|_| true, at(20));
    assert_eq!(begin(&mut cache, 1, TCP, 20), Begun::New);
    assert_eq!(begin(&mut cache, 2, TCP, 20), Begun::Again("done"));
    assert_eq!(begin(&mut cache, 3, TCP, 20), Begun::InProgress);
}

#[test]
fn what_is_gone_leaves_nothing_behind() {
    let mut cache = cache(8, 100);
    begin(&mut cache, 0, udp(9), 0);
    for number in 1..10_000 {
        done(&mut cache, number, TCP, 0);
        assert_eq!(begin(&mut cache, 10_000 + number, udp(9), 0), Begun::New);
        cache.abandoned(&key(10_000 + number));
    }
    assert!(cache.datagrams.len() < 200);
    assert!(cache.origins.values().all(|share| share.keys.len() < 200));
    cache.connection_ended(1, at(1));
    cache.expire(at(200));
    assert_eq!((cache.entries.len(), cache.origins.len(), cache.bytes), (1, 1, 0));
}
