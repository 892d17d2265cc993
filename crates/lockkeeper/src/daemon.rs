//! The running server, as a command sees it: its API over the unix socket, or over HTTP.
//!
//! One connection for each request: a command makes few of them, and none can be left half-read.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use admin::api::Problem;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
pub use hyper::Method;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

pub mod events;
mod failed;
mod place;

pub use events::Events;
pub use failed::Failed;
use place::Place;

const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
const REQUEST_PATIENCE: Duration = Duration::from_secs(15);
/// A page of 1,000 locks whose paths are as long as paths can be, each byte escaped, fits.
const ANSWER_MAX: usize = 64 << 20;
const TOKEN_MAX: u64 = 4096;

/// Where it listens, and what proves over TCP that we may change something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    place: Place,
    token_file: Option<PathBuf>,
}

impl Daemon {
    /// What `--server` names, or the environment, or where the daemon listens by default.
    pub fn find(named: Option<&str>) -> Self {
        let set = std::env::var("LOCKKEEPER_ADMIN").ok().filter(|text| !text.is_empty());
        let place = match named.map(str::to_owned).or(set) {
            Some(text) => Place::parse(&text),
            None => Place::usual(),
        };
        let token_file = std::env::var_os("LOCKKEEPER_TOKEN_FILE").map(PathBuf::from);
        Self { place, token_file }
    }

    /// Where to read the bearer token that writing over TCP needs.
    #[must_use]
    pub fn with_token_file(mut self, file: Option<&Path>) -> Self {
        if let Some(file) = file {
            self.token_file = Some(file.to_owned());
        }
        self
    }

    /// Reads one document.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failed> {
        self.send(Method::GET, path).await
    }

    /// Does something, and reads what became of it.
    pub async fn send<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, Failed> {
        let work = async {
            let response = self.ask(method, path, "application/json", None).await?;
            let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            let body = body.map_err(|error| self.broke_off(&error.to_string()))?.to_bytes();
            serde_json::from_slice(&body).map_err(|error| self.not_understood(&error.to_string()))
        };
        timeout(REQUEST_PATIENCE, work).await.unwrap_or_else(|_| Err(self.silent()))
    }

    /// Follows what happens: the `last` events first, or all that came after the id `resume`.
    pub async fn events(&self, last: u32, resume: Option<&str>) -> Result<Events, Failed> {
        let path = query("/v1/events", &[("last", Some(last.to_string()))]);
        let work = self.ask(Method::GET, &path, "text/event-stream", resume);
        let response = timeout(REQUEST_PATIENCE, work).await.unwrap_or_else(|_| Err(self.silent()));
        Ok(Events::new(response?.into_body(), self.clone()))
    }

    /// The answer's head, if it is one of success.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        resume: Option<&str>,
    ) -> Result<Response<Incoming>, Failed> {
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.host())
            .header(ACCEPT, accept);
        if let Some(token) = self.token()? {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(id) = resume {
            request = request.header("last-event-id", id);
        }
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|error| Failed::Usage(format!("`{path}`: {error}")))?;
        let response = match &self.place {
            Place::Socket(path) => {
                let connected = timeout(CONNECT_PATIENCE, UnixStream::connect(path)).await;
                self.exchange(TokioIo::new(self.connected(connected)?), request).await?
            }
            Place::Tcp(host, port) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let connected = timeout(CONNECT_PATIENCE, TcpStream::connect((host, *port))).await;
                self.exchange(TokioIo::new(self.connected(connected)?), request).await?
            }
            Place::Nowhere(why) => return Err(Failed::Usage(why.clone())),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: hyper::Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, Failed>
    where
        S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    {
        let shaken = http1::handshake(stream).await;
        let (mut sender, connection) =
            shaken.map_err(|error| self.broke_off(&error.to_string()))?;
        // It ends when both the sender and the body of the answer are dropped.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.broke_off(&error.to_string()))
    }

    async fn refusal(&self, response: Response<Incoming>) -> Failed {
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        match serde_json::from_slice(&body) {
            Ok(problem) => Failed::Refused(problem),
            Err(_) => Failed::Other(format!("{self} answers {status}, and not as lockkeeper does")),
        }
    }

    /// A name that the server's check of Host accepts.
    fn host(&self) -> String {
        match &self.place {
            Place::Tcp(host, port) => format!("{host}:{port}"),
            Place::Socket(_) | Place::Nowhere(_) => "localhost".into(),
        }
    }

    /// Only where the socket does not say who we are.
    fn token(&self) -> Result<Option<HeaderValue>, Failed> {
        let (Place::Tcp(..), Some(file)) = (&self.place, &self.token_file) else {
            return Ok(None);
        };
        let shown = file.display();
        let wrong = |why: String| Failed::Other(format!("the token file {shown}: {why}"));
        let size = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?.len();
        if size > TOKEN_MAX {
            return Err(wrong("too long for a token".into()));
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        let token = HeaderValue::try_from(format!("Bearer {}", text.trim()));
        let mut token = token.map_err(|_| wrong("no token, but something else".into()))?;
        token.set_sensitive(true);
        Ok(Some(token))
    }

    fn connected<S>(
        &self,
        result: Result<std::io::Result<S>, tokio::time::error::Elapsed>,
    ) -> Result<S, Failed> {
        match result {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Failed::Refused(Problem {
                    title: "Forbidden".into(),
                    status: 403,
                    code: "forbidden".into(),
                    detail: format!("you may not use {self}"),
                    hint: Some("run it with sudo, or join the group lockkeeper".into()),
                }))
            }
            Ok(Err(error)) => {
                let why = match error.kind() {
                    ErrorKind::NotFound => "there is no such socket".to_owned(),
                    ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
                    _ => error.to_string(),
                };
                Err(self.unreachable(format!("no daemon at {self}: {why}")))
            }
            Err(_) => Err(self.silent()),
        }
    }

    fn silent(&self) -> Failed {
        self.unreachable(format!("the daemon at {self} does not answer"))
    }

    fn broke_off(&self, why: &str) -> Failed {
        self.unreachable(format!("the daemon at {self} broke off: {why}"))
    }

    fn not_understood(&self, why: &str) -> Failed {
        Failed::Other(format!(
            "{self} answers what this version does not understand ({why}); \
             compare `lockkeeper --version` with that of the daemon"
        ))
    }

    fn unreachable(&self, detail: String) -> Failed {
        let systemd = Path::new("/run/systemd/system").is_dir();
        let hint = if systemd { "systemctl status lockkeeper" } else { "lockkeeper serve DIR" };
        Failed::Unreachable { detail, hint: hint.into() }
    }
}

/// As an operator would name it.
impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Socket(path) => write!(f, "{}", path.display()),
            Place::Tcp(host, port) => write!(f, "http://{host}:{port}"),
            Place::Nowhere(_) => f.write_str("nowhere"),
        }
    }
}

/// A path with the parameters that are given, encoded.
pub fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// One segment of a path, or the value of a parameter, with everything escaped that could end it.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~.".contains(&byte);
    let dots = matches!(text, "." | "..");
    text.bytes().fold(String::new(), |mut out, byte| {
        match plain(byte) && !dots {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_can_end_the_path() {
        assert_eq!(encoded("a/b?c&d=e #%\u{e4}"), "a%2Fb%3Fc%26d%3De%20%23%25%C3%A4");
        assert_eq!(encoded(".."), "%2E%2E");
        let path = query("/v1/locks", &[("client", Some("x y".into())), ("path", None)]);
        assert_eq!(path, "/v1/locks?client=x%20y");
        assert_eq!(query("/v1/locks", &[("path", None)]), "/v1/locks");
    }
}
