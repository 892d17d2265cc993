//! NFSv3 procedures, RFC 1813, with a status other than OK as an error.

use bytes::Bytes;
use wire::nfs3::*;
use wire::rpc::Procedure;

use crate::{CallError, Connection};

#[derive(Debug, thiserror::Error)]
pub enum NfsError {
    #[error("nfs: {0}")]
    Call(#[from] CallError),
    #[error("nfs: the server answered {0:?}")]
    Status(Status),
    /// The handle is optional in the replies of CREATE and MKDIR.
    #[error("nfs: the server created the object but did not return its handle")]
    NoHandle,
}

/// A connection to the NFS service.
#[derive(Debug, Clone)]
pub struct Nfs(pub Connection);

impl Nfs {
    /// Calls any procedure.
    pub async fn call<P, T, F>(&self, args: &P::Args) -> Result<T, NfsError>
    where
        P: Procedure<Reply = Reply<T, F>>,
    {
        self.0.call::<P>(args).await?.map_err(|ErrorReply(status, _)| NfsError::Status(status))
    }

    pub async fn null(&self) -> Result<(), NfsError> {
        Ok(self.0.call::<Null>(&()).await?)
    }

    pub async fn attributes(&self, object: &Handle) -> Result<Attributes, NfsError> {
        self.call::<GetAttr, _, _>(&GetAttrArgs { object: object.clone() }).await
    }

    pub async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<LookupOk, NfsError> {
        self.call::<Lookup, _, _>(&at(dir, name)).await
    }

    /// Follows a path from `root`, component by component; links are not followed.
    pub async fn lookup_path(&self, root: &Handle, path: &[u8]) -> Result<Handle, NfsError> {
        let mut object = root.clone();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            object = self.lookup(&object, name).await?.object;
        }
        Ok(object)
    }

    /// Creates a file, which must not exist.
    pub async fn create(
        &self,
        dir: &Handle,
        name: &[u8],
        new: NewAttributes,
    ) -> Result<Handle, NfsError> {
        let args = CreateArgs { at: at(dir, name), how: CreateHow::Guarded(new) };
        self.call::<Create, _, _>(&args).await?.object.ok_or(NfsError::NoHandle)
    }

    pub async fn make_dir(
        &self,
        dir: &Handle,
        name: &[u8],
        new: NewAttributes,
    ) -> Result<Handle, NfsError> {
        let args = MkDirArgs { at: at(dir, name), new };
        self.call::<MkDir, _, _>(&args).await?.object.ok_or(NfsError::NoHandle)
    }

    pub async fn remove(&self, dir: &Handle, name: &[u8]) -> Result<(), NfsError> {
        self.call::<Remove, _, _>(&at(dir, name)).await.map(drop)
    }

    pub async fn remove_dir(&self, dir: &Handle, name: &[u8]) -> Result<(), NfsError> {
        self.call::<RmDir, _, _>(&at(dir, name)).await.map(drop)
    }

    pub async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<ReadOk, NfsError> {
        self.call::<Read, _, _>(&ReadArgs { file: file.clone(), offset, count }).await
    }

    pub async fn write(
        &self,
        file: &Handle,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<WriteOk, NfsError> {
        let count = data.len() as u32;
        let args = WriteArgs { file: file.clone(), offset, count, stability, data };
        self.call::<Write, _, _>(&args).await
    }

    pub async fn commit(&self, file: &Handle) -> Result<CommitOk, NfsError> {
        let args = CommitArgs { file: file.clone(), offset: 0, count: 0 };
        self.call::<Commit, _, _>(&args).await
    }
}

fn at(dir: &Handle, name: &[u8]) -> DirOpArgs {
    DirOpArgs { dir: dir.clone(), name: Name::from(name.to_vec()) }
}
