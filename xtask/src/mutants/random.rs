//! Random mutants: a sample of those that cargo-mutants generates for a crate. Exclusions and their
//! reasons are in `.cargo/mutants.toml`.

use anyhow::{Context as _, Result, ensure};

use crate::shell::{need_cargo_tool, output, run_with};

const KEEPER: &str = "lockkeeper-keeper";
const SERVER: &str = "lockkeeper-server";
const OUT: &str = "target/mutants/random";
/// Enough for the simulator to reach every rare state.
const SEEDS: &str = "200";
/// Operations compared with the kernel's locks: a tenth of the default of that test.
const OPERATIONS: &str = "100000";

/// Checks `count` mutants, spread evenly over the named crate (default: the keeper) or over the named
/// files of it. The choice depends on the commit.
pub(crate) fn check(count: usize, rest: &[&str]) -> Result<()> {
    ensure!(count > 0, "--random takes a number above 0");
    need_cargo_tool("mutants")?;
    let (package, files) = rest.split_first().unwrap_or((&KEEPER, &[]));
    let mut chosen = vec!["mutants", "--package", package];
    chosen.extend(files.iter().flat_map(|file| ["--file", file]));
    let total = output("cargo", &[&chosen[..], &["--list"]].concat()).lines().count();
    ensure!(total > 0, "cargo mutants finds nothing to change in {package}");
    let shards = total.div_ceil(count);
    let shard = format!("{}/{shards}", super::commit_number() % shards);
    println!("shard {shard} of {total} mutants of {package}");
    std::fs::create_dir_all(OUT)?;
    chosen.extend(["--shard", &shard, "--sharding", "round-robin", "--output", OUT]);
    chosen.extend(test_arguments(package));
    let modules: Vec<String> = files.iter().filter_map(|file| module(file)).collect();
    if package == &SERVER && !modules.is_empty() {
        chosen.extend(["--", "--", "no_seed"]);
        chosen.extend(modules.iter().map(String::as_str));
    }
    let environment = [("LOCKKEEPER_SEEDS", SEEDS), ("LOCKKEEPER_ORACLE_OPERATIONS", OPERATIONS)];
    run_with("cargo", &chosen, &environment)
        .with_context(|| format!("see {OUT}/mutants.out/missed.txt"))
}

/// The tests to run: the crate's own, and the simulator's seeds if it runs the crate. The whole suite
/// of the server takes minutes, so of its own tests only the unit tests are run.
fn test_arguments(package: &str) -> &'static [&'static str] {
    match package {
        KEEPER => &["--test-package=lockkeeper-keeper,lockkeeper-sim"],
        SERVER => &[
            "--test-package=lockkeeper-server,lockkeeper-sim",
            "--cargo-test-arg=--lib",
            "--cargo-test-arg=--test=seeds",
            // The baseline would look for the seeds in the crate itself.
            "--baseline=skip",
            "--timeout=120",
        ],
        _ => &[],
    }
}

/// The module whose tests cover a source file: its own, or the parent if it has none.
fn module(file: &str) -> Option<String> {
    let (_, path) = file.split_once("/src/")?;
    let own = path.strip_suffix(".rs")?;
    let has_tests = std::fs::read_to_string(file).is_ok_and(|text| text.contains("mod tests"));
    let judge = match own.rsplit_once('/') {
        Some((above, _)) if !has_tests => above,
        _ => own,
    };
    Some(format!("{}::", judge.replace('/', "::")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_covered_by_the_tests_of_its_module() {
        crate::shell::enter_root().unwrap();
        assert_eq!(module("crates/server/src/files.rs").as_deref(), Some("files::"));
        let own = module("crates/server/src/rpc/duplicate_cache.rs");
        assert_eq!(own.as_deref(), Some("rpc::duplicate_cache::"));
        assert_eq!(module("crates/server/src/engine/batch.rs").as_deref(), Some("engine::"));
        assert_eq!(module("files.rs"), None);
    }
}
