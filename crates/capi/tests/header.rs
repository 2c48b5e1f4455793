//! `include/gannet.h` is what the source says. `GANNET_BLESS=1` makes it so.

use std::path::Path;

/// The files with functions of the header, in the order that they shall have there.
const SOURCES: [&str; 15] = [
    "attach",
    "descriptors",
    "data",
    "vectors",
    "space",
    "sharing",
    "names",
    "attributes",
    "relative",
    "flags",
    "xattrs",
    "directory",
    "locks",
    "maps",
    "extents",
];

fn generate(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/volume.rs"));
    for source in SOURCES {
        builder = builder.with_src(root.join(format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("the source can be read").write(&mut text);
    String::from_utf8(text)
        .expect("UTF-8")
        .replace(" * # Safety\n *\n", " * Requires:\n")
        .replace(" * # Safety\n", " * Requires:\n")
}

#[test]
fn the_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/gannet.h");
    let made = generate(root);
    if std::env::var_os("GANNET_BLESS").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("include/gannet.h");
    assert!(kept == made, "include/gannet.h is not current: run this test with GANNET_BLESS=1");
}

/// Every function of the source stands in the header.
#[test]
fn no_function_is_missing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/gannet.h")).expect("include/gannet.h");
    let mut count = 0;
    for file in std::fs::read_dir(root.join("src")).expect("src") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("UTF-8");
        for line in text.lines().filter(|line| line.starts_with("pub ") && line.contains("extern \"C\" fn gannet_")) {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a name");
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
            count += 1;
        }
    }
    assert!(count >= 85, "only {count} functions found");
}
