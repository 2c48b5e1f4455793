//! Mounting with `fusermount3`, for those who are not root.
//!
//! The helper mounts and hands the descriptor of `/dev/fuse` back over a socket whose number it finds in its environment.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use super::{MountError, MountOptions};

const HELPER: &str = "fusermount3";

fn words(kind: &str, options: &MountOptions) -> String {
    let source = if options.source.is_empty() { kind } else { &options.source };
    // A comma or backslash in the name would be taken for the end of the word.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!("fsname={source},default_permissions");
    if !options.subtype().is_empty() {
        words.push_str(",subtype=");
        words.push_str(&options.subtype().replace('\\', "\\\\").replace(',', "\\,"));
    }
    for (wanted, word) in [
        (options.read_only, "ro"),
        (options.allow_other, "allow_other"),
        (options.no_access_time, "noatime"),
        (options.no_execute, "noexec"),
        (options.no_links, "nosymfollow"),
        (options.allow_set_user_id, "suid"),
        (options.allow_devices, "dev"),
    ] {
        if wanted {
            words.push(',');
            words.push_str(word);
        }
    }
    words
}

/// Mounts, and returns the descriptor of `/dev/fuse` behind the mount.
pub(super) fn mount(target: &Path, kind: &str, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |errno: Errno| MountError::Helper(errno.to_string());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(failed)?;
    let spawned = Command::new(HELPER)
        .arg("-o")
        .arg(words(kind, options))
        .arg("--")
        .arg(target)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(MountError::NoHelper),
        Err(error) => return Err(MountError::Helper(error.to_string())),
    };
    drop(theirs);
    let device = receive_descriptor(&ours);
    let mut complaint = String::new();
    if let Some(mut errors) = child.stderr.take() {
        let _ = errors.read_to_string(&mut complaint);
    }
    let status = child.wait().map_err(|error| MountError::Helper(error.to_string()))?;
    match device {
        Ok(Some(device)) if status.success() => Ok(device),
        Err(errno) => Err(failed(errno)),
        _ => Err(MountError::Helper(one_line(&complaint, "it failed without saying why"))),
    }
}

/// The last line of what the helper said, without its own name.
fn one_line(complaint: &str, otherwise: &str) -> String {
    let line = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(otherwise).trim();
    line.strip_prefix("fusermount3: ").unwrap_or(line).to_owned()
}

fn receive_descriptor(socket: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next());
        }
    }
    Ok(None)
}

/// Unmounts.
pub(super) fn unmount(target: &Path, lazily: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    let output = command.arg("--").arg(target).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            if complaint.contains("not found in") || complaint.contains("not mounted") {
                return Ok(());
            }
            if complaint.contains("busy") {
                return Err(MountError::Unmount(target.into(), Errno::BUSY));
            }
            Err(MountError::Helper(one_line(&complaint, "it failed without saying why")))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(MountError::NoHelper),
        Err(error) => Err(MountError::Helper(error.to_string())),
    }
}
