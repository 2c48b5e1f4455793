//! A program's handler of faults that was there before ours is called as the kernel would call it. The processes that try it are children.

use gannet_usermem::{Source, UserSlice, install_fault_handler};
use libc::{SA_NODEFER, SA_RESETHAND, SA_SIGINFO, SIGSEGV, SIGUSR1, SIGUSR2};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

/// Where the handler tells what it finds.
static TOLD: AtomicI32 = AtomicI32::new(-1);
static CALLS: AtomicI32 = AtomicI32::new(0);
const CALLS_MAX: i32 = 3;

extern "C" fn on_fault(_signal: c_int, _information: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: only calls that a handler may make, with places of its own.
    unsafe {
        let mut blocked = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, null(), &mut blocked);
        let has = |signal| libc::sigismember(&blocked, signal) as u8;
        let byte = has(SIGSEGV) | has(SIGUSR1) << 1 | has(SIGUSR2) << 2;
        libc::write(TOLD.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        if CALLS.fetch_add(1, Ordering::Relaxed) + 1 == CALLS_MAX {
            libc::_exit(9);
        }
    }
}

/// A child with this handler, whose mask has SIGUSR1, and SIGUSR2 blocked already, that loads from nowhere, ours installed behind the program's
/// or not: what the handler told at each call, and how the child ended.
fn faults(flags: c_int, ours: bool, sent: bool) -> (Vec<u8>, c_int) {
    let mut pipe = [0; 2];
    // SAFETY: places of our own; the child makes system calls only, and ends here.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            TOLD.store(pipe[1], Ordering::Relaxed);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = flags;
            libc::sigaddset(&mut action.sa_mask, SIGUSR1);
            libc::sigaction(SIGSEGV, &action, null_mut());
            let mut blocked = std::mem::zeroed();
            libc::sigaddset(&mut blocked, SIGUSR2);
            libc::sigprocmask(libc::SIG_BLOCK, &blocked, null_mut());
            if ours {
                let copies = || {
                    let mut source = Source::from_user(UserSlice::new(4096, 10));
                    source.read_into(&mut [0; 10]).is_err()
                };
                // Copies of ours are none of the handler's business.
                if install_fault_handler().is_err() || !copies() {
                    libc::_exit(8);
                }
            }
            if sent {
                libc::raise(SIGSEGV);
                libc::raise(SIGSEGV);
            } else {
                std::ptr::without_provenance::<u8>(8).read_volatile();
            }
            libc::_exit(7);
        }
        libc::close(pipe[1]);
        let mut told = vec![0; 10];
        let mut count = 0;
        while let read @ 1.. = libc::read(pipe[0], told[count..].as_mut_ptr().cast(), 1) {
            count += read as usize;
        }
        told.truncate(count);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::close(pipe[0]);
        (told, status)
    }
}

#[test]
fn an_earlier_handler_is_called_as_the_kernel_would() {
    for flags in [0, SA_RESETHAND, SA_NODEFER, SA_RESETHAND | SA_NODEFER] {
        for sent in [false, true] {
            let flags = flags | SA_SIGINFO;
            let (told, status) = faults(flags, false, sent);
            assert!(!told.is_empty() && told[0] & 0b110 == 0b110, "{told:?}");
            assert_eq!(faults(flags, true, sent), (told, status), "flags {flags:#x}, sent {sent}");
        }
    }
}
