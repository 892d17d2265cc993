//! `cargo xtask sbom`: the dependencies of the program with their versions and licences, in CycloneDX
//! (cargo-cyclonedx). It depends on the sources alone: no date of its own, no serial number, no path of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{need_cargo_tool, run_command, target};
use crate::sources;

/// The name under which it is shipped.
pub(crate) const FILE: &str = "lockkeeper.cdx.json";
/// Of the specification.
const VERSION: &str = "1.5";
const CRATE: &str = "crates/cli";

pub(crate) fn make() -> Result<()> {
    let target = target()?;
    let to = target.join(FILE);
    write(&copy(&target)?, &sources::date(), &to)?;
    println!("{}", to.display());
    Ok(())
}

/// A copy of the sources for [`write()`].
pub(crate) fn copy(target: &Path) -> Result<PathBuf> {
    let tree = target.join("sbom/sources");
    sources::copy(&tree)?;
    Ok(tree)
}

/// Writes it to `to`. cargo-cyclonedx leaves a file beside each manifest, so `tree` must be a copy of the sources.
pub(crate) fn write(tree: &Path, date: &str, to: &Path) -> Result<()> {
    need_cargo_tool("cyclonedx")?;
    let name = "sbom";
    let manifest = format!("{CRATE}/Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["cyclonedx", "--manifest-path", &manifest, "--format", "json"]);
    cargo.args(["--spec-version", VERSION, "--override-filename", name]);
    run_command(cargo.current_dir(tree).env("SOURCE_DATE_EPOCH", date))?;
    let made = tree.join(CRATE).join(name).with_extension("json");
    let text = fs::read_to_string(&made).with_context(|| made.display().to_string())?;
    let here = tree.to_str().context("the path of the target directory is not UTF-8")?;
    let text = text.replace(here, sources::INSTALLED);
    ensure!(text.contains("\"bomFormat\": \"CycloneDX\""), "{} is no CycloneDX", made.display());
    ensure!(!text.contains("\"serialNumber\""), "{} has a random number", made.display());
    fs::write(to, text).with_context(|| to.display().to_string())
}
