//! The machine: where state is kept, the clock, and how much may be opened.

use std::time::{Duration, UNIX_EPOCH};

use super::facts::Facts;
use super::finding::{Finding, fail, ok, service, warn};
use super::place::{Kind, Place};
use crate::stores::StoreUrl;

/// A journal ends at 64 MiB, and a snapshot is written before it goes.
const ROOM_BYTES: u64 = 256 << 20;
/// Less than this, and the next lock may be the one that stalls.
const NO_ROOM_BYTES: u64 = 16 << 20;
const NO_ROOM_FILES: u64 = 64;
/// This program is not older than that.
const YEAR_2026: Duration = Duration::from_secs(1_767_225_600);
/// Clocks are put right by less than this all the time.
const CLOCK_SLACK: Duration = Duration::from_secs(120);
const CLOCK_FAR: Duration = Duration::from_secs(3600);
/// Beside connections: listeners, journals, callbacks, the API.
const OTHER_DESCRIPTORS: u64 = 256;

/// Whether what is kept there is there after a restart of the machine, and ours alone.
pub fn state(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for place in std::iter::once(&facts.state).chain(&facts.store) {
        let place = match place {
            Ok(place) => place,
            Err(error) => {
                let fix = "run the doctor as the server's user, or name another with --state DIR";
                findings.push(fail("LK216", format!("cannot look into {error}"), fix));
                continue;
            }
        };
        let before = findings.len();
        findings.extend(outlasts(facts, place));
        findings.extend(is_private(place));
        findings.extend(has_room(place));
        if findings.len() == before {
            findings.push(ok(match place.exists {
                true => format!("state {}, {} MiB free", place.shown(), place.free_bytes >> 20),
                false => format!("state {} will be made by the first start", place.shown()),
            }));
        }
    }
    findings
}

fn outlasts(facts: &Facts, place: &Place) -> Option<Finding> {
    let shown = place.path.display();
    let fix = "name a directory on a disk: serve --state /var/lib/lockkeeper (or url = \
               \"embedded:/PATH\" under [store])";
    match (&place.kind, &facts.plan.store) {
        (Kind::Disk(_), _) => None,
        (Kind::Memory(kind), StoreUrl::Postgres(_)) => Some(warn(
            "LK210",
            format!("{shown} is on {kind}: the number of starts is lost with the machine"),
            fix,
        )),
        (Kind::Memory(kind), _) => Some(fail(
            "LK210",
            format!("{shown} is on {kind}: a restart of the machine loses locks and handle keys"),
            fix,
        )),
        (Kind::Layer, _) => Some(warn(
            "LK211",
            format!("{shown} is on overlay: in a container, it goes with the container"),
            format!("mount a volume there: docker run -v lockkeeper:{shown} ..."),
        )),
    }
}

/// As the server itself demands when it starts.
fn is_private(place: &Place) -> Option<Finding> {
    let shown = place.path.display();
    (place.exists && place.mode & 0o022 != 0).then(|| {
        fail(
            "LK212",
            format!("others may write {shown}, so the server will not start"),
            format!("chmod 700 {shown}"),
        )
    })
}

fn has_room(place: &Place) -> Option<Finding> {
    let shown = place.path.display();
    let fix = format!("free space on it: df -h {shown}; or move it with --state DIR");
    let (mib, files) = (place.free_bytes >> 20, place.free_files);
    let few_files = place.files > 0 && files < NO_ROOM_FILES;
    if few_files || place.free_bytes < NO_ROOM_BYTES {
        let left = if few_files { format!("{files} files") } else { format!("{mib} MiB") };
        let text = format!("the disk of {shown} is full ({left} left): locks stall when it is");
        return Some(fail("LK213", text, fix));
    }
    (place.free_bytes < ROOM_BYTES)
        .then(|| warn("LK213", format!("the disk of {shown} is nearly full: {mib} MiB left"), fix))
}

