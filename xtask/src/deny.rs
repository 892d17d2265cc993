//! `cargo xtask deny`: the dependencies by `deny.toml` (cargo-deny): licences, crates that must not come in,
//! sources; and known vulnerabilities, for which the advisory database is fetched.

use anyhow::Result;

use crate::shell::{need_cargo_tool, run};

/// The fuzz targets are workspaces of their own.
const WORKSPACES: [&str; 3] = ["Cargo.toml", "fuzz/Cargo.toml", "fuzz/service/Cargo.toml"];

/// Fails on what is found. Advisories that cannot be checked are told, and are no failure.
pub(crate) fn check() -> Result<()> {
    need_cargo_tool("deny")?;
    for manifest in WORKSPACES {
        deny(manifest, &["check", "bans", "licenses", "sources"])?;
    }
    if !fetch_advisories() {
        eprintln!(
            "\n*** ADVISORIES WERE NOT CHECKED: the advisory database could not be fetched. ***\n\
             *** Known vulnerabilities of dependencies would not have been found. Repeat  ***\n\
             *** the command where the database can be reached (`db-urls` in deny.toml).  ***"
        );
        return Ok(());
    }
    for manifest in WORKSPACES {
        deny(manifest, &["check", "advisories"])?;
    }
    Ok(())
}

fn deny(manifest: &str, check: &[&str]) -> Result<()> {
    let deny = ["deny", "--manifest-path", manifest, "--config", "deny.toml"];
    run("cargo", &[&deny[..], check].concat())
}

/// A network that drops packets must not hang the command.
fn fetch_advisories() -> bool {
    const SECONDS_MAX: &str = "120";
    let fetch = ["cargo", "deny", "--config", "deny.toml", "fetch", "db"];
    match run("timeout", &[&[SECONDS_MAX], &fetch[..]].concat()) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("{error:#}");
            false
        }
    }
}
