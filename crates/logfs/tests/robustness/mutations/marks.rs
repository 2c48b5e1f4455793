//! What the sources say of places whose loss nothing notices, and of those that no workload passes.
//!
//! ```text
//! // Unnoticed [flush, fence]: why losing it is harmless or cannot be seen.
//! commit.fence();
//! commit.store(at, 0)?; // Unmet: why nothing comes here.
//! ```
//! A `word` is a store to shared memory (`arena_mutations`). A mark is about the line that it ends, or else about the next line of code.

use super::fault::Place;
use gannet_media::simulation::SiteKind;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What stands in the sources.
#[derive(Default)]
pub(crate) struct Marks {
    /// Places that nothing is to notice.
    pub(crate) unnoticed: BTreeSet<Place>,
    /// Lines whose stores to shared memory nothing is to notice.
    pub(crate) words: BTreeSet<(String, u32)>,
    /// Lines that nothing is to pass.
    pub(crate) unmet: BTreeSet<(String, u32)>,
    /// Lines that store, flush or fence.
    pub(crate) calls: BTreeSet<(String, u32)>,
}

/// What a line must have in it to be one that stores, flushes or fences: a receiver, and what it is told.
const RECEIVERS: [&str; 5] = ["commit", "zeros", "copies", "medium", "medium()"];
const VERBS: [&str; 15] = [
    "store",
    "store_u64",
    "store_two",
    "store_cached",
    "store_two_cached",
    "zero",
    "zero_hashed",
    "write",
    "write_lines",
    "write_from_user",
    "write_from_user_hashed",
    "copy_within",
    "copy_within_hashed",
    "flush",
    "fence",
];

/// How `disk` passes on what it is told, which counts where it is told.
const PASSES_ON: &str = "self.disk.medium.";
/// No part of the file system.
const NO_PART: &str = "fuzzing.rs";

impl Marks {
    /// Reads the sources.
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut marks = Self::default();
        let mut files = Vec::new();
        collect(&root, &mut files);
        for path in files {
            let name = path.strip_prefix(&root).expect("below it").to_str().expect("text").to_owned();
            marks.file(&name, &std::fs::read_to_string(&path).expect("a source"));
        }
        assert!(marks.calls.len() > 60, "{} lines that store, flush or fence", marks.calls.len());
        marks
    }

    fn file(&mut self, name: &str, text: &str) {
        // Marks that wait for the next line of code.
        let mut waiting: Vec<String> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            if text.trim_start().starts_with("#[cfg(test)]") {
                break;
            }
            let (code, comment) = match text.find("// ") {
                Some(at) if !text[..at].trim_start().starts_with("//") => (text[..at].trim(), text[at + 3..].trim()),
                _ => (text.trim(), ""),
            };
            if comment.starts_with("Unnoticed [") || comment.starts_with("Unmet: ") {
                waiting.push(comment.to_owned());
            }
            if code.is_empty() || code.starts_with("//") || code.starts_with("#[") {
                continue;
            }
            for mark in waiting.drain(..) {
                self.mark(name, line, &mark);
            }
            if name != NO_PART && !is_test(name) && !code.contains(PASSES_ON) && is_call(code) {
                self.calls.insert((name.to_owned(), line));
            }
        }
        assert!(waiting.is_empty(), "{name}: a mark about nothing");
    }

    fn mark(&mut self, file: &str, line: u32, mark: &str) {
        if mark.starts_with("Unmet") {
            self.unmet.insert((file.to_owned(), line));
            return;
        }
        let kinds = mark.strip_prefix("Unnoticed [").and_then(|rest| rest.split_once("]: "));
        let (kinds, why) = kinds.unwrap_or_else(|| panic!("{file}:{line}: {mark}"));
        assert!(why.len() > 10, "{file}:{line}: no reason");
        for kind in kinds.split(", ") {
            let kind = match kind {
                "store" => SiteKind::Store,
                "flush" => SiteKind::Flush,
                "fence" => SiteKind::Fence,
                "word" => {
                    self.words.insert((file.to_owned(), line));
                    continue;
                }
                other => panic!("{file}:{line}: {other}?"),
            };
            self.unnoticed.insert(Place { file: file.to_owned(), line, kind });
        }
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
}

/// Whether a source is tests only.
fn is_test(name: &str) -> bool {
    name.contains("tests/") || name.ends_with("tests.rs")
}

/// Whether a line of code stores, flushes or fences.
fn is_call(code: &str) -> bool {
    VERBS.iter().any(|verb| {
        let call = format!(".{verb}(");
        code.match_indices(&call).any(|(at, _)| {
            let receiver = &code[..at];
            let ends_with = |name: &&str| {
                receiver
                    .strip_suffix(*name)
                    .is_some_and(|rest| !rest.ends_with(|last: char| last.is_alphanumeric() || last == '_'))
            };
            receiver.is_empty() && verb.len() > 5 || RECEIVERS.iter().any(ends_with)
        })
    })
}

#[test]
fn marks_are_read() {
    let mut marks = Marks::default();
    marks.file(
        "a.rs",
        "    // Unnoticed [flush, fence]: it is of no use\n    // to anybody.\n    let _ = commit.fence();\n    commit.store(1, 2)?; // Unmet: why not\n    word.store(0, Relaxed);\n        .write_from_user(at)\n",
    );
    let at = |line, kind| Place { file: "a.rs".into(), line, kind };
    assert_eq!(marks.unnoticed, [at(3, SiteKind::Flush), at(3, SiteKind::Fence)].into());
    assert_eq!(marks.unmet, [("a.rs".into(), 4)].into());
    assert_eq!(marks.calls, [3, 4, 6].map(|line| ("a.rs".into(), line)).into());
}
