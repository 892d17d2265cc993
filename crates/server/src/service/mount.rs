//! MOUNT versions 1 to 3 (RFC 1813, appendix I): from a path to the handle of its directory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;
use vfs::export::shown_networks;
use vfs::{BlockingMode, Caller, Context, Error, Export, FileKind, MountWalk, ObjectId, Rules};
use wire::mount::{
    self, Dump, Exports, HostName, Mnt, MntReply, MntReply1, Mount, MountOk, MountStatus, Mounts,
    Null, Path, Umnt, UmntAll,
};
use wire::nfs3::Handle;
use wire::rpc::{AUTH_NONE, AUTH_SYS, Call, Procedure};
use wire::{Encode, Writer};

use super::{ServeOutcome, Service, decode, simple};
use crate::files::{Files, admit_to_export};
use crate::log_rate_limit::LogRateLimit;
use crate::rpc::admission::{Action, admit};
use crate::rpc::pending::IncomingCall;
use crate::transport::Peer;

static REFUSED_MOUNTS: LogRateLimit = LogRateLimit::new();

/// The list is informational: clients vanish without UMNT, so it may be wrong.
const MOUNTS_MAX: usize = 10_000;
/// The size of handles in versions 1 and 2.
const HANDLE_V1_BYTES: usize = 32;

/// The kind of these lines of the log.
const REFUSED: &str = "mount-refused";

pub(crate) struct MountService {
    files: Arc<Files>,
    mounts: Mutex<VecDeque<Mount>>,
}

impl MountService {
    pub(crate) fn new(files: Arc<Files>) -> Self {
        Self { files, mounts: Mutex::default() }
    }

    fn mount(&self, path: &Path, call: &Call, peer: &Peer) -> Result<Handle, MountStatus> {
        let exports = self.files.exports();
        if let Some(opening) = exports.opening_at(path) {
            let (path, ip) = (opening.path.escape_ascii(), peer.remote.ip());
            if !opening.rules.admits(ip) {
                return Err(MountStatus::Acces);
            }
            if REFUSED_MOUNTS.due() {
                warn!(
                    event.kind = REFUSED,
                    event.address = %ip,
                    event.export = %path,
                    "{ip} asked for {path}, whose file system does not answer yet"
                );
            }
            return Err(MountStatus::ServerFault);
        }
        let Some((export, names)) = exports.by_path(path) else {
            if REFUSED_MOUNTS.due() {
                let (path, ip) = (path.escape_ascii(), peer.remote.ip());
                warn!(
                    event.kind = REFUSED,
                    event.address = %ip,
                    event.export = %path,
                    "{ip} asked for {path}, which is not exported"
                );
            }
            return Err(MountStatus::NoEnt);
        };
        let rule = admit_to_export(export, peer, Action::UseFiles).map_err(|error| {
            if error == Error::Denied && REFUSED_MOUNTS.due() {
                let (path, ip) = (export.path.escape_ascii(), peer.remote.ip());
                warn!(
                    event.kind = REFUSED,
                    event.address = %ip,
                    event.export = %path,
                    "refused to let {ip} mount {path}: it is in none of the export's `clients`"
                );
            }
            mount_status(error)
        })?;
        let rules = export.rules.numbered(rule);
        let caller = self.files.mount_caller(rules, &call.credential).map_err(mount_status)?;
        let object = walk(export, &caller, &names).map_err(|error| {
            if error == Error::Denied && REFUSED_MOUNTS.due() {
                let (path, ip) = (path.escape_ascii(), peer.remote.ip());
                let why = why_denied(&caller, export, rules);
                warn!(
                    event.kind = REFUSED,
                    event.address = %ip,
                    event.export = %path,
                    "refused to let {ip} mount {path}: {why}"
                );
            }
            mount_status(error)
        })?;
        let handle = self.files.sign(export, &object);
        self.files.mounted.note(peer);
        self.files.fences.note_mount(peer, &call.credential);
        let mount = Mount { host: host(peer), path: path.clone() };
        let mut mounts = self.mounts();
        mounts.retain(|known| *known != mount);
        if mounts.len() >= MOUNTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back(mount);
        Ok(handle)
    }

    fn unmount(&self, peer: &Peer, path: Option<&Path>) {
        let host = host(peer);
        self.mounts()
            .retain(|known| known.host != host || path.is_some_and(|path| known.path != *path));
    }

