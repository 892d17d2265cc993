//! How many instructions a call costs, in user space, of our server and of the older binary.
//!
//! Each binary runs under callgrind, once with a few calls and once with many; the difference is
//! what the calls cost, without start and end. Unlike processor time, it hardly depends on what else
//! the machine does: the calls come in bursts of a fixed size, each when the server has gone to
//! sleep, so that the number of calls it finds at once is not left to chance. Without the pauses,
//! counts of one and the same binary differ by up to a third; with them, by about one in a hundred,
//! so the counts are repeated and the median is taken.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::lockkeeper::{Binary, Site, Variant};
use crate::ratio::{Better, Ratio, median};
use load::{Bursts, Operation, Session, Shape};

const COUNTED: [Operation; 2] = [Operation::GetAttr, Operation::LockUnlock];
/// As many calls at once as a connection has under heavy load.
const BURST: usize = Shape::HIGH.depth;
/// Even, since locks are taken in one burst and given back in the next. Far apart, since the error
/// of a count grows with the count, and the difference has that of both.
const BURSTS_FEW: usize = 200;
const BURSTS_MANY: usize = 2_200;
const PAUSE: Duration = Duration::from_millis(1);
const REPEATS: usize = 3;

/// Instructions per call.
#[derive(Debug, Clone, Serialize)]
pub struct Instructions {
    pub operation: Operation,
    pub ours: f64,
    pub before: f64,
    /// ours/before.
    pub ratio: Ratio,
}

/// Counts those of `operations` that can be counted well. The default variants of both binaries
/// must not be running.
pub(crate) async fn measure(
    site: &Site<'_>,
    ours: Binary<'_>,
    before: Binary<'_>,
    load: &load::Plan,
) -> Result<Vec<Instructions>> {
    let mut found = Vec::new();
    for operation in COUNTED.into_iter().filter(|counted| load.measures(*counted)) {
        let mut pairs = Vec::new();
        for repeat in 0..REPEATS {
            let ours = per_call(site, ours, operation, repeat).await?;
            pairs.push((ours, per_call(site, before, operation, repeat).await?));
        }
        let (ours, before): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let ratio = Ratio::of(pairs, Better::Lower).context("too few counts")?;
        found.push(Instructions { operation, ours: median(ours), before: median(before), ratio });
    }
    Ok(found)
}

async fn per_call(
    site: &Site<'_>,
    binary: Binary<'_>,
    operation: Operation,
    repeat: usize,
) -> Result<f64> {
    let name = format!("{}-{operation}-{repeat}", binary.build.name(Variant::Default));
    let few = count(site, binary, operation, BURSTS_FEW, &format!("{name}-few")).await?;
    let many = count(site, binary, operation, BURSTS_MANY, &format!("{name}-many")).await?;
    ensure!(many > few, "{name}: {many} instructions with more calls, {few} with fewer");
    Ok((many - few) as f64 / ((BURSTS_MANY - BURSTS_FEW) * BURST) as f64)
}

/// All instructions of a server from its start to its end, with so many bursts.
async fn count(
    site: &Site<'_>,
    binary: Binary<'_>,
    operation: Operation,
    bursts: usize,
    name: &str,
) -> Result<u64> {
    let counts = site.state.join(format!("{name}.callgrind"));
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind");
    valgrind.arg(format!("--callgrind-out-file={}", counts.display()));
    valgrind.arg(binary.path);
    let server = site.start_as(name, valgrind, binary.build, Variant::Default).await?;
    let shape = Shape { connections: 1, depth: BURST };
    let session = Session::open(server.target.clone(), &[(operation, shape)]).await;
    let mut session = session.with_context(|| name.to_owned())?;
    let bursts = Bursts { count: bursts, size: BURST, pause: PAUSE };
    bursts.run(&mut session, operation).await.with_context(|| name.to_owned())?;
    session.close().await?;
    server.stop().await?;
    let text = fs::read_to_string(&counts).with_context(|| counts.display().to_string())?;
    total(&text).context("callgrind counted nothing")
}

/// The sum that callgrind writes at the end of its output.
fn total(counts: &str) -> Option<u64> {
    let total = counts.lines().find_map(|line| line.strip_prefix("totals:"))?;
    total.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_what_callgrind_says_in_its_last_line() {
        let text = "version: 1\nevents: Ir\nsummary: 7\n\nfn=(1) main\n3 4\n\ntotals: 41348805\n";
        assert_eq!(total(text), Some(41_348_805));
        assert_eq!(total("events: Ir\n"), None);
    }
}
