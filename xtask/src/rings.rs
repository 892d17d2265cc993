//! The rings of `cargo xtask test`, from the quickest judge to the strictest. A ring that cannot
//! run has failed: nothing is skipped in silence.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::planted;
use crate::shell::{output, run, run_tests, run_with};

pub const FUZZ_SECONDS: u32 = 8;
/// The full form is 20,000.
const SIM_SEEDS: &str = "1500";
const FUZZ_DIR: &str = "fuzz";
const SERVER: &str = "target/release/lockkeeper";

type Ring = (&'static str, fn() -> Result<()>);

const RINGS: [Ring; 7] = [
    ("lints", lints),
    ("unit", unit),
    ("cost", cost),
    ("sim", || sim(&["--seeds", SIM_SEEDS])),
    ("planted", || planted::check(false)),
    ("fuzz", || fuzz(FUZZ_SECONDS)),
    ("e2e", || e2e(&["--short"])),
];

/// Runs the rings named, or all, and goes on after one that fails.
fn run_rings(wanted: &[&str]) -> Result<Vec<(&'static str, Result<()>, f64)>> {
    if let Some(unknown) = wanted.iter().find(|name| !RINGS.iter().any(|ring| ring.0 == **name)) {
        anyhow::bail!(
            "no ring is called {unknown}; there are lints unit cost sim planted fuzz e2e"
        );
    }
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    let chosen = RINGS.iter().filter(|ring| wanted.is_empty() || wanted.contains(&ring.0));
    Ok(chosen
        .map(|(name, ring)| {
            println!("\n== {name}");
            let start = Instant::now();
            let done = ring();
            (*name, done, start.elapsed().as_secs_f64())
        })
        .collect())
}

pub fn test(wanted: &[&str]) -> ExitCode {
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
    println!("{} passed, {failed} failed", results.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn lints() -> Result<()> {
    run("cargo", &["fmt", "--all", "--check"])?;
    run("cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // There, nothing of an operating system is to be had: no clock, no sockets, no randomness.
    run("rustup", &["target", "add", WASM])?;
    run("cargo", &["build", "--package", "lockkeeper-keeper", "--target", WASM])
}

const WASM: &str = "wasm32-unknown-unknown";

fn unit() -> Result<()> {
    testbed::packages::install(UNIT_PACKAGES)?;
    run_tests(&["test", "--workspace", "--no-fail-fast"])
}

/// What judges us in the tests of the crates.
const UNIT_PACKAGES: &[&str] = &[
    "chromium",
    "chromium-driver",
    "curl",
    "e2fsprogs",
    "faketime",
    "gcc",
    "iproute2",
    "jq",
    "libc6-dev",
    "libtirpc-dev",
    "nfs-common",
    "nftables",
    "postgresql",
    "prometheus",
    "python3-venv",
    "rpcbind",
    "rpcsvc-proto",
    "strace",
    "systemd",
    "tshark",
    "util-linux",
];

/// The targets need a nightly feature of the compiler, which this variable allows on any.
pub fn fuzz(seconds: u32) -> Result<()> {
    if !output("cargo", &["fuzz", "--version"]).contains("cargo-fuzz") {
        run("cargo", &["install", "cargo-fuzz", "--locked"])?;
    }
    let listed = output("cargo", &["fuzz", "list", "--fuzz-dir", FUZZ_DIR]);
    let targets: Vec<&str> = listed.lines().collect();
    ensure!(!targets.is_empty(), "cargo fuzz lists no targets");
    let limit = format!("-max_total_time={seconds}");
    for target in targets {
        let arguments =
            ["fuzz", "run", "--fuzz-dir", FUZZ_DIR, target, "--", &limit, "-print_final_stats=1"];
        run_with("cargo", &arguments, &[("RUSTC_BOOTSTRAP", "1")])
            .with_context(|| format!("fuzz target {target}"))?;
    }
    Ok(())
}

/// Instructions, not seconds: they do not depend on the machine, so CI can judge them.
fn cost() -> Result<()> {
    testbed::packages::install(&["valgrind"])?;
    run("cargo", &["bench", "--package", "lockkeeper-keeper", "--", "--instructions", "--check"])
}

/// The keeper through crashes, losses and lies: one seed is one run.
pub fn sim(arguments: &[&str]) -> Result<()> {
    let simulator = ["run", "--release", "--package", "lockkeeper-sim", "--"];
    run("cargo", &[&simulator[..], arguments].concat())
}

pub fn e2e(arguments: &[&str]) -> Result<()> {
    run("cargo", &["build", "--profile", "drill", "--package", "lockkeeper"])?;
    let drill = ["run", "--profile", "drill", "--package", "lockkeeper-e2e"];
    let server = ["--", "--server", "target/drill/lockkeeper"];
    run("cargo", &[&drill[..], &server, arguments].concat())
}

pub fn bench(arguments: &[&str]) -> Result<()> {
    run("cargo", &["build", "--release", "--package", "lockkeeper"])?;
    let compare = ["run", "--release", "--package", "lockkeeper-bench", "--", "compare"];
    let ours = ["--async-metadata", "--power", "--postgres", "--lockkeeper", SERVER];
    run("cargo", &[&compare[..], &ours, arguments].concat())
}
