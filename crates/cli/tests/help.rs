//! What `--help` says, compared with the texts in `tests/help`. `GANNET_UPDATE=1 cargo test -p gannet-cli` writes them anew.

use std::path::Path;
use std::process::Command;

#[test]
fn the_help_texts_are_those_in_the_tree() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let update = std::env::var_os("GANNET_UPDATE").is_some();
    let commands = ["", "bench", "mkfs", "info", "set", "fsck", "dump", "stat", "run", "mount", "completion", "man"];
    for command in commands {
        let mut gannet = Command::new(env!("CARGO_BIN_EXE_gannet"));
        gannet.args(Some(command).filter(|command| !command.is_empty())).arg("--help");
        let output = gannet.output().unwrap();
        assert!(output.status.success(), "{command}");
        let text = String::from_utf8(output.stdout).unwrap();
        let name = if command.is_empty() { "gannet" } else { command };
        let path = directory.join(format!("{name}.txt"));
        if update {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "gannet {command} --help is not {}", path.display());
    }
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), commands.len());
}
