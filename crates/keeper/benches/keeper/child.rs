//! Measurements that need a process of their own: counted by valgrind, or with no memory but what
//! is measured. The parent runs this program again with `--part`.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::world::{Host, World};
use crate::{FILES, MANY, strangers, waiting};

/// Instructions per operation.
pub struct Cost {
    pub pair: f64,
    pub test: f64,
}

/// Repetitions of each operation counted.
const COUNTED: u32 = 2_000;
/// Owners and hosts of the existing locks.
const OWNERS: u32 = 100;
const HOSTS: u32 = 10;

const FLAG: &str = "--part";

pub fn asked(arguments: &[String]) -> Option<(&str, &[String])> {
    match arguments {
        [flag, part, rest @ ..] if flag == FLAG => Some((part, rest)),
        _ => None,
    }
}

pub fn run(part: &str, rest: &[String]) -> ExitCode {
    let number = rest.first().and_then(|number| number.parse().ok()).unwrap_or(0);
    match part {
        "count" => count(number),
        "waiting" => waiting::count(number),
        "strangers" => strangers::count(number),
        "one-file" => fill(|world, lock| {
            world.lock(Host(lock % HOSTS), lock % OWNERS, 0, scattered(lock));
        }),
        "many-files" => fill(|world, lock| {
            world.lock(Host(lock % HOSTS), lock % OWNERS, lock % 10_000, u64::from(lock / 10_000));
        }),
        "many-owners" => fill(|world, lock| {
            world.lock(Host(lock % HOSTS), lock % 10_000, lock / 100 % 10_000, scattered(lock));
        }),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// A permutation without a pattern.
fn scattered(lock: u32) -> u64 {
    u64::from(lock) * 7_919 % u64::from(MANY)
}

/// Fills a file with so many locks, or 1,000 files with one each, then runs the counted operations.
fn count(locks: u32) {
    let mut world = World::new();
    world.prepare(HOSTS, OWNERS, FILES);
    let (files, locks) = if locks == 0 { (FILES, FILES) } else { (1, locks) };
    for lock in 0..locks {
        let record = 2 * (u64::from(lock) * 7_919 % u64::from(locks));
        world.lock(Host(lock % HOSTS), lock % OWNERS, lock % files, record);
    }
    counted_pairs(&mut world, files, locks);
    counted_tests(&mut world, files, locks);
}

/// A free range among the existing locks.
fn free_record(turn: u32, locks: u32) -> u64 {
    2 * (u64::from(turn) * 104_729 % u64::from(locks)) + 1
}

#[inline(never)]
fn counted_pairs(world: &mut World, files: u32, locks: u32) {
    for turn in 0..COUNTED {
        let (host, owner, file) = (Host(turn % HOSTS), turn % OWNERS, turn % files);
        let record = free_record(turn, locks);
        world.lock(host, owner, file, record);
        world.unlock(host, owner, file, record);
    }
    black_box(world);
}

#[inline(never)]
fn counted_tests(world: &mut World, files: u32, locks: u32) {
    for turn in 0..COUNTED {
        let (host, owner, file) = (Host(turn % HOSTS), turn % OWNERS, turn % files);
        world.test(host, owner, file, free_record(turn, locks));
    }
    black_box(world);
}

/// Resident memory per lock after 1,000,000 locks.
fn fill(lock: fn(&mut World, u32)) {
    let mut world = World::new();
    world.prepare(HOSTS, 10_000, 10_000);
    let before = resident_bytes();
    for number in 0..MANY {
        lock(&mut world, number);
    }
    let bytes = resident_bytes().saturating_sub(before);
    println!("{}", bytes as f64 / world.locks() as f64);
}

/// Pages in memory times their size.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

pub fn memory_of(part: &str) -> Result<f64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(this).args([FLAG, part]).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| format!("{part}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// With so many locks on one file; 0 is 1,000 files with one each.
pub fn instructions_of(locks: u32) -> Result<Cost, String> {
    let [pairs, tests] = counted("count", locks, ["child::counted_pairs", "child::counted_tests"])?;
    Ok(Cost { pair: pairs / f64::from(COUNTED), test: tests / f64::from(COUNTED) })
}

/// The instructions of two functions that a part runs one after the other.
pub fn counted(part: &str, number: u32, functions: [&str; 2]) -> Result<[f64; 2], String> {
    let folder = std::env::temp_dir().join(format!("keeper-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let counts = callgrind(&folder, part, number, functions);
    // A leftover directory is harmless.
    let _ = fs::remove_dir_all(&folder);
    counts
}

/// Valgrind dumps its counts before the first of two functions and after each.
fn callgrind(
    folder: &Path,
    part: &str,
    number: u32,
    [first, second]: [&str; 2],
) -> Result<[f64; 2], String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let counts = folder.join("counts");
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind");
    valgrind.arg(format!("--callgrind-out-file={}", counts.display()));
    for (when, function) in [("before", first), ("after", first), ("after", second)] {
        valgrind.arg(format!("--dump-{when}=keeper::{function}"));
    }
    let output = valgrind
        .arg(this)
        .args([FLAG, part, &number.to_string()])
        .output()
        .map_err(|error| format!("valgrind (package `valgrind`) must be there: {error}"))?;
    let count = |number: u32| {
        let file = fs::read_to_string(counts.with_extension(number.to_string())).ok()?;
        let total = file.lines().find_map(|line| line.strip_prefix("totals:"))?;
        total.trim().parse::<f64>().ok().filter(|count| *count > 0.0)
    };
    match (output.status.success(), count(2), count(3)) {
        (true, Some(first), Some(second)) => Ok([first, second]),
        _ => {
            let told = String::from_utf8_lossy(&output.stderr);
            Err(format!("valgrind counted nothing:\n{told}"))
        }
    }
}
