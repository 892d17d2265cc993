//! A complete program that serves a read-only file system of its own: one directory with two files,
//! of which the second is generated on each read. The contract of each method is in the
//! documentation of `FileSystem`.
//!
//! ```sh
//! cargo run --example hello_fs
//! sudo mount -t nfs -o vers=3,tcp,port=20490,mountport=20490,mountproto=tcp,nolock 127.0.0.1:/hello /mnt
//! cat /mnt/greeting /mnt/uptime
//! ```

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use lockkeeper::{
    AttributeChange, Attributes, Config, Context, CreateMode, CreateReply, Device, DirEntry, Error,
    Export, Exports, FileKind, FileSystem, FileSystemId, HandleKey, LockConfig, LookupReply,
    NewAttributes, NodeKind, ObjectId, Permissions, ReadDirReply, ReadReply, RemoveReply,
    RenameReply, Result, RpcbindMode, Rules, Server, Space, Stability, Time, WriteReply,
    WriteVerifier,
};

const ROOT: u64 = 1;
const FILES: [(u64, &[u8]); 2] = [(2, b"greeting"), (3, b"uptime")];

struct HelloFs {
    start: Instant,
}

impl HelloFs {
    fn content(&self, number: u64) -> Bytes {
        match number {
            2 => Bytes::from_static(b"Hello from a Rust program\n"),
            _ => format!("{} s\n", self.start.elapsed().as_secs()).into(),
        }
    }

    /// Object ids are for the file system to choose; here they are inode numbers, which are never
    /// reused.
    fn number(&self, object: &ObjectId) -> Result<u64> {
        let known = |number: &u64| ObjectId::from(*number) == *object;
        [ROOT, 2, 3].into_iter().find(known).ok_or(Error::Stale)
    }

    fn describe(&self, number: u64) -> Attributes {
        let directory = number == ROOT;
        // Clients cache file content until the modification time or the size changes.
        let now = Time { seconds: self.start.elapsed().as_secs() as i64, nanoseconds: 0 };
        let size = if directory { 4096 } else { self.content(number).len() as u64 };
        Attributes {
            kind: if directory { FileKind::Directory } else { FileKind::Regular },
            mode: if directory { 0o555 } else { 0o444 },
            links: if directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            size,
            used: size,
            device: Device::default(),
            fileid: number,
            accessed: now,
            modified: now,
            changed: now,
        }
    }

    fn lookup_reply(&self, number: u64) -> LookupReply {
        LookupReply { object: number.into(), attributes: self.describe(number) }
    }
}

impl FileSystem for HelloFs {
    fn id(&self) -> FileSystemId {
        FileSystemId(0x0068_656c_6c6f)
    }

    fn root(&self) -> ObjectId {
        ROOT.into()
    }

    /// No operation blocks, so every one can run on the network thread.
    fn supports_nonblocking(&self) -> bool {
        true
    }

    fn attributes(&self, _: &Context<'_>, object: &ObjectId) -> Result<Attributes> {
        Ok(self.describe(self.number(object)?))
    }

    fn lookup(&self, _: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<LookupReply> {
        if self.number(dir)? != ROOT {
            return Err(Error::NotADirectory);
        }
        if name == b"." || name == b".." {
            return Ok(self.lookup_reply(ROOT));
        }
        let file = FILES.iter().find(|file| file.1 == name).ok_or(Error::NotFound)?;
        Ok(self.lookup_reply(file.0))
    }

    fn access(&self, _: &Context<'_>, object: &ObjectId) -> Result<(Permissions, Attributes)> {
        let number = self.number(object)?;
        let may = Permissions { read: true, write: false, execute: number == ROOT };
        Ok((may, self.describe(number)))
    }

    fn read(&self, _: &Context<'_>, file: &ObjectId, offset: u64, count: u32) -> Result<ReadReply> {
        let number = self.number(file)?;
        if number == ROOT {
            return Err(Error::IsADirectory);
        }
        let content = self.content(number);
        let from = content.len().min(offset as usize);
        let to = content.len().min(from + count as usize);
        let attributes = Some(self.describe(number));
        Ok(ReadReply { data: content.slice(from..to), eof: to == content.len(), attributes })
    }

    fn read_dir(
        &self,
        _: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        _: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply> {
        if self.number(dir)? != ROOT {
            return Err(Error::NotADirectory);
        }
        let entries = [(ROOT, &b"."[..]), (ROOT, b".."), FILES[0], FILES[1]];
        let mut eof = true;
        for (at, (number, name)) in entries.iter().enumerate().skip(cookie as usize) {
            let lookup = plus.then(|| self.lookup_reply(*number));
            // A cookie is the position of the next entry, and never 0.
            let entry = DirEntry { name, fileid: *number, cookie: at as u64 + 1, lookup };
            if !sink(entry) {
                eof = false;
                break;
            }
        }
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes: Some(self.describe(ROOT)) })
    }

