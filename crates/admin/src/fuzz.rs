//! Properties of the API for arbitrary requests: no panic, no internal error, and every refusal is a
//! problem document. The requests go through the real router to a server without sockets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check panics")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use server::LockConfig;
use server::in_process::InProcess;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tower::ServiceExt as _;
use vfs::memory::MemoryFs;
use vfs::{Export, Exports, FileKey, FileSystem, FileSystemId, HandleKey, Rules};
use wire::Writer;
use wire::nlm;
use wire::rpc::{self, Credential, ProcedureId};

use crate::api::Problem;
use crate::caller::{Peer, UserDirectory};
use crate::quota::{Budgets, Quota};
use crate::{AdminState, Facts, PathVisibility, Reload, router};

/// Longer answers, and streams of events, are read in part.
const PARTS_MAX: usize = 4;
const BUDGET: Duration = Duration::from_secs(1_000);
const PART_TIME_MAX: Duration = Duration::from_millis(20);
/// Longer than commands may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
const METHODS: [Method; 7] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::HEAD,
    Method::PATCH,
    Method::OPTIONS,
];
const TOKEN: &str = "token-of-the-corpus";

/// One for all inputs: it is slow to start.
struct Service {
    runtime: Runtime,
    router: Router,
    server: InProcess,
    handle: Vec<u8>,
}

/// `caller and method u8 | target | newline | content type | newline | body`. The caller is root on the
/// unix socket, another user there, TCP with the token or TCP without.
pub fn requests(data: &[u8]) {
    static SERVICE: OnceLock<Mutex<Service>> = OnceLock::new();
    let service = SERVICE.get_or_init(|| Mutex::new(start()));
    let Some(request) = request(data) else { return };
    let service = service.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    service.runtime.block_on(service.check(request));
}

fn request(data: &[u8]) -> Option<Request<Body>> {
    let (first, rest) = data.split_first()?;
    let mut lines = rest.splitn(3, |byte| *byte == b'\n');
    let target = Uri::try_from(lines.next()?).ok()?;
    let mut request = Request::builder()
        .method(METHODS[usize::from(first >> 2) % METHODS.len()].clone())
        .uri(target)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, lines.next().unwrap_or(b"application/json"));
    let from = SocketAddr::from(([127, 0, 0, 1], 4000));
    let peer = match first & 3 {
        0 => Peer::Socket { uid: 0, gid: 0 },
        1 => Peer::Socket { uid: 4_000_000_000, gid: 4_000_000_000 },
        with_token => {
            if with_token == 2 {
                request = request.header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
            }
            Peer::Tcp { from }
        }
    };
    let body = Body::from(lines.next().unwrap_or_default().to_vec());
    request.extension(peer).body(body).ok()
}

impl Service {
    async fn check(&self, request: Request<Body>) -> (StatusCode, Vec<u8>) {
        self.lock("alice", 1);
        self.lock("bob", 2);
        let shown = format!("{} {}", request.method(), request.uri());
        let has_body = request.method() != Method::HEAD;
        let response = timeout(ANSWER_TIME_MAX, self.router.clone().oneshot(request)).await;
        let response = response.unwrap_or_else(|_| panic!("no answer to {shown}")).unwrap();
        let status = response.status();
        assert_ne!(status.as_u16(), 500, "{shown}");
        let is_refusal = status.is_client_error() || status.is_server_error();
        let kind = response.headers().get(header::CONTENT_TYPE).cloned();
        let mut body = response.into_body();
        let mut read = Vec::new();
        for _ in 0..PARTS_MAX {
            match timeout(PART_TIME_MAX, body.frame()).await {
                Ok(Some(part)) => read.extend(part.unwrap().into_data().unwrap_or_default()),
                Ok(None) => break,
                Err(_) => return (status, read),
            }
        }
        if is_refusal && has_body && kind.is_some_and(|kind| kind == "application/problem+json") {
            let problem: Result<Problem, _> = serde_json::from_slice(&read);
            assert!(problem.is_ok_and(|problem| problem.status == status.as_u16()), "{shown}");
        }
        (status, read)
    }

    /// A client that has a lock, so that there is something to show and to release.
    fn lock(&self, name: &str, host: u8) {
        let mut out = Writer::new();
        let procedure = ProcedureId { program: nlm::PROGRAM, version: 4, procedure: 2 };
        rpc::write_call(&mut out, u32::from(host), procedure, &Credential::None);
        let lock = nlm::Lock {
            caller_name: nlm::CallerName(Bytes::copy_from_slice(name.as_bytes())),
            file: nlm::FileHandle(Bytes::copy_from_slice(&self.handle)),
            owner: nlm::OwnerHandle(Bytes::from_static(b"owner")),
            svid: i32::from(host),
            range: nlm::Range { offset: u64::from(host), length: 1 },
        };
        let args = nlm::LockArgs {
            cookie: nlm::Cookie::default(),
            block: false,
            exclusive: true,
            lock,
            reclaim: false,
            state: 1,
        };
        let bytes = nlm::Versioned::to_bytes_as(&args, nlm::Version::V4);
        out.fixed(&bytes);
        let from = SocketAddr::from(([10, 0, 0, host], 700));
        let to = SocketAddr::from(([10, 0, 0, 100], 2049));
        self.server.receive(out.finish().to_bytes(), from, to);
    }
}

