//! Authentication and authorisation. On the unix socket the kernel identifies the caller; over TCP only
//! the token from the state directory authorises changes.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use keeper::bytes::Name;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use vfs::BlockingMode;
use vfs::groups::{GroupCache, GroupLookup};

use server::Control;

use crate::api::Problem;
use crate::quota::CallerClass;
use crate::{AdminState, PathVisibility};

/// Members have the rights of root.
const GROUP: &str = "lockkeeper";
/// Bounds how long a change of group membership goes unnoticed.
const GROUPS_FRESH: Duration = Duration::from_secs(2);
/// Limit for a name service lookup on behalf of a read: longer, and the caller is not taken to be a
/// member.
const READ_LOOK_UP_TIME_MAX: Duration = Duration::from_millis(200);
/// Limit for a name service lookup.
const LOOK_UP_TIME_MAX: Duration = Duration::from_secs(5);
/// Concurrent lookups; each occupies a thread that cannot be cancelled.
const LOOK_UPS_MAX: usize = 8;

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer {
    /// Credentials of the process that connected.
    Socket {
        uid: u32,
        gid: u32,
    },
    Tcp {
        from: SocketAddr,
    },
}

/// A caller authorised to make changes, by the name recorded in events.
#[derive(Debug, Clone)]
pub(crate) struct Operator(pub Name);

impl Peer {
    pub(crate) fn class(self) -> CallerClass {
        match self {
            Self::Socket { uid, .. } if is_trusted(uid) => CallerClass::Trusted,
            Self::Socket { uid, .. } => CallerClass::User(uid),
            Self::Tcp { .. } => CallerClass::Network,
        }
    }
}

/// The running server, read within the budget of the caller's class (B7.123).
pub(crate) struct Reads(pub Control);

impl FromRequestParts<Arc<AdminState>> for Reads {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        admin: &Arc<AdminState>,
    ) -> Result<Self, Problem> {
        let class = match peer(parts)? {
            Peer::Tcp { .. } if has_token(admin, &parts.headers) => CallerClass::Trusted,
            peer => peer.class(),
        };
        Ok(Self(admin.control()?.with_budget(admin.budgets.of(class).clone())))
    }
}

/// Whether the caller is shown what is for operators: paths of locked files, and bytes that clients gave
/// the server for itself (B8.74).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    Whole,
    WithoutPaths,
}

impl FromRequestParts<Arc<AdminState>> for Sight {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        admin: &Arc<AdminState>,
    ) -> Result<Self, Problem> {
        let whole = match (admin.paths, peer(parts)?) {
            (PathVisibility::All, _) => true,
            (_, Peer::Socket { uid, gid }) => admin.users.is_operator(uid, gid).await,
            (_, Peer::Tcp { .. }) => has_token(admin, &parts.headers),
        };
        Ok(if whole { Self::Whole } else { Self::WithoutPaths })
    }
}

impl Sight {
    /// For a question that paths answer.
    pub(crate) fn require_paths(self) -> Result<(), Problem> {
        match self {
            Self::Whole => Ok(()),
            Self::WithoutPaths => Err(forbidden("paths of locked files are for operators").hint(
                "send the token: Authorization: Bearer TOKEN; or use the unix socket as root or a \
                 member of the group lockkeeper",
            )),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallerClass {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        peer(parts).map(Peer::class)
    }
}

/// Only requests that make changes look up the user; reads never wait for a name service.
impl FromRequestParts<Arc<AdminState>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        admin: &Arc<AdminState>,
    ) -> Result<Self, Problem> {
        match peer(parts)? {
            Peer::Socket { uid, gid } => admin.users.operator_name(uid, gid).await.map(Self),
            Peer::Tcp { from } if has_token(admin, &parts.headers) => {
                Ok(Self(Name::from(format!("token from {}", from.ip()).as_str())))
            }
            Peer::Tcp { .. } => Err(forbidden("changes over TCP require the token")
                .hint("use the unix socket, or send the token: Authorization: Bearer TOKEN")),
        }
    }
}