    fn export_list(&self) -> mount::ExportList {
        let list = self.files.exports();
        let item = |export: &Arc<Export>| mount::Export {
            path: export.path.clone().into(),
            clients: shown_networks(&export.rules.networks()).into_iter().map(Into::into).collect(),
        };
        mount::ExportList(list.iter().map(item).collect())
    }

    fn mounts(&self) -> MutexGuard<'_, VecDeque<Mount>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves a path below the root of an export. `.` and `..` are invalid; symbolic links are not
/// followed.
fn walk(export: &Export, caller: &Caller, names: &[&[u8]]) -> Result<ObjectId, Error> {
    let context = Context { caller, blocking: BlockingMode::MayBlock };
    let mut at = export.filesystem.root();
    for name in names {
        if matches!(*name, b"." | b"..") {
            return Err(Error::Invalid);
        }
        at = export.filesystem.lookup(&context, &at, name)?.object;
    }
    match export.filesystem.attributes(&context, &at)?.kind {
        FileKind::Directory | FileKind::Regular => Ok(at),
        _ => Err(Error::NotADirectory),
    }
}

/// The path may also lead to another file system, which is not exported.
fn why_denied(caller: &Caller, export: &Export, rules: &Rules) -> String {
    let what = "or it leads to another file system";
    match rules.mount_walk {
        MountWalk::Caller => format!(
            "uid {}, as which it calls after squashing, may not search a directory on the path ({what}). \
             Let it, as by chmod o+x, mount {}, or set mount_walk = \"server\" in the export",
            caller.uid,
            export.path.escape_ascii()
        ),
        MountWalk::Server => format!("the server may not search a directory on the path, {what}"),
    }
}

fn mount_status(error: Error) -> MountStatus {
    match error {
        Error::NotOwner => MountStatus::Perm,
        Error::NotFound | Error::Stale => MountStatus::NoEnt,
        Error::Denied | Error::CrossesFileSystems => MountStatus::Acces,
        Error::NotADirectory => MountStatus::NotDir,
        Error::Invalid => MountStatus::Inval,
        Error::NameTooLong => MountStatus::NameTooLong,
        Error::Io => MountStatus::Io,
        _ => MountStatus::ServerFault,
    }
}

fn host(peer: &Peer) -> HostName {
    peer.remote.ip().to_string().into()
}

impl Service for MountService {
    fn program(&self) -> u32 {
        mount::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        &[1, 2, 3]
    }

