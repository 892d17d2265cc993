//! Who asks, and what that one may do. Over the unix socket the kernel says who it is; over TCP
//! only the token from the state directory says anything.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use keeper::bytes::Name;
use vfs::Patience;
use vfs::groups::{Found, GroupCache};

use crate::Shared;
use crate::api::Problem;

/// Members may do what root may.
const GROUP: &str = "lockkeeper";

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

/// What was found out about a caller; beside each request.
#[derive(Debug, Clone)]
pub struct Standing(Result<Name, Problem>);

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<Standing>() {
            Some(Standing(Ok(name))) => Ok(Self(name.clone())),
            Some(Standing(Err(problem))) => Err(problem.clone()),
            None => Err(forbidden("nobody knows who asks")),
        }
    }
}

/// Lets a request in, and finds out whether its caller may change something.
pub async fn admit(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let way = request.extensions().get::<Way>().copied();
    let standing =
        match way {
            Some(Way::Socket { uid, gid }) => of_user(&shared.groups, uid, gid),
            Some(Way::Tcp { from }) => {
                let token = has_token(&shared, request.headers());
                if let Some(problem) = refuse_reading(&shared, &request, token) {
                    return problem.into_response();
                }
                match token {
                    true => Ok(Name::from(format!("token from {}", from.ip()).as_str())),
                    false => Err(forbidden(
                        "over TCP, reading is all that is permitted without a token",
                    )
                    .hint("use the unix socket, or send the token: Authorization: Bearer TOKEN")),
                }
            }
            None => Err(forbidden("nobody knows who asks")),
        };
    request.extensions_mut().insert(Standing(standing));
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

fn of_user(groups: &GroupCache, uid: u32, gid: u32) -> Result<Name, Problem> {
    let name = match user_name(uid) {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    };
    let own = rustix::process::geteuid().as_raw();
    if uid == 0 || uid == own || is_member(groups, uid, gid) {
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
}
