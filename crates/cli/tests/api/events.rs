//! The event stream: live, resumed, and started anew.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use wire::nlm::Status;

use crate::support::live::{Live, bytes, whole};

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

    // Events during a disconnection are sent when the reader reconnects.
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
    let resync = anew.next();
    assert_eq!((resync.event.as_str(), resync.data.as_str()), ("resync", "the server restarted"));
    let epoch = resync.id.as_deref().and_then(|id| id.split_once('-')).unwrap().0.to_string();
    assert_eq!(anew.next().event, "news");
    let far = [format!("{epoch}-{}", u64::MAX), format!("{epoch}-99999999999999999999")];
    for odd in ["x", "1-", "-1", &far[0], &far[1]] {
        let resync = Stream::open(&live, "", Some(odd)).next();
        assert_eq!(resync.event, "resync", "{odd}");
        assert_eq!(resync.data, "unknown last event id", "{odd}");
    }
}

/// Who has heard of nothing yet has an id all the same, and loses nothing by it.
#[tokio::test]
async fn a_reader_that_is_lost_before_the_first_news_misses_none() {
    let mut live = Live::start(&["--window", "60s"]);
    let (alice, file) = live.client("alice", "a.db").await;
    assert_eq!(alice.lock(&file, bytes(0, 99)).await.unwrap(), Status::Granted);
    let stream = Stream::open(&live, "", None);
    let begun = stream.next();
    assert_eq!((begun.event.as_str(), begun.id.as_ref()), ("live", Some(&begun.data)));
    drop(stream);

    let lock = live.get("/v1/locks")["items"][0]["id"].as_str().unwrap().to_string();
    assert_eq!(live.ask("DELETE", &format!("/v1/locks/{lock}")).status, 200);
    let resumed = Stream::open(&live, "", begun.id.as_deref());
    let told = resumed.next_of("released");
    let released: Value = serde_json::from_str(&told.data).unwrap();
    let text = released["text"].as_str().unwrap();
    let wanted = format!(
        "exclusive lock {lock}, bytes 0 to 99, of alice (127.0.0.1) was released by {}",
        released["by"].as_str().unwrap()
    );
    assert_eq!(text, wanted);
    // The next time it goes on from there, without the same news again.
    let again = Stream::open(&live, "", told.id.as_deref()).next();
    assert_eq!((again.event.as_str(), again.id), ("live", told.id));

    // The server restarts: who has read nothing but `live` is told so, once.
    live.kill();
    live.start_again();
    let anew = Stream::open(&live, "", begun.id.as_deref());
    let resync = anew.next();
    assert_eq!(resync.event, "resync");
    drop(anew);
    let later = Stream::open(&live, "", resync.id.as_deref());
    let first = later.next();
    assert_ne!(first.event, "resync", "{first:?}");
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
