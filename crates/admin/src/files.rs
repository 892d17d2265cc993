//! Paths of locked files, each looked up once per request.

use std::collections::{HashMap, HashSet};

use keeper::bytes::FileKey;
use server::{Control, FileLocation};

use crate::api::File;
use crate::display;
use crate::row::Row;

#[derive(Default)]
pub(crate) struct Files {
    known: HashMap<FileKey, (FileLocation, File)>,
}

impl Files {
    /// Looks up the files of the rows.
    pub(crate) async fn of(control: &Control, rows: &[Row]) -> Self {
        let mut files = Self::default();
        let sought: HashSet<_> = rows.iter().map(|row| row.file.clone()).collect();
        let located = control.locate(sought).await;
        located.into_iter().for_each(|(file, place)| files.add(file, place));
        files
    }

    pub(crate) fn place(&self, file: &FileKey) -> Option<&FileLocation> {
        self.known.get(file).map(|(place, _)| place)
    }

    /// The file as an API type.
    pub(crate) fn to_api(&self, file: &FileKey) -> File {
        match self.known.get(file) {
            Some((_, api_file)) => api_file.clone(),
            None => to_api(file, &FileLocation::default()),
        }
    }

    fn add(&mut self, file: FileKey, place: FileLocation) {
        let api_file = to_api(&file, &place);
        self.known.insert(file, (place, api_file));
    }
}

fn to_api(key: &FileKey, place: &FileLocation) -> File {
    let FileLocation { export, path, inode, unanswered } = place;
    let export = export.as_deref().map(display::bytes);
    let path = path.as_deref().map(display::bytes);
    let shown = match (&export, &path, inode) {
        (Some(export), Some(path), _) if path.is_empty() => export.clone(),
        (Some(export), Some(path), _) => format!("{}/{path}", export.trim_end_matches('/')),
        (Some(export), None, Some(inode)) => format!("inode {inode} in {export}"),
        (Some(export), None, None) if *unanswered => {
            format!("file in {export}, which does not answer")
        }
        (Some(export), None, None) => format!("deleted file in {export}"),
        _ => "file in an export that is not served".into(),
    };
    let key = key.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    File { export, path, shown, key }
}
