//! Who asks, and what that one may do. Over the unix socket the kernel says who it is; over TCP
//! only the token from the state directory says anything.

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
use vfs::Patience;
use vfs::groups::{Found, GroupCache};

use crate::Shared;
use crate::api::Problem;
use crate::places::Who;

/// Members may do what root may.
const GROUP: &str = "lockkeeper";
/// Who joins or leaves the group need not wait for long.
const GROUPS_FRESH: Duration = Duration::from_secs(2);
/// What the name service may take.
const LOOK_UP_TIME_MAX: Duration = Duration::from_secs(5);
/// Users who are looked up at once, each by a thread that cannot be stopped.
const LOOK_UPS_MAX: usize = 8;

/// By which way a request came.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// The user at the other end of the socket, and its group.
    Socket {
        uid: u32,
        gid: u32,
    },
    Tcp {
        from: SocketAddr,
    },
}

/// A caller that may change something, by the name that goes on record.
#[derive(Debug, Clone)]
pub struct Operator(pub Name);

impl Way {
    pub fn who(self) -> Who {
        match self {
            Self::Socket { uid, .. } if is_trusted(uid) => Who::Trusted,
            Self::Socket { uid, .. } => Who::User(uid),
            Self::Tcp { .. } => Who::Network,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        way(parts).map(Way::who)
    }
}

/// Only who wants to change something is looked up: who just looks never waits for a name service.
impl FromRequestParts<Arc<Shared>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Problem> {
        match way(parts)? {
            Way::Socket { uid, gid } => shared.register.find_out(uid, gid).await.map(Self),
            Way::Tcp { from } if has_token(shared, &parts.headers) => {
                Ok(Self(Name::from(format!("token from {}", from.ip()).as_str())))
            }
            Way::Tcp { .. } => {
                Err(forbidden("over TCP, reading is all that is permitted without a token")
                    .hint("use the unix socket, or send the token: Authorization: Bearer TOKEN"))
            }
        }
    }
}

fn way(parts: &Parts) -> Result<Way, Problem> {
    parts.extensions.get().copied().ok_or_else(|| forbidden("nobody knows who asks"))
}

/// Lets a request in that may at least read.
pub async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match request.extensions().get::<Way>() {
        Some(Way::Socket { .. }) => {}
        Some(Way::Tcp { .. }) => {
            let token = has_token(&shared, request.headers());
            if let Some(problem) = refuse_reading(&shared, &request, token) {
                return problem.into_response();
            }
        }
        None => return forbidden("nobody knows who asks").into_response(),
    }
    next.run(request).await
}

/// A page of another site could have the browser of somebody on this host ask us, under a name that
/// leads here: such a request does not carry the address it was meant for. From other hosts even
/// reading takes the token.
fn refuse_reading(shared: &Shared, request: &Request, token: bool) -> Option<Problem> {
    if token {
        return None;
    }
    let local = shared.tcp.is_none_or(|address| address.ip().is_loopback());
    if !local {
        return Some(
            forbidden("this address is not loopback: everything needs the token")
                .hint("send the token: Authorization: Bearer TOKEN"),
        );
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().host()).unwrap_or_default();
    match is_ours(host) {
        true => None,
        false => Some(
            forbidden("the Host header names another host")
                .hint("ask http://127.0.0.1 or http://localhost"),
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

fn has_token(shared: &Shared, headers: &HeaderMap) -> bool {
    let Some(token) = &shared.token else { return false };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    is_equal(token.as_bytes(), given.trim().as_bytes())
}

/// Takes as long for a wrong token as for the right one.
fn is_equal(token: &[u8], given: &[u8]) -> bool {
    token.len() == given.len()
        && token.iter().zip(given).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// What this host knows about its users.
pub struct Register {
    groups: Arc<GroupCache>,
    look_ups: Arc<Semaphore>,
}

impl Default for Register {
    fn default() -> Self {
        Self {
            groups: Arc::new(GroupCache::fresh_for(GROUPS_FRESH)),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS_MAX)),
        }
    }
}

impl Register {
    /// The name of a user who may change something.
    async fn find_out(&self, uid: u32, gid: u32) -> Result<Name, Problem> {
        if is_trusted(uid) {
            // It waits for no other user.
            let name = tokio::task::spawn_blocking(move || shown(uid));
            let name = timeout(LOOK_UP_TIME_MAX, name).await.ok().and_then(Result::ok);
            return Ok(Name::from(name.unwrap_or_else(|| format!("uid {uid}")).as_str()));
        }
        let groups = self.groups.clone();
        self.look_up(LOOK_UP_TIME_MAX, move || of_user(&groups, uid, gid)).await
    }

    /// Name services can be slow; the threads that carry files and locks do not wait for them.
    async fn look_up(
        &self,
        patience: Duration,
        look: impl FnOnce() -> Result<Name, Problem> + Send + 'static,
    ) -> Result<Name, Problem> {
        let found = async {
            let place = self.look_ups.clone().acquire_owned().await.ok()?;
            let looked = tokio::task::spawn_blocking(move || {
                let found = look();
                drop(place);
                found
            });
            looked.await.ok()
        };
        timeout(patience, found).await.ok().flatten().unwrap_or_else(|| {
            let detail = "the host's name service does not say in time which groups you are in";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
                .hint("try again, or use sudo"))
        })
    }
}

/// Root, and the server itself.
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
    let hint = "use sudo, or let root add you: usermod -aG lockkeeper USER, and log in again";
    Err(forbidden(&format!("{name} may look, but not change anything")).hint(hint))
}

fn is_member(groups: &GroupCache, uid: u32, gid: u32) -> bool {
    let Some(group) = group_id(GROUP) else { return false };
    if gid == group {
        return true;
    }
    match groups.groups_of(uid, Patience::Wait) {
        Found::Groups(groups) => groups.contains(&group),
        Found::Unknown | Found::Later => false,
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

    /// On the only thread there is.
    #[tokio::test]
    async fn a_slow_name_service_stops_nobody_else() {
        use std::time::Instant;
        let register = Register::default();
        let start = Instant::now();
        let slow = || {
            std::thread::sleep(Duration::from_secs(5));
            Ok(Name::from("late"))
        };
        let looked = register.look_up(Duration::from_millis(100), slow);
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
        let register = Register::default();
        let all = register.look_ups.clone().acquire_many_owned(LOOK_UPS_MAX as u32).await.unwrap();
        let patience = Duration::from_millis(20);
        let look = || Ok(Name::from("bob"));
        assert_eq!(register.look_up(patience, look).await.unwrap_err().status, 503);
        assert_eq!(register.find_out(0, 0).await.unwrap(), Name::from("root (uid 0)"));
        drop(all);
        let patience = Duration::from_secs(10);
        assert_eq!(register.look_up(patience, look).await.unwrap(), Name::from("bob"));
    }
}
