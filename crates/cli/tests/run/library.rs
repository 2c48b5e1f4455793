//! The library that is injected: where its path is more than that to the loader, and where it goes while programs run.

use crate::{Place, gannet, text};
use std::path::{Path, PathBuf};
use std::process::Output;

/// A copy of the library in a directory of that name.
fn copy(place: &Place, name: &str) -> PathBuf {
    crate::build_library();
    let built = Path::new(env!("CARGO_BIN_EXE_gannet")).parent().unwrap().join("libgannet_preload.so");
    std::fs::create_dir_all(place.path(name)).unwrap();
    let copy = place.path(name).join("library.so");
    std::fs::copy(built, &copy).unwrap();
    copy
}

/// Runs a script with the library at this path, from the directory of the volumes.
fn script(place: &Place, library: impl AsRef<Path>, volume: &str, script: &str) -> Output {
    let mut command = gannet();
    command.args(["run", volume, "--", "sh", "-c", script]).env("GANNET_LIBRARY", library.as_ref());
    command.current_dir(place.directory.path()).output().unwrap()
}

#[test]
fn a_path_that_the_loader_takes_apart_is_refused() {
    let place = Place::new();
    let volume = place.volume("volume");
    for name in ["with space", "with:colon", "with$LIB"] {
        let output = script(&place, copy(&place, name), &volume, "echo runs");
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{name}: {output:?}");
        assert!(said.lines().count() == 1 && said.contains("cannot preload") && said.contains(name), "{said}");
    }
    // By another name it is as good as any.
    let link = place.path("link.so");
    std::os::unix::fs::symlink(place.path("with space").join("library.so"), &link).unwrap();
    let output = script(&place, link, &volume, "echo kept > /gannet/f; exec cat /gannet/f");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "kept"), "{output:?}");
}

#[test]
fn a_relative_path_is_that_of_the_directory_where_the_command_starts() {
    let place = Place::new();
    let volume = place.volume("volume");
    copy(&place, "beside");
    std::fs::rename(place.path("beside/library.so"), place.path("library.so")).unwrap();
    for library in ["library.so", "./library.so", "beside/../library.so"] {
        let output = script(&place, library, &volume, "cd /; sh -c 'echo found > /gannet/f'; exec cat /gannet/f");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "found"), "{library}: {output:?}");
        assert!(output.stderr.is_empty(), "{library}: {output:?}");
    }
}

#[test]
fn nothing_is_started_without_the_library() {
    let place = Place::new();
    let library = copy(&place, "gone");
    // Where the host has a directory, too: what is meant for the volume is not to go there.
    let inside = place.path("inside");
    std::fs::create_dir(&inside).unwrap();
    let volume = format!("{}:{}", place.volume("volume"), inside.display());
    let output = script(
        &place,
        &library,
        &volume,
        "cd inside; echo before > f; mv ../gone ../moved; touch g; echo $?; echo after >> f; mv ../moved ../back; (exec cat f); echo $?
         mkdir ../gone; cd /; exec 2>&1; sh -c 'echo lost > inside/h'; echo $?",
    );
    // The second `mv` is not started any more either.
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.starts_with("126\n126\n") && out.ends_with("\n126"), "{output:?}");
    assert!(err.contains(&format!("gannet: {}: the injected library is not there", library.display())), "{err}");
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 0, "nothing is on the host");
    std::fs::rename(place.path("moved"), place.path("gone")).unwrap();
    let output = script(&place, &library, &volume, "cat inside/f; ls inside");
    assert_eq!(text(&output.stdout), "before\nafter\nf", "{output:?}");
}

/// A server that gives up its rights goes on with helpers that do not see the volume, and are said not to.
#[test]
fn a_user_who_may_not_read_the_library_starts_programs_that_do_not_see_the_volume() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let place = Place::new();
    let library = copy(&place, "private");
    std::fs::set_permissions(place.path("private"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let drop = "import os; os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)";
    let helper = "os.execv('/bin/sh', ['sh', '-c', 'echo runs; ls /gannet; echo \\$?'])";
    let output = script(&place, &library, &place.volume("volume"), &format!("python3 -c \"{drop}; {helper}\""));
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "runs\n2", "{output:?}");
    assert!(said.contains("runs as a user who may not read the injected library: this program will not see"), "{said}");
}
