//! A hundred thousand locks: four on each of many files, the rest on one.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use tokio::task::JoinSet;
use wire::nlm::{Range, Status};

use crate::filer::Home;

/// The files, as the page counts them.
pub const FILES_SAID: &str = "20,001";
const FILES: usize = 20_000;
const LOCKS_PER_FILE: usize = 4;
const HOSTS: usize = 8;
/// Calls under way on each connection.
const DEPTH: usize = 16;

pub async fn take(home: &Home, count: usize) {
    let share = home.path("share");
    for number in 0..FILES {
        make(&share.join(file_name(number)));
    }
    make(&share.join("crowded"));
    let mut takers = JoinSet::new();
    for host in 0..HOSTS {
        let machine = home.host(&format!("node-{host}"), 20 + host as u8).await;
        let crowded = machine.nfs.lookup(&machine.root, b"crowded").await.unwrap().object;
        for part in 0..DEPTH {
            let (nfs, root, crowded) = (machine.nfs.clone(), machine.root.clone(), crowded.clone());
            let locker = machine.locker.process(part as i32);
            takers.spawn(async move {
                let mine = |number: &usize| number % (HOSTS * DEPTH) == host * DEPTH + part;
                for number in (0..FILES).filter(mine) {
                    let name = file_name(number);
                    let file = nfs.lookup(&root, name.as_bytes()).await.unwrap().object;
                    for lock in 0..LOCKS_PER_FILE as u64 {
                        let range = Range { offset: lock * 1000, length: 500 };
                        assert_eq!(locker.lock(&file.0, range).await.unwrap(), Status::Granted);
                    }
                }
                for number in (0..count - FILES * LOCKS_PER_FILE).filter(mine) {
                    let range = Range { offset: number as u64 * 10, length: 5 };
                    assert_eq!(locker.lock(&crowded.0, range).await.unwrap(), Status::Granted);
                }
            });
        }
    }
    while let Some(done) = takers.join_next().await {
        done.unwrap();
    }
}

fn file_name(number: usize) -> String {
    format!("job-{number:05}.lock")
}

fn make(path: &std::path::Path) {
    File::create(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}
