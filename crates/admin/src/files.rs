//! Where the files of some rows are, and what they are called; each is looked up once.

use std::collections::{HashMap, HashSet};

use keeper::bytes::FileKey;
use server::{Control, Place};

use crate::api::{File, Problem};
use crate::row::Row;
use crate::shown;

#[derive(Default)]
pub struct Files {
    known: HashMap<FileKey, (Place, File)>,
}

impl Files {
    /// Those of some rows. A disk is waited for where a name was not seen, on a thread that may.
    pub async fn of(control: &Control, rows: &[Row]) -> Result<Self, Problem> {
        let mut files = Self::default();
        let mut unseen = HashSet::new();
        for row in rows {
            if files.known.contains_key(&row.file) || unseen.contains(&row.file) {
                continue;
            }
            match control.place_seen(&row.file) {
                Some(place) => files.add(row.file.clone(), place),
                None => drop(unseen.insert(row.file.clone())),
            }
        }
        if !unseen.is_empty() {
            let control = control.clone();
            let seek = move || {
                let found = unseen.into_iter().map(|file| (control.place(&file), file));
                found.collect::<Vec<_>>()
            };
            let found = tokio::task::spawn_blocking(seek).await.map_err(|_| Problem::ending())?;
            found.into_iter().for_each(|(place, file)| files.add(file, place));
        }
        Ok(files)
    }

    pub fn place(&self, file: &FileKey) -> Option<&Place> {
        self.known.get(file).map(|(place, _)| place)
    }

    /// As the API says it.
    pub fn tell(&self, file: &FileKey) -> File {
        match self.known.get(file) {
            Some((_, told)) => told.clone(),
            None => tell(file, &Place::default()),
        }
    }

    fn add(&mut self, file: FileKey, place: Place) {
        let told = tell(&file, &place);
        self.known.insert(file, (place, told));
    }
}

fn tell(key: &FileKey, Place { export, path, inode }: &Place) -> File {
    let export = export.as_deref().map(shown::bytes);
    let path = path.as_deref().map(shown::bytes);
    let told = match (&export, &path, inode) {
        (Some(export), Some(path), _) if path.is_empty() => export.clone(),
        (Some(export), Some(path), _) => format!("{}/{path}", export.trim_end_matches('/')),
        (Some(export), None, Some(inode)) => format!("inode {inode} in {export}"),
        (Some(export), None, None) => format!("a file that is gone from {export}"),
        _ => "a file of an export that is not served".into(),
    };
    let key = key.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    File { export, path, shown: told, key }
}
