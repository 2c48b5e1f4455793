//! The directory tree: every name leads to an inode, every inode has a name, every directory one, and all of them hang
//! from the root.

use super::examine::Bound;
use super::model::Model;
use crate::file_map::FileMap;
use crate::format::slot::{AT_LINKS, AT_PARENT};
use crate::recover::{ROOT, cached_links};
use crate::replay::{RANKS, name_key};
use gannet_vfs::{Errno, Error, FileType, Result};
use std::collections::{HashMap, HashSet};

/// How long a path can be, in components, before it is shown without its beginning.
const SHOWN_DEPTH_MAX: usize = 64;

impl Model<'_> {
    /// Finds out who holds whom, and puts right what cannot be.
    pub(super) fn hold_names(&mut self) -> Result<()> {
        let mut parents: HashMap<u32, Vec<(u32, u64)>> = HashMap::new();
        let mut files: HashMap<u32, (u64, u32)> = HashMap::new();
        let directories: Vec<u32> =
            self.inodes.values().filter(|examined| examined.is_directory()).map(|found| found.inode).collect();
        for &directory in &directories {
            let names: Vec<(u64, Bound)> =
                self.inodes[&directory].names.iter().map(|(&key, &bound)| (key, bound)).collect();
            for (key, bound) in names {
                let found = self.inodes.get(&bound.inode);
                let why = match found {
                    None => "it leads to an inode that is not in use",
                    Some(found) if found.generation != bound.generation => "it leads to a former inode of that number",
                    Some(found) if found.birth.file_type != bound.file_type => "its type is not that of its inode",
                    Some(_) if bound.inode == ROOT => "it leads to the root directory",
                    Some(_) if bound.file_type == FileType::Directory => {
                        parents.entry(bound.inode).or_default().push((directory, key));
                        continue;
                    }
                    Some(_) => {
                        files.entry(bound.inode).or_insert((0, directory)).0 += 1;
                        continue;
                    }
                };
                self.drop_name(directory, key, &bound, why)?;
            }
        }
        let mut parent_of = HashMap::new();
        let mut held_twice: Vec<_> = parents.into_iter().collect();
        held_twice.sort_unstable();
        for (inode, holders) in held_twice {
            let cached = self.inodes[&inode].parent_cached;
            let kept = holders.iter().find(|(holder, _)| *holder as u64 == cached).unwrap_or(&holders[0]);
            for (directory, key) in &holders {
                if (directory, key) != (&kept.0, &kept.1) {
                    let bound = self.inodes[directory].names[key];
                    self.drop_name(*directory, *key, &bound, "the directory has another name already")?;
                }
            }
            parent_of.insert(inode, *kept);
        }
        self.connect(&directories, &mut parent_of)?;
        let unnamed: Vec<u32> = self
            .inodes
            .values()
            .filter(|found| !found.is_directory() && !files.contains_key(&found.inode))
            .map(|found| found.inode)
            .collect();
        unnamed.into_iter().for_each(|inode| self.orphan(inode));
        self.held = files;
        self.held.insert(ROOT, (2, ROOT));
        for (&inode, &(parent, _)) in &parent_of {
            if self.inodes.contains_key(&inode) {
                self.held.insert(inode, (2, parent));
            }
        }
        Ok(())
    }

    /// Goes down from the root; what is not reached is reconnected or freed.
    fn connect(&mut self, directories: &[u32], parent_of: &mut HashMap<u32, (u32, u64)>) -> Result<()> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (&inode, &(parent, _)) in parent_of.iter() {
            children.entry(parent).or_default().push(inode);
        }
        let mut reached: HashSet<u32> = HashSet::with_capacity(directories.len());
        let reach = |reached: &mut HashSet<u32>, from: u32| {
            let mut open = vec![from];
            while let Some(inode) = open.pop() {
                if reached.insert(inode) {
                    open.extend(children.get(&inode).into_iter().flatten());
                }
            }
        };
        reach(&mut reached, ROOT);
        for &start in directories {
            if reached.contains(&start) {
                continue;
            }
            // Up to where nothing holds it, or around a circle.
            let mut top = start;
            let mut passed = HashSet::new();
            while let Some(&(parent, key)) = parent_of.get(&top) {
                if !passed.insert(top) {
                    let bound = self.inodes[&parent].names[&key];
                    self.drop_name(parent, key, &bound, "the directory is held by one that it holds itself")?;
                    parent_of.remove(&top);
                    break;
                }
                top = parent;
            }
            self.orphan(top);
            reach(&mut reached, top);
        }
        Ok(())
    }

    /// An inode that nothing names: what a crash left of an open or half-made file, or something whose name was lost.
    fn orphan(&mut self, inode: u32) {
        let Some(found) = self.inodes.get(&inode) else { return };
        let clean = self.ground.clean();
        let has_names = !found.names.is_empty();
        let was_named = found.links_cached > 0 || found.rebuild;
        let keep = has_names || (was_named && (clean || self.names_lost));
        let at = self.ground.chunks.slot_at(self.ground.disk, inode).unwrap_or(0);
        if keep {
            let what = "it is in use, and no name leads to it";
            self.findings.damage("inode", at, inode, what, "it gets a name in /lost+found; its old name is lost");
            self.reconnect.push(inode);
            return;
        }
        if clean {
            let what = "it is in use, and neither has a name nor had one";
            self.findings.damage("inode", at, inode, what, "it is freed");
        }
        self.release.push(inode);
        self.inodes.remove(&inode);
    }

    fn drop_name(&mut self, directory: u32, key: u64, bound: &Bound, why: &str) -> Result<()> {
        let Some(examined) = self.inodes.get(&directory) else { return Ok(()) };
        let name = bound.name(&self.ground, directory, examined.generation)?.unwrap_or_default();
        let what = format!("the name \"{}\" of inode {}: {why}", name.escape_ascii(), bound.inode);
        let at = bound.place.offset_bytes();
        self.findings.damage("directory", at, directory, what, "the name is removed");
        if let Some(examined) = self.inodes.get_mut(&directory) {
            examined.names.remove(&key);
            examined.rewrite = true;
        }
        Ok(())
    }

    /// What a name of a directory leads to.
    pub(super) fn lookup(&self, directory: u32, name: &[u8]) -> Result<Option<Bound>> {
        let Some(examined) = self.inodes.get(&directory) else { return Ok(None) };
        let first = name_key(self.ground.disk.key(), name);
        for bound in examined.names.range(first..first.saturating_add(RANKS)).map(|(_, bound)| bound) {
            if bound.name(&self.ground, directory, examined.generation)?.as_deref() == Some(name) {
                return Ok(Some(*bound));
            }
        }
        Ok(None)
    }

    /// Gives up what a file holds, named by its number or path.
    pub(super) fn give_up(&mut self, file: &[u8]) -> Result<()> {
        let number = std::str::from_utf8(file).ok().and_then(|text| text.parse().ok());
        let mut inode = number.unwrap_or(ROOT);
        if number.is_none() {
            for name in file.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
                let missing =
                    Error::because(Errno::NOENT, "a file that is to be given up is not there: nothing was changed");
                inode = self.lookup(inode, name)?.ok_or(missing)?.inode;
            }
        }
        let at = self.ground.chunks.slot_at(self.ground.disk, inode).unwrap_or(0);
        let Some(found) = self.inodes.get_mut(&inode).filter(|found| found.birth.file_type == FileType::Regular) else {
            return Err(Error::because(Errno::INVAL, "only regular files can be given up: nothing was changed"));
        };
        let what = format!("{} bytes are given up, as was asked for", found.state.logged.size_bytes);
        found.map = FileMap::default();
        found.state.logged.size_bytes = 0;
        found.last.hashed_after_bytes = None;
        found.rewrite = true;
        self.findings.damage("file data", at, inode, what, "the file is empty from now on");
        Ok(())
    }

    /// What an inode's slot shall say: links, parent.
    pub(super) fn words_of(&self, inode: u32) -> Option<(u64, u32)> {
        let file_type = self.inodes.get(&inode)?.birth.file_type;
        let &(links, parent) = self.held.get(&inode)?;
        Some((cached_links(file_type, links), parent))
    }

    /// Compares the slots' counts with the names; only a clean detach promises that they agree.
    pub(super) fn check_links(&mut self) {
        if !self.ground.clean() {
            return;
        }
        for examined in self.inodes.values() {
            let Some((links, parent)) = self.words_of(examined.inode) else { continue };
            if examined.rebuild {
                continue;
            }
            let at = self.ground.chunks.slot_at(self.ground.disk, examined.inode).unwrap_or(0);
            let remedy = "it is set to what the directories say; nothing is lost";
            if examined.links_cached != links {
                let what = format!("it says {}, the directories say {links}", examined.links_cached);
                self.findings.damage("link count", at + AT_LINKS, examined.inode, what, remedy);
            }
            if examined.is_directory() && examined.parent_cached != parent as u64 {
                let what = format!("it says {}, the directories say {parent}", examined.parent_cached);
                self.findings.damage("parent", at + AT_PARENT, examined.inode, what, remedy);
            }
        }
    }

    /// Gives findings the paths of their inodes.
    pub(super) fn name_findings(&mut self) -> Result<()> {
        let wanted: HashSet<u32> = self.findings.list.iter().map(|finding| finding.inode).collect();
        let mut place_of: HashMap<u32, (u32, u64)> = HashMap::new();
        for directory in self.inodes.values() {
            for (&key, bound) in &directory.names {
                if bound.file_type == FileType::Directory || wanted.contains(&bound.inode) {
                    place_of.entry(bound.inode).or_insert((directory.inode, key));
                }
            }
        }
        let mut known = HashMap::new();
        for inode in wanted {
            if inode != 0 {
                known.insert(inode, self.path(inode, &place_of)?);
            }
        }
        for finding in &mut self.findings.list {
            if let Some(path) = known.get(&finding.inode) {
                finding.path.clone_from(path);
            }
        }
        Ok(())
    }

    fn path(&self, inode: u32, place_of: &HashMap<u32, (u32, u64)>) -> Result<Option<Vec<u8>>> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = inode;
        while at != ROOT {
            let Some(&(directory, key)) = place_of.get(&at) else { return Ok(None) };
            if names.len() == SHOWN_DEPTH_MAX {
                names.push((*b"...").into());
                break;
            }
            let Some(holder) = self.inodes.get(&directory) else { return Ok(None) };
            let name = match holder.names.get(&key) {
                Some(bound) => bound.name(&self.ground, directory, holder.generation)?.unwrap_or_default(),
                None => return Ok(None),
            };
            names.push(name);
            at = directory;
        }
        names.push(Box::default());
        names.reverse();
        Ok(Some(if names.len() == 1 { b"/".to_vec() } else { names.join(&b'/') }))
    }
}
