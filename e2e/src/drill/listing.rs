//! Listing a directory while another guest creates and deletes entries: those that stay are listed
//! exactly once.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::listing::stay;

use super::Step;
use super::context::Drill;

pub(super) const STEPS: &[Step] =
    &[Step::new("list-while-it-changes", plus), Step::new("list-names-while-it-changes", plain)];

const STAYING: u64 = 1_500;

/// READDIRPLUS, the client's first choice.
fn plus(drill: &Drill) -> Result<()> {
    list_while_it_changes(drill, "rdirplus")
}

/// READDIR.
fn plain(drill: &Drill) -> Result<()> {
    list_while_it_changes(drill, "nordirplus")
}

fn list_while_it_changes(drill: &Drill, option: &str) -> Result<()> {
    let dir = drill.step_dir("open", &format!("listing-{option}"))?;
    for number in 0..STAYING {
        File::create(dir.file(&stay(number))).context("cannot fill the directory")?;
    }
    let (alice, bob, seconds) = (drill.alice()?, drill.bob()?, drill.size.churn_seconds);
    // Without attribute caching every listing starts with a look at the server.
    let (source, point) = (drill.source("open"), "/mnt/fresh");
    bob.succeed(&format!(
        "mkdir -p {point} && mount -t nfs -o vers=3,noac,{option} {source} {point}"
    ))?;
    let churn = alice.spawn(&format!("lockkeeper-guest churn {} {} 1", dir.guest, seconds + 2))?;
    let listed = format!("{point}/listing-{option}");
    let census = bob.run_for(
        &format!("lockkeeper-guest census {listed} {STAYING} {seconds}"),
        Duration::from_secs(seconds + 120),
    )?;
    ensure!(census.status == 0, "{}", census.errors());
    let churn = churn.wait(Duration::from_secs(seconds + 60))?;
    ensure!(churn.status == 0, "{}", churn.errors());
    bob.succeed(&format!("umount {point}"))?;
    let sizes = census.text();
    let sizes = sizes.split(' ').nth(2).and_then(|count| count.parse::<u64>().ok());
    ensure!(sizes.is_some_and(|count| count > 1), "nothing changed: {}", census.text());
    Ok(())
}
