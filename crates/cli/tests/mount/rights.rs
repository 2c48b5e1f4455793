//! Who may what on a mount, after others have changed it: access lists and permission bits.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Bench, with_transports};

/// Makes the calling thread an ordinary user's.
fn be_nobody() {
    const NOBODY: libc::c_long = 65_534;
    // SAFETY: these calls change the rights of the calling thread alone, and take no memory.
    let changed = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, 0, 0),
            libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY),
            libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY),
        ]
    };
    assert_eq!(changed, [0; 3]);
}

/// Whether an ordinary user may read a file, and write to it.
fn nobody_may(path: &Path) -> (bool, bool) {
    let tries = || {
        be_nobody();
        (File::open(path).is_ok(), File::options().write(true).open(path).is_ok())
    };
    std::thread::scope(|scope| scope.spawn(tries).join().unwrap())
}

/// An access list with one named user.
fn list(named: (u32, u16), owner: u16, mask: u16, other: u16) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let entries = [(1, owner, !0), (2, named.1, named.0), (4, 4, !0), (0x10, mask, !0), (0x20, other, !0)];
    for (tag, permissions, id) in entries {
        value.extend(u16::to_le_bytes(tag));
        value.extend(u16::to_le_bytes(permissions));
        value.extend(u32::to_le_bytes(id));
    }
    value
}

fn set_list(path: &Path, value: &[u8]) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "system.posix_acl_access", value, flags).unwrap();
}

fn list_of(path: &Path) -> Vec<u8> {
    let mut value = [0; 200];
    let length_bytes = rustix::fs::getxattr(path, "system.posix_acl_access", &mut value).unwrap();
    value[..length_bytes].to_vec()
}

/// The permission bits are the truth, whoever changed them, and whether the mount remembers or not.
#[test]
fn lists_follow_the_bits_that_others_change() {
    with_transports(|transport| {
        for cache in ["automatic", "coherent"] {
            let bench = Bench::new();
            let options = format!("transport={transport},cache={cache},allow_other");
            let server = bench.mount(&options);
            fs::set_permissions(bench.at(), fs::Permissions::from_mode(0o755)).unwrap();
            let [read, written] = ["read", "written"].map(|name| bench.on(name));
            for path in [&read, &written] {
                fs::write(path, "secret").unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
            }
            set_list(&read, &list((1, 4), 6, 4, 4));
            set_list(&written, &list((65_534, 6), 6, 6, 4));
            assert_eq!([nobody_may(&read), nobody_may(&written)], [(true, false), (true, true)]);
            // By one who comes and goes.
            bench.run("chmod 640 /gannet/read; chmod 640 /gannet/written");
            assert_eq!([nobody_may(&read), nobody_may(&written)], [(false, false), (true, false)]);
            assert_eq!(list_of(&read), list((1, 4), 6, 4, 0));
            assert_eq!(list_of(&written), list((65_534, 6), 6, 4, 0));
            // By one who stays, while somebody asks all the time.
            let mut shell = bench.shell();
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    be_nobody();
                    while !ended.load(Ordering::Relaxed) {
                        let _ = File::open(&read);
                    }
                });
                for round in 0..100 {
                    shell.does("chmod 644 /gannet/read; chmod 660 /gannet/written");
                    assert_eq!([nobody_may(&read), nobody_may(&written)], [(true, false), (true, true)], "{round}");
                    shell.does("chmod 640 /gannet/read; chmod 600 /gannet/written");
                    assert_eq!([nobody_may(&read), nobody_may(&written)], [(false, false); 2], "{round}");
                }
                ended.store(true, Ordering::Relaxed);
            });
            shell.end();
            // The mount's own `chmod` does the same, and what is stored counts as little after it.
            fs::set_permissions(&written, fs::Permissions::from_mode(0o646)).unwrap();
            assert_eq!((nobody_may(&written), list_of(&written)), ((true, false), list((65_534, 6), 6, 4, 6)));
            server.end();
            let server = bench.mount(&options);
            assert_eq!([nobody_may(&read), nobody_may(&written)], [(false, false), (true, false)]);
            assert_eq!(list_of(&read), list((1, 4), 6, 4, 0));
            assert_eq!(fs::metadata(&written).unwrap().mode() & 0o777, 0o646);
            server.end();
            bench.check();
        }
    });
}
