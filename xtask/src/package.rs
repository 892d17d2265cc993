//! `cargo xtask package`: builds the release binary, its man pages and completions, and the Debian
//! package. `--check` installs the package into a temporary root and checks it (`package/check.rs`).

mod check;
mod configuration_page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{enter_root, output, run};

/// Shells, and the file names of their completions.
const SHELLS: [(&str, &str); 3] =
    [("bash", "lockkeeper.bash"), ("zsh", "_lockkeeper"), ("fish", "lockkeeper.fish")];

pub(crate) fn package(check: bool) -> Result<()> {
    enter_root()?;
    let dist = target().join("dist");
    run("cargo", &["build", "--profile", "dist", "--package", "lockkeeper-cli"])?;
    generate(&dist.join("lockkeeper"), &dist.join("package"))?;
    if !output("cargo", &["deb", "--version"]).starts_with(|c: char| c.is_ascii_digit() || c == 'c')
    {
        run("cargo", &["install", "cargo-deb", "--locked"])?;
    }
    let to = target().join("debian");
    // Earlier packages would be mistaken for the new one.
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    let shown = to.to_str().context("the path of the target directory is not UTF-8")?;
    let deb = ["deb", "--package", "lockkeeper-cli", "--profile", "dist", "--no-build", "--dbgsym"];
    run("cargo", &[&deb[..], &["--output", shown]].concat())?;
    let made = package_in(&to)?;
    println!("{}", made.display());
    if check { check::check(&made) } else { Ok(()) }
}

/// Generates man pages and completions: of commands by the program itself, of the file from its page.
fn generate(program: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to.join("man"))?;
    stdout_of(program, &["man", &to.join("man").to_string_lossy()])?;
    let configuration = fs::read_to_string("docs/configure.md")?;
    let configuration = configuration_page::man_page(&configuration, env!("CARGO_PKG_VERSION"));
    fs::write(to.join("man/lockkeeper.toml.5"), configuration.context("docs/configure.md")?)?;
    for page in fs::read_dir(to.join("man"))? {
        // Without a timestamp, for a reproducible file.
        stdout_of("gzip".as_ref(), &["-9n", &page?.path().to_string_lossy()])?;
    }
    for (shell, name) in SHELLS {
        fs::write(to.join(name), stdout_of(program, &["completions", shell])?)?;
    }
    Ok(())
}

/// The standard output of a program, which must succeed.
fn stdout_of(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let shown = format!("{} {}", program.display(), arguments.join(" "));
    let output = Command::new(program).args(arguments).output().with_context(|| shown.clone())?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown}: {}: {stderr}", output.status);
    Ok(output.stdout)
}

fn package_in(dir: &Path) -> Result<PathBuf> {
    let found = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let mut packages = found.filter(|path| path.extension().is_some_and(|ext| ext == "deb"));
    packages.next().context("cargo deb produced no package")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}
