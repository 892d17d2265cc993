use super::*;

const A: Lane = Some(FileSystemId(1));
const B: Lane = Some(FileSystemId(2));
const C: Lane = Some(FileSystemId(3));

/// A call.
struct Named(&'static str);

/// A schedule, the calls that were submitted to it, and a clock.
struct World {
    schedule: Schedule<Named>,
    start: Instant,
    now: Instant,
    running: Vec<(Ticket, Arc<Named>)>,
}

impl World {
    fn new(threads_max: usize, has_neighbours: bool) -> Self {
        let mut schedule = Schedule::new(threads_max);
        schedule.set_neighbours(has_neighbours);
        let now = Instant::now();
        Self { schedule, start: now, now, running: Vec::new() }
    }

    /// Time since the start.
    fn at(&mut self, milliseconds: u64) -> &mut Self {
        self.now = self.start + Duration::from_millis(milliseconds);
        self
    }

    fn push(&mut self, lane: Lane, name: &'static str, count: usize) {
        self.push_bytes(lane, name, count, 100);
    }

    fn push_bytes(&mut self, lane: Lane, name: &'static str, count: usize, bytes: usize) {
        for _ in 0..count {
            self.schedule.push(lane, Arc::new(Named(name)), bytes, self.now);
        }
    }

    /// Runs whatever may run; their names.
    fn run(&mut self) -> Vec<&'static str> {
        let mut names = Vec::new();
        while let Some((ticket, call)) = self.schedule.next(self.now) {
            names.push(call.0);
            self.running.push((ticket, call));
        }
        names
    }

    /// Ends the first call of that name.
    fn end(&mut self, name: &str) -> Option<Resumed> {
        let at = self.running.iter().position(|(_, call)| call.0 == name).unwrap();
        let (ticket, _) = self.running.remove(at);
        self.schedule.ended(&ticket, self.now).resumed
    }

    /// How many calls are exempted, and the lanes whose stall is to be logged.
    fn check(&mut self) -> (usize, Vec<Lane>) {
        let overdue = self.schedule.check(self.now);
        (overdue.exempt.len(), overdue.stalls.iter().map(|stall| stall.lane).collect())
    }
}

fn count(names: &[&str], name: &str) -> usize {
    names.iter().filter(|other| **other == name).count()
}

#[test]
fn one_file_system_takes_half_of_the_threads_and_all_if_it_is_alone() {
    let mut world = World::new(64, true);
    world.push(A, "a", 70);
    assert_eq!(world.run().len(), 32);
    world.schedule.set_neighbours(false);
    assert_eq!(world.run().len(), 32);
    assert_eq!(world.schedule.running(), 64);
}

#[test]
fn two_that_hang_leave_a_third_its_half() {
    let mut world = World::new(64, true);
    world.push(A, "a", 70);
    world.push(B, "b", 70);
    assert_eq!(world.run().len(), 64);
    world.push(C, "c", 70);
    assert_eq!(world.run().len(), FLOOR, "they may be busy");
    world.at(2000);
    for _ in 0..FLOOR {
        world.end("c");
    }
    world.run();
    world.check();
    assert_eq!(world.schedule.stalled(), 2);
    assert_eq!(world.run().len(), 32 - FLOOR);
    // Those that hang take no more because of that.
    assert_eq!(world.schedule.running(), 64 + 32);
    world.end("a");
    world.end("a");
    assert_eq!(world.run(), ["a", "a"], "A goes on, and shares the threads with C again");
    world.push(Some(FileSystemId(4)), "d", 10);
    assert_eq!(world.run().len(), FLOOR);
}

#[test]
fn several_that_hang_leave_each_other_their_floor() {
    let mut world = World::new(64, true);
    world.push(A, "a", 70);
    world.push(B, "b", 70);
    let ran = world.run();
    assert_eq!((count(&ran, "a"), count(&ran, "b")), (32, 32));
    world.push(C, "c", 70);
    assert_eq!(world.run(), ["c"; 4]);
    // The end of a call of one is the turn of the one that has the floor only.
    world.end("a");
    assert_eq!(world.run().len(), 0, "64 run besides");
    world.end("c");
    assert_eq!(world.run(), ["c"]);
}

