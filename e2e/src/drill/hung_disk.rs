//! A disk hangs under one export while a guest works on another one through the same server: it
//! unpacks, compiles, links and runs a C program, and locks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::open;
use testbed::process::run;

use super::Step;
use super::context::Drill;
use super::site::{Kind, Plan, Site};
use crate::agent::Task;

pub(super) const STEPS: &[Step] = &[Step::new("build-while-another-disk-hangs", build)];

const TIMEOUT: Duration = Duration::from_secs(120);
/// Source files beside the one with `main`.
const MODULES: usize = 6;
const WRITERS: usize = 4;
/// By each, in calls of 32 KiB: together far more than the server has workers.
const WRITTEN: usize = 4 << 20;
/// How much longer the build may take.
const FACTOR: u32 = 5;

fn build(drill: &Drill) -> Result<()> {
    let mut plan = Plan::new(drill, None)?;
    plan.add("hung", Kind::Ext4, |_| Ok(()))?;
    plan.add("good", Kind::Ext4, |_| Ok(()))?;
    project(&plan.source("project"), &plan.point("good"))?;
    let site = plan.serve("vers=3,wsize=32768")?;
    let healthy = time_build_at_most(drill, &site, TIMEOUT)?;
    drill.note(format!("build {:.1} s", healthy.as_secs_f64()));

    let mut writers: Vec<Task> =
        (0..WRITERS).map(|number| writer(drill, &site, number)).collect::<Result<_>>()?;
    let most = (healthy * FACTOR).max(Duration::from_secs(5));
    let hung = {
        // Thawed before the server is stopped, whatever happens.
        let _frozen = site.mounts[0].freeze()?;
        for (number, writer) in writers.iter().enumerate() {
            writer.send(&format!("fill {WRITTEN} {number}"))?;
            writer.send("sync")?;
        }
        std::thread::sleep(Duration::from_secs(2));
        let built = time_build_at_most(drill, &site, most);
        for writer in &writers {
            ensure!(writer.is_running(), "a writer has ended");
        }
        built.with_context(|| format!("while another disk hangs, within {most:?}"))?
    };
    drill.note(format!("beside a hung disk {:.1} s", hung.as_secs_f64()));
    for (number, writer) in writers.iter_mut().enumerate() {
        for order in ["fill", "sync"] {
            let answer = writer.line(TIMEOUT)?;
            ensure!(answer == "ok ", "{order} by writer {number}: {answer}");
        }
        let found = fs::read(site.dir("hung").file(&format!("written-{number}")))?;
        ensure!(found == open::contents(WRITTEN, number as u64), "writer {number}: other data");
    }
    drop(writers);
    site.leave(drill)
}

/// Holds a file on the disk that will hang.
fn writer(drill: &Drill, site: &Site, number: usize) -> Result<Task> {
    let path = site.dir("hung").file_in_guest(&format!("written-{number}"));
    let mut task = drill.alice()?.spawn(&format!("lockkeeper-guest open {path} create"))?;
    let line = task.line(TIMEOUT)?;
    ensure!(line == "open", "it said {line:?}");
    Ok(task)
}

/// Builds and runs the program, and takes a lock for each module.
fn time_build_at_most(drill: &Drill, site: &Site, most: Duration) -> Result<Duration> {
    let at = site.dir("good").guest;
    let script = format!(
        "cd {at} && rm -rf project && tar xf project.tar && cd project && \
         for source in *.c; do \
         lockkeeper-guest lock try posix write lock > /dev/null && {COMPILE} -c $source || exit 1; \
         done && {LINK} && ./program"
    );
    let start = Instant::now();
    let said = drill.alice()?.succeed_for(&script, most)?;
    let took = start.elapsed();
    let expected = (1..=MODULES).sum::<usize>().to_string();
    ensure!(said == expected, "the program said {said:?} instead of {expected}");
    Ok(took)
}

/// With the headers that the project brings.
const COMPILE: &str = "tcc -nostdinc -Iinclude -Iinclude/x86_64-linux-gnu -Itcc";
const LINK: &str =
    "tcc -nostdlib -L. -o program crt1.o crti.o module-*.o main.o libc.so libtcc1.a crtn.o";

/// Makes the sources, with headers and libraries, and packs them into `project.tar` in `to`.
fn project(work: &Path, to: &Path) -> Result<()> {
    let project = work.join("project");
    fs::create_dir_all(&project)?;
    let mut main = String::from("#include <stdio.h>\n");
    for number in 1..=MODULES {
        let module = format!(
            "#include <stdlib.h>\n#include <string.h>\n\
             int module_{number}(void) {{\n\
             char text[16]; memset(text, 0, sizeof text); strcpy(text, \"{number}\");\n\
             return atoi(text);\n}}\n"
        );
        fs::write(project.join(format!("module-{number}.c")), module)?;
        main.push_str(&format!("int module_{number}(void);\n"));
    }
    main.push_str("int main(void) {\nint sum = 0;\n");
    (1..=MODULES).for_each(|number| main.push_str(&format!("sum += module_{number}();\n")));
    main.push_str("printf(\"%d\\n\", sum);\nreturn 0;\n}\n");
    fs::write(project.join("main.c"), main)?;
    for header in headers(&project)? {
        let name = header.strip_prefix("/usr/include")?;
        let copy = project.join("include").join(name);
        fs::create_dir_all(copy.parent().context("no directory")?)?;
        fs::copy(&header, copy)?;
    }
    let libraries = Path::new("/usr/lib/x86_64-linux-gnu");
    for (from, name) in [
        ("crt1.o", "crt1.o"),
        ("crti.o", "crti.o"),
        ("crtn.o", "crtn.o"),
        ("libc.so.6", "libc.so"),
        ("ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2"),
        ("tcc/libtcc1.a", "libtcc1.a"),
    ] {
        fs::copy(libraries.join(from), project.join(name)).with_context(|| from.to_owned())?;
    }
    run(Command::new("cp").arg("-r").arg(libraries.join("tcc/include")).arg(project.join("tcc")))?;
    let archive = to.join("project.tar");
    run(Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(work).arg("project")).map(drop)
}

/// The headers of the C library that the sources include, by GCC's rules for make.
fn headers(project: &Path) -> Result<Vec<PathBuf>> {
    let mut gcc = Command::new("gcc");
    gcc.arg("-M").arg(project.join("main.c")).arg(project.join("module-1.c"));
    let rules = run(&mut gcc)?;
    let paths = rules.split_whitespace().filter(|word| word.starts_with("/usr/include/"));
    Ok(paths.map(PathBuf::from).collect())
}
