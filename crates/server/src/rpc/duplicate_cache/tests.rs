use wire::nfs3;
use wire::rpc::Procedure;

use super::*;

const TCP: Origin = Origin::Connection(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn key(number: u32) -> CallKey {
    CallKey {
        from: [10, 0, 0, 1].into(),
        transport: Transport::Tcp,
        reserved_port: true,
        xid: number,
        procedure: (nfs3::PROGRAM, nfs3::VERSION, nfs3::Remove::NUMBER),
        checksum: u64::from(number),
        name: 0,
    }
}

fn udp(address: u8) -> Origin {
    Origin::Address([10, 0, 0, address].into())
}

type Cache = DuplicateCache<u32, &'static str>;

fn cache(per_origin: usize, entries: usize) -> Cache {
    Cache::new(CacheBounds { per_origin, entries, bytes: 1000 })
}

fn begin(
    cache: &mut Cache,
    number: u32,
    origin: Origin,
    seconds: u64,
) -> CacheLookup<&'static str> {
    cache.begin(key(number), origin, number, at(seconds), |a, b| a == b, |_| ())
}

fn done(cache: &mut Cache, number: u32, origin: Origin, seconds: u64) {
    assert_eq!(begin(cache, number, origin, seconds), CacheLookup::New);
    assert_eq!(listed(cache.answered(&key(number), "done", 4, at(seconds))), [number]);
}

fn listed(recipients: Recipients<u32>) -> Vec<u32> {
    recipients.into_iter().collect()
}

#[test]
fn the_reply_goes_to_the_newest_recipients() {
    let mut cache = cache(100, 100);
    for from in 0..=RECIPIENTS_MAX as u32 + 1 {
        cache.begin(key(1), TCP, from, at(0), |a, b| a == b, |_| ());
    }
    let expected: Vec<u32> = (2..=RECIPIENTS_MAX as u32 + 1).collect();
    assert_eq!(listed(cache.answered(&key(1), "done", 4, at(0))), expected);
}

#[test]
fn a_retransmission_gets_the_same_reply_while_the_call_runs_and_afterwards() {
    let mut cache = cache(100, 100);
    let begin =
        |cache: &mut Cache, from| cache.begin(key(1), TCP, from, at(1), |a, b| a == b, |_| ());
    assert_eq!(begin(&mut cache, 10), CacheLookup::New);
    assert_eq!(begin(&mut cache, 11), CacheLookup::InProgress);
    assert_eq!(begin(&mut cache, 11), CacheLookup::InProgress);
    assert_eq!(listed(cache.answered(&key(1), "done", 4, at(2))), [10, 11]);
    assert_eq!(begin(&mut cache, 12), CacheLookup::Cached("done"));
}

#[test]
fn users_of_a_machine_do_not_share_the_replies_of_its_root() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    let of_user = CallKey { reserved_port: false, ..key(1) };
    assert_eq!(cache.begin(of_user, TCP, 1, at(0), |a, b| a == b, |_| ()), CacheLookup::New);
}

#[test]
fn a_call_without_a_reply_is_new_when_it_is_retransmitted() {
    let mut cache = cache(100, 100);
    assert_eq!(begin(&mut cache, 1, TCP, 0), CacheLookup::New);
    assert_eq!(listed(cache.abandoned(&key(1))), [1]);
    assert_eq!(begin(&mut cache, 1, TCP, 1), CacheLookup::New);
}

#[test]
fn calls_of_a_connection_are_kept_until_two_minutes_after_its_end() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    assert_eq!(begin(&mut cache, 1, TCP, 5000), CacheLookup::Cached("done"));
    cache.connection_ended(1, at(5000));
    assert_eq!(begin(&mut cache, 1, Origin::Connection(2), 5119), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 1, Origin::Connection(2), 5120), CacheLookup::New);
}

#[test]
fn a_running_call_of_an_ended_connection_is_not_run_again() {
    let mut cache = cache(100, 100);
    assert_eq!(begin(&mut cache, 1, TCP, 0), CacheLookup::New);
    done(&mut cache, 2, TCP, 0);
    cache.connection_ended(1, at(0));
    let next = Origin::Connection(2);
    assert_eq!(begin(&mut cache, 1, next, 500), CacheLookup::InProgress);
    assert_eq!(begin(&mut cache, 2, next, 500), CacheLookup::New);
    assert_eq!(listed(cache.answered(&key(1), "done", 4, at(510))), [1]);
    assert_eq!(begin(&mut cache, 1, next, 619), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 1, next, 620), CacheLookup::New);
}

#[test]
fn a_connection_evicts_its_own_oldest_call_only() {
    let mut cache = cache(3, 100);
    done(&mut cache, 99, Origin::Connection(2), 0);
    assert_eq!(begin(&mut cache, 0, TCP, 0), CacheLookup::New);
    for number in 1..=3 {
        done(&mut cache, number, TCP, 0);
    }
    assert_eq!(begin(&mut cache, 99, TCP, 0), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 0, TCP, 0), CacheLookup::InProgress);
    assert_eq!(begin(&mut cache, 3, TCP, 0), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 1, TCP, 0), CacheLookup::New);
}