#[test]
fn a_small_pool_has_floors_too() {
    let mut world = World::new(1, true);
    world.push(A, "a", 3);
    world.push(B, "b", 3);
    assert_eq!(world.run(), ["a", "b"]);
    let mut world = World::new(4, true);
    world.push(A, "a", 9);
    world.push(B, "b", 9);
    assert_eq!(world.run().len(), 8);
}

#[test]
fn file_systems_take_turns_and_calls_of_one_keep_their_order() {
    let mut world = World::new(64, true);
    for name in ["a1", "a2", "a3"] {
        world.push(A, name, 1);
    }
    for name in ["b1", "b2"] {
        world.push(B, name, 1);
    }
    assert_eq!(world.run(), ["a1", "b1", "a2", "b2", "a3"]);
}

#[test]
fn calls_that_may_not_run_do_not_count_as_waiting() {
    let mut world = World::new(8, true);
    world.push(A, "a", 20);
    assert!(world.schedule.is_crowded(4) && !world.schedule.is_crowded(20));
    assert_eq!(world.run().len(), 4);
    assert!(!world.schedule.is_crowded(0));
    assert_eq!(world.schedule.waiting_since(), None);
    world.at(10).push(B, "b", 1);
    assert!(world.schedule.is_crowded(0));
    assert_eq!(world.schedule.waiting_since(), Some(world.now));
}

#[test]
fn a_file_system_is_stalled_when_no_call_has_ended_for_two_seconds() {
    let mut world = World::new(64, true);
    world.push(A, "a", 2);
    world.push(B, "b", 2);
    world.run();
    world.at(1500).end("a");
    assert_eq!(world.at(2500).check(), (3, vec![B]), "calls are late, but A is not stalled");
    assert_eq!(world.at(3499).check().1, [], "told once");
    assert_eq!(world.at(3500).check(), (0, vec![A]));
    assert_eq!(world.schedule.stalled(), 2);
    let resumed = world.at(4500).end("b").unwrap();
    assert_eq!((resumed.lane, resumed.stalled_for, resumed.logged), (B, ms(2000), true));
    assert_eq!(world.schedule.stalled(), 1);
    assert!(world.at(4600).end("b").is_none());
}

#[test]
fn an_idle_file_system_does_not_stall() {
    let mut world = World::new(64, true);
    world.push(A, "a", 1);
    world.run();
    world.end("a");
    world.at(60_000).push(A, "a", 1);
    world.run();
    assert_eq!(world.at(61_900).check(), (0, vec![]));
    assert_eq!(world.at(62_000).check(), (1, vec![A]));
}

#[test]
fn stalls_of_one_file_system_are_logged_every_ten_seconds() {
    let mut world = World::new(64, true);
    let mut logged = Vec::new();
    world.push(A, "a", 1);
    world.run();
    for second in 2..40 {
        world.at(1000 * second);
        if !world.check().1.is_empty() {
            logged.push(second);
        }
        // Each stall ends after a second.
        if second % 3 == 0 {
            assert_eq!(
                world.end("a").is_some_and(|r| r.logged),
                logged.last() == Some(&(second - 1))
            );
            world.push(A, "a", 1);
            world.run();
        }
    }
    assert_eq!(logged, [2, 14, 26, 38]);
}

#[test]
fn what_hangs_is_exempt_once_and_what_waits_behind_it_while_it_is_stalled() {
    let mut world = World::new(8, true);
    world.push(A, "a", 10);
    assert_eq!(world.run().len(), 4);
    world.at(1000).push(A, "a", 5);
    assert_eq!(world.at(2000).check(), (10, vec![A]), "four run and six wait for two seconds");
    assert_eq!(world.at(2500).check().0, 0);
    assert_eq!(world.at(3000).check().0, 5);
    world.at(3100).end("a");
    // One that begins now has waited long enough, but its file system goes on.
    assert_eq!(world.run(), ["a"]);
    world.push(A, "a", 1);
    assert_eq!(world.at(5099).check().0, 0);
    assert_eq!(world.at(5100).check().0, 1);
}

