//! Mounts an empty file system in memory and serves it until it is unmounted.
//!
//! `mount_memfs DIRECTORY [OPTION,…]`, with the options of `mount -o`, and `size=MIB` for the space.

use std::process::ExitCode;
use std::sync::Arc;

use gannet_fuse::MountOptions;
use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::Owner;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mount_memfs: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().ok_or("usage: mount_memfs DIRECTORY [OPTION,…]")?;
    let mut options = MountOptions::default();
    let mut limits = Limits { data_bytes: 4 << 30, inodes: 1 << 20 };
    for word in arguments.next().unwrap_or_default().split(',') {
        match word.strip_prefix("size=") {
            Some(mebibytes) => {
                limits.data_bytes = mebibytes.parse::<u64>().map_err(|_| format!("{word}: a number is needed"))? << 20;
            }
            None => options.parse(word)?,
        }
    }
    let owner = Owner { user: rustix::process::getuid().as_raw(), group: rustix::process::getgid().as_raw() };
    let file_system = MemoryFs::new(limits, 0o755, owner).map_err(|error| error.to_string())?;
    let mounted =
        gannet_fuse::serve(Arc::new(file_system), target.as_ref(), &options).map_err(|error| error.to_string())?;
    for notice in mounted.notices() {
        eprintln!("mount_memfs: {notice}");
    }
    println!("mounted on {} ({:?})", mounted.target().display(), mounted.transport());
    mounted.wait();
    Ok(())
}
