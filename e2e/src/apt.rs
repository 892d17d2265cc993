//! Package lists: those of the machine, or those of another suite of Debian, kept apart from them.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use testbed::process::run;

/// Suites whose kernels are drilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Linux 6.1
    Bookworm,
    /// Linux 6.12
    Trixie,
    /// The newest that Debian has
    Sid,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        })
    }
}

/// apt with one set of package lists.
#[derive(Debug)]
pub struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// With the lists that the machine has.
    pub fn of_machine() -> Self {
        Self { options: Vec::new() }
    }

    /// With lists of a suite, fetched now from where the machine has its own. What the machine has
    /// installed or configured is neither used nor changed.
    pub fn of_suite(suite: Suite, cache: &Path) -> Result<Self> {
        let home = cache.join(format!("apt-{suite}"));
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = home.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {folder:?}"))?;
        }
        let archive = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
        let archives = run(Command::new("apt-get").args(archive))?;
        let archive = archives.lines().next().context("the machine has no package lists")?;
        let sources = home.join("sources.list");
        fs::write(&sources, format!("deb {archive} {suite} main\n"))
            .and_then(|()| fs::write(home.join("status"), ""))
            .with_context(|| format!("cannot write {sources:?}"))?;
        let at = |name: &str| home.join(name).display().to_string();
        let settings = [
            ("Dir::Etc::sourcelist", at("sources.list")),
            ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
            ("Dir::State", at("")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
        ];
        let options =
            settings.iter().flat_map(|(name, value)| ["-o".to_owned(), format!("{name}={value}")]);
        let apt = Self { options: options.collect() };
        run(apt.command("apt-get").args(["-q", "update"]))?;
        Ok(apt)
    }

    /// `apt-get` or `apt-cache` with these lists.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options);
        command
    }

    /// The packages that a package depends on.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let told = run(self.command("apt-cache").args(["depends", package]))?;
        let depends = told.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(depends.map(str::to_owned).collect())
    }

    pub fn version(&self, package: &str) -> Result<String> {
        let show = ["show", "--no-all-versions", package];
        let shown = run(self.command("apt-cache").args(show))?;
        let version = shown.lines().find_map(|line| line.strip_prefix("Version: "));
        version.map(str::to_owned).with_context(|| format!("{package} has no version"))
    }
}
