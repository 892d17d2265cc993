//! A tree of values as a file system: a directory for each prefix, a file for each value. All of it is
//! in memory, and written to one file, synced, before a change is answered.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, rename};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper::{
    AttributeChange, Attributes, Bytes, Context, CreateMode, CreateReply, DirEntry, Error,
    FileSystem, FileSystemId, Listing, LookupReply, NewAttributes, ObjectId, ReadDirReply,
    ReadReply, RemoveReply, RenameReply, Result, Stability, Time, WriteReply,
};

const ROOT: u64 = 1;
/// The longest value.
const VALUE_MAX: u64 = 1 << 20;

pub struct KeyValues {
    path: PathBuf,
    tree: Mutex<Tree>,
}

#[derive(Clone)]
struct Tree {
    /// Object ids are never used twice.
    next: u64,
    nodes: HashMap<u64, Node>,
}

#[derive(Clone)]
struct Node {
    parent: u64,
    changed: Time,
    /// Of an exclusive creation, whose repetition succeeds.
    verifier: [u8; 8],
    content: Content,
}

#[derive(Clone)]
enum Content {
    Value(Vec<u8>),
    Prefix(BTreeMap<Vec<u8>, u64>),
}

impl KeyValues {
    /// Reads the tree, or begins an empty one.
    pub fn open(path: &Path) -> io::Result<Self> {
        let tree = match std::fs::read(path) {
            Ok(bytes) => {
                Tree::decode(&bytes).ok_or_else(|| io::Error::other("not a tree of values"))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Tree::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.to_owned(), tree: Mutex::new(tree) })
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a copy, which replaces the tree once it is durable. An error changes nothing.
    fn change<T>(&self, change: impl FnOnce(&mut Tree) -> Result<T>) -> Result<T> {
        let mut tree = self.tree();
        let mut changed = tree.clone();
        let result = change(&mut changed)?;
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&changed.encode())?;
        file.sync_all()?;
        rename(&new, &self.path)?;
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        *tree = changed;
        Ok(result)
    }
}

impl Tree {
    fn new() -> Self {
        let content = Content::Prefix(BTreeMap::new());
        let root = Node { parent: ROOT, changed: Time::now(), verifier: [0; 8], content };
        Self { next: ROOT + 1, nodes: HashMap::from([(ROOT, root)]) }
    }

    fn id(&self, object: &ObjectId) -> Result<u64> {
        let bytes = object.as_bytes().try_into().map_err(|_| Error::Stale)?;
        let id = u64::from_be_bytes(bytes);
        if self.nodes.contains_key(&id) { Ok(id) } else { Err(Error::Stale) }
    }

    fn node(&self, id: u64) -> Result<&Node> {
        self.nodes.get(&id).ok_or(Error::Stale)
    }