    fn space(&self, _: &Context<'_>, _: &ObjectId) -> Result<Space> {
        Ok(Space::default())
    }

    fn read_link(&self, _: &Context<'_>, _: &ObjectId) -> Result<(Bytes, Attributes)> {
        Err(Error::Invalid)
    }

    /// Constant: no unstable write exists that could be lost.
    fn write_verifier(&self) -> WriteVerifier {
        [0; 8]
    }

    fn set_attributes(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: &NewAttributes,
        _: Option<Time>,
    ) -> Result<AttributeChange> {
        Err(Error::ReadOnly)
    }

    fn write(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: u64,
        _: &Bytes,
        _: Stability,
    ) -> Result<WriteReply> {
        Err(Error::ReadOnly)
    }

    fn commit(&self, _: &Context<'_>, _: &ObjectId, _: u64, _: u32) -> Result<AttributeChange> {
        Err(Error::ReadOnly)
    }

    fn create(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: &[u8],
        _: &CreateMode,
    ) -> Result<CreateReply> {
        Err(Error::ReadOnly)
    }

    fn make_dir(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: &[u8],
        _: &NewAttributes,
    ) -> Result<CreateReply> {
        Err(Error::ReadOnly)
    }

    fn make_symlink(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: &[u8],
        _: &[u8],
        _: &NewAttributes,
    ) -> Result<CreateReply> {
        Err(Error::ReadOnly)
    }

    fn make_node(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: &[u8],
        _: NodeKind,
        _: &NewAttributes,
    ) -> Result<CreateReply> {
        Err(Error::ReadOnly)
    }

    fn remove(&self, _: &Context<'_>, _: &ObjectId, _: &[u8]) -> Result<RemoveReply> {
        Err(Error::ReadOnly)
    }

    fn remove_dir(&self, _: &Context<'_>, _: &ObjectId, _: &[u8]) -> Result<RemoveReply> {
        Err(Error::ReadOnly)
    }

    fn rename(
        &self,
        _: &Context<'_>,
        _: (&ObjectId, &[u8]),
        _: (&ObjectId, &[u8]),
    ) -> Result<RenameReply> {
        Err(Error::ReadOnly)
    }

    fn link(
        &self,
        _: &Context<'_>,
        _: &ObjectId,
        _: &ObjectId,
        _: &[u8],
    ) -> Result<(Attributes, AttributeChange)> {
        Err(Error::ReadOnly)
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let export = Export {
        id: 1,
        path: Bytes::from_static(b"/hello"),
        filesystem: Arc::new(HelloFs { start: Instant::now() }),
        rules: Rules { require_reserved_ports: false, ..Rules::default() }.into(),
    };
    let config = Config {
        listen: "127.0.0.1:20490".parse()?,
        rpcbind: RpcbindMode::Off,
        ..Config::default()
    };
    // Handles are valid as long as the key is the same: a real program generates and keeps one, for
    // example with `lockkeeper::secrets::SecretsInDirectory`.
    let key = HandleKey::new(*b"sixteen bytes ok");
    // These locks end with the program; with a store of `lockkeeper::store` they survive it.
    let locks = LockConfig::in_memory();
    let server = Server::start(config, Exports::new(vec![export])?, key, locks).await?;
    println!("serving /hello on port {}", server.port());
    let handle = server.handle();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            handle.stop();
        }
    });
    let _stopped = server.run().await?;
    Ok(())
}
