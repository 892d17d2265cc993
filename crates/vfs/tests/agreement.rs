//! The same random operations, by random callers, on a host directory and on the memory file
//! system: the kernel and the reference implementation must agree.
//!
//! `SEED=n` repeats one run; `RUNS=n` sets the number of runs.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::collections::BTreeMap;

use fixture::*;
use lockkeeper_vfs::{
    Attributes, Caller, CreateMode, Device, Error, FileKind, NewAttributes, NodeKind, ObjectId,
    SetTime, Time,
};
use testbed::random::Random;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MODES: [u32; 10] = [0o777, 0o755, 0o700, 0o644, 0o444, 0o000, 0o2775, 0o1777, 0o4755, 0o6711];
const STEPS: usize = 400;

/// One file in both file systems.
type Pair = (ObjectId, ObjectId);

struct Run {
    random: Random,
    memory: Fixture,
    local: Fixture,
    pairs: Vec<Pair>,
    callers: [Caller; 4],
    log: Vec<String>,
}

/// The attributes that must agree; times and sizes of directories may differ.
fn seen(found: &Attributes) -> (FileKind, u32, u32, u32, u32, u64) {
    let size = if found.kind == FileKind::Regular { found.size } else { 0 };
    (found.kind, found.mode, found.links, found.uid, found.gid, size)
}

impl Run {
    fn new(seed: u64, local: Fixture) -> Self {
        let memory = Fixture::memory().unwrap();
        let pairs = vec![(memory.root(), local.root())];
        let callers = [root(), alice(), bob(), carol()];
        let random = Random::new(seed);
        Self { random, memory, local, pairs, callers, log: Vec::new() }
    }

    /// Performs an operation on both and compares the outcomes.
    fn both<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: String,
        caller: usize,
        act: impl Fn(CallerView<'_>, fn(&Pair) -> &ObjectId) -> T,
    ) -> T {
        let caller = self.callers[caller].clone();
        self.log.push(format!("{} {what}", caller.uid));
        let memory = act(self.memory.by(&caller), |pair| &pair.0);
        let local = act(self.local.by(&caller), |pair| &pair.1);
        assert_eq!(memory, local, "memory, local\n{}", self.log.join("\n"));
        local
    }

    fn step(&mut self) {
        let caller = self.random.index(4);
        let at = self.random.index(self.pairs.len());
        let other = self.random.index(self.pairs.len());
        let (pair, to) = (self.pairs[at], self.pairs[other]);
        let (name, new) = (self.random.pick(&NAMES), self.random.pick(&NAMES));
        let mode = self.random.pick(&MODES);
        let number = self.random.below(10_000);
        // The root stays accessible, or most operations would fail.
        let action = self.random.index(if at == 0 { 12 } else { 18 });
        match action {
            0 | 1 => {
                let what = format!("create {at}/{name} {mode:o}");
                self.made(what, caller, &pair, name, |by, dir| by.create(dir, name, mode));
            }
            2 => {
                let unchecked = CreateMode::Unchecked(with_size(number));
                let what = format!("create unchecked {at}/{name} size {number}");
                self.made(what, caller, &pair, name, |by, dir| {
                    by.make(dir, name, &unchecked).map(|made| made.object)
                });
            }
            3 | 4 => {
                let what = format!("mkdir {at}/{name} {mode:o}");
                self.made(what, caller, &pair, name, |by, dir| by.mkdir(dir, name, mode));
            }
            5 => {
                let what = format!("symlink {at}/{name}");
                self.made(what, caller, &pair, name, |by, dir| by.symlink(dir, name, "text"));
            }
            6 => {
                let device = NodeKind::Character(Device { major: 1, minor: 3 });
                let kind = if number.is_multiple_of(2) { NodeKind::Fifo } else { device };
                let what = format!("mknod {at}/{name} {kind:?}");
                self.made(what, caller, &pair, name, |by, dir| {
                    let new = with_mode(mode);
                    let made = by.fs.make_node(&by.context(), dir, name.as_bytes(), kind, &new);
                    made.map(|made| made.object)
                });
            }
            7 => drop(self.both(format!("remove {at}/{name}"), caller, |by, side| {
                by.remove(side(&pair), name)
            })),
            8 => drop(self.both(format!("rmdir {at}/{name}"), caller, |by, side| {
                by.rmdir(side(&pair), name)
            })),
            9 | 10 => {
                let what = format!("rename {at}/{name} {other}/{new}");
                let _ = self.both(what, caller, |by, side| {
                    by.rename((side(&pair), name), (side(&to), new))
                });
            }
            11 => {
                // The host may forbid links to files of others (`protected_hardlinks`).
                let what = format!("link {at} {other}/{name}");
                let _ = self.both(what, 0, |by, side| by.link(side(&pair), side(&to), name));
            }
            12 => drop(self.both(format!("chmod {at} {mode:o}"), caller, |by, side| {
                by.set(side(&pair), with_mode(mode))
            })),
            13 => {
                let ids = [None, Some(1000), Some(1001), Some(5000)];
                let (uid, gid) = (self.random.pick(&ids), self.random.pick(&ids));
                let new = NewAttributes { uid, gid, ..NewAttributes::default() };
                let what = format!("chown {at} {uid:?} {gid:?}");
                let _ = self.both(what, caller, |by, side| by.set(side(&pair), new));
            }
            14 => {
                let times = [SetTime::Keep, SetTime::Now, SetTime::To(Time::default())];
                let (accessed, modified) = (self.random.pick(&times), self.random.pick(&times));
                let new = NewAttributes { accessed, modified, ..NewAttributes::default() };
                let what = format!("times {at} {accessed:?} {modified:?}");
                let _ = self.both(what, caller, |by, side| by.set(side(&pair), new));
            }
            15 => drop(self.both(format!("size {at} {number}"), caller, |by, side| {
                by.set(side(&pair), with_size(number))
            })),
            16 => {
                let data = vec![number as u8; 1 + number as usize / 3];
                let what = format!("write {at} {number} {}", data.len());
                let _ = self.both(what, caller, |by, side| by.write(side(&pair), number, &data));
            }
            _ => {
                let what = format!("read, access, list {at}");
                let _ = self.both(what, caller, |by, side| {
                    let access = by.attributes(side(&pair)).map(|_| by.access(side(&pair)));
                    (by.read(side(&pair), number / 2, 5000), access, by.names(side(&pair), 3))
                });
            }
        }
        self.compare();
    }