#[test]
fn datagrams_are_kept_for_two_minutes_and_never_evicted_young() {
    let mut cache = cache(2, 100);
    done(&mut cache, 1, udp(1), 0);
    done(&mut cache, 2, udp(1), 10);
    assert_eq!(begin(&mut cache, 3, udp(1), 29), CacheLookup::Full);
    done(&mut cache, 4, udp(2), 29);
    done(&mut cache, 3, udp(1), 30);
    assert_eq!(begin(&mut cache, 2, udp(1), 129), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 2, udp(1), 130), CacheLookup::New);
}

#[test]
fn a_running_call_that_came_as_a_datagram_is_never_run_again() {
    let mut cache = cache(100, 100);
    assert_eq!(begin(&mut cache, 1, udp(1), 0), CacheLookup::New);
    assert_eq!(begin(&mut cache, 1, udp(1), 500), CacheLookup::InProgress);
    assert_eq!(listed(cache.answered(&key(1), "done", 4, at(500))), [1]);
    assert_eq!(begin(&mut cache, 1, udp(1), 501), CacheLookup::New);
}

#[test]
fn a_full_cache_evicts_old_entries_and_no_young_ones() {
    let mut cache = cache(100, 3);
    for number in 1..=3 {
        done(&mut cache, number, Origin::Connection(u64::from(number)), 0);
    }
    assert_eq!(begin(&mut cache, 4, TCP, 29), CacheLookup::Full);
    assert_eq!(begin(&mut cache, 1, TCP, 29), CacheLookup::Cached("done"));
    done(&mut cache, 4, TCP, 30);
    assert_eq!(cache.entries.len(), 3);
    assert_eq!(begin(&mut cache, 3, TCP, 30), CacheLookup::Cached("done"));
}

#[test]
fn bytes_are_bounded() {
    let mut cache = cache(100, 100);
    for number in 0..6 {
        assert_eq!(begin(&mut cache, number, TCP, 0), CacheLookup::New);
        cache.answered(&key(number), "long", 200, at(0));
    }
    assert_eq!(begin(&mut cache, 6, TCP, 10), CacheLookup::Full);
    assert_eq!(begin(&mut cache, 6, TCP, 30), CacheLookup::New);
    assert_eq!(begin(&mut cache, 1, TCP, 30), CacheLookup::Cached("long"));
}

#[test]
fn a_call_that_is_answered_twice_is_counted_once() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    for _ in 0..3 {
        assert_eq!(listed(cache.answered(&key(1), "again", 600, at(0))), []);
    }
    assert_eq!(begin(&mut cache, 2, TCP, 0), CacheLookup::New);
}

#[test]
fn a_busy_connection_evicts_its_own_entries_and_no_others() {
    let mut cache = cache(100, 20);
    done(&mut cache, 99, udp(1), 0);
    for number in 0..50 {
        done(&mut cache, number, TCP, 0);
    }
    assert_eq!(cache.entries.len(), 20);
    assert_eq!(begin(&mut cache, 31, TCP, 0), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 99, udp(1), 0), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 100, udp(1), 0), CacheLookup::Full);
    assert_eq!(begin(&mut cache, 100, Origin::Connection(2), 0), CacheLookup::Full);
}

#[test]
fn a_reboot_removes_entries_but_none_that_may_be_of_the_new_kernel() {
    let mut cache = cache(100, 100);
    done(&mut cache, 1, TCP, 0);
    done(&mut cache, 2, TCP, 15);
    begin(&mut cache, 3, TCP, 0);
    cache.forget(|_| true, at(20));
    assert_eq!(begin(&mut cache, 1, TCP, 20), CacheLookup::New);
    assert_eq!(begin(&mut cache, 2, TCP, 20), CacheLookup::Cached("done"));
    assert_eq!(begin(&mut cache, 3, TCP, 20), CacheLookup::InProgress);
}

#[test]
fn removed_entries_leave_nothing_behind() {
    let mut cache = cache(8, 100);
    begin(&mut cache, 0, udp(9), 0);
    for number in 1..10_000 {
        done(&mut cache, number, TCP, 0);
        assert_eq!(begin(&mut cache, 10_000 + number, udp(9), 0), CacheLookup::New);
        cache.abandoned(&key(10_000 + number));
    }
    assert!(cache.datagrams.len() < 200);
    assert!(cache.origins.values().all(|own| own.keys.len() < 200));
    cache.connection_ended(1, at(1));
    cache.expire(at(200));
    assert_eq!((cache.entries.len(), cache.origins.len(), cache.bytes), (1, 1, 0));
}
