//! Records all lock traffic between a Linux client and the server, from the first packet to the
//! last; tshark must dissect every byte.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Step;
use super::context::Drill;
use super::locks::default_settings;
use super::server_crash::TIMEOUT;
use crate::capture::Capture;

pub(super) const STEPS: &[Step] = &[Step::long("recorded-conversation-has-no-flaw", recorded)];

const MUST_BE_SEEN: &[(&str, &str)] = &[
    ("LOCK answered BLOCKED", "nlm.procedure_v4 == 2 && rpc.msgtyp == 1 && nlm.stat == 3"),
    ("LOCK answered DENIED", "nlm.procedure_v4 == 2 && rpc.msgtyp == 1 && nlm.stat == 1"),
    ("TEST answered DENIED", "nlm.procedure_v4 == 1 && rpc.msgtyp == 1 && nlm.test_stat.stat == 1"),
    ("CANCEL", "nlm.procedure_v4 == 3 && rpc.msgtyp == 1 && nlm.stat == 0"),
    ("UNLOCK", "nlm.procedure_v4 == 4 && rpc.msgtyp == 1 && nlm.stat == 0"),
    ("GRANTED", "(nlm.procedure_v4 == 5 || nlm.procedure_v4 == 10) && rpc.msgtyp == 0"),
    ("reclaim", "nlm.procedure_v4 == 2 && rpc.msgtyp == 0 && nlm.reclaim == 1"),
    ("SM_NOTIFY of the server", "stat.procedure_v1 == 6 && rpc.msgtyp == 0 && ip.src == 10.77.0.1"),
    ("SM_NOTIFY of a client", "stat.procedure_v1 == 6 && rpc.msgtyp == 0 && ip.src == 10.77.0.11"),
];

fn recorded(drill: &Drill) -> Result<()> {
    drill.stage(&default_settings())?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    // Kernels that have no connection yet.
    alice.crash();
    bob.crash();
    drill.lab.boot()?;
    thread::sleep(Duration::from_secs(2));
    let capture = Capture::start(&drill.lab, "recorded")?;
    let dir = drill.step_dir("open", "recorded")?;
    let mut holder = dir.locker(alice, "file")?;
    let mut other = dir.locker(bob, "file")?;
    holder.takes("write 0 10")?;
    other.is_refused("read 5 1")?;
    other.holder("write 0 0")?;
    other.waits("write 0 10")?;
    other.still_waits(Duration::from_secs(1))?;
    holder.unlocks("0 10")?;
    other.granted(TIMEOUT)?;
    holder.waits("read 0 0")?;
    holder.still_waits(Duration::from_secs(1))?;
    holder.signal(libc::SIGUSR1)?;
    let (answer, _) = holder.answer(TIMEOUT)?;
    ensure!(answer == "interrupted", "the wait ended with {answer}");
    holder.takes("write 20 10")?;
    drill.server.restart()?;
    let mut newcomer = dir.locker(bob, "free")?;
    newcomer.takes("write 0 10")?;
    other.unlocks("0 10")?;
    alice.crash();
    alice.boot()?;
    other.waits("write 20 10")?;
    other.granted(TIMEOUT)?;
    drop((other, newcomer));
    thread::sleep(Duration::from_secs(1));
    let packets = capture.stop()?;
    for (what, filter) in MUST_BE_SEEN {
        ensure!(packets.count(filter)? > 0, "not in the recording: {what}");
    }
    drill.note(format!("{} messages", packets.count("nlm || stat")?));
    Ok(())
}
