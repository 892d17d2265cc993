//! A daemon that says what the test wants, over a unix socket or TCP.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use admin::api::{Event, Problem};
use serde::Serialize;
use tempfile::TempDir;

/// A request line, as in `GET /v1/locks?limit=1000`, and the headers.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub line: String,
    pub headers: Vec<String>,
}

impl ReceivedRequest {
    pub fn is(&self, line: &str) -> bool {
        self.line == line
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.iter().find_map(|header| {
            let (found, value) = header.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }
}

/// The bytes of a whole answer, after which the connection ends.
pub struct Answer(pub Vec<u8>);

pub fn ok(document: &impl Serialize) -> Answer {
    Answer(http("200 OK", "application/json", &serde_json::to_string(document).unwrap()))
}

pub fn problem(status: u16, code: &str, detail: &str, hint: &str) -> Answer {
    let problem = Problem {
        title: "Refused".into(),
        status,
        code: code.into(),
        detail: detail.into(),
        hint: Some(hint.into()),
    };
    let text = serde_json::to_string(&problem).unwrap();
    Answer(http(&format!("{status} Refused"), "application/problem+json", &text))
}

pub fn http(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

pub fn stream(events: &[Event]) -> Answer {
    let items = events.iter().map(|event| {
        let data = serde_json::to_string(event).unwrap();
        format!("id: {}\nevent: news\ndata: {data}\n\n", event.id)
    });
    Answer(http(
        "200 OK",
        "text/event-stream",
        &(": hello\n\n".to_owned() + &items.collect::<String>()),
    ))
}

pub struct Scripted {
    dir: TempDir,
    asked: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Scripted {
    pub fn start(answer: impl Fn(&ReceivedRequest) -> Answer + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("admin.sock")).unwrap();
        let asked = Arc::<Mutex<Vec<ReceivedRequest>>>::default();
        let heard = asked.clone();
        std::thread::spawn(move || {
            let answer = Arc::new(answer);
            for stream in listener.incoming().map_while(Result::ok) {
                let (heard, answer) = (heard.clone(), answer.clone());
                std::thread::spawn(move || converse(stream, &heard, &*answer));
            }
        });
        Self { dir, asked }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("admin.sock")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn asked(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().unwrap().clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }
}

/// The same over TCP: its address.
pub fn start_tcp(answer: impl Fn(&ReceivedRequest) -> Answer + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            converse(stream, &Mutex::default(), &answer);
        }
    });
    address
}

fn converse<S: Read + Write>(
    mut stream: S,
    heard: &Mutex<Vec<ReceivedRequest>>,
    answer: &impl Fn(&ReceivedRequest) -> Answer,
) {
    let mut lines = BufReader::new(&mut stream).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let line = first.trim_end_matches(" HTTP/1.1").to_owned();
    let asked =
        ReceivedRequest { line, headers: lines.take_while(|line| !line.is_empty()).collect() };
    heard.lock().unwrap().push(asked.clone());
    let _ = stream.write_all(&answer(&asked).0);
}
