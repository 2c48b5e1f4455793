//! Set-id bits that fall with changes of content. The kernel leaves this to us (`HANDLE_KILLPRIV_V2`), and the file system cannot know
//! who calls.
//!
//! The kernel executes a file with the bits that it knows, and does not expect a change of content to change them. Before most changes it
//! asks for a change of no attribute, whose reply tells it the mode without them: then it knows before anything is stored. It does not ask
//! where it passes the page cache by, so files with such bits are not opened for writing like that. What had none when it was opened may be:
//! there, and where the bits were not dropped when it asked, the kernel is told to ask for the mode before it is answered.

use std::path::PathBuf;
use std::sync::LazyLock;

use gannet_vfs::{AttributeChange, FileType, ModeChange, NodeId, Permissions, Result};

use super::Dispatcher;
use super::callers::{PROC_IS_OURS, Setter, owner_setter};
use crate::protocol::request::Header;

pub(super) const SET_ID: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The user of a request that names none: where mounts may map owners, only those that make an inode do.
pub(super) const NOT_TOLD: u32 = u32::MAX;

/// What root may do unless it was taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Capability {
    /// Keep set-id bits.
    SetId = 4,
    /// See attributes that are the administrator's.
    Administer = 21,
}

/// Whether root calls, and has a capability, as far as that can be seen. What others have may be worth something in a user namespace of
/// theirs only: it does not count, and neither does what root has in one, whatever users that maps.
pub(super) fn is_capable(header: &Header, capability: Capability) -> bool {
    if header.user != 0 && header.user != NOT_TOLD {
        return false;
    }
    let status = status(header);
    (header.user == 0 || user_in(&status) == Some(0)) && !lacks(&status, capability) && !is_elsewhere(header.process)
}

/// Whether a thread is of another user namespace than this process, as far as that can be seen.
fn is_elsewhere(thread: u32) -> bool {
    static OURS: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::fs::read_link("/proc/self/ns/user").ok());
    let Some(ours) = OURS.as_ref().filter(|_| thread != 0 && *PROC_IS_OURS) else { return false };
    std::fs::read_link(format!("/proc/{thread}/ns/user")).is_ok_and(|theirs| theirs != *ours)
}

impl Dispatcher {
    /// What a change of content by a caller who is not privileged makes of the mode. Besides what the file system drops for
    /// anybody: set-group-id that no execution goes with stays for members of the group only.
    pub(super) fn mode_after_change(&self, header: &Header, now: &Permissions) -> ModeChange {
        let foreign = now.file_type != FileType::Directory
            && now.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID
            && !is_member(header, self.policy.group.unwrap_or(now.owner.group));
        if foreign { ModeChange::Set(now.mode & !SET_ID) } else { ModeChange::DropSetId }
    }

    /// Before a change by a request that does not say whether the bits go: root's changes leave them alone, if root may.
    pub(super) fn drop_set_id_for(&self, header: &Header, id: u64, node: NodeId, now: &Permissions) -> Result<()> {
        if now.mode & SET_ID == 0 || is_capable(header, Capability::SetId) {
            return Ok(());
        }
        self.drop_set_id(header, id, node, now)
    }

    /// Before a change that drops the bits of the inode that the kernel knows as `id`, but not by itself. The kernel has forgotten them
    /// when this returns.
    pub(super) fn drop_set_id(&self, header: &Header, id: u64, node: NodeId, now: &Permissions) -> Result<()> {
        if now.file_type != FileType::Regular || now.mode & SET_ID == 0 {
            return Ok(());
        }
        let change = AttributeChange { mode: self.mode_after_change(header, now), ..AttributeChange::default() };
        if self.file_system.set_attributes(node, &change)?.mode != now.mode {
            self.attributes_have_changed(id);
        }
        Ok(())
    }

    /// What a request to change no attribute makes of the mode: with it the kernel asks for the bits to fall, if its caller is not
    /// privileged, before content changes. A `chown` of neither user nor group looks the same, and nobody has checked who calls it. Who cannot
    /// be seen loses no file its bits by that where the change itself, which follows, makes them fall.
    pub(super) fn mode_before_change(&self, header: &Header, now: &Permissions) -> ModeChange {
        let may_follow = self.exclusive() || self.nodes.is_written(header.node);
        let falls = now.file_type == FileType::Regular
            && now.mode & SET_ID != 0
            && may_follow
            && match owner_setter(header) {
                Setter::Program => false,
                Setter::Kernel => true,
                Setter::Unknown => self.exclusive() && !is_capable(header, Capability::SetId),
            };
        if falls { self.mode_after_change(header, now) } else { ModeChange::Keep }
    }
}

