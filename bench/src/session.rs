//! What a measurement works on: connections, and files that are made and removed through the
//! protocol.

use anyhow::{Context, Result};
use bytes::Bytes;
use client::nfs::{Nfs, NfsError};
use client::{Connection, Pipeline, mount};
use wire::nfs3::{Handle, NewAttributes, Stability, Status};

use crate::{Operation, Shape, Target};

/// How far READ and WRITE go before they begin again.
pub(crate) const FILE_BYTES: u64 = 64 << 20;

const FILL_BYTES: u64 = 1 << 20;
pub(crate) const READ_NAME: &[u8] = b"read";

#[derive(Debug)]
pub struct Session {
    pub(crate) target: Target,
    nfs: Nfs,
    root: Handle,
    dir_name: Vec<u8>,
    pub(crate) dir: Handle,
    /// Read by all connections.
    pub(crate) read_file: Handle,
    /// Written by one connection each.
    pub(crate) write_files: Vec<Handle>,
    pipelines: Vec<Pipeline>,
    /// To the lock manager; none if the server has none.
    lock_pipelines: Vec<Pipeline>,
    /// The largest shape that is measured.
    pub(crate) shape: Shape,
}

impl Session {
    /// Prepares for shapes of up to `shape.connections` and `shape.depth`. With `fill`, the files
    /// for READ and WRITE get their bytes.
    pub async fn open(target: Target, shape: Shape, fill: bool) -> Result<Self> {
        let mounts =
            Connection::connect(target.mount, &target.options).await.context("MOUNT service")?;
        let root = mount::mount(&mounts, &target.export).await?;
        drop(mounts);
        let nfs = Connection::connect(target.nfs, &target.options)
            .await
            .context("NFS service")
            .map(Nfs)?;
        let dir_name = format!("bench-{}-{}", std::process::id(), target.nfs.port()).into_bytes();
        let new = NewAttributes { mode: Some(0o755), ..Default::default() };
        let dir = nfs.make_dir(&root, &dir_name, new).await.context("making a directory")?;
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
            shape,
        };
        match session.prepare(fill).await {
            Ok(()) => Ok(session),
            Err(error) => {
                let _ = session.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&mut self, fill: bool) -> Result<()> {
        let bytes = if fill { FILE_BYTES } else { 0 };
        self.read_file = self.file(READ_NAME, bytes).await?;
        for connection in 0..self.shape.connections {
            let name = write_name(connection);
            self.write_files.push(self.file(&name, bytes).await?);
            self.pipelines.push(Pipeline::connect(self.target.nfs, &self.target.options).await?);
            if let Some(nlm) = self.target.nlm {
                let pipeline = Pipeline::connect(nlm, &self.target.options).await;
                self.lock_pipelines.push(pipeline.context("lock manager")?);
            }
        }
        Ok(())
    }

    /// The connections that an operation goes over.
    pub(crate) fn pipelines(&mut self, operation: Operation) -> &mut Vec<Pipeline> {
        match operation.locks() {
            true => &mut self.lock_pipelines,
            false => &mut self.pipelines,
        }
    }

    /// A file whose blocks exist and lie in the page cache.
    async fn file(&self, name: &[u8], bytes: u64) -> Result<Handle> {
        let new = NewAttributes { mode: Some(0o644), ..Default::default() };
        let file = self.nfs.create(&self.dir, name, new).await.context("making a file")?;
        let data = Bytes::from((0..FILL_BYTES).map(|n| (n % 251) as u8).collect::<Vec<u8>>());
        for offset in (0..bytes).step_by(FILL_BYTES as usize) {
            let written = self.nfs.write(&file, offset, data.clone(), Stability::Unstable).await?;
            anyhow::ensure!(u64::from(written.count) == FILL_BYTES, "a WRITE was cut short");
        }
        if bytes > 0 {
            self.nfs.commit(&file).await?;
            let back = self.nfs.read(&file, 0, FILL_BYTES as u32).await?;
            anyhow::ensure!(back.data == data, "READ does not return what was written");
        }
        Ok(file)
    }

    /// Removes what the session made.
    pub async fn close(&mut self) -> Result<()> {
        self.pipelines.clear();
        self.lock_pipelines.clear();
        let mut names = vec![READ_NAME.to_vec()];
        for connection in 0..self.shape.connections {
            names.push(write_name(connection));
            // Left over only by a measurement that failed.
            names.extend((0..self.shape.depth).map(|slot| create_name(connection, slot)));
        }
        for name in names {
            match self.nfs.remove(&self.dir, &name).await {
                Ok(()) | Err(NfsError::Status(Status::NoEnt)) => {}
                Err(error) => return Err(error).context("removing a file"),
            }
        }
        self.nfs.remove_dir(&self.root, &self.dir_name).await.context("removing the directory")
    }
}

fn write_name(connection: usize) -> Vec<u8> {
    format!("write-{connection}").into_bytes()
}

/// The name that CREATE and REMOVE of one slot use.
pub(crate) fn create_name(connection: usize, slot: usize) -> Vec<u8> {
    format!("create-{connection}-{slot}").into_bytes()
}
