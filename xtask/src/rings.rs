//! The rings of `cargo xtask test`, from the quickest to the most thorough. A ring that cannot run
//! has failed: nothing is skipped silently.

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{
    enter_root, need_cargo_tool, output, run, run_command, run_tests, run_with, target,
};
use crate::{api, crates, mutants};

pub(crate) const FUZZ_SECONDS: u32 = 6;
/// The full form is 20,000.
const SIM_SEEDS: &str = "1500";
const FUZZ_DIR: &str = "fuzz";
/// Targets that need the whole server: built only by `cargo xtask fuzz`.
const FUZZ_SERVICE_DIR: &str = "fuzz/service";
/// The expected and the maximum duration of CI, from a clean tree on two cores.
const MINUTES_WARN: f64 = 40.0;
const MINUTES_MAX: f64 = 75.0;

type Ring = (&'static str, fn() -> Result<()>);

const RINGS: [Ring; 7] = [
    ("lints", lints),
    ("unit", unit),
    ("cost", cost),
    ("sim", || sim(&["--seeds", SIM_SEEDS])),
    ("mutants", mutants::check_sample),
    ("fuzz", || fuzz_all_of(FUZZ_DIR, FUZZ_SECONDS)),
    ("e2e", || e2e(&["--short"])),
];

/// Runs the named rings, or all; continues after a failure.
fn run_rings(wanted: &[&str]) -> Result<Vec<(&'static str, Result<()>, f64)>> {
    if let Some(unknown) = wanted.iter().find(|name| !RINGS.iter().any(|ring| ring.0 == **name)) {
        anyhow::bail!("unknown ring {unknown}; there are lints unit cost sim mutants fuzz e2e");
    }
    enter_root()?;
    let chosen = RINGS.iter().filter(|ring| wanted.is_empty() || wanted.contains(&ring.0));
    Ok(chosen
        .map(|(name, ring)| {
            println!("\n== {name}");
            let start = Instant::now();
            let done = ring();
            let seconds = start.elapsed().as_secs_f64();
            println!("== {name}: {seconds:.0} s");
            (*name, done, seconds)
        })
        .collect())
}

pub(crate) fn test(wanted: &[&str]) -> ExitCode {
    let results = match run_rings(wanted) {
        Ok(results) => results,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    println!();
    for (name, done, _) in &results {
        if let Err(error) = done {
            println!("ring {name} failed: {error:#}\n");
        }
    }
    for (name, done, seconds) in &results {
        println!(
            "ring {name:<7} {} {seconds:.0} s",
            if done.is_ok() { "ok    " } else { "FAILED" }
        );
    }
    let failed = results.iter().filter(|(_, done, _)| done.is_err()).count();
    let minutes = results.iter().map(|(_, _, seconds)| seconds).sum::<f64>() / 60.0;
    println!("{minutes:.0} minutes");
    if minutes > MINUTES_WARN {
        println!("warning: more than {MINUTES_WARN} minutes; shorten a ring");
    }
    let too_slow = minutes > MINUTES_MAX;
    if too_slow {
        println!("error: more than {MINUTES_MAX} minutes");
    }
    println!("{} passed, {failed} failed", results.len() - failed);
    if failed == 0 && !too_slow { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The first check of a change: needs no root and no packages, and takes a minute when warm.
pub(crate) fn quick() -> Result<()> {
    enter_root()?;
    let steps: [Ring; 6] = [
        ("fmt", || run("cargo", &["fmt", "--all", "--check"])),
        ("interface of the library", api::check),
        ("mutants apply", mutants::refresh),
        ("clippy", clippy),
        ("stories and unit tests", || {
            let packages = QUICK_PACKAGES.iter().flat_map(|name| ["--package", name]);
            let tests = ["test", "--profile", "quick", "--lib", "--test", "stories"];
            // These need Debian's rpcbind and statd, which only root can install.
            let skipped = ["callbacks::tests", "liveness::tests", "peer::tests"];
            let skipped = skipped.into_iter().flat_map(|name| ["--skip", name]);
            run_tests(
                &tests.into_iter().chain(packages).chain(["--"]).chain(skipped).collect::<Vec<_>>(),
            )
        }),
        ("seeds", || {
            let seeds = ["test", "--profile", "quick", "--package", "lockkeeper-sim"];
            run_tests(&[&seeds[..], &["--test", "seeds"]].concat())
        }),
    ];
    let start = Instant::now();
    for (name, step) in steps {
        let began = Instant::now();
        step().with_context(|| name)?;
        println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    }
    println!("quick: ok, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Crates whose library tests need no setup and take seconds.
const QUICK_PACKAGES: &[&str] =
    &["lockkeeper-wire", "lockkeeper-keeper", "lockkeeper-store", "lockkeeper-server", "xtask"];

fn clippy() -> Result<()> {
    run("cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn lints() -> Result<()> {
    run("cargo", &["fmt", "--all", "--check"])?;
    api::check()?;
    crates::package(false)?;
    clippy()?;
    // No other crate of the workspace turns the features of the library on.
    let library = ["clippy", "--package", "lockkeeper", "--all-features", "--all-targets"];
    run("cargo", &[&library[..], &["--", "-D", "warnings"]].concat())?;
    let docs = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    run_with("cargo", &docs, &[("RUSTDOCFLAGS", "-D warnings")])?;
    // A target without clock, sockets and randomness: proves that the keeper uses none.
    run("rustup", &["target", "add", WASM])?;
    run("cargo", &["build", "--package", "lockkeeper-keeper", "--target", WASM])
}

const WASM: &str = "wasm32-unknown-unknown";

fn unit() -> Result<()> {
    testbed::packages::install(UNIT_PACKAGES)?;
    run_tests(&["test", "--workspace", "--no-fail-fast"])
}

/// Programs that the tests of the crates use.
const UNIT_PACKAGES: &[&str] = &[
    "bindfs",
    "chromium",
    "chromium-driver",
    "curl",
    "e2fsprogs",
    "faketime",
    "fuse3",
    "gcc",
    "iproute2",
    "jq",
    "libc6-dev",
    "libtirpc-dev",
    "nfs-common",
    "nftables",
    "openssl",
    "postgresql",
    "prometheus",
    "python3-venv",
    "rpcbind",
    "rpcsvc-proto",
    "strace",
    "systemd",
    "tshark",
    "unionfs-fuse",
    "util-linux",
    "xfsprogs",
];

/// Every target for this many seconds.
pub(crate) fn fuzz(seconds: u32) -> Result<()> {
    fuzz_all_of(FUZZ_DIR, seconds)?;
    fuzz_all_of(FUZZ_SERVICE_DIR, seconds)
}

/// Fuzz targets need a nightly compiler feature; `RUSTC_BOOTSTRAP` enables it on stable.
fn fuzz_all_of(directory: &str, seconds: u32) -> Result<()> {
    need_cargo_tool("fuzz")?;
    let listed = output("cargo", &["fuzz", "list", "--fuzz-dir", directory]);
    let targets: Vec<&str> = listed.lines().collect();
    ensure!(!targets.is_empty(), "cargo fuzz lists no targets in {directory}");
    let limit = format!("-max_total_time={seconds}");
    for target in targets {
        let corpus = format!("{FUZZ_DIR}/corpus/{target}");
        let chosen = ["fuzz", "run", "--fuzz-dir", directory, target, &corpus];
        let arguments = [&chosen[..], &["--", &limit, "-print_final_stats=1"]].concat();
        run_with("cargo", &arguments, &[("RUSTC_BOOTSTRAP", "1")])
            .with_context(|| format!("fuzz target {target}"))?;
    }
    Ok(())
}

/// Counts instructions, which, unlike time, do not depend on the machine.
fn cost() -> Result<()> {
    testbed::packages::install(&["valgrind"])?;
    let bench = ["bench", "--profile", "release", "--package", "lockkeeper-keeper"];
    run("cargo", &[&bench[..], &["--", "--instructions", "--check"]].concat())
}

/// The simulator.
pub(crate) fn sim(arguments: &[&str]) -> Result<()> {
    let simulator = ["run", "--release", "--package", "lockkeeper-sim", "--"];
    run("cargo", &[&simulator[..], arguments].concat())
}

pub(crate) fn e2e(arguments: &[&str]) -> Result<()> {
    run("cargo", &["build", "--release", "--package", "lockkeeper-cli"])?;
    let drill = ["run", "--release", "--package", "lockkeeper-e2e"];
    let server = ["--", "--server", "target/release/lockkeeper"];
    run("cargo", &[&drill[..], &server, arguments].concat())
}

pub(crate) fn bench(arguments: &[&str]) -> Result<()> {
    run("cargo", &["build", "--profile", "dist", "--package", "lockkeeper-cli"])?;
    let target = target()?;
    let (server, cache) = (target.join("dist/lockkeeper"), target.join("bench"));
    let compare = ["run", "--profile", "dist", "--package", "lockkeeper-bench", "--", "compare"];
    let mut command = Command::new("cargo");
    command.args(compare).args(["--async-metadata", "--power", "--lockkeeper"]).arg(server);
    run_command(command.arg("--cache").arg(cache).args(arguments))
}
