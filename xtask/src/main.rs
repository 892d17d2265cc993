//! `cargo xtask`: tests, checks, benchmarks and packages.

#![warn(unreachable_pub)]

mod api;
mod crates;
mod deny;
mod mutants;
mod package;
mod rings;
mod sbom;
mod shell;
mod sources;

use std::process::ExitCode;

use shell::enter_root;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  quick                     fmt, clippy, stories, fast unit tests, 50 seeds; no root, a minute when warm
  test [RING...]            everything CI runs, or only these rings: lints unit cost sim mutants fuzz e2e
  e2e [--short] [--kernel bookworm|trixie|sid] [STEP...]
                            the drill with real Linux kernels in virtual machines
  fuzz [--seconds N]        every fuzz target for N seconds (6)
  sim [--seeds N] [--seed S]  the simulator; --seed prints the trace of one run
  api                       the library's public interface against crates/lockkeeper/api.txt; LOCKKEEPER_UPDATE=1 rewrites it
  crates [--verify]         packages the library's crates as for a registry; --verify builds them from that
  mutants [NAME...]         every mutant of sim/mutants must be caught by the story, judge or test it names
  mutants --refresh         lists those that no longer apply to the tree
  mutants --random N [PACKAGE [FILE...]]  N mutants by cargo-mutants, of the keeper or another crate
  package [--check]         the Debian package, with man pages and completions; --check installs it into a temporary root
  package --reproduce [--profile NAME]  builds the package in two places, which must give equal bits
  deny                      licences, sources and advisories of the dependencies, by deny.toml
  sbom                      the list of dependencies in CycloneDX
  bench [--check] [--report] [--link loopback,veth] [...]
                            speed beside NFS-Ganesha and the machine's limit; --check asserts the targets,
                            --report writes docs/performance.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["test", wanted @ ..] => return rings::test(wanted),
        ["e2e", rest @ ..] => rings::e2e(rest),
        ["fuzz"] => rings::fuzz(rings::FUZZ_SECONDS),
        ["fuzz", "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) => rings::fuzz(seconds),
            Err(_) => Err(anyhow::anyhow!("--seconds takes a number")),
        },
        ["sim", rest @ ..] => rings::sim(rest),
        ["api"] => enter_root().and_then(|()| api::check()),
        ["crates"] => enter_root().and_then(|()| crates::package(false)),
        ["crates", "--verify"] => enter_root().and_then(|()| crates::package(true)),
        ["quick"] => rings::quick(),
        ["mutants", "--refresh"] => enter_root().and_then(|()| mutants::refresh()),
        ["mutants", "--random", count, rest @ ..] => match count.parse() {
            Ok(count) => enter_root().and_then(|()| mutants::random::check(count, rest)),
            Err(_) => Err(anyhow::anyhow!("--random takes a number")),
        },
        ["mutants", names @ ..] => enter_root().and_then(|()| mutants::check(names)),
        ["package", rest @ ..] => package::package(rest),
        ["deny"] => enter_root().and_then(|()| deny::check()),
        ["sbom"] => enter_root().and_then(|()| sbom::make()),
        ["bench", rest @ ..] => rings::bench(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