    /// An operation that creates an object in both.
    fn made(
        &mut self,
        what: String,
        caller: usize,
        dir: &Pair,
        name: &str,
        make: impl Fn(CallerView<'_>, &ObjectId) -> Result<ObjectId, Error>,
    ) {
        let what = format!("{what} = {}", self.pairs.len());
        let done = self.both(what, caller, |by, side| make(by, side(dir)).map(drop));
        if done.is_ok() {
            let root = self.callers[0].clone();
            let memory = self.memory.by(&root).lookup(&dir.0, name).unwrap();
            let local = self.local.by(&root).lookup(&dir.1, name).unwrap();
            if !self.pairs.contains(&(memory, local)) {
                self.pairs.push((memory, local));
            }
        }
    }

    /// Every known file has the same attributes, or is stale in both.
    fn compare(&mut self) {
        let root = self.callers[0].clone();
        for (number, pair) in self.pairs.iter().enumerate() {
            let memory = self.memory.by(&root).attributes(&pair.0).map(|found| seen(&found));
            let local = self.local.by(&root).attributes(&pair.1).map(|found| seen(&found));
            assert_eq!(memory, local, "{number}: memory, local\n{}", self.log.join("\n"));
        }
    }

    /// Compares the trees, including the content of files.
    fn compare_trees(&self) {
        let root = &self.callers[0];
        let memory = tree(self.memory.by(root), &self.memory.root());
        let local = tree(self.local.by(root), &self.local.root());
        assert_eq!(memory, local, "memory, local\n{}", self.log.join("\n"));
    }
}

fn tree(by: CallerView<'_>, dir: &ObjectId) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    for name in by.names(dir, 2).unwrap() {
        let looked = by.fs.lookup(&by.context(), dir, &name).unwrap();
        let content = match looked.attributes.kind {
            FileKind::Directory => format!("{:?}", tree(by, &looked.object)),
            FileKind::Regular => format!("{:?}", by.read(&looked.object, 0, 100_000)),
            kind => format!("{kind:?}"),
        };
        found.insert(name, format!("{:?} {content}", seen(&looked.attributes)));
    }
    found
}

fn run(open: fn() -> Option<Fixture>) {
    let number = |key| std::env::var(key).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match number("SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("RUNS").unwrap_or(20),
    };
    for seed in seeds {
        let Some(local) = open() else { return };
        println!("SEED={seed}");
        let mut run = Run::new(seed, local);
        for _ in 0..STEPS {
            run.step();
        }
        run.compare_trees();
    }
}

#[test]
fn a_host_directory_does_what_the_memory_file_system_does() {
    run(Fixture::local);
}

#[test]
fn without_kernel_handles_and_preparation_it_does_the_same() {
    run(Fixture::local_by_inode_map);
}
