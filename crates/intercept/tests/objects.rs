//! System calls made by objects other than the C library and the loader.

mod common;

use common::{Volume, have};
use std::path::Path;
use std::process::Command;

/// Compiles a program of `tests/programs`; false if that cannot be done here.
fn build(compiler: &str, source: &str, arguments: &[&str], target: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let output = Command::new(compiler).arg("-o").arg(target).arg(source).args(arguments).output().expect(compiler);
    output.status.success()
}

#[test]
fn inline_instructions_of_programs_and_of_libraries_loaded_later() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    for (name, options) in [("pie", &["-O2", "-pie", "-fPIE"][..]), ("fixed", &["-O3", "-no-pie", "-fno-pie"])] {
        assert!(build("cc", "inline.c", &[options, &["-ldl"]].concat(), &at(name)));
    }
    for (name, identity) in [("known.so", "-Wl,--build-id"), ("unknown.so", "-Wl,--build-id=none")] {
        assert!(build("cc", "inline.c", &["-O2", "-DLIBRARY", "-shared", "-fPIC", identity], &at(name)));
    }
    let volume = Volume::new(64);
    let host = directory.path().display();
    for program in ["pie", "fixed"] {
        for library in ["known.so", "unknown.so"] {
            // Loaded more often than there is room for trampolines: what is unloaded makes room.
            volume.script(
                &format!("{host}/{program} /gannet/{program} {host}/{library} 600; cat {program}"),
                "program 0\nlibrary 0\ninline",
            );
        }
    }
    // Program and library in the volume.
    volume.script(
        &format!("cp {host}/pie p; cp {host}/known.so {host}/unknown.so .; ./p f ./known.so 2; ./p f ./unknown.so 2; rm p f *.so; ls"),
        "program 0\nlibrary 0\nprogram 0\nlibrary 0\nfixed\npie",
    );
}

#[test]
fn instructions_of_big_programs_are_found() {
    // The Rust tools' own binary, which the program by that name may only stand for.
    let toolchain = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let toolchain =
        toolchain.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    for (program, least) in [(format!("{toolchain}/bin/cargo"), 10), ("stress-ng".to_owned(), 1)] {
        if !have(&program) {
            continue;
        }
        let output = common::run(common::intercepted(&program).arg("--version").env("GANNET_RUN_REPORT", "1"));
        assert!(output.status.success());
        let report = String::from_utf8_lossy(&output.stderr);
        let line = report.lines().find(|line| line.contains("the program: ")).unwrap_or_default();
        let rewritten = line.rsplit(": ").next().and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        assert!(rewritten.is_some_and(|count| count >= least) && line.contains(" 0 left"), "{program}: {report}");
    }
}

#[test]
fn go() {
    if !have("go") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/walk.go");
    let volume = Volume::new(64);
    for (name, c_library, mode) in [("exe", "1", "exe"), ("pie", "1", "pie"), ("own", "0", "pie")] {
        let program = directory.path().join(name);
        let mut compile = Command::new("go");
        compile.args(["build", "-buildmode", mode, "-o"]).arg(&program).arg(&source);
        compile.env("CGO_ENABLED", c_library).env("GO111MODULE", "off").env("GOFLAGS", "");
        compile.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
        let output = compile.output().expect("go");
        if !output.status.success() {
            eprintln!("left out: go cannot build {name}: {}", String::from_utf8_lossy(&output.stderr));
            continue;
        }
        let place =
            if c_library == "1" { "/gannet/d".to_owned() } else { directory.path().join("d").display().to_string() };
        let output = common::run(volume.command(program.to_str().expect("UTF-8")).arg(&place));
        common::check(&output, name, "53\nx7\nx8 <nil>\nx9 <nil>\ntrue");
        // Threads that are not the C library's cannot be intercepted, and that is said.
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors.contains("will not see the volume"), c_library == "0", "{name}: {errors}");
    }
}

#[test]
fn io_uring_is_refused_so_that_programs_fall_back() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("ring");
    if !build("cc", "ring.c", &["-luring"], &program) {
        eprintln!("left out: liburing's headers are not installed");
        return;
    }
    let volume = Volume::new(64);
    volume.script(&format!("{} /gannet/f; cat f", program.display()), "ENOSYS, 8 bytes by pwrite\nfallback");
}

#[test]
fn programs_of_another_c_library_run_and_are_named() {
    if !have("musl-gcc") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("m.c"), "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 5; }\n").expect("m.c");
    let compiled = Command::new("musl-gcc").arg("-o").arg(at("m")).arg(at("m.c")).status();
    assert!(compiled.expect("musl-gcc").success());
    std::fs::write(at("script"), format!("#!{}\n", at("m").display())).expect("script");
    let volume = Volume::new(64);
    let host = directory.path().display();
    let script = format!(
        "chmod +x {host}/script; cp {host}/m own; for p in {host}/m {host}/script ./own; do env -i $p; echo $?; done; echo again > f; cat f"
    );
    let output = common::run(volume.command("bash").arg("-c").arg(format!("cd /gannet; {script}")));
    common::check(&output, &script, "ran\n5\nran\n5\nran\n5\nagain");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("uses the C library musl: this program will not see the volume").count(), 3, "{errors}");
}

#[test]
fn what_valgrind_interprets_is_left_alone_and_that_is_said() {
    if !have("valgrind") {
        return;
    }
    let volume = Volume::new(64);
    volume.script("echo inside > file", "");
    let script = "valgrind -q sh -c 'cat /gannet/file; echo outside'; cat /gannet/file";
    let output = common::run(volume.command_with_time("sh", 60).arg("-c").arg(script));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Its children run on the processor, and see the volume.
    assert_eq!(said, "inside\noutside\ninside\n", "{errors}");
    assert!(errors.contains("a program under valgrind will not see the volume"), "{errors}");
    let script = "cd /gannet; valgrind -q sh -c 'echo x > gannet-test-valgrind'; ls";
    let output = common::run(volume.command_with_time("bash", 60).arg("-c").arg(script));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!Path::new("/gannet-test-valgrind").exists() && errors.contains("irectory"), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "file\n");
}
