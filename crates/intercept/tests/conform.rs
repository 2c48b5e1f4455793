//! Every kind of call on files, told line by line by `conform.c`, in a volume and on tmpfs: the lines are the same but for those
//! argued here.

mod common;

use common::{Volume, compile, is_root_who_can, run};
use std::process::Command;

/// Lines that begin so may differ, and why.
const ARGUED: &[(&str, &str)] = &[
    ("bytes: fallocate mode", "tmpfs has fewer modes; those that volumes have are tested elsewhere"),
    (
        "bytes: fallocate(file, FALLOC_FL_KEEP_SIZE",
        "the limit of sizes is for sizes, as on the disk's file systems; tmpfs heeds it here, too",
    ),
    ("bytes: fcntl(f, F_GET_SEALS)", "seals are a property of memory files; on others the kernel says EINVAL, as here"),
    ("bytes: fcntl(f, F_ADD_SEALS", "likewise"),
    ("bytes: ftruncate(file, LONG_MAX)", "the largest file of a volume is smaller than tmpfs's"),
    ("bytes: preadv2(file, &v, 1, 0, RWF_NOWAIT)", "tmpfs refuses it; nothing waits here"),
    ("bytes: pwritev2(file, &w, 1, 0, RWF_NOWAIT)", "likewise"),
    (
        "pointers: S(pwrite64, file, whole",
        "a buffer that ends too early: fewer bytes are written before the fault, or none",
    ),
    ("pointers:   file: ", "likewise"),
    ("pointers: S(pread64, big, whole", "likewise EFAULT instead of fewer bytes"),
    ("pointers: S(pwrite64, big, whole", "likewise"),
    ("pointers: S(mount", "refused before its strings are looked at"),
    ("attributes: utimensat -9999999999", "times reach from 1677 to 2262"),
    ("attributes: utimensat 9223372036854775807", "likewise"),
    ("attributes: utimensat -9223372036854775808", "likewise"),
    ("attributes: utimensat 253402300800", "likewise"),
    ("directories: stat(\"..\"", "a removed directory has no parent"),
    ("others: inotify_add_watch(watch, \"file\"", "no notifications"),
    ("others: fanotify_mark", "likewise"),
    ("others: mount(", "nothing can be mounted in a volume; in the order the kernel looks at its arguments"),
    ("others: S(acct", "refused whatever it is"),
    ("others: S(swapoff", "the kernel looks for the path, which it does not know"),
    ("others: S(finit_module", "refused where this kernel has no modules"),
    ("others: S(fspick", "refused whatever the flags"),
    ("others: S(move_mount", "refused after the kernel has looked at its arguments"),
    ("others: S(execveat, AT_FDCWD, \"file\", 0, 0, 0x40)", "unknown flags are seen behind the file"),
    ("others: sendto(sender", "no datagrams to addresses in a volume"),
    ("others: recv(datagram", "likewise"),
    ("others: sendmsg(sender", "likewise"),
    ("others: the socket's name", "the kernel's socket lies elsewhere"),
    ("others: the peer's name", "likewise"),
    ("others: the same inode", "the kernel's pipe lies elsewhere"),
    ("others: fifo: type", "likewise"),
    ("others: open(\"null\"", "a volume is nodev"),
    ("others: S(io_submit, context, 1, list)", "a wrong position is told by the event"),
];

#[test]
fn calls_answer_as_the_kernels_do() {
    let (directory, program) = compile("conform");
    let host = tempfile::Builder::new().prefix("gannet-conform-").tempdir_in("/dev/shm").expect("/dev/shm");
    if !is_root_who_can("compare what root may do") {
        return;
    }
    let plain = run(Command::new("timeout").arg("600").arg(&program).arg(host.path()));
    let volume = Volume::new(64);
    volume.script("mkdir /gannet/work", "");
    let ours = run(volume.command(program.to_str().expect("UTF-8")).arg("/gannet/work"));
    drop(directory);
    let lines = |output: &std::process::Output| -> Vec<String> {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter(|line| !ARGUED.iter().any(|(argued, _)| line.starts_with(argued)))
            .map(str::to_owned)
            .collect()
    };
    let (plain_lines, our_lines) = (lines(&plain), lines(&ours));
    assert_eq!(plain_lines.last().map(String::as_str), Some("others: done"), "{:?}", plain.status);
    assert!(plain_lines.len() > 4000);
    let different: Vec<String> = plain_lines
        .iter()
        .zip(&our_lines)
        .filter(|(plain, ours)| plain != ours)
        .take(40)
        .map(|(plain, ours)| format!("kernel: {plain}\nvolume: {ours}\n"))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(plain_lines.len(), our_lines.len(), "{:?}: {:?}", ours.status, our_lines.last());
}
