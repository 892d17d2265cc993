//! Authorities and the certificates that they issue, made by openssl in a temporary directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::packages;
use crate::process::run;

/// An authority; its files are deleted when it is dropped.
pub struct Authority {
    directory: TempDir,
    certificate: Certificate,
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub path: PathBuf,
    pub key: PathBuf,
}

/// What a certificate says.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub common_name: &'a str,
    /// As openssl writes it: `DNS:db.example.com,IP:127.0.0.1`; a certificate of version 1 if empty.
    pub alternative_names: &'a str,
    /// It was valid in January 2020.
    pub has_expired: bool,
}

impl Authority {
    pub fn new(name: &str) -> Result<Self> {
        packages::install(&["openssl", "faketime"])?;
        let directory = tempfile::tempdir()?;
        let certificate = Certificate::in_directory(directory.path(), name);
        let mut request = Command::new("openssl");
        request.args(["req", "-x509", "-nodes", "-days", "30", "-subj", &format!("/CN={name}")]);
        new_key(&mut request, &certificate.key);
        run(request.arg("-out").arg(&certificate.path)).context("openssl req")?;
        Ok(Self { directory, certificate })
    }

    /// What those who trust it have.
    pub fn certificate(&self) -> &Path {
        &self.certificate.path
    }

    /// A certificate that nobody else has issued, and that may be that of a server.
    pub fn self_signed(&self, file: &str, names: &str) -> Result<Certificate> {
        let made = Certificate::in_directory(self.directory.path(), file);
        let mut request = Command::new("openssl");
        request.args(["req", "-x509", "-nodes", "-days", "30", "-subj", &format!("/CN={file}")]);
        request.args(["-addext", &format!("subjectAltName={names}")]);
        request.args(["-addext", "basicConstraints=CA:FALSE"]);
        new_key(&mut request, &made.key);
        run(request.arg("-out").arg(&made.path)).context("openssl req")?;
        Ok(made)
    }

    pub fn issue(&self, file: &str, subject: Subject<'_>) -> Result<Certificate> {
        let Subject { common_name, alternative_names, has_expired } = subject;
        let issued = Certificate::in_directory(self.directory.path(), file);
        let request = issued.path.with_extension("csr");
        let mut key = Command::new("openssl");
        key.args(["req", "-new", "-nodes", "-subj", &format!("/CN={common_name}")]);
        new_key(&mut key, &issued.key);
        run(key.arg("-out").arg(&request)).context("openssl req")?;
        let mut sign = if has_expired {
            let mut sign = Command::new("faketime");
            sign.args(["2020-01-01", "openssl"]);
            sign
        } else {
            Command::new("openssl")
        };
        sign.args(["x509", "-req", "-days", "20", "-CAcreateserial"]).arg("-in").arg(&request);
        sign.arg("-CA").arg(&self.certificate.path).arg("-CAkey").arg(&self.certificate.key);
        if !alternative_names.is_empty() {
            let extensions = issued.path.with_extension("ext");
            fs::write(&extensions, format!("subjectAltName={alternative_names}\n"))?;
            sign.arg("-extfile").arg(extensions);
        }
        run(sign.arg("-out").arg(&issued.path)).context("openssl x509")?;
        Ok(issued)
    }
}

impl Certificate {
    fn in_directory(directory: &Path, name: &str) -> Self {
        Self {
            path: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
        }
    }
}

fn new_key(command: &mut Command, key: &Path) {
    command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    command.arg("-keyout").arg(key);
}
