//! MOUNT: the root handle of an export, RFC 1813 appendix I.

use wire::mount::{Mnt, MountStatus, Path, Umnt};
use wire::nfs3::Handle;

use crate::{CallError, Connection};

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("mount: {0}")]
    Call(#[from] CallError),
    #[error("mount: the server answered {0:?}")]
    Status(MountStatus),
}

/// MNT, over a connection to the MOUNT service.
pub async fn mount(connection: &Connection, path: &str) -> Result<Handle, MountError> {
    let reply = connection.call::<Mnt>(&Path::from(path.to_owned())).await?;
    reply.0.map(|mounted| mounted.root).map_err(MountError::Status)
}

/// UMNT, which has no result.
pub async fn unmount(connection: &Connection, path: &str) -> Result<(), MountError> {
    Ok(connection.call::<Umnt>(&Path::from(path.to_owned())).await?)
}
