//! Client of the admin API, over the unix socket or TCP.
//!
//! One connection per request: commands make few, and no response can be left half-read.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use admin::api::Problem;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
pub(crate) use hyper::Method;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

mod endpoint;
mod error;
pub(crate) mod events;

use endpoint::Endpoint;
pub(crate) use error::CommandError;
pub(crate) use events::Events;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Fits a page of 1,000 locks with paths of maximum length and every byte escaped.
const ANSWER_MAX: usize = 64 << 20;
const TOKEN_MAX: u64 = 4096;

/// A running server: its endpoint, and the token that permits changes over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Daemon {
    endpoint: Endpoint,
    token_file: Option<PathBuf>,
}

impl Daemon {
    /// `--server`, else the environment, else the default sockets.
    pub(crate) fn find(named: Option<&str>) -> Self {
        let set = std::env::var("LOCKKEEPER_ADMIN").ok().filter(|text| !text.is_empty());
        let endpoint = match named.map(str::to_owned).or(set) {
            Some(text) => Endpoint::parse(&text),
            None => Endpoint::default_socket(),
        };
        let token_file = std::env::var_os("LOCKKEEPER_TOKEN_FILE").map(PathBuf::from);
        Self { endpoint, token_file }
    }

    /// Overrides the file with the bearer token.
    #[must_use]
    pub(crate) fn with_token_file(mut self, file: Option<&Path>) -> Self {
        if let Some(file) = file {
            self.token_file = Some(file.to_owned());
        }
        self
    }

    /// Sends a GET and parses the reply.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CommandError> {
        self.send(Method::GET, path).await
    }

    /// Sends a request without body and parses the reply.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
    ) -> Result<T, CommandError> {
        let work = async {
            let response = self.ask(method, path, "application/json", None).await?;
            let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            let body = body.map_err(|error| self.broke_off(&error.to_string()))?.to_bytes();
            serde_json::from_slice(&body).map_err(|error| self.not_understood(&error.to_string()))
        };
        timeout(REQUEST_TIMEOUT, work).await.unwrap_or_else(|_| Err(self.silent()))
    }

    /// Opens the event stream: the `last` events first, or all after the id `resume`.
    pub(crate) async fn events(
        &self,
        last: u32,
        resume: Option<&str>,
    ) -> Result<Events, CommandError> {
        let path = query("/v1/events", &[("last", Some(last.to_string()))]);
        let work = self.ask(Method::GET, &path, "text/event-stream", resume);
        let response = timeout(REQUEST_TIMEOUT, work).await.unwrap_or_else(|_| Err(self.silent()));
        Ok(Events::new(response?.into_body(), self.clone()))
    }

    /// The response head; anything but success is an error.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        resume: Option<&str>,
    ) -> Result<Response<Incoming>, CommandError> {
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
        let request = request.map_err(|error| CommandError::Usage(format!("`{path}`: {error}")))?;
        let response = match &self.endpoint {
            Endpoint::Socket(path) => {
                let connected = timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await;
                self.exchange(TokioIo::new(self.connected(connected)?), request).await?
            }
            Endpoint::Tcp(host, port) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect((host, *port))).await;
                self.exchange(TokioIo::new(self.connected(connected)?), request).await?
            }
            Endpoint::Invalid(why) => return Err(CommandError::Usage(why.clone())),
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
    ) -> Result<Response<Incoming>, CommandError>
    where
        S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    {
        let handshake = http1::handshake(stream).await;
        let (mut sender, connection) =
            handshake.map_err(|error| self.broke_off(&error.to_string()))?;
        // Ends when both the sender and the response body are dropped.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.broke_off(&error.to_string()))
    }

    async fn refusal(&self, response: Response<Incoming>) -> CommandError {
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        match serde_json::from_slice(&body) {
            Ok(problem) => CommandError::Refused(problem),
            Err(_) => {
                CommandError::Other(format!("{self} is not a lockkeeper server (HTTP {status})"))
            }
        }
    }

    /// A Host header that the server accepts.
    fn host(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp(host, port) => format!("{host}:{port}"),
            Endpoint::Socket(_) | Endpoint::Invalid(_) => "localhost".into(),
        }
    }

    /// Sent over TCP only; on the unix socket the kernel identifies the caller.
    fn token(&self) -> Result<Option<HeaderValue>, CommandError> {
        let (Endpoint::Tcp(..), Some(file)) = (&self.endpoint, &self.token_file) else {
            return Ok(None);
        };
        let shown = file.display();
        let wrong = |why: String| CommandError::Other(format!("token file {shown}: {why}"));
        let size = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?.len();
        if size > TOKEN_MAX {
            return Err(wrong("too long".into()));
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        let token = HeaderValue::try_from(format!("Bearer {}", text.trim()));
        let mut token = token.map_err(|_| wrong("not a token".into()))?;
        token.set_sensitive(true);
        Ok(Some(token))
    }

    fn connected<S>(
        &self,
        result: Result<std::io::Result<S>, tokio::time::error::Elapsed>,
    ) -> Result<S, CommandError> {
        match result {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                Err(CommandError::Refused(Problem {
                    title: "Forbidden".into(),
                    status: 403,
                    code: "forbidden".into(),
                    detail: format!("permission denied: {self}"),
                    hint: Some("use sudo, or join the group lockkeeper".into()),
                }))
            }
            Ok(Err(error)) => {
                let why = match error.kind() {
                    ErrorKind::NotFound => "no such socket".to_owned(),
                    ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                    _ => error.to_string(),
                };
                Err(self.unreachable(format!("no server at {self}: {why}")))
            }
            Err(_) => Err(self.silent()),
        }
    }

    fn silent(&self) -> CommandError {
        self.unreachable(format!("the server at {self} does not answer"))
    }

    fn broke_off(&self, why: &str) -> CommandError {
        self.unreachable(format!("connection to {self} lost: {why}"))
    }

    fn not_understood(&self, why: &str) -> CommandError {
        CommandError::Other(format!(
            "unexpected reply from {self} ({why}); compare `lockkeeper --version` with the \
             server's version"
        ))
    }

    fn unreachable(&self, detail: String) -> CommandError {
        let systemd = Path::new("/run/systemd/system").is_dir();
        let hint = if systemd { "systemctl status lockkeeper" } else { "lockkeeper serve DIR" };
        CommandError::Unreachable { detail, hint: hint.into() }
    }
}

/// As given to `--server`.
impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Socket(path) => write!(f, "{}", path.display()),
            Endpoint::Tcp(host, port) => write!(f, "http://{host}:{port}"),
            Endpoint::Invalid(_) => f.write_str("invalid"),
        }
    }
}

/// A path with those parameters that have a value, percent-encoded.
pub(crate) fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// Percent-encodes a path segment or parameter value.
pub(crate) fn encoded(text: &str) -> String {
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