    fn serve(
        &self,
        incoming: &mut IncomingCall<'_>,
        blocking: BlockingMode,
        out: &mut Writer,
    ) -> ServeOutcome {
        let (call, peer) = (incoming.call, incoming.peer);
        match call.procedure {
            Null::NUMBER => simple(call, out, |()| ()),
            Mnt::NUMBER if blocking == BlockingMode::Nonblocking => {
                let path: Path = decode!(call);
                let file_system = self.files.file_system_at(&path);
                ServeOutcome::WouldBlock { file_system, order: None }
            }
            Mnt::NUMBER => {
                let path: Path = decode!(call);
                let mounted = self.mount(&path, call, peer);
                if call.version == mount::V3 {
                    let flavours = vec![AUTH_SYS, AUTH_NONE];
                    MntReply(mounted.map(|root| MountOk { root, flavours })).encode(out);
                } else {
                    MntReply1(mounted.and_then(|root| fixed(&root))).encode(out);
                }
                ServeOutcome::Reply
            }
            Dump::NUMBER | Exports::NUMBER if admit(Action::Dump, peer, false, false).is_err() => {
                ServeOutcome::NO_SUCH_PROCEDURE
            }
            Dump::NUMBER => simple(call, out, |()| Mounts(self.mounts().iter().cloned().collect())),
            Umnt::NUMBER => simple(call, out, |path: Path| self.unmount(peer, Some(&path))),
            UmntAll::NUMBER => simple(call, out, |()| self.unmount(peer, None)),
            Exports::NUMBER => simple(call, out, |()| self.export_list()),
            _ => ServeOutcome::NO_SUCH_PROCEDURE,
        }
    }
}

/// A handle padded to the fixed size of version 1, if it fits.
fn fixed(handle: &Handle) -> Result<[u8; HANDLE_V1_BYTES], MountStatus> {
    let mut fixed = [0; HANDLE_V1_BYTES];
    fixed.get_mut(..handle.len()).ok_or(MountStatus::NotSupp)?.copy_from_slice(handle);
    Ok(fixed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use vfs::memory::MemoryFs;
    use vfs::{Exports, FileSystem, FileSystemId, HandleKey, NewAttributes};
    use wire::rpc::{Credential, ProcedureId, SysCredential, write_call};

    use super::*;
    use crate::fences::Fences;
    use crate::service_lease::ServiceLease;
    use crate::transport::Transport;

    /// An export that has `open/in` and `closed/in`, of which only the first can be searched by all.
    fn service(rules: Rules) -> MountService {
        let filesystem = Arc::new(MemoryFs::new(FileSystemId(1)));
        let root = Caller::new(0, 0, &[]);
        let context = Context { caller: &root, blocking: BlockingMode::MayBlock };
        for (name, mode) in [(&b"open"[..], 0o711), (b"closed", 0o750)] {
            let make = |at: &ObjectId, name: &[u8], mode| {
                let new = NewAttributes { mode: Some(mode), ..NewAttributes::default() };
                filesystem.make_dir(&context, at, name, &new).unwrap().object
            };
            let directory = make(&filesystem.root(), name, mode);
            make(&directory, b"in", 0o755);
        }
        let export = Export::new("/export", filesystem).with_id(1).with_rules(rules);
        let exports = Exports::new(vec![export]).unwrap();
        let key = HandleKey::new([7; 16]);
        MountService::new(Arc::new(Files::new(
            exports,
            key,
            10,
            ServiceLease::default(),
            Fences::default(),
        )))
    }

    /// Mounts the path as user `uid` of a client, from a reserved port.
    fn mount(service: &MountService, uid: u32, path: &'static str) -> Result<(), MountStatus> {
        let mut out = Writer::new();
        let to =
            ProcedureId { program: mount::PROGRAM, version: mount::V3, procedure: Mnt::NUMBER };
        let user = SysCredential {
            stamp: 0,
            machine: Default::default(),
            uid,
            gid: uid,
            groups: Default::default(),
        };
        write_call(&mut out, 1, to, &Credential::Sys(user));
        let call = Call::parse(out.finish().to_bytes()).unwrap();
        let [from, local] = ["10.0.0.5:700", "10.0.0.100:2049"].map(|at| at.parse().unwrap());
        let peer = Peer::new(from, local, Transport::Tcp);
        service.mount(&Path(Bytes::from_static(path.as_bytes())), &call, &peer).map(|_| ())
    }

    /// B1.85
    #[test]
    fn a_mount_tells_nothing_of_directories_that_its_caller_may_not_search() {
        let service = service(Rules::default());
        for uid in [0, 1000] {
            let there = mount(&service, uid, "/export/closed/in");
            let nothing = mount(&service, uid, "/export/closed/nothing");
            println!("uid {uid}: of what is there {there:?}, of what is not {nothing:?}");
            assert_eq!((there, nothing), (Err(MountStatus::Acces), Err(MountStatus::Acces)));
        }
        assert_eq!(mount(&service, 0, "/export"), Ok(()));
        assert_eq!(mount(&service, 0, "/export/closed"), Ok(()));
        assert_eq!(mount(&service, 0, "/export/open/in"), Ok(()));
        assert_eq!(mount(&service, 0, "/export/open/nothing"), Err(MountStatus::NoEnt));
    }

    /// B1.85
    #[test]
    fn an_export_can_have_mounts_resolved_by_the_server() {
        let rules = Rules::default().with_mount_walk(MountWalk::Server);
        let service = service(rules);
        assert_eq!(mount(&service, 0, "/export/closed/in"), Ok(()));
        assert_eq!(mount(&service, 0, "/export/closed/nothing"), Err(MountStatus::NoEnt));
    }

    /// B1.85
    #[test]
    fn the_reason_of_a_refused_mount_names_the_remedy() {
        let service = service(Rules::default());
        let exports = service.files.exports();
        let (export, _) = exports.by_path(b"/export").unwrap();
        let rules = Rules::default();
        let why = why_denied(&rules.anonymous(), export, &rules);
        assert!(why.contains("uid 65534") && why.contains("mount_walk = \"server\""), "{why}");
    }
}
