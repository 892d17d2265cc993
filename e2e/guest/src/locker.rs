//! `locker PATH`: a process with one open file that locks and unlocks on command, one per line:
//! `get|try|wait KIND MODE START LENGTH` and `unlock KIND START LENGTH`. It answers each with a line
//! when the call returns. SIGUSR1 interrupts a wait. The end of its input closes the file.

use std::fs::File;
use std::io::{BufRead, Error};
use std::path::Path;

use anyhow::{Result, bail};

use crate::lock::{Kind, Range, holder, open, parse_mode, say, set};

pub fn run(path: &Path) -> Result<()> {
    let file = open(path)?;
    notice_signals()?;
    say("open")?;
    for line in std::io::stdin().lock().lines() {
        match obey(&file, &line?) {
            Ok(answer) => say(&answer)?,
            Err(error) => say(&format!("error {error:#}"))?,
        }
    }
    Ok(())
}

fn obey(file: &File, order: &str) -> Result<String> {
    let words: Vec<&str> = order.split(' ').collect();
    let (action, kind, mode, start, length) = match words[..] {
        ["unlock", kind, start, length] => ("unlock", kind, "none", start, length),
        [action, kind, mode, start, length] => (action, kind, mode, start, length),
        _ => bail!("unknown order {order:?}"),
    };
    let (kind, mode) = (Kind::parse(kind)?, parse_mode(mode)?);
    let range = Range { start: start.parse()?, length: length.parse()? };
    match action {
        "get" => holder(file, kind, mode, range),
        "try" | "wait" => Ok(set(file, kind, mode, range, action == "wait")?.word().to_owned()),
        "unlock" => {
            set(file, kind, mode, range, false)?;
            Ok("unlocked".to_owned())
        }
        _ => bail!("unknown order {order:?}"),
    }
}

/// Installs an empty handler without SA_RESTART: a waiting call returns EINTR.
#[allow(unsafe_code)]
fn notice_signals() -> Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an all-zero sigaction is valid, and the handler does nothing.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut())
    };
    if result != 0 {
        bail!("cannot handle signals: {}", Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_answered_with_what_came_of_it() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let (first, second) = (open(path.path()).unwrap(), open(path.path()).unwrap());
        assert_eq!(obey(&first, "try ofd write 0 10").unwrap(), "granted");
        assert_eq!(obey(&second, "try ofd read 5 1").unwrap(), "denied");
        assert_eq!(obey(&second, "get ofd read 5 1").unwrap(), "write 0 10 -1");
        assert_eq!(obey(&first, "unlock ofd 0 10").unwrap(), "unlocked");
        assert_eq!(obey(&second, "wait ofd write 0 0").unwrap(), "granted");
        assert!(obey(&first, "steal ofd write 0 10").is_err());
    }
}
