//! Checks of the host: state directory, clock, file descriptors.

use std::time::{Duration, UNIX_EPOCH};

use super::directory::{DirectoryInfo, FileSystemKind};
use super::facts::Facts;
use super::finding::{Finding, fail, ok, service, warn};
use crate::config::store_url::StoreUrl;

/// A journal is replaced at 64 MiB, after a snapshot has been written.
const ROOM_BYTES: u64 = 256 << 20;
/// Below this, the next commit may fail.
const NO_ROOM_BYTES: u64 = 16 << 20;
const NO_ROOM_FILES: u64 = 64;
/// No build of this program is older.
const YEAR_2026: Duration = Duration::from_secs(1_767_225_600);
/// Normal clock corrections are smaller.
const CLOCK_SLACK: Duration = Duration::from_secs(120);
const CLOCK_FAR: Duration = Duration::from_secs(3600);
/// Descriptors besides connections: listeners, journals, callbacks, the API.
const OTHER_DESCRIPTORS: u64 = 256;

/// State and store directory: persistent, private, with free space.
pub(super) fn state(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for directory in std::iter::once(&facts.state).chain(&facts.store) {
        let directory = match directory {
            Ok(directory) => directory,
            Err(error) => {
                let fix = "run the doctor as the server's user, or specify --state DIR";
                findings.push(fail("LK216", format!("cannot read {error}"), fix));
                continue;
            }
        };
        let before = findings.len();
        findings.extend(outlasts(facts, directory));
        findings.extend(is_private(directory));
        findings.extend(has_room(directory));
        if findings.len() == before {
            findings.push(ok(match directory.exists {
                true => {
                    format!("state {}, {} MiB free", directory.shown(), directory.free_bytes >> 20)
                }
                false => format!("state {} will be created at the first start", directory.shown()),
            }));
        }
    }
    findings
}

fn outlasts(facts: &Facts, directory: &DirectoryInfo) -> Option<Finding> {
    let shown = directory.path.display();
    let fix = "use a directory on disk: serve --state /var/lib/lockkeeper (or url = \
               \"embedded:/PATH\" under [store])";
    match (&directory.kind, &facts.settings.store) {
        (FileSystemKind::Disk(_), _) => None,
        (FileSystemKind::Memory(kind), StoreUrl::Postgres(_)) => {
            Some(warn("LK210", format!("{shown} is on {kind}: the epoch is lost at reboot"), fix))
        }
        (FileSystemKind::Memory(kind), _) => Some(fail(
            "LK210",
            format!("{shown} is on {kind}: locks and handle keys are lost at reboot"),
            fix,
        )),
        (FileSystemKind::Layer, _) => Some(warn(
            "LK211",
            format!("{shown} is on overlay: it is lost with the container"),
            format!("mount a volume there: docker run -v lockkeeper:{shown} ..."),
        )),
    }
}

/// The server's own requirement at start.
fn is_private(directory: &DirectoryInfo) -> Option<Finding> {
    let shown = directory.path.display();
    (directory.exists && directory.mode & 0o022 != 0).then(|| {
        fail(
            "LK212",
            format!("{shown} is writable by others: the server will not start"),
            format!("chmod 700 {shown}"),
        )
    })
}

fn has_room(directory: &DirectoryInfo) -> Option<Finding> {
    let shown = directory.path.display();
    let fix = format!("free some space: df -h {shown}; or move it with --state DIR");
    let (mib, files) = (directory.free_bytes >> 20, directory.free_files);
    let few_files = directory.files > 0 && files < NO_ROOM_FILES;
    if few_files || directory.free_bytes < NO_ROOM_BYTES {
        let left = if few_files { format!("{files} files") } else { format!("{mib} MiB") };
        let text = format!("the disk of {shown} is full ({left} left): locks stall");
        return Some(fail("LK213", text, fix));
    }
    (directory.free_bytes < ROOM_BYTES)
        .then(|| warn("LK213", format!("the disk of {shown} is nearly full: {mib} MiB left"), fix))
}

