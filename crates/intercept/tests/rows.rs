//! Each row of the table of system calls (`docs/SYSCALLS.md`), tried once by `rows.c` in a volume and on tmpfs: what is refused fails with the
//! error that the row names, everything else answers as tmpfs does.

mod common;

use common::{Volume, compile, is_root_who_can, run};
use std::collections::HashSet;
use std::process::{Command, Output};

const TABLE: &str = include_str!("../../../docs/SYSCALLS.md");

/// Names of the table's rows, with the error that is promised to what is refused.
fn table() -> Vec<(&'static str, Option<&'static str>)> {
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let name = cells.next()?.trim().strip_suffix('`')?;
        Some((name, cells.next()?.trim().strip_prefix("refused: ")))
    };
    TABLE.lines().filter_map(row).collect()
}

/// The lines of a run to its end.
fn lines(output: &Output) -> Vec<String> {
    let lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.last().map(String::as_str), Some("row: done"), "{:?}: {:?}", output.status, lines.last());
    lines
}

/// What a line says of a row.
fn told(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("row: ")?.split_once(" = ")
}

#[test]
fn each_row_of_the_table_is_true() {
    if !is_root_who_can("change who it is") {
        return;
    }
    let (directory, program) = compile("rows");
    let host = tempfile::Builder::new().prefix("gannet-rows-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = lines(&run(Command::new("timeout").arg("60").arg(&program).arg(host.path())));
    let volume = Volume::new(64);
    volume.script("mkdir /gannet/work", "");
    let ours = lines(&run(volume.command(program.to_str().expect("UTF-8")).args(["/gannet/work", "volume"])));
    drop(directory);

    let table = table();
    assert!(table.len() > 150, "{} rows", table.len());
    let tried: HashSet<_> = ours.iter().filter_map(|line| told(line)).map(|(name, _)| name).collect();
    let untried: Vec<_> = table.iter().filter(|(name, _)| !tried.contains(name)).collect();
    assert!(untried.is_empty(), "rows without a try: {untried:?}");

    let refused = |line: &str| told(line).and_then(|(name, _)| table.iter().find(|row| row.0 == name)?.1);
    let mut wrong: Vec<_> = ours
        .iter()
        .filter(|line| refused(line).is_some_and(|error| told(line).is_some_and(|(_, answer)| answer != error)))
        .map(|line| format!("not what the table says: {line}"))
        .collect();
    let answered: Vec<_> = ours.iter().filter(|line| refused(line).is_none()).collect();
    assert_eq!(plain.len(), answered.len(), "{plain:#?}\n{answered:#?}");
    for (kernel, volume) in plain.iter().zip(answered) {
        // A kernel that does not have the call yet.
        let older = kernel.ends_with(" = ENOSYS");
        if kernel != volume && !older {
            wrong.push(format!("kernel: {kernel}\nvolume: {volume}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
