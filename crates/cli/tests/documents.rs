//! The documents agree with the program: messages that the guide explains are messages that there are, links lead somewhere, the front
//! page's figures are those of the results.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// Files below a directory with an extension.
fn files(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
}

/// All strings of the sources as they are printed: a line that ends with a backslash goes on with the next one's first letter.
fn sources() -> String {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap().flatten() {
        if entry.path().join("src").is_dir() {
            files(&entry.path().join("src"), "rs", &mut paths);
        }
    }
    let text: String = paths.iter().map(|path| joined(&fs::read_to_string(path).unwrap())).collect();
    // The guide's messages stand between backticks and have none themselves.
    text.replace('`', "")
}

/// A source with its strings as they are printed.
fn joined(source: &str) -> String {
    let (mut text, mut goes_on) = (String::new(), false);
    for line in source.lines() {
        let line = if goes_on { line.trim_start() } else { line };
        let joined = line.strip_suffix('\\');
        goes_on = joined.is_some();
        text += joined.unwrap_or(line);
        if !goes_on {
            text.push('\n');
        }
    }
    text.replace("\\\"", "\"")
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_message_of_the_guide_is_one_that_there_is() {
    // The system's own words for an errno.
    const SYSTEM: [&str; 3] =
        ["No such file or directory", "Structure needs cleaning", "Transport endpoint is not connected"];
    // What messages begin with, from constants.
    const NAMES: [&str; 3] = ["gannet-workload", "cannot open the medium", "cannot reserve addresses"];
    let guide = read("docs/guide.md");
    let (_, explained) = guide.split_once("## When something goes wrong").expect("the chapter");
    let sources = sources();
    let (mut messages, mut missing) = (0, Vec::new());
    let rows = explained.lines().filter(|line| line.starts_with("| `"));
    for message in rows.flat_map(|row| quoted(row.split(" | ").next().unwrap_or_default())) {
        messages += 1;
        // What differs from case to case is left out of the guide, or is what the system says.
        let parts = message.split('…').flat_map(|part| part.split(": ")).map(|part| part.trim().trim_end_matches(';'));
        let is_there = |part: &str| NAMES.contains(&part) || SYSTEM.contains(&part) || sources.contains(part);
        if let Some(part) = parts.filter(|part| part.len() > 3).find(|part| !is_there(part)) {
            missing.push(format!("{message}: {part}"));
        }
    }
    assert!(messages > 40, "{messages}");
    assert!(missing.is_empty(), "in no source: {missing:#?}");
}

#[test]
fn each_key_of_the_json_is_in_the_guide() {
    let guide = read("docs/guide.md");
    let (_, chapter) = guide.split_once("### JSON").expect("the chapter");
    let chapter = chapter.split("\n## ").next().unwrap_or_default();
    let documented = quoted(chapter);
    let mut paths = Vec::new();
    for name in ["info.rs", "kernel.rs", "fsck.rs"] {
        paths.push(root().join("crates/cli/src/commands").join(name));
    }
    files(&root().join("crates/cli/src/commands/stat"), "rs", &mut paths);
    paths.extend(["waiting.rs", "locked.rs"].map(|name| root().join("crates/cli/src").join(name)));
    let mut keys = 0;
    for path in paths {
        let source = fs::read_to_string(&path).unwrap();
        for line in source.lines() {
            for (key, _) in
                line.split('"').skip(1).step_by(2).zip(line.split('"').skip(2).step_by(2)).filter(|(key, behind)| {
                    let is_name = |letter: u8| letter == b'_' || letter.is_ascii_lowercase() || letter.is_ascii_digit();
                    behind.starts_with(": ") && !key.is_empty() && key.bytes().all(is_name)
                })
            {
                keys += 1;
                assert!(documented.contains(&key), "{key} of {} is not in the guide", path.display());
            }
        }
    }
    assert!(keys > 60, "{keys}");
}

/// The literals behind some words of a source, without those of its tests.
fn literals<'a>(source: &'a str, before: &str) -> Vec<&'a str> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let begin = |rest: &'a str| {
        let (gap, behind) = rest.split_once('"')?;
        // Something else was meant if a statement ends in between.
        (!gap.contains([';', '{', '}'])).then_some(behind)
    };
    code.split(before).skip(1).filter_map(begin).filter_map(|behind| behind.split('"').next()).collect()
}

