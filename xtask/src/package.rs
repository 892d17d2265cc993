//! `cargo xtask package`: the release binary, its man pages and completions, and the Debian package
//! of them. `--check` installs that into a root of its own and looks at it (`package/check.rs`).

mod check;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{enter_root, output, run};

/// Which shell, and what its completions are called.
const SHELLS: [(&str, &str); 3] =
    [("bash", "lockkeeper.bash"), ("zsh", "_lockkeeper"), ("fish", "lockkeeper.fish")];

pub fn package(check: bool) -> Result<()> {
    enter_root()?;
    let dist = target().join("dist");
    run("cargo", &["build", "--profile", "dist", "--package", "lockkeeper"])?;
    generate(&dist.join("lockkeeper"), &dist.join("package"))?;
    if !output("cargo", &["deb", "--version"]).starts_with(|c: char| c.is_ascii_digit() || c == 'c')
    {
        run("cargo", &["install", "cargo-deb", "--locked"])?;
    }
    let to = target().join("debian");
    // Else the newest could not be told from those of before.
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    let shown = to.to_str().context("the target directory has an unreadable name")?;
    let deb = ["deb", "--package", "lockkeeper", "--profile", "dist", "--no-build", "--dbgsym"];
    run("cargo", &[&deb[..], &["--output", shown]].concat())?;
    let made = package_in(&to)?;
    println!("{}", made.display());
    if check { check::check(&made) } else { Ok(()) }
}

/// What the program says of itself: man pages and completions.
fn generate(program: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to.join("man"))?;
    said(program, &["man", &to.join("man").to_string_lossy()])?;
    for page in fs::read_dir(to.join("man"))? {
        // Without a date, so that the same page gives the same file.
        said("gzip".as_ref(), &["-9n", &page?.path().to_string_lossy()])?;
    }
    for (shell, name) in SHELLS {
        fs::write(to.join(name), said(program, &["completions", shell])?)?;
    }
    Ok(())
}

/// What a program prints; it must succeed.
fn said(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let shown = format!("{} {}", program.display(), arguments.join(" "));
    let output = Command::new(program).args(arguments).output().with_context(|| shown.clone())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown}: {}: {complaint}", output.status);
    Ok(output.stdout)
}

fn package_in(dir: &Path) -> Result<PathBuf> {
    let found = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let mut packages = found.filter(|path| path.extension().is_some_and(|ext| ext == "deb"));
    packages.next().context("cargo deb has left no package")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}
