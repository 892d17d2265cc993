//! `cargo xtask package`: builds the release binary, its man pages, completions and list of dependencies, and
//! the Debian package. `--check` installs the package into a temporary root and checks it (`package/check.rs`);
//! `--reproduce` builds it in two places and compares the bits (`package/reproduce.rs`).

mod check;
mod configuration_page;
mod reproduce;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{enter_root, need_cargo_tool, run_command, target};
use crate::{sbom, sources};

/// Shells, and the file names of their completions.
const SHELLS: [(&str, &str); 3] =
    [("bash", "lockkeeper.bash"), ("zsh", "_lockkeeper"), ("fish", "lockkeeper.fish")];
/// What debug information and panic messages name instead of the directory of cargo.
const DEPENDENCIES: &str = "/usr/src/cargo";
/// The profile of what is packaged.
const DIST: &str = "dist";

pub(crate) fn package(arguments: &[&str]) -> Result<()> {
    enter_root()?;
    let here = || -> Result<Build> {
        let (tree, target) = (std::env::current_dir()?, target()?);
        let copy = sbom::copy(&target)?;
        Ok(Build { tree, copy, target, profile: DIST.to_string(), date: sources::date() })
    };
    match arguments {
        [] => println!("{}", here()?.package()?.display()),
        ["--check"] => check::check(&here()?.package()?)?,
        ["--reproduce"] => reproduce::reproduce(DIST)?,
        ["--reproduce", "--profile", profile] => reproduce::reproduce(profile)?,
        _ => anyhow::bail!("package takes --check or --reproduce [--profile NAME]"),
    }
    Ok(())
}

/// One build of the package: the bits depend on the sources and the toolchain, not on where they are.
struct Build {
    tree: PathBuf,
    /// Of the tree, and may be written to.
    copy: PathBuf,
    target: PathBuf,
    profile: String,
    /// Of all files in the package.
    date: String,
}

impl Build {
    /// Returns the path of the package.
    fn package(&self) -> Result<PathBuf> {
        need_cargo_tool("deb")?;
        let built =
            ["build", "--locked", "--profile", &self.profile, "--package", "lockkeeper-cli"];
        run_command(self.cargo(&built).env("CARGO_ENCODED_RUSTFLAGS", self.flags()?))?;
        let output = self.target.join(match self.profile.as_str() {
            "dev" => "debug",
            profile => profile,
        });
        generate(&output.join("lockkeeper"), &output.join("package"))?;
        sbom::write(&self.copy, &self.date, &output.join("package").join(sbom::FILE))?;
        let to = self.target.join("debian");
        // Earlier packages would be mistaken for the new one.
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        let deb = ["deb", "--package", "lockkeeper-cli", "--profile", &self.profile, "--no-build"];
        run_command(self.cargo(&deb).arg("--dbgsym").arg("--output").arg(&to))?;
        package_in(&to)
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        cargo.env("SOURCE_DATE_EPOCH", &self.date);
        cargo
    }

    /// Those of the environment, and the names of directories.
    fn flags(&self) -> Result<OsString> {
        const SEPARATOR: &str = "\u{1f}";
        let cargo_home = match std::env::var_os("CARGO_HOME") {
            Some(home) => PathBuf::from(home),
            None => std::env::home_dir().context("no home directory")?.join(".cargo"),
        };
        let mut flags: Vec<String> = match std::env::var("CARGO_ENCODED_RUSTFLAGS") {
            Ok(flags) => flags.split(SEPARATOR).map(str::to_string).collect(),
            Err(_) => {
                let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
                flags.split_whitespace().map(str::to_string).collect()
            }
        };
        let built = format!("{}/target", sources::INSTALLED);
        // The last one that matches holds.
        for (from, to) in [
            (&cargo_home, DEPENDENCIES),
            (&self.tree, sources::INSTALLED),
            (&self.target, built.as_str()),
        ] {
            flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        }
        flags.retain(|flag| !flag.is_empty());
        Ok(flags.join(SEPARATOR).into())
    }
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
