//! `--watch`: prints a view every second until Ctrl-C. On a terminal it is redrawn in place.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::terminal;
use crate::daemon::CommandError;

const EVERY: Duration = Duration::from_secs(1);

/// Output of a command: data for stdout, and a remark for stderr.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct View {
    pub text: String,
    pub remark: Option<String>,
}

impl From<String> for View {
    fn from(text: String) -> Self {
        Self { text, remark: None }
    }
}

impl View {
    fn print(&self) -> Result<(), CommandError> {
        terminal::print(&self.text)?;
        if let Some(remark) = &self.remark {
            terminal::print_note(remark);
        }
        Ok(())
    }
}

/// Shows the view once or repeatedly. An error in the first view ends the command; on a terminal,
/// later transient errors are shown and retried, as the server may be restarting.
pub(super) async fn show(
    again: bool,
    mut view: impl AsyncFnMut() -> Result<View, CommandError>,
) -> Result<(), CommandError> {
    let first = view().await?;
    if !again {
        return first.print();
    }
    let mut end = StopSignals::listen()?;
    if !terminal::on_terminal() {
        first.print()?;
        return end
            .or_every_second(async || {
                let next = view().await?;
                terminal::print("\n")?;
                next.print()
            })
            .await;
    }
    let screen = Screen::open()?;
    screen.draw(&first)?;
    let mut shown = first;
    end.or_every_second(async || {
        match view().await {
            Ok(next) => shown = next,
            Err(failed) if failed.is_transient() => {
                shown.remark = Some(format!("{failed}; retrying"));
            }
            Err(failed) => return Err(failed),
        }
        screen.draw(&shown)
    })
    .await
}

/// Like [`show`] for JSON, one document per line.
pub(super) async fn repeat(
    again: bool,
    mut print: impl AsyncFnMut() -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    print().await?;
    if again { StopSignals::listen()?.or_every_second(print).await } else { Ok(()) }
}

/// SIGINT and SIGTERM, caught from `listen` on.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    pub(super) fn listen() -> Result<Self, CommandError> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| CommandError::Other(format!("cannot catch signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub(super) async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    async fn or_every_second(
        &mut self,
        mut work: impl AsyncFnMut() -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let mut clock = interval(EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock.tick().await;
        let forever = async {
            loop {
                clock.tick().await;
                if let Err(failed) = work().await {
                    return failed;
                }
            }
        };
        tokio::select! {
            failed = forever => Err(failed),
            () = self.recv() => Ok(()),
        }
    }
}

/// The terminal's alternate screen; dropping it restores the normal one.
struct Screen;

impl Screen {
    fn open() -> Result<Self, CommandError> {
        terminal::print("\x1b[?1049h\x1b[?25l\x1b[H\x1b[J")?;
        Ok(Self)
    }

    /// Overwrites line by line in one write, to avoid flicker.
    fn draw(&self, view: &View) -> Result<(), CommandError> {
        let rows = terminal::size().map_or(24, |(_, rows)| rows);
        terminal::print(&frame(view, rows))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = terminal::print("\x1b[?25h\x1b[?1049l");
    }
}

/// As many lines as fit; the last is the remark.
fn frame(view: &View, rows: usize) -> String {
    let remark = view.remark.as_deref();
    let room = rows.saturating_sub(1 + usize::from(remark.is_some())).max(1);
    let mut text = String::from("\x1b[H");
    for line in view.text.lines().take(room).chain(remark) {
        text += line;
        text += "\x1b[K\r\n";
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_scrolls_and_clears_only_what_is_left_over() {
        let view = View { text: "1\n2\n3\n4\n".into(), remark: Some("more".into()) };
        assert_eq!(frame(&view, 4), "\x1b[H1\x1b[K\r\n2\x1b[K\r\nmore\x1b[K\r\n\x1b[J");
        assert!(!frame(&view, 4).contains("2J"));
    }
}
