//! `as UID:GID[:GROUP,...] PROGRAM`: runs a program with another identity. Numeric ids only, so that
//! the guest needs no accounts.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

#[derive(Debug, PartialEq, Eq)]
struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Identity {
    fn parse(text: &str) -> Result<Self> {
        let number = |word: &str| {
            word.parse::<u32>().with_context(|| format!("{word:?} in {text:?} is not an id"))
        };
        let parts: Vec<&str> = text.split(':').collect();
        let (uid, gid, groups) = match parts[..] {
            [uid, gid] => (uid, gid, ""),
            [uid, gid, groups] => (uid, gid, groups),
            _ => bail!("{text:?} is not UID:GID or UID:GID:GROUP,..."),
        };
        let groups = groups.split(',').filter(|word| !word.is_empty()).map(number);
        Ok(Self { uid: number(uid)?, gid: number(gid)?, groups: groups.collect::<Result<_>>()? })
    }

    #[allow(unsafe_code)]
    fn assume(&self) -> Result<()> {
        // SAFETY: the pointer and length are those of a live vector; the other calls take integers.
        let results = unsafe {
            [
                libc::setgroups(self.groups.len(), self.groups.as_ptr()),
                libc::setgid(self.gid),
                libc::setuid(self.uid),
            ]
        };
        if results.iter().any(|&result| result != 0) {
            bail!("cannot become {self:?}: {}", std::io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Replaces this process; returns only if that fails.
pub fn run_as(who: &str, program: &[&str]) -> Result<()> {
    let (name, arguments) = program.split_first().context("as: which program?")?;
    Identity::parse(who)?.assume()?;
    let error = Command::new(name).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_two_numbers_and_optional_groups() {
        let plain = Identity { uid: 1, gid: 2, groups: vec![] };
        assert_eq!(Identity::parse("1:2").unwrap(), plain);
        let grouped = Identity { uid: 1, gid: 2, groups: vec![3, 4] };
        assert_eq!(Identity::parse("1:2:3,4").unwrap(), grouped);
        assert!(Identity::parse("1").is_err() && Identity::parse("a:b").is_err());
    }
}
