//! What programs of a tree pay for starting others, counted: times depend on what else the machine does.

use crate::common::{Volume, compile, have};

/// `posix_spawn` asks for each signal and sets it, in a child that shares its parent's memory: two calls for each of ours, not eight.
#[test]
fn a_spawned_childs_calls_for_signals_are_not_accompanied() {
    if !have("strace") || !have("python3") {
        return;
    }
    Volume::new(64).script(
        "strace -f -o s -e trace=prctl,getppid,rt_sigaction python3 -c \"import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\" || { echo 'cannot trace'; exit; }
        [ $(grep -c 'prctl\\|getppid' s) -lt 250 ] && echo few || grep -c 'prctl\\|getppid' s",
        "few",
    );
}

/// What programs set before, and what a child that shares their memory sets, which is its own.
#[test]
fn signals_of_a_child_that_shares_its_parents_memory() {
    let (_directory, program) = compile("spawned");
    Volume::new(64).script(&program.display().to_string(), "ok");
}

/// The kernel maps 64 KiB of a library around each place that is touched first: what programs do first in a volume is to lie together
/// (`start.ld`). As built for release, since that is what it is laid out for.
#[test]
fn few_pieces_of_the_librarys_text_are_touched_by_a_short_program() {
    const KIB_MAX: u64 = 1536;
    if cfg!(debug_assertions) || !have("awk") {
        return;
    }
    let script = "echo one > a; mkdir d; cd d; exec awk 'BEGIN { getline < \"../a\"; print > \"b\"; close(\"b\"); while (getline < \"/proc/self/smaps\") {
        if ($2 ~ /^r.xp$/) { ours = /libgannet_preload/ } else if ($2 ~ /^....$/ && $1 ~ /-/) { ours = 0 } if (ours && $1 == \"Rss:\") { sum += $2 } } print sum }'";
    let volume = Volume::new(64);
    let output = crate::common::run(volume.command("sh").arg("-c").arg(format!("cd /gannet; {script}")));
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let found: u64 = said.parse().unwrap_or_else(|_| panic!("{output:?}"));
    assert!((1..=KIB_MAX).contains(&found), "{found} KiB of text, in pieces of 64");
}