    fn node_mut(&mut self, id: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&id).ok_or(Error::Stale)
    }

    fn keys(&self, id: u64) -> Result<&BTreeMap<Vec<u8>, u64>> {
        match &self.node(id)?.content {
            Content::Prefix(keys) => Ok(keys),
            Content::Value(_) => Err(Error::NotADirectory),
        }
    }

    /// The keys of a directory that is about to change.
    fn keys_mut(&mut self, id: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>> {
        let node = self.node_mut(id)?;
        node.changed = Time::now();
        match &mut node.content {
            Content::Prefix(keys) => Ok(keys),
            Content::Value(_) => Err(Error::NotADirectory),
        }
    }

    fn value_mut(&mut self, id: u64) -> Result<&mut Vec<u8>> {
        let node = self.node_mut(id)?;
        node.changed = Time::now();
        match &mut node.content {
            Content::Value(value) => Ok(value),
            Content::Prefix(_) => Err(Error::IsADirectory),
        }
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<u64> {
        let keys = self.keys(dir)?;
        match name {
            b"." => Ok(dir),
            b".." => Ok(self.node(dir)?.parent),
            name => keys.get(name).copied().ok_or(Error::NotFound),
        }
    }

    fn attributes(&self, id: u64) -> Result<Attributes> {
        let node = self.node(id)?;
        let attributes = match &node.content {
            Content::Value(value) => Attributes::regular(id, value.len() as u64).with_mode(0o666),
            Content::Prefix(_) => Attributes::directory(id).with_mode(0o777),
        };
        Ok(attributes.with_times(node.changed))
    }

    fn reply(&self, id: u64) -> Result<LookupReply> {
        Ok(LookupReply { object: id.into(), attributes: self.attributes(id)? })
    }

    /// Another process cannot change a tree that is locked, so the attributes of before are exact.
    fn since(&self, id: u64, before: Option<Attributes>) -> Result<AttributeChange> {
        let before = before.as_ref().map(Into::into);
        Ok(AttributeChange { before, after: Some(self.attributes(id)?) })
    }

    fn insert(
        &mut self,
        dir: u64,
        name: &[u8],
        content: Content,
        verifier: [u8; 8],
    ) -> Result<CreateReply> {
        if self.lookup(dir, name).is_ok() {
            return Err(Error::Exists);
        }
        let before = self.attributes(dir)?;
        let id = self.next;
        self.next += 1;
        self.keys_mut(dir)?.insert(name.to_vec(), id);
        self.nodes.insert(id, Node { parent: dir, changed: Time::now(), verifier, content });
        let LookupReply { object, attributes } = self.reply(id)?;
        Ok(CreateReply { object, attributes, dir: self.since(dir, Some(before))? })
    }

    fn remove(&mut self, dir: u64, name: &[u8], prefix: bool) -> Result<RemoveReply> {
        if name == b"." || name == b".." {
            return Err(Error::Invalid);
        }
        let before = self.attributes(dir)?;
        let id = self.lookup(dir, name)?;
        match (&self.node(id)?.content, prefix) {
            (Content::Value(_), true) => return Err(Error::NotADirectory),
            (Content::Prefix(_), false) => return Err(Error::IsADirectory),
            (Content::Prefix(keys), true) if !keys.is_empty() => return Err(Error::NotEmpty),
            _ => {}
        }
        self.keys_mut(dir)?.remove(name);
        self.nodes.remove(&id);
        Ok(RemoveReply { dir: self.since(dir, Some(before))? })
    }

    fn resize(&mut self, id: u64, size: u64) -> Result<()> {
        if size > VALUE_MAX {
            return Err(Error::TooLarge);
        }
        self.value_mut(id)?.resize(size as usize, 0);
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.next.to_be_bytes().to_vec();
        let put = |bytes: &mut Vec<u8>, part: &[u8]| {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part);
        };
        for (id, node) in &self.nodes {
            let Time { seconds, nanoseconds } = node.changed;
            let numbers = [*id, node.parent, seconds as u64, nanoseconds.into()];
            numbers.iter().for_each(|number| bytes.extend(number.to_be_bytes()));
            bytes.extend(node.verifier);
            match &node.content {
                Content::Value(value) => {
                    bytes.push(0);
                    put(&mut bytes, value);
                }
                Content::Prefix(keys) => {
                    bytes.push(1);
                    bytes.extend((keys.len() as u64).to_be_bytes());
                    for (name, id) in keys {
                        put(&mut bytes, name);
                        bytes.extend(id.to_be_bytes());
                    }
                }
            }
        }
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let mut tree = Self { next: number(bytes)?, nodes: HashMap::new() };
        while !bytes.is_empty() {
            let (id, parent) = (number(bytes)?, number(bytes)?);
            let changed =
                Time { seconds: number(bytes)? as i64, nanoseconds: number(bytes)? as u32 };
            let verifier = number(bytes)?.to_be_bytes();
            let (kind, rest) = bytes.split_first()?;
            *bytes = rest;
            let content = if *kind == 0 {
                Content::Value(part(bytes)?)
            } else {
                let count = number(bytes)?;
                let keys = (0..count).map(|_| Some((part(bytes)?, number(bytes)?)));
                Content::Prefix(keys.collect::<Option<_>>()?)
            };
            tree.nodes.insert(id, Node { parent, changed, verifier, content });
        }
        tree.nodes.contains_key(&ROOT).then_some(tree)
    }
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*number))
}

