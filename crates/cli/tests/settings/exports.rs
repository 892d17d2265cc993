//! What is seen of an export.

use std::fs;
use std::process::{Command, Stdio};

use client::nfs::Nfs;
use client::{Locker, mount as mounting};
use testbed::wait::until;
use wire::nfs3::{
    Create, CreateArgs, CreateHow, DirOpArgs, Handle, NewAttributes, SetAttr, SetAttrArgs,
};

use crate::setup::{Running, Setup, byte};

async fn mounted(server: &Running, path: &str) -> Option<Handle> {
    mounting::mount(&server.connect(1000, 1001).await, path).await.ok()
}

pub async fn mount(setup: Setup) -> String {
    let server = setup.start();
    match mounted(&server, setup.text("export.path")).await {
        Some(_) => "mounted".into(),
        None => "refused".into(),
    }
}

/// Of a directory that is below one which the caller may not search, in memory: this needs no root.
pub async fn mount_below_closed(mut setup: Setup) -> String {
    setup.set("export.path", "'memory:/e'");
    setup.set("export.squash", "'none'");
    let server = setup.start();
    let root = mounted(&server, "/e").await.unwrap();
    let nfs = Nfs(server.connect(0, 0).await);
    let closed = NewAttributes { mode: Some(0o700), ..NewAttributes::default() };
    let made = nfs.make_dir(&root, b"closed", closed).await.unwrap();
    nfs.make_dir(&made, b"in", NewAttributes::default()).await.unwrap();
    match mounted(&server, "/e/closed/in").await {
        Some(_) => "mounted".into(),
        None => "refused".into(),
    }
}

pub async fn other_path(setup: Setup) -> String {
    let server = setup.start();
    match mounted(&server, "/other").await {
        Some(_) => "mounted".into(),
        None => "refused".into(),
    }
}

/// A handle after the exported directory was renamed and the path changed with it.
pub async fn renamed(mut setup: Setup) -> String {
    let mut first = setup.start();
    let root = mounted(&first, setup.text("export.path")).await.unwrap();
    first.server.kill();
    drop(first);
    let path = setup.text("export.path").to_owned();
    fs::rename(&path, format!("{path}2")).unwrap();
    setup.set("export.path", &format!("'{path}2'"));
    let server = setup.start();
    match Nfs(server.connect(0, 0).await).attributes(&root).await {
        Ok(_) => "good".into(),
        Err(_) => "stale".into(),
    }
}

pub async fn filesystem_id(setup: Setup) -> String {
    let server = setup.start();
    let root = mounted(&server, setup.text("export.path")).await.unwrap();
    let found = Nfs(server.connect(0, 0).await).attributes(&root).await.unwrap();
    if found.filesystem == 4242 { "4242" } else { "another" }.into()
}

pub async fn create(setup: Setup) -> String {
    let server = setup.start();
    let root = mounted(&server, setup.text("export.path")).await.unwrap();
    let nfs = Nfs(server.connect(0, 0).await);
    match nfs.create(&root, b"new", NewAttributes::default()).await {
        Ok(_) => "created".into(),
        Err(_) => "refused".into(),
    }
}

/// The owner of a file that a user creates, in memory: this needs no root.
pub async fn owner(mut setup: Setup) -> String {
    setup.set("export.path", "'memory:/e'");
    let server = setup.start();
    let root = mounted(&server, "/e").await.unwrap();
    let nfs = Nfs(server.connect(1000, 1001).await);
    let file = nfs.create(&root, b"new", NewAttributes::default()).await.unwrap();
    let found = nfs.attributes(&file).await.unwrap();
    format!("{}:{}", found.uid, found.gid)
}

pub async fn squashed(mut setup: Setup) -> String {
    setup.set("export.squash", "'all'");
    owner(setup).await
}

/// An exclusive lock of a user who may not use the file.
pub async fn private_lock(setup: Setup) -> String {
    lock_of_another(setup, 0o600).await
}

/// An exclusive lock of a user who may only read the file.
pub async fn readers_lock(setup: Setup) -> String {
    lock_of_another(setup, 0o644).await
}

async fn lock_of_another(mut setup: Setup, mode: u32) -> String {
    setup.set("export.path", "'memory:/e'");
    let server = setup.start();
    let file = server.file(&setup, "a").await;
    let args = SetAttrArgs {
        object: file.clone(),
        new: NewAttributes { mode: Some(mode), ..NewAttributes::default() },
        guard: None,
    };
    server.connect(0, 0).await.call::<SetAttr>(&args).await.unwrap().unwrap();
    let bob = Locker::new(server.connect(2000, 2000).await, "bob", 1);
    format!("{:?}", bob.lock(&file, byte(0)).await.unwrap())
}

/// Whether a change of a directory comes with the attributes of before.
pub async fn before(setup: Setup) -> String {
    let server = setup.start();
    let root = mounted(&server, setup.text("export.path")).await.unwrap();
    let at = DirOpArgs { dir: root, name: b"new"[..].into() };
    let how = CreateHow::Guarded(NewAttributes::default());
    let made = server.connect(0, 0).await.call::<Create>(&CreateArgs { at, how }).await.unwrap();
    if made.unwrap().dir.before.is_some() { "given" } else { "not given" }.into()
}

/// The system calls that sync, while files are created.
pub async fn syncs(mut setup: Setup) -> String {
    const FILES: usize = 5;
    setup.set("store.url", "'memory:'");
    let server = setup.start();
    let root = mounted(&server, setup.text("export.path")).await.unwrap();
    let trace = setup.home.path().join("trace");
    let process = server.server.id().to_string();
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=fsync,fdatasync,syncfs", "-p", &process, "-o"])
        .arg(&trace)
        .stderr(fs::File::create(setup.home.path().join("strace")).unwrap())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(setup.home.path().join("strace")).unwrap();
    until("strace is attached", || said().contains("attached")).await;
    let nfs = Nfs(server.connect(0, 0).await);
    for number in 0..FILES {
        let name = format!("new{number}");
        nfs.create(&root, name.as_bytes(), NewAttributes::default()).await.unwrap();
    }
    strace.kill().unwrap();
    strace.wait().unwrap();
    let trace = fs::read_to_string(trace).unwrap();
    let count = trace.lines().filter(|line| line.contains("sync")).count();
    match count {
        0 => "no sync".into(),
        FILES.. => "a sync for each".into(),
        some => format!("{some} syncs"),
    }
}
