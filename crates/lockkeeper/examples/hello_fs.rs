//! A complete program that serves a read-only file system of its own, with locks: one directory with
//! two files, of which the second is generated on each read. The contract of each method is in the
//! documentation of `FileSystem`.
//!
//! ```sh
//! cargo run -p lockkeeper --example hello_fs                      # for this machine, any user
//! sudo target/debug/examples/hello_fs 0.0.0.0:2049                # for others, with locks
//! ```
//!
//! It prints the mount command that fits. Clients find the lock service by asking port 111, which
//! only root may open: `docs/embed.md` has the choices.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use lockkeeper::{
    Attributes, Bytes, Config, Context, DirEntry, Error, Export, Exports, FileSystem, FileSystemId,
    HandleKey, Listing, LockConfig, LookupReply, ObjectId, ReadDirReply, ReadReply, Result,
    RpcbindState, Rules, Server, Time,
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

    fn lookup_reply(&self, number: u64) -> LookupReply {
        let attributes = match number {
            ROOT => Attributes::directory(ROOT).with_mode(0o555),
            file => Attributes::regular(file, self.content(file).len() as u64).with_mode(0o444),
        };
        // Clients cache file content until the modification time or the size changes.
        let now = Time { seconds: self.start.elapsed().as_secs() as i64, nanoseconds: 0 };
        LookupReply { object: number.into(), attributes: attributes.with_times(now) }
    }
}

/// What is not here has a default, which refuses.
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
        Ok(self.lookup_reply(self.number(object)?).attributes)
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

    fn read(&self, _: &Context<'_>, file: &ObjectId, offset: u64, count: u32) -> Result<ReadReply> {
        let number = self.number(file)?;
        if number == ROOT {
            return Err(Error::IsADirectory);
        }
        let content = self.content(number);
        let from = content.len().min(offset as usize);
        let to = content.len().min(from + count as usize);
        let attributes = Some(self.lookup_reply(number).attributes);
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
        let mut listing = Listing::new(ROOT, ROOT);
        FILES.iter().for_each(|(number, name)| listing.push(name, *number));
        let lookup = |_: &[u8], number| plus.then(|| self.lookup_reply(number));
        let eof = listing.send(cookie, lookup, sink);
        let attributes = Some(self.lookup_reply(ROOT).attributes);
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes })
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn StdError>> {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:20490".into());
    let config = Config::default().with_listen(listen.parse()?);
    let filesystem = Arc::new(HelloFs { start: Instant::now() });
    let rules = Rules::default().with_require_reserved_ports(false);
    let export = Export::new("/hello", filesystem).with_rules(rules);
    // Handles are valid as long as the key is the same: a real program generates and keeps one, for
    // example with `lockkeeper::secrets::SecretsInDirectory`.
    let key = HandleKey::new(*b"sixteen bytes ok");
    // These locks end with the program; with a store of `lockkeeper::store` they survive it.
    let locks = LockConfig::in_memory();
    let server = Server::start(config, Exports::new(vec![export])?, key, locks).await?;
    let handle = server.handle();
    print_mount_command(&server);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            handle.stop();
        }
    });
    let _stopped = server.run().await?;
    Ok(())
}

fn print_mount_command(server: &Server) {
    let address = server.addresses().first().copied();
    let ip = address.map(|at| at.ip()).filter(|ip| !ip.is_unspecified());
    let host = ip.map_or_else(|| "SERVER".into(), |ip| ip.to_string());
    let port = address.as_ref().map_or(0, SocketAddr::port);
    let ports = format!("vers=3,tcp,port={port},mountport={port},mountproto=tcp");
    let without_locks = match server.rpcbind() {
        RpcbindState::Off { reason } => Some(reason.as_str()),
        // The kernel here would need a lock manager of its own for the mount.
        _ if ip.is_some_and(|ip| ip.is_loopback()) => Some("a machine has one lock manager"),
        RpcbindState::System { .. } | RpcbindState::Embedded { .. } => None,
    };
    match without_locks {
        Some(reason) => {
            println!("serving /hello on port {port}; clients cannot use its locks: {reason}");
            println!("  mount -t nfs -o {ports},nolock {host}:/hello /mnt");
            println!("with nolock, a lock holds among the programs of one client only");
        }
        None => {
            println!("serving /hello on port {port}, with locks");
            println!("  mount -t nfs -o {ports} {host}:/hello /mnt");
        }
    }
}
