//! Programs under interception without a volume behave as without it.

mod common;

use common::{Volume, compile, have, intercepted, on_host, run, same};

#[test]
fn the_c_library_is_rewritten_completely() {
    let output = run(intercepted("true").env("GANNET_RUN_REPORT", "1"));
    let report = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = report.lines().filter(|line| line.contains("rewritten")).collect();
    assert!(lines.len() >= 2, "the C library and the loader: {report}");
    for line in lines {
        assert!(line.contains(" 0 left"), "{report}");
        let count: usize = line.split(": ").nth(2).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0);
        assert!(count >= 20, "{report}");
    }
}

#[test]
fn an_unwritable_cache_is_no_obstacle() {
    let mut command = intercepted("true");
    command.env("XDG_CACHE_HOME", "/proc/nonexistent").env("GANNET_RUN_REPORT", "1");
    let output = run(&mut command);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("new plan"));
}

#[test]
fn torture() {
    let (_directory, program) = compile("torture");
    let plain = run(&mut on_host(&program));
    assert!(plain.status.success(), "without interception: {}", String::from_utf8_lossy(&plain.stdout));
    let output = run(&mut intercepted(program.to_str().expect("UTF-8")));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert_eq!(text, String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn shells() {
    same(
        "bash",
        &[
            "-c",
            "for i in $(seq 50); do x=$(echo $i | cat); done; echo $x; (sleep 0.05 & wait); trap 'echo usr1' USR1; kill -USR1 $$; echo done; exit 5",
        ],
    );
    same(
        "sh",
        &["-c", "echo a | tr a b; ls / | sort | head -3; cat < /etc/passwd | wc -l; exec env -i sh -c 'exit 4'"],
    );
    same("bash", &["-c", "kill -9 $$"]);
    same("bash", &["-c", "exec 5</etc/passwd; read -u 5 x; exec 5<&-; echo $x; { echo to; } 2>&1 | cat"]);
}

#[test]
fn files_and_archives() {
    same("find", &["/usr/include/linux", "-name", "*.h", "-size", "+8k"]);
    same("tar", &["cf", "-", "-C", "/usr/include", "linux"]);
    same("sh", &["-c", "cd /etc && sha256sum passwd group && du -s /usr/include/linux && df / >/dev/null"]);
}

#[test]
fn python() {
    if !have("python3") {
        return;
    }
    same(
        "python3",
        &[
            "-c",
            "
import threading, subprocess, multiprocessing, os, signal, time, sqlite3
def square(x): return x * x
threads = [threading.Thread(target=lambda: [open('/etc/passwd').read() for _ in range(50)]) for _ in range(10)]
[t.start() for t in threads]; [t.join() for t in threads]
print(subprocess.check_output(['echo', 'hi'], env={}))
print(subprocess.check_output(['pwd'], cwd='/usr'))
with multiprocessing.get_context('fork').Pool(3) as pool: print(sum(pool.map(square, range(100))))
signal.signal(signal.SIGALRM, lambda *a: print('alarm')); signal.setitimer(signal.ITIMER_REAL, 0.02); time.sleep(0.1)
print(sqlite3.connect(':memory:').execute('select 1+1').fetchall())
pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 3'], {}); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
",
        ],
    );
}

#[test]
fn perl_with_threads() {
    if have("perl") {
        same(
            "perl",
            &[
                "-e",
                "use threads; my @t = map { threads->create(sub { open my $f, '<', '/etc/passwd'; my @l = <$f>; scalar @l }) } 1..5; print join(',', map { $_->join } @t), qq(\\n)",
            ],
        );
    }
}

#[test]
fn compilers() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("a.c"), "#include <stdio.h>\nint main(void) { puts(\"built\"); return 6; }\n")
        .expect("a.c");
    let script = format!("cd {} && cc -O2 a.c -o a && ./a", directory.path().display());
    let output = run(intercepted("sh").arg("-c").arg(script));
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"built\n");
}

#[test]
fn the_injection_survives_a_cleared_environment_and_is_not_seen_there() {
    let volume = Volume::new(16);
    volume.script("echo inside > f; env -i env -i /bin/cat /gannet/f", "inside");
    let (_directory, program) = compile("environment");
    let program = program.to_str().expect("UTF-8");
    let wanted = format!("found\n{program}");
    volume.script(&format!("env -i {program}"), &wanted);
    volume.script(&format!("env -i env -i A=B {program}"), &format!("A=B\n{wanted}"));
    // The kernel's copy of it is as the program before made it: what a `gannet run` below this one needs.
    volume.script("env -i sh -c 'grep -ca GANNET_RUN_VOLUMES= /proc/$$/environ; true'", "1");
    // The program's own list stays, and one that is a volume's works as well.
    let library = "/lib/x86_64-linux-gnu/libm.so.6";
    volume.script(&format!("env -i LD_PRELOAD={library} {program}"), &format!("LD_PRELOAD={library}\n{wanted}"));
    volume.script(
        &format!("cp {library} m.so; cp {program} p; env -i LD_PRELOAD=./m.so ./p"),
        "LD_PRELOAD=./m.so\nfound\n/gannet/p",
    );
    let count = "grep -c memfd:gannet-library /proc/self/maps";
    volume.script(
        &format!("LD_PRELOAD=/gannet/m.so sh -c '{count} > n; LD_PRELOAD= {count}'; [ $(cat n) -gt 0 ] && echo loaded"),
        "0\nloaded",
    );
}

#[test]
fn plans_are_found_with_a_cleared_environment() {
    let output = run(intercepted("env").args(["-i", "GANNET_RUN_REPORT=1", "true"]));
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(["cached plan", "new plan", "prepared copy"].iter().any(|source| report.contains(source)), "{report}");
    let again = run(intercepted("env").args(["-i", "GANNET_RUN_REPORT=1", "true"]));
    let report = String::from_utf8_lossy(&again.stderr);
    assert!(report.contains("prepared copy") && !report.contains("plan"), "{report}");
}

#[test]
fn backtraces_lead_from_a_waiting_thread_to_its_functions() {
    let (_directory, program) = compile("backtrace");
    let program = program.to_str().expect("UTF-8");
    let wanted = "read seen\npoll seen\nrecvmsg seen\nwaitid seen\n";
    // The library rewritten in memory, as without a cache, and mapped from its prepared copy.
    let mut without = intercepted(program);
    without.env("XDG_CACHE_HOME", "/proc/nonexistent");
    for command in [&mut without, &mut intercepted(program), &mut intercepted(program)] {
        let output = run(command);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
    }
}
