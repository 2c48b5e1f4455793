//! Set-id bits that fall with changes of content. The kernel leaves this to us (`HANDLE_KILLPRIV_V2`), and the file system cannot know
//! who calls.

use gannet_vfs::{AttributeChange, FileType, ModeChange, NodeId, Permissions, Result};

use super::Dispatcher;
use crate::protocol::request::Header;

const SET_ID: u32 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Whether a caller's changes leave set-id bits alone, of requests that do not say so: root's do. That root may lack the
/// capability for it (CAP_FSETID) cannot be seen.
pub(super) fn keeps_set_id(header: &Header) -> bool {
    header.user == 0
}

impl Dispatcher {
    /// What a change of content by a caller who is not privileged makes of the mode. Besides what the file system drops for
    /// anybody: set-group-id that no execution goes with stays for members of the group only.
    pub(super) fn mode_after_change(&self, header: &Header, now: &Permissions) -> ModeChange {
        let foreign = now.file_type == FileType::Regular
            && now.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID
            && !is_member(header, self.policy.group.unwrap_or(now.owner.group));
        if foreign { ModeChange::Set(now.mode & !SET_ID) } else { ModeChange::DropSetId }
    }

    /// Before such a change that does not drop the bits by itself.
    pub(super) fn drop_set_id(&self, header: &Header, node: NodeId, now: &Permissions) -> Result<()> {
        if now.file_type != FileType::Regular || now.mode & SET_ID == 0 {
            return Ok(());
        }
        let change = AttributeChange { mode: self.mode_after_change(header, now), ..AttributeChange::default() };
        self.file_system.set_attributes(node, &change).map(drop)
    }
}

/// Whether the caller belongs to a group. Requests name one; the others are asked for where it matters, which is almost never.
fn is_member(header: &Header, group: u32) -> bool {
    if header.group == group || header.process == 0 {
        return header.group == group;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", header.process)).unwrap_or_default();
    listed(&status, group)
}

/// Whether a thread's `status` lists a group.
fn listed(status: &str, group: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().any(|listed| listed.parse() == Ok(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_a_status() {
        let status = "Name:\tsh\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t5\n";
        assert!(listed(status, 4) && listed(status, 1000));
        assert!(!listed(status, 7) && !listed(status, 100));
        assert!(!listed("", 0));
        assert!(!listed("Groups:\t \n", 0));
    }
}
