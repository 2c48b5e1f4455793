//! On a terminal: the user's shell in the volume with its job control, and the command as a job of another shell.

use super::{Place, text};
use std::process::{Command, Stdio};

/// Plays a conversation on a pseudo-terminal. Each line of it: what is typed, then what must show before the next is.
const CONVERSATION: &str = r#"
import os, pty, select, sys, time
steps, command = eval(sys.argv[1]), sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.environ.update(TERM='dumb', PS1='prompt> ', PS2='', HISTFILE='', LC_ALL='C')
    os.execvp(command[0], command)
seen, told, deadline = b'', b'', time.monotonic() + 500
def give_up(*why):
    # With all that was started on the terminal, whatever job it is.
    for process in os.listdir('/proc'):
        try:
            if process.isdigit() and os.getsid(int(process)) == child: os.kill(int(process), 9)
        except OSError: pass
    print(*why); sys.exit(1)
def until(wanted):
    global seen, told
    while wanted not in seen:
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            give_up('waited for', wanted, 'and saw', told)
        try: more = os.read(terminal, 4096)
        except OSError: more = b''
        if not more:
            give_up('the end came before', wanted, 'after', told)
        seen += more; told += more
    seen = seen[seen.index(wanted) + len(wanted):]
for typed, wanted in steps:
    os.write(terminal, typed); until(wanted)
try:
    while os.read(terminal, 4096): pass
except OSError: pass
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print('ended with', status)
"#;

/// Plays it; the command must then end with `code`.
#[track_caller]
fn converses(steps: &str, command: &[&str], shell: &str, code: i32) {
    super::build_library();
    let mut python = Command::new("timeout");
    python.args(["-s", "KILL", "600", "python3", "-c", CONVERSATION, steps]).args(command);
    let output = python.env("SHELL", shell).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&output.stdout), format!("ended with {code}"), "{output:?}");
}

const GANNET: &str = env!("CARGO_BIN_EXE_gannet");

/// A program that says when it runs, and when it has been gone on with: what the terminal does before that would miss it.
/// It starts nothing: a child of vfork that the terminal stops leaves its parent waiting, on any Linux.
const JOB: &str = r#"sh -c "trap \\"echo goes on\\" CONT; echo begun; while :; do :; done""#;

#[test]
fn the_users_shell_starts_in_the_volume() {
    let place = Place::new();
    let volume = place.volume("volume");
    // Without a terminal it reads commands.
    let mut shell = super::gannet();
    shell.args(["run", &volume]).env("SHELL", "/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    std::io::Write::write_all(shell.stdin.as_mut().unwrap(), b"pwd; echo x > f; ls; exit 6\n").unwrap();
    let output = shell.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(6), "/gannet\nf"), "{output:?}");
    // On one it has jobs: stopped, in the foreground, in the background, interrupted.
    let bash = format!(
        r#"[(b'', b'prompt> '), (b'pwd\n', b'\n/gannet'), (b'{JOB}\n', b'\nbegun'), (b'\x1a', b'Stopped'), (b'', b'prompt> '),
        (b'echo also > f; jobs\n', b'Stopped'), (b'', b'prompt> '), (b'fg\n', b'goes on\r\n'), (b'\x1a', b'Stopped'), (b'', b'prompt> '),
        (b'bg\n', b'goes on\r\n'), (b'kill -INT %1; wait %1; echo it was $?\n', b'it was 130'), (b'', b'prompt> '),
        (b'sh -c "echo ready; exec cat"\n', b'\nready'), (b'typed\n', b'typed\r\ntyped'), (b'\x04', b'prompt> '),
        (b'tty -s && echo a terminal\n', b'\na terminal'), (b'cat f\n', b'\nalso'), (b'exit 5\n', b'')]"#
    );
    let profile = place.path("bashrc");
    std::fs::write(&profile, "PS1='prompt> '\n").unwrap();
    let shell = place.path("shell");
    make_program(&shell, &format!("#!/bin/sh\nexec /bin/bash --noprofile --rcfile {} -i\n", profile.display()));
    converses(&bash, &[GANNET, "run", &volume], shell.to_str().unwrap(), 5);
}

#[test]
fn the_command_is_a_job_of_another_shell() {
    let place = Place::new();
    let volume = place.volume("volume");
    let profile = place.path("bashrc");
    std::fs::write(&profile, "PS1='prompt> '\n").unwrap();
    // Stopped with its program, gone on with, interrupted: the shell sees the program's end.
    let steps = format!(
        r#"[(b'', b'prompt> '), (b'{GANNET} run {volume} -- {JOB}\n', b'\nbegun'), (b'\x1a', b'Stopped'), (b'', b'prompt> '),
        (b'jobs -l\n', b'Stopped'), (b'', b'prompt> '), (b'fg\n', b'goes on\r\n'), (b'\x03', b'prompt> '), (b'echo it was $?\n', b'it was 130'),
        (b'for i in 1 2 3; do {GANNET} run {volume} -- sh -c "echo in it; exec sleep 1000"; done; echo after\n', b'\nin it'),
        (b'\x03', b'prompt> '), (b'{GANNET} run {volume} -- sh -c "trap : INT; echo traps; read x; echo read \\$x; exit 3"\n', b'\ntraps'),
        (b'word\n', b'\nread word'), (b'echo it was $?\n', b'it was 3'), (b'{GANNET} run {volume} -- sleep 1000 &\n', b'prompt> '),
        (b'kill %1; wait %1; echo it was $?\n', b'it was 143'), (b'exit 7\n', b'')]"#
    );
    let bash = ["/bin/bash", "--noprofile", "--rcfile", profile.to_str().unwrap(), "-i"];
    converses(&steps, &bash, "/bin/sh", 7);
}

/// Makes a script, by a process of its own: what another test starts meanwhile would have this one's descriptor for a moment, and the
/// script be busy.
fn make_program(path: &std::path::Path, text: &str) {
    let written = path.with_extension("text");
    std::fs::write(&written, text).unwrap();
    assert!(Command::new("install").args(["-m", "755"]).arg(&written).arg(path).status().unwrap().success());
}
