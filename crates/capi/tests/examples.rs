//! The examples run: the C one linked with either library, the Rust one, and what a C program finds in the pkg-config file.

#[macro_use]
mod common;

use common::{VolumeFile, attach, c, make_volume};
use gannet::attributes::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the static library needs of the system.
const LIBS_PRIVATE: &str = "-lgcc_s -lpthread -lm -ldl -lc";

/// A directory removed when dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gannet-capi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// A library built with these tests.
fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let beside = program.parent().expect("a directory").join(name);
    assert!(beside.exists(), "{} was not built", beside.display());
    beside
}

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{text}{}", String::from_utf8_lossy(&stderr));
    text
}

fn compile(source: &Path, into: &Path, libraries: &[String]) {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(header);
    run(compiler.arg(source).arg("-o").arg(into).args(libraries));
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/example.c")
}

/// Runs the example on a new volume: alone, again, and as two processes at once.
fn check_example(program: &Path) {
    let file = make_volume(false);
    let expected = |run: u32| {
        let bytes = 7 * run;
        format!(
            "archived {bytes} bytes\njournal/archive: {bytes} bytes\njournal/notes: {bytes} bytes\njournal/runs: 8 bytes\nrun {run}\n"
        )
    };
    let sorted = |text: String| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1..].sort_unstable();
        lines.join("\n") + "\n"
    };
    for number in 1..3 {
        assert_eq!(sorted(run(Command::new(program).arg(file.path()))), expected(number));
    }
    let start = || Command::new(program).arg(file.path()).stdout(std::process::Stdio::null()).spawn().expect("starts");
    let pair = [start(), start()];
    for mut child in pair {
        assert!(child.wait().expect("it ends").success());
    }
    assert_eq!(notes_bytes(&file), 7 * 4);
    let failed = Command::new(program).arg("/nonexistent").output().expect("the program starts");
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).starts_with("gannet_attach: "), "{failed:?}");
}

fn notes_bytes(file: &VolumeFile) -> u64 {
    let volume = attach(file);
    let mut found = Stat::default();
    good!(gannet_stat, volume, c("journal/notes").as_ptr(), &mut found);
    found.size
}

#[test]
fn the_c_example_with_the_shared_library() {
    let directory = Directory::new("shared");
    let shared = library("libgannet.so");
    for name in ["libgannet.so", "libgannet.so.0"] {
        std::os::unix::fs::symlink(&shared, directory.file(name)).expect("a link");
    }
    let at = directory.0.display();
    compile(&source(), &directory.file("example"), &[format!("-L{at}"), "-lgannet".into(), format!("-Wl,-rpath,{at}")]);
    // It asks the loader for the name with the version.
    let needed = run(Command::new("readelf").arg("-d").arg(directory.file("example")));
    assert!(needed.contains("[libgannet.so.0]"), "{needed}");
    check_example(&directory.file("example"));
    check_under_valgrind(&directory.file("example"));
}

/// A user's program can be looked at: no error of memory, nothing lost. (Where valgrind is installed.)
fn check_under_valgrind(program: &Path) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    for copy_on_write in [false, true] {
        let file = make_volume(copy_on_write);
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--leak-check=full", "--error-exitcode=9"]);
        assert!(run(valgrind.arg(program).arg(file.path())).starts_with("archived 7 bytes\nrun 1\n"));
    }
}

#[test]
fn the_c_example_with_the_static_library() {
    let directory = Directory::new("static");
    let mut libraries = vec![library("libgannet.a").display().to_string()];
    libraries.extend(LIBS_PRIVATE.split(' ').map(String::from));
    compile(&source(), &directory.file("example"), &libraries);
    check_example(&directory.file("example"));
}

/// The shared library offers the functions of the header and nothing else.
#[test]
fn the_shared_library_exports_the_header() {
    let header = include_str!("../include/gannet.h");
    let names = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library("libgannet.so")));
    let exported: Vec<&str> = names.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(exported.len() >= 50, "{exported:?}");
    for name in exported {
        assert!(name.starts_with("gannet_") && header.contains(&format!("{name}(")), "{name}");
    }
}

#[test]
fn the_rust_example() {
    let program = std::env::current_exe().expect("this program");
    let built = program.parent().and_then(Path::parent).expect("a directory").join("examples/example");
    let file = make_volume(false);
    let runs = |number: u32| {
        let text = if built.exists() {
            run(Command::new(&built).arg(file.path()))
        } else {
            // Only these tests were built, not the examples.
            let build = ["run", "-q", "-p", "gannet-capi", "--example", "example", "--"];
            run(Command::new(env!("CARGO")).args(build).arg(file.path()))
        };
        assert_eq!(text, format!("journal/rust: {} bytes\n", 15 * number));
    };
    runs(1);
    runs(2);
}

/// `pkg-config` finds what a program needs, for either library.
#[test]
fn the_pkg_config_file() {
    let directory = Directory::new("pkg-config");
    let template = include_str!("../gannet.pc.in");
    let filled = [
        ("@prefix@", "/opt/gannet"),
        ("@libdir@", "/opt/gannet/lib"),
        ("@includedir@", "/opt/gannet/include"),
        ("@version@", env!("CARGO_PKG_VERSION")),
        ("@libs_private@", LIBS_PRIVATE),
    ]
    .into_iter()
    .fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
    assert!(!filled.contains('@'), "{filled}");
    std::fs::write(directory.file("gannet.pc"), filled).expect("written");
    let ask = |question: &[&str]| {
        let mut command = Command::new("pkg-config");
        run(command.env("PKG_CONFIG_PATH", &directory.0).args(question).arg("gannet")).trim().to_owned()
    };
    assert_eq!(ask(&["--cflags", "--libs"]), "-I/opt/gannet/include -L/opt/gannet/lib -lgannet");
    assert!(ask(&["--static", "--libs"]).contains("-lpthread"));
    assert_eq!(ask(&["--modversion"]), env!("CARGO_PKG_VERSION"));
}
