use super::*;
use std::sync::mpsc;
use vfs::FileSystemId;

const A: Lane = Some(FileSystemId(1));
const B: Lane = Some(FileSystemId(2));

type Work = Box<dyn FnOnce() + Send>;

/// A call that runs a closure.
struct Closure(Mutex<Option<Work>>);

impl Job for Closure {
    fn run(self: Arc<Self>) {
        let work = self.0.lock().unwrap().take().unwrap();
        work();
    }

    fn abandon(&self) {}

    fn exempt(&self, _: Duration) {}

    fn summary(&self) -> Summary {
        Summary { procedure: "write", peer: [10, 0, 0, 5].into() }
    }
}

fn submit(workers: &Workers, lane: Lane, work: impl FnOnce() + Send + 'static) {
    let call = Arc::new(Closure(Mutex::new(Some(Box::new(work)))));
    workers.submit(lane, call, 1, Instant::now());
}

/// What a call waits for.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

struct TwoFileSystems;

impl FileSystems for TwoFileSystems {
    fn are_several(&self) -> bool {
        true
    }

    fn paths(&self, lane: Lane) -> String {
        if lane == A { "/srv/a".into() } else { "/srv/b".into() }
    }

    fn set_stalled(&self, _: Vec<Lane>) {}
}

fn workers(threads_max: usize) -> Workers {
    Workers::start(threads_max, || ()).unwrap()
}

#[test]
fn every_call_is_done_even_after_one_panics() {
    let done = Arc::new(AtomicUsize::new(0));
    let workers = workers(3);
    for number in 0..1000 {
        let done = done.clone();
        let work = move || {
            assert!(number != 500, "on purpose");
            done.fetch_add(1, Ordering::Relaxed);
        };
        submit(&workers, if number % 3 == 0 { A } else { B }, work);
    }
    drop(workers);
    assert_eq!(done.load(Ordering::Relaxed), 999);
}

#[test]
fn calls_that_wait_for_others_get_threads_up_to_the_limit() {
    let workers = workers(24);
    let (arrived, arrivals) = mpsc::channel();
    let gate = Gate::default();
    for number in 0..40 {
        let (arrived, gate) = (arrived.clone(), gate.clone());
        let work = move || {
            arrived.send(number).unwrap();
            gate.pass();
        };
        submit(&workers, A, work);
    }
    let arrived = std::iter::from_fn(|| arrivals.recv_timeout(Duration::from_secs(1)).ok());
    assert_eq!(arrived.count(), 24);
    gate.open();
    drop(workers);
    assert_eq!(arrivals.try_iter().count(), 16);
}

#[test]
fn a_file_system_that_hangs_leaves_half_of_the_threads_to_others() {
    let workers = workers(16);
    workers.observe(Box::new(TwoFileSystems));
    let (arrived, arrivals) = mpsc::channel();
    let gate = Gate::default();
    for lane in [A, B] {
        for _ in 0..40 {
            let (arrived, gate) = (arrived.clone(), gate.clone());
            let work = move || {
                arrived.send(lane).unwrap();
                gate.pass();
            };
            submit(&workers, lane, work);
        }
    }
    let arrived = std::iter::from_fn(|| arrivals.recv_timeout(Duration::from_secs(1)).ok());
    let arrived: Vec<Lane> = arrived.collect();
    let of = |lane| arrived.iter().filter(|other| **other == lane).count();
    assert_eq!((of(A), of(B)), (8, 8));
    gate.open();
}

#[test]
fn few_threads_are_started_for_calls_that_end_quickly() {
    let workers = workers(64);
    let (done, all_done) = mpsc::channel();
    for number in 0..20_000 {
        let done = done.clone();
        submit(&workers, if number % 2 == 0 { A } else { B }, move || done.send(()).unwrap());
        if number % 8 == 0 {
            all_done.recv().unwrap();
        }
    }
    let started = workers.pool.lock().started;
    assert!(started < 32, "{started} threads");
}

#[test]
fn a_stop_runs_what_it_can_and_names_what_hangs() {
    let workers = workers(2);
    workers.observe(Box::new(TwoFileSystems));
    let (done, all_done) = mpsc::channel();
    let gate = Gate::default();
    for _ in 0..3 {
        let (gate, done) = (gate.clone(), done.clone());
        let work = move || {
            gate.pass();
            done.send(A).unwrap();
        };
        submit(&workers, A, work);
    }
    for _ in 0..50 {
        let done = done.clone();
        submit(&workers, B, move || done.send(B).unwrap());
    }
    let begun = Instant::now();
    let unfinished = workers.stop(Duration::from_millis(500));
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(5), "{took:?}");
    assert_eq!(all_done.try_iter().filter(|lane| *lane == B).count(), 50);
    let running = unfinished.iter().filter(|call| call.running).count();
    assert_eq!((unfinished.len(), running), (3, 2));
    let first = &unfinished[0];
    assert_eq!((&*first.exports, &*first.procedure), ("/srv/a", "WRITE"));
    assert_eq!(first.file_system, A);
    // What waited is not run when the disk answers, nor is anything new.
    let late = done.clone();
    submit(&workers, B, move || late.send(B).unwrap());
    let begun = Instant::now();
    assert_eq!(workers.stop(Duration::from_secs(60)).len(), 2);
    assert!(begun.elapsed() < Duration::from_secs(5), "a second stop waits for nothing");
    gate.open();
    drop((workers, done));
    assert_eq!(all_done.iter().collect::<Vec<_>>(), [A, A]);
}

#[test]
fn what_is_queued_can_be_dropped_and_is_named_at_the_stop() {
    let workers = workers(1);
    workers.observe(Box::new(TwoFileSystems));
    let (done, all_done) = mpsc::channel();
    let gate = Gate::default();
    let (begun, has_begun) = mpsc::channel();
    let (passed, first) = (gate.clone(), done.clone());
    let work = move || {
        begun.send(()).unwrap();
        passed.pass();
        first.send("running").unwrap();
    };
    submit(&workers, A, work);
    has_begun.recv().unwrap();
    let queued = done.clone();
    submit(&workers, A, move || queued.send("queued").unwrap());
    workers.drop_queued();
    submit(&workers, B, move || done.send("late").unwrap());
    gate.open();
    assert_eq!(all_done.iter().collect::<Vec<_>>(), ["running"], "the others were not dropped");
    let unfinished = workers.stop(Duration::from_secs(60));
    let named: Vec<_> = unfinished.iter().map(|call| (call.file_system, call.running)).collect();
    assert_eq!(named, [(A, false)]);
    assert!(workers.stop(Duration::ZERO).is_empty());
}

#[test]
fn a_pool_may_be_dropped_by_its_own_thread() {
    let workers = Arc::new(workers(2));
    let (dropped, was_dropped) = mpsc::channel();
    let own = workers.clone();
    let gate = Gate::default();
    let passed = gate.clone();
    let work = move || {
        passed.pass();
        drop(own);
        dropped.send(()).unwrap();
    };
    submit(&workers, A, work);
    drop(workers);
    gate.open();
    was_dropped.recv_timeout(Duration::from_secs(5)).unwrap();
}
