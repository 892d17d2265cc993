//! Clients by the name of a machine: finds those that `Name::names_same_machine` matches without a scan
//! of all (B7.122).

use std::collections::{BTreeMap, BTreeSet};

use crate::bytes::Name;
use crate::identity::ClientId;

/// Names are kept in lower case.
#[derive(Default)]
pub(crate) struct NameIndex {
    /// By the whole name.
    whole: BTreeMap<Box<[u8]>, BTreeSet<ClientId>>,
    /// Full names, by their first label.
    full: BTreeMap<Box<[u8]>, BTreeSet<ClientId>>,
}

impl NameIndex {
    pub(crate) fn insert(&mut self, name: &Name, id: ClientId) {
        let name = lower(name);
        if let Some(label) = label(&name) {
            self.full.entry(label.into()).or_default().insert(id);
        }
        self.whole.entry(name).or_default().insert(id);
    }

    pub(crate) fn remove(&mut self, name: &Name, id: ClientId) {
        let name = lower(name);
        if let Some(label) = label(&name) {
            remove_from(&mut self.full, label, id);
        }
        remove_from(&mut self.whole, &name, id);
    }

    /// The clients whose name names the same machine, in order of id.
    pub(crate) fn find(&self, name: &Name) -> BTreeSet<ClientId> {
        let name = lower(name);
        let (whole, others) = self.sets(&name);
        whole.into_iter().chain(others).flatten().copied().collect()
    }

    pub(crate) fn contains(&self, name: &Name) -> bool {
        let name = lower(name);
        matches!(self.sets(&name), (Some(_), _) | (_, Some(_)))
    }

    /// Those of the very name; and the short name of a full one, or the full names of a short one.
    fn sets(&self, name: &[u8]) -> (Option<&BTreeSet<ClientId>>, Option<&BTreeSet<ClientId>>) {
        let others = match label(name) {
            Some(label) => self.whole.get(label),
            None if name.contains(&b'.') => None,
            None => self.full.get(name),
        };
        (self.whole.get(name), others)
    }
}

fn lower(name: &Name) -> Box<[u8]> {
    name.bytes().to_ascii_lowercase().into()
}

/// The first label of a full name. None is empty: an empty name is short for none.
fn label(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().position(|byte| *byte == b'.')?;
    name.get(..dot).filter(|label| !label.is_empty())
}

fn remove_from(index: &mut BTreeMap<Box<[u8]>, BTreeSet<ClientId>>, key: &[u8], id: ClientId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 13] = [
        "alice",
        "ALICE",
        "alice.example.com",
        "Alice.Example.Com",
        "alice.example",
        "alice.",
        "alic",
        "bob",
        "",
        ".",
        ".example.com",
        "bob.alice",
        "..",
    ];

    #[test]
    fn a_name_finds_what_a_scan_finds() {
        let mut index = NameIndex::default();
        let named = |id: ClientId| Name::from(NAMES[id.0 as usize]);
        let ids: Vec<ClientId> = (0..NAMES.len() as u64).map(ClientId).collect();
        for id in &ids {
            index.insert(&named(*id), *id);
        }
        for gone in ids.iter().map(Some).chain([None]) {
            let left = |id: &&ClientId| Some(*id) != gone;
            if let Some(gone) = gone {
                index.remove(&named(*gone), *gone);
            }
            for sought in NAMES {
                let sought = Name::from(sought);
                let same = |id: &&ClientId| named(**id).names_same_machine(&sought);
                let scanned: BTreeSet<ClientId> =
                    ids.iter().filter(left).filter(same).copied().collect();
                assert_eq!(index.find(&sought), scanned, "{sought}");
                assert_eq!(index.contains(&sought), !scanned.is_empty(), "{sought}");
            }
            if let Some(gone) = gone {
                index.insert(&named(*gone), *gone);
            }
        }
        ids.iter().for_each(|id| index.remove(&named(*id), *id));
        assert!(index.whole.is_empty() && index.full.is_empty());
    }
}