#[test]
fn calls_that_hang_are_exempt_although_others_end() {
    let mut world = World::new(64, true);
    world.push(A, "hangs", 3);
    world.run();
    for second in 1..=5 {
        world.at(1000 * second).push(A, "ends", 1);
        world.run();
        world.end("ends");
        let exempt = if second == 2 { 3 } else { 0 };
        assert_eq!(world.check(), (exempt, vec![]), "{second}");
    }
}

#[test]
fn the_calls_that_are_exempt_are_bounded() {
    let mut world = World::new(8, true);
    world.push(A, "a", 5000);
    world.run();
    assert_eq!(world.at(2000).check().0, EXEMPT_MAX);
    assert_eq!(world.at(3000).check().0, 0);
    world.end("a");
    assert_eq!(world.at(9000).check().0, 1);
}

#[test]
fn a_stalled_file_system_gets_no_more_once_it_has_enough() {
    let mut world = World::new(64, true);
    world.push(A, "a", 63);
    world.push_bytes(B, "b", 15, 1 << 20);
    world.run();
    let refuses = |world: &World, lane| world.schedule.refuses(lane, 100, usize::MAX, world.now);
    world.at(2000).check();
    assert!(!refuses(&world, A) && !refuses(&world, B) && !refuses(&world, C));
    world.push(A, "a", 1);
    world.push_bytes(B, "b", 1, 1 << 20);
    assert!(refuses(&world, A) && refuses(&world, B) && !refuses(&world, C));
    world.end("a");
    world.push(A, "a", 100);
    assert!(!refuses(&world, A), "it goes on");
    assert!(refuses(&world, B));
}

#[test]
fn one_file_system_does_not_hold_more_bytes_than_its_part() {
    let refuses = |world: &World, lane, bytes| world.schedule.refuses(lane, bytes, 1000, world.now);
    let mut world = World::new(64, true);
    assert!(!refuses(&world, A, 2000), "one call always fits");
    world.push_bytes(A, "a", 3, 300);
    assert!(!refuses(&world, A, 101), "no call has had time to end");
    world.run();
    world.at(499);
    assert!(!refuses(&world, A, 101), "it may only be busy");
    world.at(500);
    assert!(!refuses(&world, A, 100) && !refuses(&world, B, 101));
    assert!(refuses(&world, A, 101), "no call ends");
    world.schedule.set_neighbours(false);
    assert!(!refuses(&world, A, 101), "nobody else needs the rest");
    world.schedule.set_neighbours(true);
    world.end("a");
    world.push_bytes(A, "a", 1, 300);
    assert!(!refuses(&world, A, 101), "calls end");
    world.run();
    world.at(1999).end("a");
    world.push_bytes(A, "a", 1, 300);
    assert!(!refuses(&world, A, 101));
    world.at(2000);
    assert!(refuses(&world, A, 101), "others end, but one hangs");
}

#[test]
fn idle_lanes_are_reused() {
    let mut world = World::new(64, true);
    world.push(A, "busy", 1);
    world.run();
    for number in 0..10_000 {
        world.push(Some(FileSystemId(100 + number)), "a", 1);
        assert_eq!(world.run(), ["a"]);
        world.end("a");
    }
    assert_eq!(world.schedule.lanes.len(), LANES_KEPT);
    assert_eq!(world.at(2000).check(), (1, vec![A]), "the busy one was kept");
}

#[test]
fn what_remains_is_named_and_is_not_run() {
    let mut world = World::new(8, true);
    world.push(A, "a", 5);
    world.push(B, "b", 1);
    world.run();
    let remaining = world.schedule.clear();
    let of = |lane, running| {
        remaining.iter().filter(|call| (call.lane, call.running) == (lane, running)).count()
    };
    assert_eq!((of(A, true), of(A, false), of(B, true)), (4, 1, 1));
    world.end("a");
    assert!(world.run().is_empty());
    assert_eq!(world.schedule.running(), 4);
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
