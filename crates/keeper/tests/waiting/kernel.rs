//! The kernel: POSIX locks on a temporary file. Their owner is a table of open files, so a thread that
//! has unshared its table is an owner, and threads that it starts are threads of that owner.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_keeper::request::Mode;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use super::model::{BYTES, Request};
use super::{Answer, OWNERS, THREADS};

/// How long the kernel may take to come to rest.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Kernel {
    owners: Vec<Owner>,
    answers: Mutex<Receiver<(Request, Answer)>>,
    /// Requests without an answer.
    waiting: Mutex<BTreeMap<Request, i32>>,
    /// Waiting requests that were refused as deadlocks when their turn came.
    refused: Mutex<Vec<Request>>,
}

struct Owner {
    /// Threads that may wait, with their ids.
    threads: Vec<(i32, Sender<Request>)>,
    /// One that never waits.
    unlocker: Sender<(usize, usize)>,
    unlocked: Mutex<Receiver<()>>,
}

impl Kernel {
    pub fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (answer, answers) = mpsc::channel();
        let owners = (0..OWNERS).map(|_| Owner::start(file.path(), &answer)).collect();
        Self {
            owners,
            answers: Mutex::new(answers),
            waiting: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    pub fn lock(&self, request: Request) -> Answer {
        let (thread, sender) = &self.owners[request.owner].threads[request.thread];
        self.waiting.lock().unwrap().insert(request, *thread);
        sender.send(request).unwrap();
        self.come_to_rest(Some(request)).unwrap_or(Answer::Waits)
    }

    pub fn unlock(&self, owner: usize, first: usize, last: usize) {
        let owner = &self.owners[owner];
        owner.unlocker.send((first, last)).unwrap();
        owner.unlocked.lock().unwrap().recv_timeout(LIMIT).unwrap();
        self.come_to_rest(None);
    }

    /// Takes out a waiting request that was refused as a deadlock since the last call.
    pub fn take_refused(&self) -> Option<Request> {
        self.refused.lock().unwrap().pop()
    }

    pub fn waiting(&self) -> BTreeSet<Request> {
        self.waiting.lock().unwrap().keys().copied().collect()
    }

    /// Unlocks everything, until no request waits and no lock is held.
    pub fn clear(&self) {
        let mut idle = 0;
        while idle < 2 {
            idle = if self.waiting().is_empty() { idle + 1 } else { 0 };
            for owner in 0..OWNERS {
                self.unlock(owner, 0, BYTES - 1);
            }
        }
        self.refused.lock().unwrap().clear();
    }

    /// Waits until every thread with a request has its answer or sleeps in `fcntl`, and none of them
    /// ran between two looks: a woken thread may wake the next. Returns the answer to a new request.
    fn come_to_rest(&self, new: Option<Request>) -> Option<Answer> {
        let mut waiting = self.waiting.lock().unwrap();
        let answers = self.answers.lock().unwrap();
        let (mut to_new, mut before) = (None, None);
        let start = Instant::now();
        loop {
            let look = waiting.values().map(|thread| sleeps_in_fcntl(*thread)).collect();
            let look: Option<Vec<u64>> = look;
            let mut came = false;
            for (request, answer) in answers.try_iter() {
                waiting.remove(&request).expect("it waits");
                came = true;
                if new == Some(request) {
                    to_new = Some(answer);
                } else if answer == Answer::Deadlock {
                    self.refused.lock().unwrap().push(request);
                }
            }
            if !came && look.is_some() && look == before {
                return to_new;
            }
            before = look.filter(|_| !came);
            assert!(start.elapsed() < LIMIT, "not at rest: {waiting:?}");
            thread::sleep(Duration::from_micros(20));
        }
    }
}

impl Owner {
    fn start(path: &Path, answer: &Sender<(Request, Answer)>) -> Self {
        let (path, answer) = (path.to_owned(), answer.clone());
        let (unlocker, unlocks) = mpsc::channel::<(usize, usize)>();
        let (done, unlocked) = mpsc::channel();
        let (ready, threads) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_FILES).expect("an owner of its own");
            let file = File::options().read(true).write(true).open(path).unwrap();
            for _ in 0..THREADS {
                let (file, answer, ready) =
                    (file.try_clone().unwrap(), answer.clone(), ready.clone());
                thread::spawn(move || {
                    let (sender, requests) = mpsc::channel();
                    ready.send((gettid().as_raw(), sender)).unwrap();
                    for request in requests {
                        let _ = answer.send((request, lock(&file, request)));
                    }
                });
            }
            for (first, last) in unlocks {
                let record = record(libc::F_UNLCK, first, last);
                fcntl(file.as_fd(), FcntlArg::F_SETLK(&record)).unwrap();
                let _ = done.send(());
            }
        });
        let threads = (0..THREADS).map(|_| threads.recv_timeout(LIMIT).unwrap()).collect();
        Self { threads, unlocker, unlocked: Mutex::new(unlocked) }
    }
}

fn lock(file: &File, request: Request) -> Answer {
    let kind = match request.mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
    };
    let record = record(kind, request.first, request.last);
    match fcntl(file.as_fd(), FcntlArg::F_SETLKW(&record)) {
        Ok(_) => Answer::Granted,
        Err(Errno::EDEADLK) => Answer::Deadlock,
        Err(error) => panic!("{error}"),
    }
}

/// How often a thread has gone to sleep, if it sleeps in `fcntl`.
fn sleeps_in_fcntl(thread: i32) -> Option<u64> {
    let of_thread =
        |file: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).unwrap();
    let call = of_thread("syscall");
    let status = of_thread("status");
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap()
    };
    let in_fcntl = call.split(' ').next() == Some(&libc::SYS_fcntl.to_string());
    (in_fcntl && field("State").starts_with('S'))
        .then(|| field("voluntary_ctxt_switches").parse().unwrap())
}

fn record(kind: i32, first: usize, last: usize) -> flock {
    flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first as i64,
        l_len: (last - first + 1) as i64,
        l_pid: 0,
    }
}