/// Whether the caller belongs to a group. Requests name one at most; the others are asked for where it matters, which is almost never.
fn is_member(header: &Header, group: u32) -> bool {
    if header.user != NOT_TOLD && (header.group == group || header.process == 0) {
        return header.group == group;
    }
    header.process != 0 && listed(&status(header), group)
}

/// What the kernel says about the thread that calls; nothing if that cannot be had.
pub(super) fn status(header: &Header) -> String {
    if header.process == 0 || !*PROC_IS_OURS {
        return String::new();
    }
    // A program's name may be any bytes, of which the kernel escapes the ends of lines.
    let status = std::fs::read(format!("/proc/{}/status", header.process)).unwrap_or_default();
    String::from_utf8_lossy(&status).into_owned()
}

fn field<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().split_ascii_whitespace()
}

/// The user for files of the thread that calls, as it is in this process's user namespace; nothing if that cannot be seen. It cannot where the
/// thread is the kernel's: what serves others (`nfsd`) acts with their credentials, and is root's by its own.
pub(super) fn user_of(header: &Header) -> Option<u32> {
    let status = status(header);
    if is_program(&status) { user_in(&status) } else { None }
}

/// Whether a thread's `status` is one of a program's: that has memory, which kernels tell that do not say `Kthread:`.
fn is_program(status: &str) -> bool {
    field(status, "VmSize:").next().is_some() && field(status, "Kthread:").next() != Some("1")
}

/// The user for files in a thread's `status`: the last of its users.
fn user_in(status: &str) -> Option<u32> {
    field(status, "Uid:").nth(3)?.parse().ok()
}

/// Whether a thread's `status` says that a capability is not in effect.
fn lacks(status: &str, capability: Capability) -> bool {
    let effective = field(status, "CapEff:").next().and_then(|set| u64::from_str_radix(set, 16).ok());
    effective.is_some_and(|set| set & 1 << capability as u32 == 0)
}

/// Whether a thread's `status` lists a group, as that for files or as a further one.
fn listed(status: &str, group: u32) -> bool {
    let mut groups = field(status, "Gid:").skip(3).take(1).chain(field(status, "Groups:"));
    groups.any(|listed| listed.parse() == Ok(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_found_in_a_status() {
        let status = "Name:\tsh\nGid:\t7\t7\t7\t9\nGroups:\t4 24 1000 \nNStgid:\t5\n";
        assert!(listed(status, 4) && listed(status, 1000) && listed(status, 9));
        assert!(!listed(status, 7) && !listed(status, 100));
        assert_eq!(user_in("Name:\tsh\nUid:\t7\t7\t7\t0\n"), Some(0));
        assert_eq!((user_in("Uid:\t0\t0\t0\t7\n"), user_in("")), (Some(7), None));
        assert!(!listed("", 0));
        let effective = "CapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffef\n";
        assert!(lacks(effective, Capability::SetId) && !lacks(effective, Capability::Administer));
        assert!(!lacks("", Capability::SetId));
        assert!(!listed("Groups:\t \n", 0));
        assert!(is_program("Kthread:\t0\nVmPeak:\t 8 kB\nVmSize:\t 8 kB\n") && is_program("VmSize:\t 8 kB\n"));
        assert!(!is_program("Kthread:\t1\n") && !is_program("Name:\tnfsd\nUid:\t0\t0\t0\t0\n") && !is_program(""));
        assert!(!is_program("Kthread:\t1\nVmSize:\t 8 kB\n"));
    }

    #[test]
    fn a_program_is_seen_whatever_its_name() {
        let of_thread = || {
            let name = c"\xff\nUid:\t7\t7";
            rustix::thread::set_name(name).unwrap();
            let process = rustix::thread::gettid().as_raw_pid() as u32;
            let header = Header {
                length_bytes: 0,
                opcode: 0,
                unique: 1,
                node: 1,
                user: NOT_TOLD,
                group: NOT_TOLD,
                process,
                extension_bytes: 0,
            };
            (user_of(&header), status(&header))
        };
        let (user, status) = std::thread::spawn(of_thread).join().unwrap();
        assert_eq!(user, Some(rustix::process::geteuid().as_raw()));
        assert!(field(&status, "CapEff:").next().is_some());
    }
}
