//! The protocol between harness and guest: one message per line on a virtio serial port. Commands run
//! concurrently, identified by a number that the harness chooses. Bytes other than graphic ASCII are
//! escaped as `%XX`.

use std::fmt;

use anyhow::{Context, Result, bail};

/// A message of the harness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Run this with `sh -c`.
    Run { id: u64, command: Vec<u8> },
    /// Write these bytes to its standard input.
    Input { id: u64, data: Vec<u8> },
    /// Close its standard input.
    Eof { id: u64 },
    /// Send this signal to its process group.
    Signal { id: u64, number: i32 },
}

/// A message of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Ready,
    /// The progress of the boot; sent before the agent runs.
    Mark {
        name: String,
    },
    Stdout {
        id: u64,
        data: Vec<u8>,
    },
    Stderr {
        id: u64,
        data: Vec<u8>,
    },
    /// The exit status, or 128 + the signal that ended it.
    Exit {
        id: u64,
        status: i32,
    },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { id, command } => write!(f, "run {id} {}", Escaped(command)),
            Self::Input { id, data } => write!(f, "input {id} {}", Escaped(data)),
            Self::Eof { id } => write!(f, "eof {id}"),
            Self::Signal { id, number } => write!(f, "signal {id} {number}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => write!(f, "ready"),
            Self::Mark { name } => write!(f, "mark {name}"),
            Self::Stdout { id, data } => write!(f, "stdout {id} {}", Escaped(data)),
            Self::Stderr { id, data } => write!(f, "stderr {id} {}", Escaped(data)),
            Self::Exit { id, status } => write!(f, "exit {id} {status}"),
        }
    }
}

impl Request {
    pub fn parse(line: &str) -> Result<Self> {
        let mut words = Words::new(line);
        Ok(match words.word()? {
            "run" => Self::Run { id: words.number()?, command: words.data()? },
            "input" => Self::Input { id: words.number()?, data: words.data()? },
            "eof" => Self::Eof { id: words.number()? },
            "signal" => Self::Signal { id: words.number()?, number: words.number()? },
            other => bail!("unknown request {other:?}"),
        })
    }
}

impl Event {
    pub fn parse(line: &str) -> Result<Self> {
        let mut words = Words::new(line);
        Ok(match words.word()? {
            "ready" => Self::Ready,
            "mark" => Self::Mark { name: words.word()?.to_owned() },
            "stdout" => Self::Stdout { id: words.number()?, data: words.data()? },
            "stderr" => Self::Stderr { id: words.number()?, data: words.data()? },
            "exit" => Self::Exit { id: words.number()?, status: words.number()? },
            other => bail!("unknown event {other:?}"),
        })
    }
}

struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        Self(line.trim_end_matches(['\r', '\n']).split(' '))
    }

    fn word(&mut self) -> Result<&'a str> {
        self.0.next().context("the line is too short")
    }

    fn number<N: std::str::FromStr>(&mut self) -> Result<N> {
        let word = self.word()?;
        word.parse().ok().with_context(|| format!("{word:?} is not a number"))
    }

    fn data(&mut self) -> Result<Vec<u8>> {
        let mut bytes = self.word()?.bytes();
        let mut data = Vec::with_capacity(bytes.len());
        while let Some(byte) = bytes.next() {
            if byte == b'%' {
                let (high, low) = (hex(bytes.next())?, hex(bytes.next())?);
                data.push(high << 4 | low);
            } else {
                data.push(byte);
            }
        }
        Ok(data)
    }
}

fn hex(byte: Option<u8>) -> Result<u8> {
    let digit = byte.and_then(|byte| char::from(byte).to_digit(16));
    Ok(digit.context("% without two hexadecimal digits")? as u8)
}

struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0 {
            if byte.is_ascii_graphic() && byte != b'%' {
                fmt::Write::write_char(f, char::from(byte))?;
            } else {
                write!(f, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_line() {
        let data: Vec<u8> = (0..=255).collect();
        let event = Event::Stdout { id: 7, data: data.clone() };
        let line = event.to_string();
        assert!(line.is_ascii() && !line.contains('\n'));
        assert_eq!(Event::parse(&line).unwrap(), event);
        let request = Request::Run { id: 1, command: data };
        assert_eq!(Request::parse(&request.to_string()).unwrap(), request);
    }

    #[test]
    fn empty_data_is_data() {
        let request = Request::Input { id: 3, data: Vec::new() };
        assert_eq!(Request::parse(&request.to_string()).unwrap(), request);
    }

    #[test]
    fn a_broken_line_is_an_error() {
        for line in ["", "run", "run x y", "exit 1", "stdout 1 %4"] {
            assert!(Request::parse(line).is_err() && Event::parse(line).is_err(), "{line:?}");
        }
    }
}
