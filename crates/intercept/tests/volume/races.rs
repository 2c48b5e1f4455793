//! Threads of one process that do at once what must not disturb each other.

use crate::common::{Volume, check, compile, on_host, run};

#[test]
fn a_map_made_anew_is_not_put_over_what_another_thread_got_at_its_address() {
    races("places", "", "wrong: 0");
}

#[test]
fn maps_show_what_other_threads_change_while_they_are_made() {
    races("agree", "", "pages that differ: 0, signals without reason: 0");
}

#[test]
fn what_is_stored_where_another_process_made_a_file_longer_is_not_lost() {
    races("grown", "", "lost: 0");
}

#[test]
fn memory_at_the_address_of_a_map_that_was_just_taken_away_is_not_taken_for_it() {
    races("lent", "", "failed: 0, wrong: 0, the file is as it was");
}

#[test]
fn a_number_that_is_given_another_file_is_never_nothing_to_other_threads() {
    races("swap", "3", "wrong: 0, records lost: 0");
}

#[test]
fn the_working_directory_is_one_that_a_thread_moved_to() {
    races("wander", "used", "wrong: 0, left: 0");
}

#[test]
fn directories_that_threads_left_are_gone_once_they_are_removed() {
    // Others make files on the host meanwhile.
    in_a_volume("wander", "removed", "wrong: 0, left: 0");
}

#[test]
fn threads_take_the_numbers_of_descriptors_that_are_ours() {
    races("numbers", "", "bad rounds: 0");
}

#[test]
fn threads_take_numbers_that_a_fork_uses() {
    races("displaced", "", "failed: 0");
}

#[test]
fn what_a_thread_receives_while_another_closes_it_stays_open() {
    races("sent", "", "done");
}

#[test]
fn children_that_share_memory_are_killed_in_the_midst_of_calls() {
    let (_directory, program) = compile("reaped");
    let kills = if is_long() { "5000" } else { "100" };
    for threads in ["0", "1"] {
        Volume::new(64).script(&format!("{} 1 {kills} {threads}", program.display()), "ok");
        let host = tempfile::Builder::new().prefix("gannet-races-").tempdir_in("/dev/shm").expect("/dev/shm");
        check(&run(on_host(&program).args(["1", kills, threads]).current_dir(host.path())), "on the host", "ok");
    }
}

fn is_long() -> bool {
    std::env::var_os("GANNET_LONG").is_some()
}

/// Runs a program for seconds in a volume.
#[track_caller]
fn in_a_volume(name: &str, argument: &str, wanted: &str) -> (tempfile::TempDir, std::process::Command) {
    let (directory, program) = compile(name);
    let seconds = if is_long() { "60" } else { "2" };
    let arguments: Vec<_> = [seconds, argument].into_iter().filter(|argument| !argument.is_empty()).collect();
    Volume::new(64).script(&format!("{} {}", program.display(), arguments.join(" ")), wanted);
    let mut command = on_host(&program);
    command.args(arguments);
    (directory, command)
}

/// Likewise, and on tmpfs.
#[track_caller]
fn races(name: &str, argument: &str, wanted: &str) {
    let (_directory, mut command) = in_a_volume(name, argument, wanted);
    let host = tempfile::Builder::new().prefix("gannet-races-").tempdir_in("/dev/shm").expect("/dev/shm");
    check(&run(command.current_dir(host.path())), "on the host", wanted);
}
