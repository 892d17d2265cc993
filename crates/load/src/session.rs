//! The connections and files of a measurement. The files are created and removed through the
//! protocol.

use std::net::SocketAddr;

use bytes::Bytes;
use client::mount::MountError;
use client::nfs::{Nfs, NfsError};
use client::{ConnectError, Connection, Pipeline, mount};
use wire::nfs3::{Handle, NewAttributes, Stability, Status};
use wire::nlm::v4;

use crate::calls::locker;
use crate::{Operation, Shape, Target};

/// READ and WRITE wrap around at this offset.
pub(crate) const FILE_BYTES: u64 = 64 << 20;

const FILL_BYTES: u64 = 1 << 20;
pub(crate) const READ_NAME: &[u8] = b"read";

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{service} at {at}: {error}")]
    Connect { service: &'static str, at: SocketAddr, error: ConnectError },
    #[error("export {export}: {error}")]
    Mount { export: String, error: MountError },
    #[error("{doing}: {error}")]
    File { doing: &'static str, error: NfsError },
    #[error("{0}")]
    Wrong(&'static str),
}

#[derive(Debug)]
pub struct Session {
    pub target: Target,
    nfs: Nfs,
    root: Handle,
    dir_name: Vec<u8>,
    pub(crate) dir: Handle,
    /// Read by all connections.
    pub(crate) read_file: Handle,
    /// Written by one connection each.
    pub write_files: Vec<Handle>,
    pipelines: Vec<Pipeline>,
    /// To the lock manager, if the server has one.
    lock_pipelines: Vec<Pipeline>,
    /// A measurement of locks was interrupted: some may still be held.
    pub(crate) locks_left: bool,
    /// As many connections, and as much depth, as any step has.
    pub(crate) shape: Shape,
}

impl Session {
    /// Opens a session that can measure these steps: with as many connections, and as many files with
    /// data, as they need.
    pub async fn open(target: Target, steps: &[(Operation, Shape)]) -> Result<Self, OpenError> {
        let mounts = Connection::connect(target.mount, &target.options)
            .await
            .map_err(no_connection("MOUNT service", target.mount))?;
        let root = mount::mount(&mounts, &target.export)
            .await
            .map_err(|error| OpenError::Mount { export: target.export.clone(), error })?;
        drop(mounts);
        let nfs = Connection::connect(target.nfs, &target.options)
            .await
            .map_err(no_connection("NFS service", target.nfs))
            .map(Nfs)?;
        let dir_name = format!("bench-{}-{}", std::process::id(), target.nfs.port()).into_bytes();
        let new = NewAttributes { mode: Some(0o755), ..Default::default() };
        let made = nfs.make_dir(&root, &dir_name, new).await;
        let dir = made.map_err(failed("creating a directory"))?;
        let mut session = Self {
            read_file: dir.clone(),
            write_files: Vec::new(),
            pipelines: Vec::new(),
            lock_pipelines: Vec::new(),
            target,
            nfs,
            root,
            dir_name,
            dir,
            locks_left: false,
            shape: Shape {
                connections: connections(steps, |_| true),
                depth: steps.iter().map(|(_, shape)| shape.depth).max().unwrap_or(0),
            },
        };
        match session.prepare(steps).await {
            Ok(()) => Ok(session),
            Err(error) => {
                let _ = session.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&mut self, steps: &[(Operation, Shape)]) -> Result<(), OpenError> {
        let (nfs, nlm, options) = (self.target.nfs, self.target.nlm, &self.target.options);
        for _ in 0..connections(steps, |operation| !operation.locks()) {
            let pipeline = Pipeline::connect(nfs, options).await;
            self.pipelines.push(pipeline.map_err(no_connection("NFS service", nfs))?);
        }
        if let Some(nlm) = nlm {
            for _ in 0..connections(steps, Operation::locks) {
                let pipeline = Pipeline::connect(nlm, options).await;
                self.lock_pipelines.push(pipeline.map_err(no_connection("lock manager", nlm))?);
            }
        }
        let moving_data = connections(steps, |operation| operation.bytes() > 0);
        let bytes = |filled| if filled { FILE_BYTES } else { 0 };
        self.read_file = self.file(READ_NAME, bytes(moving_data > 0)).await?;
        for connection in 0..self.shape.connections {
            let file = self.file(&write_name(connection), bytes(connection < moving_data)).await?;
            self.write_files.push(file);
        }
        Ok(())
    }

    /// The connections that an operation uses.
    pub(crate) fn pipelines(&mut self, operation: Operation) -> &mut Vec<Pipeline> {
        match operation.locks() {
            true => &mut self.lock_pipelines,
            false => &mut self.pipelines,
        }
    }

    /// A file whose blocks are allocated and in the page cache.
    async fn file(&self, name: &[u8], bytes: u64) -> Result<Handle, OpenError> {
        let new = NewAttributes { mode: Some(0o644), ..Default::default() };
        let made = self.nfs.create(&self.dir, name, new).await;
        let file = made.map_err(failed("creating a file"))?;
        let data = Bytes::from((0..FILL_BYTES).map(|n| (n % 251) as u8).collect::<Vec<u8>>());
        for offset in (0..bytes).step_by(FILL_BYTES as usize) {
            let written = self.nfs.write(&file, offset, data.clone(), Stability::Unstable).await;
            if u64::from(written.map_err(failed("writing a file"))?.count) != FILL_BYTES {
                return Err(OpenError::Wrong("a WRITE was cut short"));
            }
        }
        if bytes > 0 {
            self.nfs.commit(&file).await.map_err(failed("writing a file"))?;
            let back = self.nfs.read(&file, 0, FILL_BYTES as u32).await;
            if back.map_err(failed("reading a file"))?.data != data {
                return Err(OpenError::Wrong("READ does not return what was written"));
            }
        }
        Ok(file)
    }

    /// Unlocks everything: locks outlive connections, so those of an interrupted measurement would
    /// stay.
    async fn unlock_all(&mut self) -> Result<(), OpenError> {
        let Some(nlm) = self.target.nlm else { return Ok(()) };
        let connection = Connection::connect(nlm, &self.target.options).await;
        let connection = connection.map_err(no_connection("lock manager", nlm))?;
        for (number, file) in self.write_files.iter().enumerate() {
            for slot in 0..self.shape.depth {
                let (owner, range) = locker(number, slot);
                let unlocked = connection.call::<v4::Unlock>(&owner.unlock(file, range)).await;
                let error =
                    |error| OpenError::File { doing: "unlocking", error: NfsError::Call(error) };
                unlocked.map_err(error)?;
            }
        }
        self.locks_left = false;
        Ok(())
    }

    /// Removes the files of the session.
    pub async fn close(&mut self) -> Result<(), OpenError> {
        self.pipelines.clear();
        self.lock_pipelines.clear();
        if self.locks_left {
            self.unlock_all().await?;
        }
        let mut names = vec![READ_NAME.to_vec()];
        for connection in 0..self.shape.connections {
            names.push(write_name(connection));
            // Present only after a failed measurement.
            names.extend((0..self.shape.depth).map(|slot| create_name(connection, slot)));
        }
        for name in names {
            match self.nfs.remove(&self.dir, &name).await {
                Ok(()) | Err(NfsError::Status(Status::NoEnt)) => {}
                Err(error) => return Err(failed("removing a file")(error)),
            }
        }
        let removed = self.nfs.remove_dir(&self.root, &self.dir_name).await;
        removed.map_err(failed("removing the directory"))
    }
}

/// The most connections of the steps whose operation is `counted`.
fn connections(steps: &[(Operation, Shape)], counted: impl Fn(Operation) -> bool) -> usize {
    let counted = steps.iter().filter(|(operation, _)| counted(*operation));
    counted.map(|(_, shape)| shape.connections).max().unwrap_or(0)
}

fn no_connection(service: &'static str, at: SocketAddr) -> impl FnOnce(ConnectError) -> OpenError {
    move |error| OpenError::Connect { service, at, error }
}

fn failed(doing: &'static str) -> impl FnOnce(NfsError) -> OpenError {
    move |error| OpenError::File { doing, error }
}

fn write_name(connection: usize) -> Vec<u8> {
    format!("write-{connection}").into_bytes()
}

/// The name that CREATE and REMOVE of one slot use.
pub(crate) fn create_name(connection: usize, slot: usize) -> Vec<u8> {
    format!("create-{connection}-{slot}").into_bytes()
}
