//! A step's own file systems, served by a server of its own and mounted in both guests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testbed::mounts::{self, Fuse, Mount, MountPoints};

use super::context::{Drill, StepDir};
use crate::file_server::FileServer;
use crate::server::Export;

/// A kind of file system, new and empty unless a layer or a source is beneath it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ext4,
    Xfs,
    Tmpfs,
    /// Both layers are on the lab's disk.
    Overlay,
    /// The lower layer is on another file system than the upper one.
    OverlayAcross,
    Fuse(Fuse),
}

/// The name of each file system is that of its mount point, and of that in the guests.
#[derive(Debug)]
pub(super) struct Site {
    // The server goes before what it serves, that before its mount points and disks.
    pub(super) server: FileServer,
    pub(super) mounts: Vec<Mount>,
    lower: Vec<Mount>,
    points: MountPoints,
    /// Images and directories that are mounted.
    sources: PathBuf,
    names: Vec<&'static str>,
}

/// Before the server starts: what is mounted, and from what.
pub(super) struct Plan<'a> {
    drill: &'a Drill,
    user: Option<u32>,
    mounts: Vec<Mount>,
    lower: Vec<Mount>,
    points: MountPoints,
    sources: PathBuf,
    names: Vec<&'static str>,
}

impl<'a> Plan<'a> {
    /// The server will run as this user, if not as root.
    pub(super) fn new(drill: &'a Drill, user: Option<u32>) -> Result<Self> {
        let points = MountPoints::new()?;
        let name = points.path("").file_name().map(PathBuf::from).context("no name")?;
        let sources = drill.lab.directory().join(name);
        fs::create_dir_all(&sources)?;
        let (mounts, lower) = (Vec::new(), Vec::new());
        Ok(Self { drill, user, mounts, lower, points, sources, names: Vec::new() })
    }

    /// A file for a disk, or a directory to be mounted.
    pub(super) fn source(&self, name: &str) -> PathBuf {
        self.sources.join(name)
    }

    /// Mounts a new file system; on overlayfs and FUSE, `fill` makes what is beneath.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        kind: Kind,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let at = self.points.path(name);
        let source = match kind {
            Kind::OverlayAcross => self.points.path(&format!("{name}-lower")),
            _ => self.source(name),
        };
        let upper = self.source(&format!("{name}-upper"));
        let mount = match kind {
            Kind::Ext4 | Kind::Xfs => {
                match kind {
                    Kind::Ext4 => mounts::make_ext4(&source, 64)?,
                    _ => mounts::make_xfs(&source)?,
                }
                Mount::image(&source, &at)?
            }
            Kind::Tmpfs => Mount::tmpfs(&at)?,
            Kind::Overlay | Kind::OverlayAcross | Kind::Fuse(_) => {
                if kind == Kind::OverlayAcross {
                    self.lower.push(Mount::tmpfs(&source)?);
                }
                fs::create_dir_all(&source)?;
                fill(&source)?;
                match kind {
                    Kind::Fuse(program) => Mount::fuse(program, &source, &at)?,
                    _ => Mount::overlay(&source, &upper, &at)?,
                }
            }
        };
        self.add_mount(name, mount)
    }

    pub(super) fn add_mount(&mut self, name: &'static str, mount: Mount) -> Result<()> {
        fs::set_permissions(mount.at(), fs::Permissions::from_mode(0o755))?;
        chown(mount.at(), self.user, self.user)?;
        self.mounts.push(mount);
        self.names.push(name);
        Ok(())
    }

    pub(super) fn point(&self, name: &str) -> PathBuf {
        self.points.path(name)
    }

    /// Starts the server, and mounts everything in both guests, with these options.
    pub(super) fn serve(self, options: &str) -> Result<Site> {
        let Self { drill, user, mounts, lower, points, sources, names } = self;
        let export = |mount: &Mount| Export {
            path: mount.at().to_path_buf(),
            clients: vec!["10.77.0.0/24".to_owned()],
            access: "rw",
            squash: "none",
            ports: "any",
        };
        let exports: Vec<Export> = mounts.iter().map(export).collect();
        let (network, logs) = (drill.lab.network(), drill.lab.directory());
        let server = FileServer::new(network, drill.server.program(), logs, user, &exports)?;
        let mut site = Site { server, mounts, lower, points, sources, names };
        site.server.start()?;
        for guest in drill.lab.guests() {
            for name in &site.names {
                let source = format!("{}:{}", site.server.address(), site.point(name).display());
                drill.mount_at(guest, &source, options, &site.dir(name).guest)?;
            }
        }
        Ok(site)
    }
}

impl Site {
    pub(super) fn point(&self, name: &str) -> PathBuf {
        self.points.path(name)
    }

    pub(super) fn source(&self, name: &str) -> PathBuf {
        self.sources.join(name)
    }

    /// The root of a file system, from both sides.
    pub(super) fn dir(&self, name: &str) -> StepDir {
        // A directory of its own for each server.
        let mine = self.server.address().octets()[3];
        StepDir { host: self.point(name), guest: format!("/mnt/{name}-{mine}") }
    }

    /// Replaces the only mount, at the same place: takes it out of the tree and mounts `with`.
    pub(super) fn replace(&mut self, with: impl FnOnce() -> Result<Mount>) -> Result<()> {
        self.mounts.pop().context("nothing is mounted")?.detach()?;
        self.mounts.push(with()?);
        Ok(())
    }

    /// Stops the server with an orderly unmount in the guests, and unmounts everything.
    pub(super) fn leave(mut self, drill: &Drill) -> Result<()> {
        let start = Instant::now();
        for guest in drill.lab.guests() {
            for name in &self.names {
                guest.succeed(&format!("umount -f -l {}", self.dir(name).guest))?;
            }
        }
        self.server.stop()?;
        self.mounts.clear();
        self.lower.clear();
        let _ = fs::remove_dir_all(&self.sources);
        let took = start.elapsed();
        if took > Duration::from_secs(5) {
            drill.note(format!("leaving took {:.1} s", took.as_secs_f64()));
        }
        Ok(())
    }
}
