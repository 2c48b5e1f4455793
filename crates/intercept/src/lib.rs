//! A program's system calls become calls on a file system, inside the program.
//!
//! The injected library (`gannet-preload`) calls [`start`] before the program runs. That rewrites the `syscall` instructions
//! of the C library, the dynamic loader and every other object into jumps ([`plan`], [`patch`]); calls that may concern a volume reach
//! [`dispatch`] on a stack of our own ([`entry`], [`thread`]); the others go on to the kernel after a few instructions.
//!
//! | room | purpose |
//! | --- | --- |
//! | `table` | what happens to each system call; data |
//! | `plan`, `patch` | find and rewrite `syscall` instructions |
//! | `prepared` | the C library's text, rewritten, in a file that is mapped |
//! | `objects` | which objects are rewritten, and when |
//! | `entry`, `thread`, `signal`, `process`, `exec`, `lock` | the machinery around an operation |
//! | `front` | descriptors and paths of volumes |
//! | `raw`, `interruptible` | calls of the kernel's |
//! | `environment`, `start`, `load_order`, `library` | how a process learns what it is part of, and where the library is and stands in it |
//!
//! Invariants: code that runs inside an operation makes system calls only through [`raw`] and [`interruptible`] (or with instructions of its own) and
//! never uses the program's allocator or locks; nothing is thread-local but the block in [`entry`].

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod dispatch;
mod entry;
mod environment;
mod exec;
mod front;
mod interruptible;
mod launch;
mod library;
mod load_order;
mod lock;
mod memory;
mod number;
mod objects;
mod pass_on;
mod patch;
mod plan;
mod prepared;
mod process;
mod raw;
mod signal;
mod start;
mod table;
mod thread;

pub use front::ends::set_thread_exit_hook;
pub use launch::{LaunchOptions, MountedAt, die_as, exit_code, find_library, launch, replace};
pub use library::can_be_preloaded;
pub use load_order::c_library_function;
pub use lock::Lock;
pub use process::set_fork_hook;
pub use start::{NotOpened, OpenVolume, start};
pub use table::markdown as system_call_table;
