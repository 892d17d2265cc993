//! What a reload changed: exports that were added or removed, and the settings of others that differ.

use std::collections::BTreeSet;

use admin::api::{ChangedExport, ReloadResult};

use super::{Export, effective};

/// `done` says it in one sentence.
pub(crate) fn between(before: &[Export], after: &[Export]) -> ReloadResult {
    let added = only_in(after, before);
    let removed = only_in(before, after);
    let changed: Vec<ChangedExport> = after
        .iter()
        .filter_map(|new| {
            let old = before.iter().find(|old| is_same(old, new))?;
            let settings = differing(old, new);
            let path = new.path.display().to_string();
            (!settings.is_empty()).then_some(ChangedExport { path, settings })
        })
        .collect();
    let plural = if after.len() == 1 { "" } else { "s" };
    let mut done = format!("reloaded the configuration: {} export{plural}", after.len());
    for (what, paths) in [("added", &added), ("removed", &removed)] {
        if !paths.is_empty() {
            done += &format!("; {what} {}", paths.join(", "));
        }
    }
    for export in &changed {
        done += &format!("; changed {} ({})", export.path, export.settings.join(", "));
    }
    ReloadResult { done, added, removed, changed }
}

fn only_in(exports: &[Export], others: &[Export]) -> Vec<String> {
    let missing = exports.iter().filter(|export| !others.iter().any(|it| is_same(it, export)));
    missing.map(|export| export.path.display().to_string()).collect()
}

/// However the path is written.
fn is_same(one: &Export, other: &Export) -> bool {
    one.path.components().eq(other.path.components())
}

/// The keys whose effective values differ.
fn differing(old: &Export, new: &Export) -> Vec<String> {
    let [old, new] = [old, new].map(|export| effective::export(export.clone()));
    let keys: BTreeSet<&String> =
        old.keys().chain(new.keys()).filter(|key| *key != "path").collect();
    keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::File;

    #[test]
    fn added_removed_and_changed_exports_are_told() {
        let file = |text: &str| File::parse(text).unwrap().exports;
        let export = |path: &str, more: &str| {
            format!("[[export]]\npath = \"{path}\"\nclients = [\"10.0.0.0/8\"]\n{more}\n")
        };
        let before = file(&[export("/a", ""), export("/b", ""), export("/c", "")].concat());
        let rule = "[[export.rule]]\nclients = [\"10.0.0.1\"]\naccess = \"ro\"";
        let after =
            [export("/b/", "access = \"rw\""), export("/c", &format!("squash = \"all\"\n{rule}"))];
        let after = file(&[after.concat(), export("/d", "")].concat());
        let result = between(&before, &after);
        assert_eq!((result.added, result.removed), (vec!["/d".to_owned()], vec!["/a".to_owned()]));
        let [changed] = &result.changed[..] else { panic!("{:?}", result.changed) };
        assert_eq!(
            (changed.path.as_str(), &changed.settings[..]),
            ("/c", &["rule".to_owned(), "squash".to_owned()][..])
        );
        assert_eq!(
            result.done,
            "reloaded the configuration: 3 exports; added /d; removed /a; changed /c (rule, squash)"
        );
        let one = between(&before, &before[..1]).done;
        assert_eq!(one, "reloaded the configuration: 1 export; removed /b, /c");
        let same = between(&before, &before);
        assert!(same.added.is_empty() && same.removed.is_empty() && same.changed.is_empty());
    }
}
