//! Paths of locked files, each looked up once per request.

use std::collections::{HashMap, HashSet};

use keeper::bytes::FileKey;
use server::{Control, FileLocation};

use crate::api::File;
use crate::caller::Sight;
use crate::display;
use crate::row::Row;

#[derive(Default)]
pub(crate) struct Files {
    known: HashMap<FileKey, (FileLocation, File)>,
    sight: Option<Sight>,
}

impl Files {
    /// The files of the rows, as far as the caller is shown them.
    pub(crate) async fn shown_to(sight: Sight, control: &Control, rows: &[Row]) -> Self {
        match sight {
            Sight::Whole => Self::of(control, rows).await,
            Sight::WithoutPaths => {
                let mut files = Self { sight: Some(sight), ..Self::default() };
                for row in rows {
                    if !files.known.contains_key(&row.file) {
                        let export = control.export_of(&row.file);
                        let api_file = without_path(&row.file, export.as_deref());
                        let place = FileLocation::default();
                        files.known.insert(row.file.clone(), (place, api_file));
                    }
                }
                files
            }
        }
    }

    /// Whether the caller is shown what clients gave the server for itself.
    pub(crate) fn shows_tags(&self) -> bool {
        self.sight != Some(Sight::WithoutPaths)
    }

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
    let FileLocation { export, path, inode, unanswered, .. } = place;
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
    File { export, path, shown, key: hex(key) }
}

/// Named by the end of its key: the beginning is the file system's.
fn without_path(key: &FileKey, export: Option<&[u8]>) -> File {
    const DIGITS: usize = 12;
    let export = export.map(display::bytes);
    let key = hex(key);
    let end = &key[key.len().saturating_sub(DIGITS)..];
    let shown = match &export {
        Some(export) => format!("file {end} in {export}"),
        None => "file in an export that is not served".into(),
    };
    File { export, path: None, shown, key }
}

fn hex(key: &FileKey) -> String {
    key.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