fn start() -> Service {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let inside = runtime.enter();
    let key = HandleKey::new([7; 16]);
    let filesystem = Arc::new(MemoryFs::new(FileSystemId(1)));
    let file = FileKey { filesystem: filesystem.id(), object: filesystem.root() };
    let handle = key.sign(1, &file).as_bytes().to_vec();
    let rules = Rules::default().with_lock_auth(false);
    let export = Export::new("/srv", filesystem).with_id(1).with_rules(rules);
    let exports = Exports::new(vec![export]).unwrap();
    let server = InProcess::start(exports, key, LockConfig::in_memory()).unwrap();
    let (reloads, mut received) = mpsc::channel::<Reload>(1);
    runtime.spawn(async move {
        while let Some(Reload(answer)) = received.recv().await {
            let _ = answer.send(Err("the corpus has no configuration".into()));
        }
    });
    let admin = Arc::new(AdminState {
        facts: Facts::default(),
        token: Some(TOKEN.to_owned()),
        tcp: None,
        metrics: None,
        started: Instant::now(),
        started_ms: 0,
        control: RwLock::new(Ok(server.control())),
        users: UserDirectory::default(),
        paths: PathVisibility::default(),
        // A fuzzer asks all the time, and need not wait.
        budgets: Budgets::new(BUDGET, BUDGET),
        readers: Quota::new(8),
        counts: watch::channel(None).0,
        reloads,
        last_summary: Mutex::default(),
    });
    let router = router(&admin);
    drop(inside);
    Service { runtime, router, server, handle }
}

#[cfg(test)]
mod tests {
    use testbed::corpus;

    use super::*;

    fn input(caller: u8, method: &Method, target: &str, body: &str) -> Vec<u8> {
        let method = METHODS.iter().position(|known| known == method).unwrap() as u8;
        [&[method << 2 | caller], target.as_bytes(), b"\napplication/json\n", body.as_bytes()]
            .concat()
    }

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let (get, post) = (Method::GET, Method::POST);
        vec![
            ("status", input(3, &get, "/v1/status", "")),
            ("locks", input(3, &get, "/v1/locks?limit=1&after=k1&client=alice", "")),
            ("lock", input(0, &get, "/v1/locks/k1", "")),
            ("release", input(0, &Method::DELETE, "/v1/locks/k1?dry_run=true", "{}")),
            ("clients", input(3, &get, "/v1/clients?state=active&limit=5", "")),
            ("client", input(2, &get, "/v1/clients/alice?probe=false", "")),
            ("fence", input(0, &Method::PUT, "/v1/clients/bob/fence?dry_run=true", "")),
            ("unfence", input(2, &Method::DELETE, "/v1/clients/10.0.0.2/fence", "")),
            ("reboot", input(0, &post, "/v1/clients/c1/confirm-reboot", "{\"dry_run\":true}")),
            ("forget", input(1, &Method::DELETE, "/v1/clients/c1", "")),
            ("notices", input(0, &post, "/v1/notices?address=10.0.0.9", "")),
            ("grace", input(0, &post, "/v1/grace/end", "")),
            ("events", input(3, &get, "/v1/events?since=1&follow=false", "")),
            ("metrics", input(3, &get, "/metrics", "")),
            ("exports", input(3, &get, "/v1/exports", "")),
            ("io", input(3, &get, "/v1/io/clients?limit=1", "")),
            ("reload", input(0, &post, "/v1/reload", "")),
        ]
    }

    #[test]
    fn the_corpus_passes_and_its_seeds_are_what_is_written_here() {
        for (name, bytes) in seeds() {
            corpus::is_seed("admin", name, &bytes);
        }
        corpus::each("admin", requests);
    }

    #[test]
    fn valid_requests_are_answered() {
        let service = start();
        let answer =
            |bytes: Vec<u8>| service.runtime.block_on(service.check(request(&bytes).unwrap()));
        let (status, body) = answer(input(0, &Method::GET, "/v1/locks", ""));
        let body = String::from_utf8(body).unwrap();
        assert!(status == 200 && body.contains("alice") && body.contains("bob"), "{status} {body}");
        let target = "/v1/clients/alice/fence";
        assert_eq!(answer(input(3, &Method::PUT, target, "")).0, 403);
        assert_eq!(answer(input(2, &Method::PUT, target, "")).0, 200);
    }
}
