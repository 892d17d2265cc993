//! Output of the commands: data to standard output, notes and questions to standard error.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use clap::ValueEnum;
use serde::Serialize;

use crate::daemon::CommandError;

/// `--color`. `Auto` means on a terminal, unless NO_COLOR is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    #[default]
    Auto,
    Always,
    Never,
}

impl Colour {
    pub(crate) fn stdout(self) -> bool {
        self.wanted(io::stdout().is_terminal())
    }

    pub(crate) fn stderr(self) -> bool {
        self.wanted(io::stderr().is_terminal())
    }

    fn wanted(self, terminal: bool) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match self {
            Self::Auto => terminal && !dumb && !set("NO_COLOR"),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Good,
    Notable,
    Bad,
    Heading,
}

impl Paint {
    pub(crate) fn on(self, text: &str) -> String {
        let code = match self {
            Self::Good => "32",
            Self::Notable => "33",
            Self::Bad => "31",
            Self::Heading => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub(crate) fn on_if(self, colour: bool, text: &str) -> String {
        if colour { self.on(text) } else { text.to_owned() }
    }
}

/// Columns and rows of standard output, if it is a terminal.
pub(crate) fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal of unknown size reports 0.
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

pub(crate) fn on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes data. A closed pipe (`| head`) ends the command silently.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CommandError::BrokenPipe,
        _ => CommandError::Other(format!("cannot write: {error}")),
    })
}

/// Writes a line to standard error; errors are ignored.
pub(crate) fn print_note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes one JSON document on a line.
pub(crate) fn print_json(document: &impl Serialize) -> Result<(), CommandError> {
    print(&format!("{}\n", json(document)?))
}

pub(crate) fn json(document: &impl Serialize) -> Result<String, CommandError> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|error| CommandError::Other(format!("cannot write JSON: {error}")))?;
    // JSON leaves control characters from 0x7f on unescaped; a terminal may obey them.
    if !text.contains(char::is_control) {
        return Ok(text);
    }
    Ok(text.chars().fold(String::new(), |mut out, c| {
        match c.is_control() {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
        out
    }))
}

/// Escapes characters that move the cursor or change the writing direction: names and paths come from
/// peers.
pub(crate) fn clean(text: &str) -> String {
    if !text.contains(is_hostile) {
        return text.to_owned();
    }
    text.chars().fold(String::new(), |mut out, c| {
        match (is_hostile(c), u32::from(c)) {
            (false, _) => out.push(c),
            (true, code @ 0..=0xff) => out.push_str(&format!("\\x{code:02x}")),
            (true, code) => out.push_str(&format!("\\u{{{code:x}}}")),
        }
        out
    })
}

fn is_hostile(letter: char) -> bool {
    let turns_or_hides = matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    letter.is_control() || turns_or_hides
}

/// Fails unless the user agreed by `--yes` or can be asked on a terminal.
pub(crate) fn require_confirmation(yes: bool, command: &str) -> Result<(), CommandError> {
    if yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    Err(CommandError::Usage(format!(
        "no terminal to ask for confirmation; use `lockkeeper {command} --yes`"
    )))
}

/// Asks a question; only `y` and `yes` mean yes.
pub(crate) fn confirmed(question: &str) -> Result<bool, CommandError> {
    const ANSWER_MAX: u64 = 1024;
    let mut err = io::stderr().lock();
    let _ = write!(err, "{question} [y/N] ").and_then(|()| err.flush());
    let mut answer = String::new();
    let read = io::stdin().lock().take(ANSWER_MAX).read_line(&mut answer);
    read.map_err(|error| CommandError::Other(format!("cannot read the answer: {error}")))?;
    if !answer.ends_with('\n') {
        let _ = writeln!(err);
    }
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        assert_eq!(clean("plain \u{e4} \u{65e5}"), "plain \u{e4} \u{65e5}");
        assert_eq!(clean("a\x1b[2Jb\n\u{9b}c\u{7f}"), "a\\x1b[2Jb\\x0a\\x9bc\\x7f");
        assert_eq!(clean("a\u{202e}b"), "a\\u{202e}b");
        let written = json(&"a\u{9b}\x1b\u{7f}").unwrap();
        assert_eq!(written, "\"a\\u009b\\u001b\\u007f\"");
    }
}
