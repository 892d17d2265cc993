//! Writes the seeds of the fuzz targets: `seeds [fuzz/corpus]`, from the root of the workspace.

use std::io;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "fuzz/corpus".into()));
    for (target, seeds) in lockkeeper_judge::seeds::all() {
        let dir = corpus.join(target);
        std::fs::create_dir_all(&dir)?;
        for (name, bytes) in seeds {
            std::fs::write(dir.join(name), bytes)?;
        }
    }
    Ok(())
}