/// One server for one state directory.
pub fn user(facts: &Facts) -> Vec<Finding> {
    let Some(holder) = &facts.holder else { return Vec::new() };
    let answering = facts.process.as_ref().filter(|_| facts.status.is_ok());
    let state = facts.plan.state.display();
    vec![match answering {
        Some(server) if server.pid != holder.pid => fail(
            "LK214",
            format!("{state} is used by {}, not by the server that answers", holder.shown()),
            format!("stop one of them: kill {}; or give each its own --state DIR", holder.pid),
        ),
        None if facts.status.is_ok() => ok(format!("{state} is in use")),
        None => fail(
            "LK214",
            format!("{state} is used by {}, which does not answer here", holder.shown()),
            format!(
                "name its socket: lockkeeper --server SOCKET doctor; or stop it: kill {}",
                holder.pid
            ),
        ),
        Some(_) => ok(format!("{state} is used by the server alone")),
    }]
}

/// Where the last acknowledged batch is noted, with every lock.
pub fn mark(facts: &Facts) -> Vec<Finding> {
    let place = match &facts.mark {
        None => return Vec::new(),
        Some(Err(error)) => {
            let fix = "set XDG_RUNTIME_DIR to a directory on tmpfs, or serve as root";
            return vec![fail("LK215", error.clone(), fix)];
        }
        Some(Ok(place)) => place,
    };
    let shown = place.path.display();
    let above = place.path.parent().unwrap_or(&place.path).display();
    vec![match place.kind {
        Kind::Memory(_) => ok(format!("mark {}", place.shown())),
        _ => warn(
            "LK215",
            format!(
                "the mark directory {} is not on tmpfs: every lock writes to that disk too, and \
                 what a container keeps there can be older than the store",
                place.shown()
            ),
            format!("mount -t tmpfs -o mode=755 tmpfs {above} (systemd does), or {shown} alone"),
        ),
    }]
}

pub fn clock(facts: &Facts) -> Vec<Finding> {
    let fix = "timedatectl set-ntp true; without systemd: chronyd -q, or date -s";
    let now = facts.now;
    if now < UNIX_EPOCH + YEAR_2026 {
        return vec![fail("LK220", "the clock is before 2026: it was never set", fix)];
    }
    let places = [Some(&facts.state), facts.store.as_ref(), facts.mark.as_ref()];
    let newest = places.into_iter().flatten().flatten().filter_map(|place| place.newest.clone());
    let Some((file, time)) = newest.max_by_key(|(_, time)| *time) else {
        return vec![ok("the clock is after 2026")];
    };
    let ahead = time.duration_since(now).unwrap_or_default();
    if ahead <= CLOCK_SLACK {
        return vec![ok("the clock is not behind what was written last")];
    }
    let text = format!(
        "the clock is {} behind: {} was written in the future",
        rough(ahead),
        file.display()
    );
    let fix =
        format!("{fix}; if the clock is right and was wrong before: touch {}", file.display());
    vec![if ahead > CLOCK_FAR { fail("LK221", text, fix) } else { warn("LK221", text, fix) }]
}

/// A length of time for people.
pub fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A descriptor for each connection, and a quarter of all for open files.
pub fn descriptors(facts: &Facts) -> Vec<Finding> {
    let needed = (facts.plan.connections_max + OTHER_DESCRIPTORS) * 4 / 3;
    let Some(max) = facts.descriptors.max else {
        return vec![ok("as many files and sockets may be open as are wanted")];
    };
    let connections = facts.plan.connections_max;
    let raise = match &facts.process {
        Some(server) => format!("prlimit --pid {} --nofile={needed}:{needed}; and ", server.pid),
        None => String::new(),
    };
    if max < needed {
        return vec![fail(
            "LK225",
            format!(
                "{max} files and sockets may be open, too few for {connections} connections: \
                 {needed} are needed"
            ),
            format!(
                "{raise}for good LimitNOFILE=1048576 by systemctl edit lockkeeper; or fewer \
                 connections under [limits]"
            ),
        )];
    }
    match facts.descriptors.open {
        Some(open) if open > max / 10 * 9 => vec![warn(
            "LK226",
            format!("{open} of {max} files and sockets are open"),
            format!(
                "LimitNOFILE=1048576 by systemctl edit lockkeeper, then {}",
                service("restart")
            ),
        )],
        _ => vec![ok(format!("{max} files and sockets may be open, {needed} are needed"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        for (seconds, told) in [(5, "5 s"), (300, "5 min"), (9_000, "2 h"), (400_000, "4 days")] {
            assert_eq!(rough(Duration::from_secs(seconds)), told);
        }
    }
}
