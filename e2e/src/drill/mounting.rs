//! Mounting: by name and by address, the list of exports, and access rules.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};

use super::Step;
use super::context::Drill;
use crate::guest::Guest;
use crate::lab::server_addresses;

pub(super) const STEPS: &[Step] = &[
    Step::new("mount-by-name", by_name),
    Step::new("mount-by-address", by_address),
    Step::new("mount-subdirectory", subdirectory),
    Step::new("exports-are-listed", listed),
    Step::new("programs-are-registered", registered),
    Step::new("export-for-others-is-refused", foreign),
    Step::new("export-read-only", read_only),
    Step::new("export-needs-reserved-port", reserved_port),
];

const POINT: &str = "/mnt/try";

/// Mounts, calls `check`, unmounts.
fn with_mount(
    guest: &Guest,
    source: &str,
    options: &str,
    check: impl FnOnce() -> Result<()>,
) -> Result<()> {
    guest.succeed(&format!("mkdir -p {POINT} && mount -t nfs -o {options} {source} {POINT}"))?;
    let outcome = check();
    guest.succeed(&format!("umount {POINT}"))?;
    outcome
}

fn by_name(drill: &Drill) -> Result<()> {
    let alice = drill.alice()?;
    with_mount(alice, &drill.source("open"), "vers=3", || {
        let line = alice.succeed(&format!("grep ' {POINT} ' /proc/mounts"))?;
        ensure!(line.contains("vers=3") && line.contains("proto=tcp"), "mounted as {line}");
        alice.succeed(&format!("echo hello > {POINT}/greeting && cat {POINT}/greeting"))?;
        let found = std::fs::read_to_string(drill.export("open").join("greeting"))?;
        ensure!(found == "hello\n", "the server's disk has {found:?}");
        Ok(())
    })
}

fn by_address(drill: &Drill) -> Result<()> {
    let bob = drill.bob()?;
    std::fs::write(drill.export("open").join("address"), "here\n")?;
    for address in server_addresses().into_iter().chain(["filer6".to_owned()]) {
        let source = format!("{address}:{}", drill.export("open").display());
        with_mount(bob, &source, "vers=3", || {
            let found = bob.succeed(&format!("cat {POINT}/address"))?;
            ensure!(found == "here", "through {address}: {found:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn subdirectory(drill: &Drill) -> Result<()> {
    let alice = drill.alice()?;
    std::fs::create_dir_all(drill.export("open").join("deep/er"))?;
    std::fs::write(drill.export("open").join("deep/er/file"), "below\n")?;
    with_mount(alice, &format!("{}/deep/er", drill.source("open")), "vers=3", || {
        let found = alice.succeed(&format!("cat {POINT}/file"))?;
        ensure!(found == "below", "found {found:?}");
        Ok(())
    })?;
    let missing = format!("{}/missing", drill.source("open"));
    alice.fail(&format!("mount -t nfs -o vers=3,retry=0 {missing} {POINT}"))?;
    let above = format!("filer:{}", drill.lab.directory().display());
    alice.fail(&format!("mount -t nfs -o vers=3,retry=0 {above} {POINT}"))?;
    Ok(())
}

fn listed(drill: &Drill) -> Result<()> {
    let list = drill.bob()?.succeed("showmount -e --no-headers filer")?;
    for name in ["open", "home", "public", "archive"] {
        let path = drill.export(name).display().to_string();
        let found = list.lines().any(|line| line.split_whitespace().next() == Some(&path));
        ensure!(found, "{path} is not in the list of exports:\n{list}");
    }
    Ok(())
}

fn registered(drill: &Drill) -> Result<()> {
    let bob = drill.bob()?;
    let files = [(100_003, 3), (100_005, 3), (100_000, 2)];
    let locks = [(100_021, 1), (100_021, 3), (100_021, 4), (100_024, 1)];
    for (program, version) in files.into_iter().chain(locks) {
        for transport in ["-t", "-u"] {
            bob.succeed(&format!("rpcinfo {transport} filer {program} {version}"))?;
        }
    }
    Ok(())
}

fn foreign(drill: &Drill) -> Result<()> {
    let source = drill.source("foreign");
    let said = drill
        .alice()?
        .fail(&format!("mkdir -p {POINT} && mount -t nfs -o vers=3,retry=0 {source} {POINT}"))?;
    ensure!(said.contains("access denied"), "refused in other words: {said}");
    Ok(())
}

fn read_only(drill: &Drill) -> Result<()> {
    let alice = drill.alice()?;
    let directory = drill.export("archive");
    std::fs::write(directory.join("old"), "kept\n")?;
    std::fs::set_permissions(directory.join("old"), Permissions::from_mode(0o666))?;
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777))?;
    with_mount(alice, &drill.source("archive"), "vers=3", || {
        let found = alice.succeed(&format!("cat {POINT}/old"))?;
        ensure!(found == "kept", "found {found:?}");
        for attempt in ["touch new", "rm -f old", "mkdir dir", "mv old new", "sh -c '>old'"] {
            let said = alice.fail(&format!("cd {POINT} && {attempt}"))?;
            // After a call of ACCESS, the client itself returns EACCES.
            let refused = ["Read-only file system", "Permission denied"];
            ensure!(refused.iter().any(|text| said.contains(text)), "{attempt}: {said}");
        }
        let left = std::fs::read_dir(&directory)?.count();
        let found = std::fs::read_to_string(directory.join("old"))?;
        ensure!(left == 1 && found == "kept\n", "{left} entries, and {found:?} in the file");
        Ok(())
    })
}

/// The server may refuse the mount or only the change: the file must not be created.
fn reserved_port(drill: &Drill) -> Result<()> {
    let alice = drill.alice()?;
    alice.run("umount -a -t nfs")?;
    let source = drill.source("open");
    alice.run(&format!(
        "mkdir -p {POINT} && mount -t nfs -o vers=3,noresvport,soft,timeo=20,retrans=1,retry=0 \
         {source} {POINT} && touch {POINT}/smuggled"
    ))?;
    alice.run(&format!("umount -f {POINT}"))?;
    let exists = drill.export("open").join("smuggled").exists();
    ensure!(!exists, "a client on an unprivileged port created a file");
    with_mount(alice, &source, "vers=3", || {
        alice.succeed(&format!("touch {POINT}/legal")).map(drop)
    })
}
