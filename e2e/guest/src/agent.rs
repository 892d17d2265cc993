//! The agent: reads requests from the serial port, runs each command in a process group of its own,
//! and sends back its output and exit status.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{ffi::OsString, thread, time::Duration};

use anyhow::{Context, Result};

use crate::line::{Event, Request};

/// Serves the port; never returns except on an error.
pub fn serve(path: &str) -> Result<()> {
    let port = OpenOptions::new().read(true).write(true).open(path);
    let port = port.with_context(|| format!("cannot open {path}"))?;
    let writer = port.try_clone().context("cannot share the port")?;
    let (events, outbox) = channel();
    thread::spawn(move || send_all(writer, &outbox));
    events.send(Event::Ready)?;
    let commands = Commands { running: Arc::default(), events };
    let mut reader = BufReader::new(port);
    let mut line = String::new();
    loop {
        line.clear();
        // An empty read only means that the other end is not connected at the moment.
        if reader.read_line(&mut line).context("cannot read the port")? == 0 {
            thread::sleep(Duration::from_millis(50));
            continue;
        }
        match Request::parse(&line) {
            Ok(request) => commands.handle(request),
            Err(error) => eprintln!("agent: {error:#}: {line:?}"),
        }
    }
}

fn send_all(mut port: File, outbox: &Receiver<Event>) {
    for event in outbox {
        if let Err(error) = port.write_all(format!("{event}\n").as_bytes()) {
            eprintln!("agent: cannot write the port: {error}");
        }
    }
}

struct Running {
    group: i32,
    stdin: Option<ChildStdin>,
}

struct Commands {
    running: Arc<Mutex<HashMap<u64, Running>>>,
    events: Sender<Event>,
}

impl Commands {
    fn handle(&self, request: Request) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            Request::Run { id, command } => match spawn(command) {
                Ok(mut child) => {
                    let stdin = child.stdin.take();
                    running.insert(id, Running { group: child.id() as i32, stdin });
                    let (table, events) = (Arc::clone(&self.running), self.events.clone());
                    thread::spawn(move || follow(id, child, &table, &events));
                }
                Err(error) => {
                    let data = format!("{error:#}\n").into_bytes();
                    let _ = self.events.send(Event::Stderr { id, data });
                    let _ = self.events.send(Event::Exit { id, status: 127 });
                }
            },
            Request::Input { id, data } => {
                let stdin = running.get_mut(&id).and_then(|command| command.stdin.as_mut());
                if let Some(stdin) = stdin {
                    // The command has ended or closed its input.
                    let _ = stdin.write_all(&data).and_then(|()| stdin.flush());
                }
            }
            Request::Eof { id } => {
                if let Some(command) = running.get_mut(&id) {
                    command.stdin = None;
                }
            }
            Request::Signal { id, number } => {
                if let Some(command) = running.get(&id) {
                    kill_group(command.group, number);
                }
            }
        }
    }
}

fn spawn(command: Vec<u8>) -> Result<Child> {
    Command::new("/bin/sh")
        .arg("-c")
        .arg(OsString::from_vec(command))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start /bin/sh")
}

/// Waits for the command itself, not for background processes that keep its output open.
fn follow(id: u64, mut child: Child, table: &Mutex<HashMap<u64, Running>>, events: &Sender<Event>) {
    let readers = [
        child.stdout.take().map(|out| relay(out, events, move |data| Event::Stdout { id, data })),
        child.stderr.take().map(|err| relay(err, events, move |data| Event::Stderr { id, data })),
    ];
    let status = match child.wait() {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(error) => {
            eprintln!("agent: cannot wait for command {id}: {error}");
            127
        }
    };
    for done in readers.into_iter().flatten() {
        let _ = done.recv_timeout(Duration::from_secs(1));
    }
    table.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    let _ = events.send(Event::Exit { id, status });
}

fn relay(
    mut source: impl Read + Send + 'static,
    events: &Sender<Event>,
    event: impl Fn(Vec<u8>) -> Event + Send + 'static,
) -> Receiver<()> {
    let events = events.clone();
    let (done, finished) = channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count) = source.read(&mut buffer) {
            if count == 0 || events.send(event(buffer[..count].to_vec())).is_err() {
                break;
            }
        }
        let _ = done.send(());
    });
    finished
}

#[allow(unsafe_code)]
fn kill_group(group: i32, number: i32) {
    // SAFETY: kill takes two integers and accesses no memory.
    unsafe { libc::kill(-group, number) };
}
