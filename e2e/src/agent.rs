//! The harness's end of a guest's agent: many commands at once over one serial port.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use guest::line::{Event, Request};

/// The exit status and output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit status, or 128 + the signal that ended it.
    pub status: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text, without the last line end.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim_end_matches('\n').to_owned()
    }
}

#[derive(Debug)]
pub struct Agent {
    writer: Mutex<UnixStream>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: bool,
    closed: bool,
    last_id: u64,
    /// When each mark of the boot was reached.
    marks: Vec<(String, Instant)>,
    commands: HashMap<u64, Progress>,
}

#[derive(Debug, Default, Clone)]
struct Progress {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<i32>,
    /// The length of standard output after each arrival.
    arrivals: Vec<(usize, Instant)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` returns a value; fails on timeout or when the guest is gone.
    fn wait<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(value) = done(&mut state) {
                return Ok(value);
            }
            if state.closed {
                bail!("the guest went away during: {what}");
            }
            let now = Instant::now();
            if now >= end {
                bail!("not done after {timeout:?}: {what}");
            }
            let result = self.changed.wait_timeout(state, end - now);
            state = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn note(&self, event: Event) {
        let mut state = self.lock();
        match event {
            Event::Ready => state.ready = true,
            Event::Mark { name } => state.marks.push((name, Instant::now())),
            Event::Stdout { id, data } => {
                let progress = state.commands.entry(id).or_default();
                progress.stdout.extend(data);
                progress.arrivals.push((progress.stdout.len(), Instant::now()));
            }
            Event::Stderr { id, data } => {
                state.commands.entry(id).or_default().stderr.extend(data);
            }
            Event::Exit { id, status } => {
                state.commands.entry(id).or_default().status = Some(status);
            }
        }
        self.changed.notify_all();
    }
}

impl Agent {
    /// Connects to the socket of the emulator, which appears a moment after it starts.
    pub fn connect(socket: &Path, timeout: Duration) -> Result<Arc<Self>> {
        let end = Instant::now() + timeout;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => {
                    return Err(error).with_context(|| format!("{}", socket.display()));
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let shared = Arc::new(Shared::default());
        let reader = BufReader::new(stream.try_clone().context("cannot share the socket")?);
        let listener = Arc::clone(&shared);
        thread::spawn(move || {
            for line in reader.lines() {
                let Ok(line) = line else { break };
                match Event::parse(&line) {
                    Ok(event) => listener.note(event),
                    Err(error) => eprintln!("from a guest: {error:#}"),
                }
            }
            listener.lock().closed = true;
            listener.changed.notify_all();
        });
        Ok(Arc::new(Self { writer: Mutex::new(stream), shared }))
    }

    pub fn wait_until_ready(&self, timeout: Duration) -> Result<()> {
        self.shared.wait("boot", timeout, |state| state.ready.then_some(()))
    }

    /// When the boot reached this mark.
    pub fn mark(&self, name: &str) -> Option<Instant> {
        let state = self.shared.lock();
        state.marks.iter().find(|(mark, _)| mark == name).map(|(_, at)| *at)
    }

    pub fn spawn(self: &Arc<Self>, command: &str) -> Result<Task> {
        let id = {
            let mut state = self.shared.lock();
            state.last_id += 1;
            let id = state.last_id;
            state.commands.insert(id, Progress::default());
            id
        };
        let task = Task { agent: Arc::clone(self), id, command: command.to_owned(), seen: 0 };
        self.send(&Request::Run { id, command: command.as_bytes().to_vec() })?;
        Ok(task)
    }

    fn send(&self, request: &Request) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(format!("{request}\n").as_bytes()).context("the guest does not listen")
    }
}

/// A command that runs in a guest. Dropping it kills the command.
#[derive(Debug)]
pub struct Task {
    agent: Arc<Agent>,
    id: u64,
    command: String,
    /// How much of the output `line` has handed out.
    seen: usize,
}

impl Task {
    /// Waits for the command to end. Kills one that takes longer.
    pub fn wait(self, timeout: Duration) -> Result<Output> {
        let id = self.id;
        self.agent.shared.wait(&self.command, timeout, |state| {
            let status = state.commands.get(&id)?.status?;
            let progress = state.commands.remove(&id)?;
            Some(Output { status, stdout: progress.stdout, stderr: progress.stderr })
        })
    }

    /// The next whole line of its standard output.
    pub fn line(&mut self, timeout: Duration) -> Result<String> {
        Ok(self.timed_line(timeout)?.0)
    }

    /// The next line, and when its end arrived here.
    pub fn timed_line(&mut self, timeout: Duration) -> Result<(String, Instant)> {
        let (id, seen) = (self.id, self.seen);
        let line = self.agent.shared.wait(&self.command, timeout, |state| {
            let progress = state.commands.get(&id)?;
            let rest = &progress.stdout[seen..];
            match rest.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    let arrival = progress.arrivals.iter().find(|(had, _)| *had > seen + end);
                    let at = arrival.map_or_else(Instant::now, |(_, at)| *at);
                    Some(Ok((rest[..end].to_vec(), at)))
                }
                None => progress.status.map(|status| Err((status, progress.stderr.clone()))),
            }
        })?;
        match line {
            Ok((line, at)) => {
                self.seen += line.len() + 1;
                Ok((String::from_utf8_lossy(&line).into_owned(), at))
            }
            Err((status, errors)) => {
                let errors = String::from_utf8_lossy(&errors).into_owned();
                bail!("{} ended with {status}: {errors}", self.command)
            }
        }
    }

    /// Sends a line to its standard input.
    pub fn send(&self, line: &str) -> Result<()> {
        self.agent.send(&Request::Input { id: self.id, data: format!("{line}\n").into_bytes() })
    }

    /// Sends a line and returns the next line that comes back.
    pub fn ask(&mut self, line: &str, timeout: Duration) -> Result<String> {
        self.send(line)?;
        self.line(timeout)
    }

    /// Closes its standard input.
    pub fn close(&self) -> Result<()> {
        self.agent.send(&Request::Eof { id: self.id })
    }

    /// Signals its process group.
    pub fn signal(&self, number: i32) -> Result<()> {
        self.agent.send(&Request::Signal { id: self.id, number })
    }

    pub fn is_running(&self) -> bool {
        let state = self.agent.shared.lock();
        !state.closed
            && state.commands.get(&self.id).is_some_and(|command| command.status.is_none())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.signal(libc::SIGKILL);
        }
    }
}
