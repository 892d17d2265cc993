//! Many locks held by a few hosts: taken, and reclaimed after a restart of the server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use client::nfs::Nfs;
use client::{Connection, Pipeline, mount};
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::Decode;
use wire::nfs3::{Handle, NewAttributes};
use wire::nlm::{LockArgs, Range, Status, StatusReply, v4};
use wire::rpc::Accepted;

use load::Owner;
use load::Target;

const HOSTS: usize = 10;
const LOCKS_PER_FILE: usize = 1_000;
const LOCKS_PER_OWNER: usize = 100;
/// Calls under way on each connection.
const DEPTH: usize = 64;
const REPLY_MAX: Duration = Duration::from_secs(30);

/// The locks are numbered; files and hosts follow from the number.
#[derive(Debug)]
pub(crate) struct LockPopulation {
    files: Vec<Handle>,
    /// How many locks there are.
    count: usize,
}

impl LockPopulation {
    /// Creates the files.
    pub(crate) async fn create(target: &Target, count: usize) -> Result<Self> {
        let mounts = Connection::connect(target.mount, &target.options).await?;
        let root = mount::mount(&mounts, &target.export).await?;
        let nfs = Nfs(Connection::connect(target.nfs, &target.options).await?);
        let name = format!("crowd-{}", target.nfs.port()).into_bytes();
        let new = NewAttributes { mode: Some(0o755), ..Default::default() };
        let dir = nfs.make_dir(&root, &name, new).await.context("making a directory")?;
        // At least one for each host.
        let mut files = Vec::new();
        for file in 0..count.div_ceil(LOCKS_PER_FILE).max(HOSTS) {
            let new = NewAttributes { mode: Some(0o644), ..Default::default() };
            let name = file.to_string().into_bytes();
            files.push(nfs.create(&dir, &name, new).await.context("making a file")?);
        }
        Ok(Self { files, count })
    }

    /// A lock of another host that conflicts with none of these.
    pub(crate) fn other(&self) -> LockArgs {
        let range = Range { offset: 1 << 40, length: 1 };
        Owner::new("bench-other", 1).lock(&self.files[0], range)
    }

    pub(crate) fn reclaim_first(&self) -> LockArgs {
        self.args(0, true)
    }

    /// Takes or reclaims every lock, all hosts at once.
    pub(crate) async fn take_all(self: &Arc<Self>, target: &Target, reclaim: bool) -> Result<()> {
        let mut hosts = JoinSet::new();
        for host in 0..HOSTS {
            let nlm = target.nlm.context("no lock manager")?;
            let pipeline = Pipeline::connect(nlm, &target.options).await?;
            hosts.spawn(self.clone().take(host, pipeline, reclaim));
        }
        while let Some(host) = hosts.join_next().await {
            host??;
        }
        Ok(())
    }

    async fn take(
        self: Arc<Self>,
        host: usize,
        mut pipeline: Pipeline,
        reclaim: bool,
    ) -> Result<()> {
        let mut locks = (0..self.count).filter(|lock| self.host(*lock) == host);
        let mut under_way = VecDeque::new();
        let mut done = 0;
        loop {
            while under_way.len() < DEPTH
                && let Some(lock) = locks.next()
            {
                under_way.push_back(pipeline.send::<v4::Lock>(&self.args(lock, reclaim)));
            }
            if under_way.is_empty() {
                return Ok(());
            }
            let reply = timeout(REPLY_MAX, pipeline.recv()).await.context("no reply")??;
            let Some(place) = under_way.iter().position(|xid| *xid == reply.xid) else {
                bail!("a reply to a call that was not made");
            };
            under_way.remove(place);
            ensure!(reply.verdict == Ok(Accepted::Success), "not run: {:?}", reply.verdict);
            let status = StatusReply::from_bytes(reply.results)?.status;
            done += 1;
            ensure!(
                status == Status::Granted,
                "lock {done} of host {host}: {status:?} instead of GRANTED"
            );
        }
    }

    fn file(&self, lock: usize) -> usize {
        lock * self.files.len() / self.count
    }

    fn host(&self, lock: usize) -> usize {
        self.file(lock) % HOSTS
    }

    fn args(&self, lock: usize, reclaim: bool) -> LockArgs {
        let machine = format!("bench-crowd-{}", self.host(lock));
        let owner = Owner::new(machine, (lock / LOCKS_PER_OWNER) as i32);
        // Not adjacent, so that no two are merged.
        let range = Range { offset: 2 * lock as u64, length: 1 };
        let file = &self.files[self.file(lock)];
        match reclaim {
            true => owner.reclaim(file, range),
            false => owner.lock(file, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_host_has_locks_and_no_file_has_two_hosts() {
        for (count, files) in [(10, 10), (1_000, 10), (25_000, 25), (100_000, 100)] {
            let handle = |file: u32| Handle::from(file.to_be_bytes().to_vec());
            let crowd = LockPopulation { files: (0..files).map(handle).collect(), count };
            let mut hosts = HashSet::new();
            let mut places = HashSet::new();
            for lock in 0..count {
                let args = crowd.args(lock, false).lock;
                hosts.insert(args.caller_name.to_vec());
                places.insert((args.file.to_vec(), args.range.offset));
            }
            assert_eq!((hosts.len(), places.len()), (HOSTS, count));
            let files: HashSet<_> = places.into_iter().map(|(file, _)| file).collect();
            assert_eq!(files.len(), crowd.files.len());
        }
    }
}
