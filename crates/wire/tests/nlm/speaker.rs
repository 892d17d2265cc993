//! A second encoder, in C: made by `rpcgen` from XDR definitions while the test runs.
//!
//! Needs rpcgen, a C compiler and the RPC library (Debian: packages `rpcsvc-proto`, `gcc`,
//! `libc6-dev`, `libtirpc-dev`); without them these tests fail.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Where the definitions come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Definitions {
    /// Written for these tests from the specification; complete.
    Ours,
    /// Of Debian's package `rpcsvc-proto`: NLM versions 1 and 3, where 3 is only what it adds, and
    /// NSM without NULL and NOTIFY.
    Debian,
}

/// Types of the arguments and the reply, by program, version and procedure.
pub(crate) type Signatures = HashMap<(u32, u32, u32), (String, String)>;

/// The program that speaks for one set of definitions.
pub(crate) struct Speaker {
    dir: TempDir,
    pub(crate) signatures: Signatures,
}

impl Definitions {
    fn files(self) -> [PathBuf; 2] {
        match self {
            Self::Ours => [source("nlm.x"), source("nsm.x")],
            Self::Debian => {
                ["nlm_prot.x", "sm_inter.x"].map(|name| Path::new("/usr/include/rpcsvc").join(name))
            }
        }
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nlm").join(name)
}

impl Speaker {
    pub(crate) fn build(definitions: Definitions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let mut signatures = Signatures::new();
        for (file, name) in definitions.files().iter().zip(["nlm", "nsm"]) {
            let text = std::fs::read_to_string(file).unwrap_or_else(|error| {
                panic!("{}: {error}; install package rpcsvc-proto", file.display())
            });
            signatures.extend(read_signatures(&text));
            let definition = format!("{name}.x");
            std::fs::write(at.join(&definition), text).unwrap();
            run(at, "rpcgen", &["-h", "-o", &format!("{name}.h"), &definition]);
            run(at, "rpcgen", &["-c", "-o", &format!("{name}_xdr.c"), &definition]);
        }
        std::fs::copy(source("speak.c"), at.join("speak.c")).unwrap();
        let complete = if definitions == Definitions::Ours { "-DCOMPLETE" } else { "-UCOMPLETE" };
        let sources = ["speak.c", "nlm_xdr.c", "nsm_xdr.c"];
        let options = ["-std=gnu17", "-w", complete, "-I.", "-I/usr/include/tirpc", "-o", "speak"];
        run(at, "gcc", &[&options[..], &sources, &["-ltirpc"]].concat());
        Self { dir, signatures }
    }

    /// One answer to each request, in order.
    pub(crate) fn ask(&self, requests: &[String]) -> Vec<String> {
        let at = self.dir.path();
        std::fs::write(at.join("requests"), requests.join("\n") + "\n").unwrap();
        let output = Command::new(at.join("speak"))
            .stdin(File::open(at.join("requests")).unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", output.status);
        let answers: Vec<String> =
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(answers.len(), requests.len());
        answers
    }
}

fn run(dir: &Path, program: &str, arguments: &[&str]) {
    let output = Command::new(program).current_dir(dir).args(arguments).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program}: {error}; install rpcsvc-proto, gcc, libc6-dev and libtirpc-dev")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
}

/// Reads the lines `reply NAME(arguments) = number;` of the programs and versions in a definition.
fn read_signatures(text: &str) -> Signatures {
    let mut text = text.to_owned();
    while let Some(start) = text.find("/*") {
        let end = start + text[start..].find("*/").unwrap() + 2;
        text.replace_range(start..end, " ");
    }
    let number = |text: &str| text.trim().parse::<u32>().unwrap();
    let mut signatures = Signatures::new();
    for program in text.split("program ").skip(1) {
        // The last brace closes the program; what lies before it are versions.
        let mut versions: Vec<&str> = program.split("version ").skip(1).collect();
        let last = versions.pop().unwrap();
        let end = last.rfind("} =").unwrap();
        let program = number(last[end + 3..].split(';').next().unwrap());
        for version in versions.into_iter().chain([&last[..end]]) {
            let (procedures, rest) = version.split_once("} =").unwrap();
            let version = number(rest.split(';').next().unwrap());
            let procedures = procedures.split_once('{').unwrap().1;
            for line in procedures.split(';').filter(|line| line.contains('(')) {
                let line = line.replace("struct ", "");
                let (reply, rest) = line.trim().split_once(char::is_whitespace).unwrap();
                let (_, rest) = rest.split_once('(').unwrap();
                let (args, rest) = rest.split_once(')').unwrap();
                let (_, procedure) = rest.split_once('=').unwrap();
                let types = (args.to_owned(), reply.to_owned());
                signatures.insert((program, version, number(procedure)), types);
            }
        }
    }
    signatures
}