fn peer(parts: &Parts) -> Result<Peer, Problem> {
    parts.extensions.get().copied().ok_or_else(|| forbidden("unknown caller"))
}

/// Answered for all, from everywhere: a load balancer or an orchestrator has no token, and its Host header
/// is an address or a name of its own. They tell one word and change nothing.
pub(crate) const PROBES: [&str; 2] = ["/health", "/ready"];

/// Middleware: rejects requests that may not even read.
pub(crate) async fn admit(
    State(admin): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    match request.extensions().get::<Peer>() {
        Some(Peer::Socket { .. }) => {}
        Some(Peer::Tcp { .. }) => {
            let token = has_token(&admin, request.headers());
            let is_probe = PROBES.contains(&request.uri().path());
            if !is_probe && let Some(problem) = refuse_reading(&admin, &request, token) {
                return problem.into_response();
            }
        }
        None => return forbidden("unknown caller").into_response(),
    }
    next.run(request).await
}

/// Protects against DNS rebinding: a page of another site can make a local browser send requests here,
/// but their Host header names that site. On a non-loopback address even reads require the token.
fn refuse_reading(admin: &AdminState, request: &Request, token: bool) -> Option<Problem> {
    if token {
        return None;
    }
    let local = admin.tcp.is_none_or(|address| address.ip().is_loopback());
    if !local {
        return Some(
            forbidden("on a non-loopback address all requests require the token")
                .hint("send the token: Authorization: Bearer TOKEN"),
        );
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().host()).unwrap_or_default();
    match is_ours(host) {
        true => None,
        false => Some(
            forbidden("the Host header names another host")
                .hint("use http://127.0.0.1 or http://localhost"),
        ),
    }
}

fn is_ours(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

fn has_token(admin: &AdminState, headers: &HeaderMap) -> bool {
    let Some(token) = &admin.token else { return false };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    is_equal(token.as_bytes(), given.trim().as_bytes())
}

/// Constant-time comparison.
fn is_equal(token: &[u8], given: &[u8]) -> bool {
    token.len() == given.len()
        && token.iter().zip(given).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Lookups of the host's users and groups.
pub(crate) struct UserDirectory {
    groups: Arc<GroupCache>,
    look_ups: Arc<Semaphore>,
}

impl Default for UserDirectory {
    fn default() -> Self {
        Self {
            groups: Arc::new(GroupCache::with_age_max(GROUPS_FRESH)),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)),
        }
    }
}

impl UserDirectory {
    /// The recorded name of a user, who must be authorised to make changes.
    async fn operator_name(&self, uid: u32, gid: u32) -> Result<Name, Problem> {
        if is_trusted(uid) {
            // Not subject to the limit on lookups.
            let name = tokio::task::spawn_blocking(move || shown(uid));
            let name = timeout(LOOK_UP_TIME_MAX, name).await.ok().and_then(Result::ok);
            return Ok(Name::from(name.unwrap_or_else(|| format!("uid {uid}")).as_str()));
        }
        let groups = self.groups.clone();
        self.look_up(LOOK_UP_TIME_MAX, move || of_user(&groups, uid, gid)).await
    }

    /// Whether a user may make changes; false if the name service does not say so in time.
    async fn is_operator(&self, uid: u32, gid: u32) -> bool {
        if is_trusted(uid) {
            return true;
        }
        let groups = self.groups.clone();
        let look = move || Ok(is_member(&groups, uid, gid));
        self.look_up(READ_LOOK_UP_TIME_MAX, look).await.unwrap_or(false)
    }