fn part(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let length = usize::try_from(number(bytes)?).ok()?;
    let (part, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(part.to_vec())
}

impl FileSystem for KeyValues {
    fn id(&self) -> FileSystemId {
        FileSystemId(0x6b65_7973)
    }

    fn root(&self) -> ObjectId {
        ROOT.into()
    }

    fn path(&self, object: &ObjectId) -> Option<Vec<u8>> {
        let tree = self.tree();
        let (mut id, mut path) = (tree.id(object).ok()?, Vec::new());
        while id != ROOT {
            let parent = tree.node(id).ok()?.parent;
            let (name, _) = tree.keys(parent).ok()?.iter().find(|(_, at)| **at == id)?;
            path.push(name.clone());
            id = parent;
        }
        path.reverse();
        Some(path.join(&b'/'))
    }

    fn attributes(&self, _: &Context<'_>, object: &ObjectId) -> Result<Attributes> {
        let tree = self.tree();
        tree.attributes(tree.id(object)?)
    }

    /// Mode, owner and times are always the same; a request to change them is answered with them.
    fn set_attributes(
        &self,
        _: &Context<'_>,
        object: &ObjectId,
        new: &NewAttributes,
        guard: Option<Time>,
    ) -> Result<AttributeChange> {
        self.change(|tree| {
            let id = tree.id(object)?;
            let before = tree.attributes(id)?;
            if guard.is_some_and(|guard| guard != before.changed) {
                return Err(Error::NotSynchronised);
            }
            if let Some(size) = new.size {
                tree.resize(id, size)?;
            }
            tree.since(id, Some(before))
        })
    }

    fn lookup(&self, _: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<LookupReply> {
        let tree = self.tree();
        tree.reply(tree.lookup(tree.id(dir)?, name)?)
    }

    fn read(&self, _: &Context<'_>, file: &ObjectId, offset: u64, count: u32) -> Result<ReadReply> {
        let tree = self.tree();
        let id = tree.id(file)?;
        let Content::Value(value) = &tree.node(id)?.content else {
            return Err(Error::IsADirectory);
        };
        let from = value.len().min(offset.min(VALUE_MAX) as usize);
        let to = value.len().min(from + count as usize);
        let data = Bytes::copy_from_slice(&value[from..to]);
        Ok(ReadReply { data, eof: to == value.len(), attributes: Some(tree.attributes(id)?) })
    }

    /// Every write is durable at once, so there is nothing to commit.
    fn write(
        &self,
        _: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        _: Stability,
    ) -> Result<WriteReply> {
        self.change(|tree| {
            let id = tree.id(file)?;
            let before = tree.attributes(id)?;
            let end = offset.checked_add(data.len() as u64).ok_or(Error::TooLarge)?;
            tree.resize(id, end.max(before.size))?;
            tree.value_mut(id)?[offset as usize..end as usize].copy_from_slice(data);
            let (count, stability) = (data.len() as u32, Stability::File);
            Ok(WriteReply { count, stability, file: tree.since(id, Some(before))? })
        })
    }

    fn create(
        &self,
        _: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        mode: &CreateMode,
    ) -> Result<CreateReply> {
        self.change(|tree| {
            let dir = tree.id(dir)?;
            let verifier = match mode {
                CreateMode::Exclusive(verifier) => *verifier,
                CreateMode::Unchecked(_) | CreateMode::Guarded(_) => [0; 8],
            };
            let there = tree.lookup(dir, name).ok();
            let usable = match (there, mode) {
                (Some(id), CreateMode::Exclusive(_)) => tree.node(id)?.verifier == verifier,
                (Some(id), CreateMode::Unchecked(_)) => tree.value_mut(id).is_ok(),
                _ => false,
            };
            let size = match mode {
                CreateMode::Unchecked(new) | CreateMode::Guarded(new) => new.size,
                CreateMode::Exclusive(_) => None,
            };
            let id = match there.filter(|_| usable) {
                Some(id) => id,
                None => {
                    tree.insert(dir, name, Content::Value(Vec::new()), verifier)?;
                    tree.lookup(dir, name)?
                }
            };
            if let Some(size) = size {
                tree.resize(id, size)?;
            }
            let LookupReply { object, attributes } = tree.reply(id)?;
            Ok(CreateReply { object, attributes, dir: tree.since(dir, None)? })
        })
    }

    fn make_dir(
        &self,
        _: &Context<'_>,
        dir: &ObjectId,
        name: &[u8],
        _: &NewAttributes,
    ) -> Result<CreateReply> {
        let prefix = Content::Prefix(BTreeMap::new());
        self.change(|tree| tree.insert(tree.id(dir)?, name, prefix, [0; 8]))
    }

    fn remove(&self, _: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<RemoveReply> {
        self.change(|tree| tree.remove(tree.id(dir)?, name, false))
    }

    fn remove_dir(&self, _: &Context<'_>, dir: &ObjectId, name: &[u8]) -> Result<RemoveReply> {
        self.change(|tree| tree.remove(tree.id(dir)?, name, true))
    }

    fn rename(
        &self,
        _: &Context<'_>,
        from: (&ObjectId, &[u8]),
        to: (&ObjectId, &[u8]),
    ) -> Result<RenameReply> {
        self.change(|tree| {
            let (source, target) = (tree.id(from.0)?, tree.id(to.0)?);
            let before = (tree.attributes(source)?, tree.attributes(target)?);
            if [from.1, to.1].iter().any(|name| matches!(*name, b"." | b"..")) {
                return Err(Error::Invalid);
            }
            let moved = tree.lookup(source, from.1)?;
            let mut above = target;
            while above != ROOT {
                if above == moved {
                    return Err(Error::Invalid);
                }
                above = tree.node(above)?.parent;
            }
            let is_prefix = tree.keys(moved).is_ok();
            match tree.lookup(target, to.1) {
                Ok(replaced) if replaced == moved => {}
                Ok(_) => {
                    tree.remove(target, to.1, is_prefix)?;
                }
                Err(error) if error != Error::NotFound => return Err(error),
                Err(_) => {}
            }
            tree.keys_mut(source)?.remove(from.1);
            tree.keys_mut(target)?.insert(to.1.to_vec(), moved);
            tree.node_mut(moved)?.parent = target;
            let from = tree.since(source, Some(before.0))?;
            Ok(RenameReply { from, to: tree.since(target, Some(before.1))? })
        })
    }

    fn read_dir(
        &self,
        _: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        _: [u8; 8],
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply> {
        let tree = self.tree();
        let id = tree.id(dir)?;
        let mut listing = Listing::new(id, tree.node(id)?.parent);
        tree.keys(id)?.iter().for_each(|(name, id)| listing.push(name, *id));
        let lookup = |_: &[u8], id| if plus { tree.reply(id).ok() } else { None };
        let eof = listing.send(cookie, lookup, sink);
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes: Some(tree.attributes(id)?) })
    }
}