/// A state directory is used by one server.
pub(super) fn user(facts: &Facts) -> Vec<Finding> {
    let Some(leader) = &facts.leader else { return Vec::new() };
    let answering = facts.process.as_ref().filter(|_| facts.status.is_ok());
    let state = facts.settings.state.display();
    vec![match answering {
        Some(server) if server.pid != leader.pid => fail(
            "LK214",
            format!("{state} is in use by {}, not by the server that answers", leader.shown()),
            format!("stop one of them: kill {}; or give each its own --state DIR", leader.pid),
        ),
        None if facts.status.is_ok() => ok(format!("{state} is in use")),
        None => fail(
            "LK214",
            format!("{state} is in use by {}, which does not answer", leader.shown()),
            format!(
                "specify its socket: lockkeeper --server SOCKET doctor; or stop it: kill {}",
                leader.pid
            ),
        ),
        Some(_) => ok(format!("{state} is in use by the server only")),
    }]
}

/// Directory of the store's mark, which is written with every lock.
pub(super) fn mark(facts: &Facts) -> Vec<Finding> {
    let directory = match &facts.mark {
        None => return Vec::new(),
        Some(Err(error)) => {
            let fix = "set XDG_RUNTIME_DIR to a directory on tmpfs, or run the server as root";
            return vec![fail("LK215", error.clone(), fix)];
        }
        Some(Ok(directory)) => directory,
    };
    let shown = directory.path.display();
    let above = directory.path.parent().unwrap_or(&directory.path).display();
    vec![match directory.kind {
        FileSystemKind::Memory(_) => ok(format!("mark {}", directory.shown())),
        _ => warn(
            "LK215",
            format!(
                "the mark directory {} is not on tmpfs: every lock also writes to that disk, and a \
                 container may keep a mark older than the store",
                directory.shown()
            ),
            format!("mount -t tmpfs -o mode=755 tmpfs {above} (systemd does), or {shown} alone"),
        ),
    }]
}

pub(super) fn clock(facts: &Facts) -> Vec<Finding> {
    let fix = "timedatectl set-ntp true; without systemd: chronyd -q, or date -s";
    let now = facts.now;
    if now < UNIX_EPOCH + YEAR_2026 {
        return vec![fail("LK220", "the clock is not set: it is before 2026", fix)];
    }
    let places = [Some(&facts.state), facts.store.as_ref(), facts.mark.as_ref()];
    let newest =
        places.into_iter().flatten().flatten().filter_map(|directory| directory.newest.clone());
    let Some((file, time)) = newest.max_by_key(|(_, time)| *time) else {
        return vec![ok("the clock is set")];
    };
    let ahead = time.duration_since(now).unwrap_or_default();
    if ahead <= CLOCK_SLACK {
        return vec![ok("the clock is not behind the newest file")];
    }
    let text = format!(
        "the clock is {} behind: {} has a time in the future",
        rough(ahead),
        file.display()
    );
    let fix = format!("{fix}; if the clock is right now: touch {}", file.display());
    vec![if ahead > CLOCK_FAR { fail("LK221", text, fix) } else { warn("LK221", text, fix) }]
}

/// A duration in one unit.
pub(super) fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// One descriptor per connection, and a quarter of all for open files.
pub(super) fn descriptors(facts: &Facts) -> Vec<Finding> {
    let needed = (facts.settings.connections_max + OTHER_DESCRIPTORS) * 4 / 3;
    let Some(max) = facts.descriptors.max else {
        return vec![ok("open files: no limit")];
    };
    let connections = facts.settings.connections_max;
    let raise = match &facts.process {
        Some(server) => format!("prlimit --pid {} --nofile={needed}:{needed}; and ", server.pid),
        None => String::new(),
    };
    if max < needed {
        return vec![fail(
            "LK225",
            format!(
                "open files limit {max} is too low for {connections} connections: {needed} needed"
            ),
            format!(
                "{raise}permanently: LimitNOFILE=1048576 in systemctl edit lockkeeper; or fewer \
                 connections under [limits]"
            ),
        )];
    }
    match facts.descriptors.open {
        Some(open) if open > max / 10 * 9 => vec![warn(
            "LK226",
            format!("{open} of {max} file descriptors are in use"),
            format!(
                "LimitNOFILE=1048576 in systemctl edit lockkeeper, then {}",
                service("restart")
            ),
        )],
        _ => vec![ok(format!("open files limit {max}, {needed} needed"))],
    }
}

/// True of every server until it takes the host's own locks too.
pub(super) fn local_locks(_: &Facts) -> Vec<Finding> {
    vec![ok(
        "locks are those of NFS clients only: programs on this host neither see nor share them",
    )]
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
