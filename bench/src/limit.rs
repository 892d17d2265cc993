//! What the machine can do: loops that move the bytes of READ and WRITE between socket and file, and
//! nothing else.
//!
//! They answer the load generator with replies that it accepts, in a process of their own, so that
//! their processor time is measured like that of a server. One thread for each connection; files are
//! named by their number, and nothing is checked.

mod copy;
mod record;
mod splice;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use client::Options;
use load::Target;
use serde::Serialize;

use crate::link::Link;
use crate::server::Server;
use record::{Head, Records, Reply};

/// How the bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    /// WRITE by recv and pwrite, READ by pread and send, through one buffer for each connection
    Copy,
    /// WRITE by splice through a pipe, READ by sendfile
    Splice,
}

impl Loop {
    pub const ALL: [Self; 2] = [Self::Copy, Self::Splice];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Splice => "splice",
        }
    }

    pub(crate) fn port(self) -> u16 {
        20_500 + self as u16
    }

    /// Starts it on files below `dir`.
    pub(crate) async fn start(self, dir: &Path, link: Link, options: &Options) -> Result<Server> {
        let name = format!("limit-{}", self.name());
        let (dir, log) = (dir.join(&name), dir.join(format!("{name}.log")));
        fs::create_dir(&dir)?;
        let at = SocketAddr::from((link.server(), self.port()));
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["limit", self.name()]).arg(at.to_string()).arg(&dir);
        let export = dir.to_string_lossy().into_owned();
        let target = Target { nfs: at, mount: at, nlm: None, export, options: options.clone() };
        Server::start(&name, link.beyond(command), &log, target).await
    }
}

#[derive(Debug, Clone, Args)]
pub struct LimitArgs {
    by: Loop,
    listen: SocketAddr,
    dir: PathBuf,
}

/// Serves until the process is killed.
pub fn serve(args: &LimitArgs) -> Result<()> {
    let listener = TcpListener::bind(args.listen).context("limit")?;
    let files = Arc::new(Files { dir: args.dir.clone(), open: Mutex::default() });
    for stream in listener.incoming() {
        let (by, files, stream) = (args.by, files.clone(), stream?);
        // A connection ends in an error when the client closes it.
        thread::spawn(move || answer(by, &files, stream));
    }
    Ok(())
}

fn answer(by: Loop, files: &Files, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut records = Records::new(stream);
    let mut copy = copy::Buffer::default();
    let mut pipe = splice::Pipe::new()?;
    loop {
        let head = records.next()?;
        match (head, by) {
            (Head::Read { xid, file, at, count }, Loop::Copy) => {
                copy.read(&*files.get(file)?, at, &Reply::read(xid, count), count, &mut out)?;
            }
            (Head::Read { xid, file, at, count }, Loop::Splice) => {
                splice::read(&*files.get(file)?, at, &Reply::read(xid, count), count, &mut out)?;
            }
            (Head::Write { xid, file, at, count }, _) => {
                let file = files.get(file)?;
                match by {
                    Loop::Copy => copy.write(&mut records, &file, at, count)?,
                    Loop::Splice => pipe.write(&mut records, &file, at, count)?,
                }
                Reply::written(xid, count).send(&mut out)?;
            }
            (Head::Create { xid }, _) => Reply::created(xid, files.create()?).send(&mut out)?,
            (Head::Mount { xid }, _) => Reply::mounted(xid).send(&mut out)?,
            (Head::Commit { xid }, _) => Reply::committed(xid).send(&mut out)?,
            (Head::Remove { xid }, _) => Reply::removed(xid).send(&mut out)?,
            (Head::Null { xid }, _) => Reply::null(xid).send(&mut out)?,
        }
    }
}

/// Files by number, from 1.
struct Files {
    dir: PathBuf,
    open: Mutex<Vec<Arc<File>>>,
}

impl Files {
    fn create(&self) -> io::Result<u32> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.len() as u32 + 1;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        open.push(Arc::new(options.open(self.dir.join(number.to_string()))?));
        Ok(number)
    }

    fn get(&self, number: u32) -> io::Result<Arc<File>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = (number as usize).checked_sub(1).and_then(|at| open.get(at));
        file.cloned().ok_or(io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::{Operation, Session, Shape, Timing};
    use std::time::Duration;

    /// The session compares what it reads with what it wrote; the generator checks every reply.
    #[tokio::test]
    async fn both_loops_move_the_data_of_the_load() {
        for by in Loop::ALL {
            let dir = tempfile::tempdir().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap();
            let files = Arc::new(Files { dir: dir.path().to_owned(), open: Mutex::default() });
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let files = files.clone();
                    thread::spawn(move || answer(by, &files, stream.unwrap()));
                }
            });
            let (export, options) = (String::new(), Options::default());
            let target = Target { nfs: at, mount: at, nlm: None, export, options };
            let shape = Shape { connections: 2, depth: 3 };
            let operations = [Operation::Read(64 << 10), Operation::Write(1 << 20)];
            let steps = operations.map(|operation| (operation, shape));
            let mut session = Session::open(target, &steps).await.unwrap();
            let time = Duration::from_millis(30);
            for (operation, shape) in steps {
                let timing = Timing { warm_up: time, measured: time };
                load::run(&mut session, operation, shape, timing).await.unwrap();
            }
            session.close().await.unwrap();
        }
    }
}
