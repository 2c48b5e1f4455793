//! A volume's file that is not where it was when a program begins.

use super::{Place, gannet, text};

/// `cat` of a file in a volume that is gone says EIO, one line names the volume, and it ends.
#[test]
fn a_program_that_does_not_find_its_volume_says_so_and_ends() {
    let place = Place::new();
    let volume = place.volume("volume");
    for (away, back) in [
        (format!("mv {volume} {volume}.moved"), format!("mv {volume}.moved {volume}")),
        // A link that leads nowhere is looked at again to say so.
        (format!("mv {volume} {volume}.moved; ln -s {volume}.nowhere {volume}"), format!("mv {volume}.moved {volume}")),
    ] {
        let script =
            format!("echo here > /gannet/file; {away}; timeout 60 cat /gannet/file; echo $?; {back}; cat /gannet/file");
        let output = gannet().args(["run", &volume, "--", "sh", "-c", &script]).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "1\nhere"), "{output:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains("Input/output error") && errors.contains(&volume), "{errors}");
        assert_eq!(errors.lines().count(), 2, "{errors}");
    }
}
