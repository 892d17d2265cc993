//! One conversation from its first packet to its last, recorded: everything that a Linux client and
//! we say to each other about locks, with tshark as the judge of every byte.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Step;
use super::locks::drill;
use super::server_crash::PATIENCE;
use super::world::World;
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

fn recorded(world: &World) -> Result<()> {
    world.stage(&drill())?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    // Kernels that have no connection yet.
    alice.crash();
    bob.crash();
    world.lab.boot()?;
    thread::sleep(Duration::from_secs(2));
    let capture = Capture::start(&world.lab, "recorded")?;
    let room = world.room("open", "recorded")?;
    let mut holder = room.locker(alice, "file")?;
    let mut other = room.locker(bob, "file")?;
    holder.takes("write 0 10")?;
    other.is_refused("read 5 1")?;
    other.holder("write 0 0")?;
    other.waits("write 0 10")?;
    other.still_waits(Duration::from_secs(1))?;
    holder.unlocks("0 10")?;
    other.granted(PATIENCE)?;
    holder.waits("read 0 0")?;
    holder.still_waits(Duration::from_secs(1))?;
    holder.signal(libc::SIGUSR1)?;
    let (answer, _) = holder.answer(PATIENCE)?;
    ensure!(answer == "interrupted", "the wait ended with {answer}");
    holder.takes("write 20 10")?;
    world.server.restart()?;
    let mut newcomer = room.locker(bob, "free")?;
    newcomer.takes("write 0 10")?;
    other.unlocks("0 10")?;
    alice.crash();
    alice.boot()?;
    other.waits("write 20 10")?;
    other.granted(PATIENCE)?;
    drop((other, newcomer));
    thread::sleep(Duration::from_secs(1));
    let packets = capture.stop()?;
    for (what, filter) in MUST_BE_SEEN {
        ensure!(packets.count(filter)? > 0, "not in the recording: {what}");
    }
    world.note(format!("{} messages", packets.count("nlm || stat")?));
    Ok(())
}