/// The first part of a message that says something and is always the same, as far as the guide has it.
fn constant_part(message: &str) -> &str {
    let parts = message.split(['{', '}']).step_by(2).flat_map(|part| part.split([';', '(', '\n']));
    let mut parts =
        parts.map(|part| part.trim_matches(|letter: char| letter.is_whitespace() || ":;,.".contains(letter)));
    parts.find(|part| part.len() >= 10).unwrap_or_default()
}

#[test]
fn each_message_that_there_is_is_in_the_guide() {
    // What tells of a mistake in Gannet, under the row of those, or of a wrong call of the library.
    const MISTAKES: [&str; 10] = [
        "are not inside the medium",
        "is not aligned for a word",
        "the caller's memory is bad after",
        "arena offset",
        "arena region",
        "this thread was abandoned by a test",
        "the volume was attached twice",
        "attaching did not complete",
        "an inode without a slot",
        "where is this program?",
    ];
    let places: [(&str, &[&str]); 6] = [
        ("crates/media/src", &["#[error("]),
        ("crates/shm/src", &["#[error("]),
        ("crates/open/src", &["because("]),
        ("crates/logfs/src", &["because("]),
        ("crates/fuse/src", &["#[error("]),
        ("crates/cli/src", &["Failure::new("]),
    ];
    // Of the engine, those that whoever opens, makes, checks or dumps a volume can meet; a program's calls see an errno.
    const ENGINE: [&str; 7] = ["attach.rs", "recover.rs", "disk", "mkfs.rs", "check", "dump", "file_system.rs"];
    let guide = read("docs/guide.md").replace('`', "");
    let (mut seen, mut missing) = (0, Vec::new());
    for (directory, words) in places {
        let mut paths = Vec::new();
        files(&root().join(directory), "rs", &mut paths);
        for path in paths {
            // Below the crate only: the tree may lie in any directory, also in one called `check`.
            let inside = path.strip_prefix(root().join(directory)).unwrap();
            let is_engine = directory.contains("logfs");
            if is_engine && !inside.components().any(|part| ENGINE.iter().any(|name| part.as_os_str() == *name)) {
                continue;
            }
            let source = joined(&fs::read_to_string(&path).unwrap()).replace('`', "");
            for message in words.iter().flat_map(|word| literals(&source, word)) {
                let part = constant_part(message);
                if part.is_empty() {
                    continue;
                }
                seen += 1;
                let is_mistake = MISTAKES.iter().any(|known| part.contains(known));
                if !is_mistake && !guide.contains(part) {
                    missing.push(format!("{}: {part}", path.file_name().unwrap().display()));
                }
            }
        }
    }
    assert!(seen > 80, "{seen}");
    assert!(missing.is_empty(), "docs/guide.md explains nowhere: {missing:#?}");
}

#[test]
fn the_front_page_has_the_figures_of_the_results() {
    let figures = |path: &str| {
        let text = read(path);
        let begin = text.find("<!-- the figures of gannet bench: begin -->");
        let end = text.find("<!-- the figures of gannet bench: end -->");
        let (begin, end) = begin.zip(end).unwrap_or_else(|| panic!("{path}: no marks around the figures"));
        text[begin..end].to_owned()
    };
    let front = figures("README.md");
    assert!(front.contains("| overwrite 4 KiB |"), "{front}");
    assert_eq!(front, figures("docs/results/README.md"), "scripts/refresh-results copies them");
}

#[test]
fn links_lead_somewhere() {
    let mut paths = vec![root().join("README.md"), root().join("SECURITY.md"), root().join("CHANGELOG.md")];
    files(&root().join("docs"), "md", &mut paths);
    let mut broken = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            let is_elsewhere = file.is_empty() || file.contains("://") || file.contains(' ');
            if !is_elsewhere && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_map_knows_every_crate_and_each_has_its_page() {
    let map = read("docs/contributing.md");
    for entry in fs::read_dir(root().join("crates")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(map.contains(&name), "docs/contributing.md does not name {name}");
    }
}

#[test]
fn every_command_is_in_the_guide_or_on_the_front_page() {
    let documents = read("README.md") + &read("docs/guide.md");
    let help = read("crates/cli/tests/help/gannet.txt");
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut count = 0;
    for command in commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        count += 1;
        assert!(documents.contains(&format!("gannet {command}")), "gannet {command} is explained nowhere");
    }
    assert!(count >= 10, "{help}");
}
