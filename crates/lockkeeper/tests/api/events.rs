//! The event stream: live, resumed, and started anew.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use wire::nlm::Status;

use crate::live::{Live, whole};

struct Stream {
    child: Child,
    events: Receiver<Sent>,
}

#[derive(Debug, Default, Clone)]
struct Sent {
    event: String,
    id: Option<String>,
    data: String,
}

impl Stream {
    fn open(live: &Live, query: &str, last: Option<&str>) -> Self {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-N", "-m", "60", "--unix-socket"]).arg(live.socket());
        if let Some(last) = last {
            curl.args(["-H", &format!("Last-Event-ID: {last}")]);
        }
        curl.arg(format!("http://localhost/v1/events{query}")).stdout(Stdio::piped());
        let mut child = curl.spawn().unwrap();
        let (to, events) = channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            read(output, |sent| {
                let _ = to.send(sent);
            })
        });
        Self { child, events }
    }

    fn next(&self) -> Sent {
        self.events.recv_timeout(Duration::from_secs(20)).expect("an event")
    }

    fn next_of(&self, kind: &str) -> Sent {
        loop {
            let sent = self.next();
            let data: Value = serde_json::from_str(&sent.data).unwrap_or_default();
            if sent.event == kind || data["kind"] == kind {
                return sent;
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(output: ChildStdout, mut tell: impl FnMut(Sent)) {
    let mut sent = Sent::default();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        match line.split_once(": ") {
            Some(("event", event)) => sent.event = event.into(),
            Some(("id", id)) => sent.id = Some(id.into()),
            Some(("data", data)) => sent.data = data.into(),
            _ if line.is_empty() && !sent.event.is_empty() => tell(std::mem::take(&mut sent)),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_lock_is_told_at_once_and_a_reader_goes_on_where_it_was() {
    let mut live = Live::start(&["--window", "60s"]);
    let stream = Stream::open(&live, "?last=10", None);
    assert_eq!(stream.next().event, "news", "the start comes first");
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, whole()).await.unwrap(), Status::Granted);
    let registered = stream.next_of("registered");
    let tally: Value = loop {
        let tally: Value = serde_json::from_str(&stream.next_of("locks").data).unwrap();
        if tally["locks"] == 1 {
            break tally;
        }
    };
    assert_eq!(tally["clients"], 1);

    // What happens while nobody reads is told when the reader is back.
    drop(stream);
    assert_eq!(live.ask("PUT", "/v1/clients/alice/fence").status, 200);
    let resumed = Stream::open(&live, "", registered.id.as_deref());
    let fenced: Value = serde_json::from_str(&resumed.next_of("fenced").data).unwrap();
    assert_eq!(fenced["client"]["name"], "alice");
    drop(resumed);

    // An id of before the restart means nothing any more.
    live.kill();
    live.start_again();
    let anew = Stream::open(&live, "?last=5", registered.id.as_deref());
    assert_eq!(anew.next().event, "resync");
    assert_eq!(anew.next().event, "news");
    for odd in ["x", "1-", "-1", "999999999-1", "1-99999999999999999999"] {
        assert_eq!(Stream::open(&live, "", Some(odd)).next_of("resync").event, "resync", "{odd}");
    }
}

#[test]
fn there_are_not_more_readers_than_places() {
    let live = Live::start(&[]);
    let readers: Vec<Stream> = (0..64).map(|_| Stream::open(&live, "?last=1", None)).collect();
    readers.iter().for_each(|reader| drop(reader.next()));
    let refused = live.ask("GET", "/v1/events");
    assert_eq!((refused.status, refused.json()["code"].as_str()), (503, Some("too-many")));
    drop(readers);
    live.wait_for("/v1/status", "asked", |_| true);
    let start = std::time::Instant::now();
    loop {
        let again = Stream::open(&live, "?last=1", None);
        if again.events.recv_timeout(Duration::from_millis(500)).is_ok() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "places come back");
    }
}