    /// Runs a lookup on a blocking thread: a slow name service must not delay other requests.
    async fn look_up<R: Send + 'static>(
        &self,
        limit: Duration,
        look: impl FnOnce() -> Result<R, Problem> + Send + 'static,
    ) -> Result<R, Problem> {
        let found = async {
            let permit = self.look_ups.clone().acquire_owned().await.ok()?;
            let looked = tokio::task::spawn_blocking(move || {
                let found = look();
                drop(permit);
                found
            });
            looked.await.ok()
        };
        timeout(limit, found).await.ok().flatten().unwrap_or_else(|| {
            let detail = "timed out looking up your groups in the host's name service";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
                .hint("try again, or use sudo"))
        })
    }
}

/// Root and the server's own user.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn shown(uid: u32) -> String {
    match user_name(uid) {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

fn of_user(groups: &GroupCache, uid: u32, gid: u32) -> Result<Name, Problem> {
    let name = shown(uid);
    if is_member(groups, uid, gid) {
        return Ok(Name::from(name.as_str()));
    }
    let hint = "use sudo, or join the group: usermod -aG lockkeeper USER, and log in again";
    Err(forbidden(&format!("{name} has read-only access")).hint(hint))
}

fn is_member(groups: &GroupCache, uid: u32, gid: u32) -> bool {
    let Some(group) = group_id(GROUP) else { return false };
    if gid == group {
        return true;
    }
    match groups.groups_of(uid, BlockingMode::MayBlock) {
        GroupLookup::Groups(groups) => groups.contains(&group),
        GroupLookup::Unknown | GroupLookup::Failed | GroupLookup::WouldBlock => false,
    }
}

fn group_id(name: &str) -> Option<u32> {
    entries("/etc/group")
        .find(|fields| fields.first().is_some_and(|first| first == name))?
        .get(2)?
        .parse()
        .ok()
}

fn user_name(uid: u32) -> Option<String> {
    let uid = uid.to_string();
    let found = entries("/etc/passwd").find(|fields| fields.get(2) == Some(&uid))?;
    found.into_iter().next()
}

fn entries(file: &str) -> impl Iterator<Item = Vec<String>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<_> =
        text.lines().map(|line| line.split(':').map(String::from).collect()).collect();
    lines.into_iter()
}

fn forbidden(detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_ours() {
        for host in
            ["localhost", "LOCALHOST:9049", "127.0.0.1:9049", "[::1]:9049", "[::1]", "127.0.0.9"]
        {
            assert!(is_ours(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "10.0.0.1:9049", "127.0.0.1.evil"]
        {
            assert!(!is_ours(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_the_whole_token() {
        assert!(is_equal(b"abc", b"abc"));
        assert!(!is_equal(b"abc", b"abd"));
        assert!(!is_equal(b"abc", b"ab"));
        assert!(!is_equal(b"abc", b""));
    }

    /// Runs on a single thread.
    #[tokio::test]
    async fn a_slow_name_service_stops_nobody_else() {
        use std::time::Instant;
        let users = UserDirectory::default();
        let start = Instant::now();
        let slow = || {
            std::thread::sleep(Duration::from_secs(5));
            Ok(Name::from("late"))
        };
        let looked = users.look_up(Duration::from_millis(100), slow);
        let other = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            start.elapsed()
        };
        let (looked, other) = tokio::join!(looked, other);
        assert!(other < Duration::from_secs(4), "{other:?}");
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        let problem = looked.unwrap_err();
        assert_eq!((problem.status, problem.code.as_str()), (503, "unavailable"));
    }

    #[tokio::test]
    async fn look_ups_are_bounded_and_root_waits_for_none() {
        let users = UserDirectory::default();
        let all = users.look_ups.clone().acquire_many_owned(LOOK_UPS_MAX as u32).await.unwrap();
        let limit = Duration::from_millis(20);
        let look = || Ok(Name::from("bob"));
        assert_eq!(users.look_up(limit, look).await.unwrap_err().status, 503);
        assert_eq!(users.operator_name(0, 0).await.unwrap(), Name::from("root (uid 0)"));
        drop(all);
        let limit = Duration::from_secs(10);
        assert_eq!(users.look_up(limit, look).await.unwrap(), Name::from("bob"));
    }
}
