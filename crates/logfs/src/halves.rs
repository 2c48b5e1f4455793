//! Renames across directories after a crash: whether a log's last entry that is half of one stands, by what the other
//! directory's log says.

use crate::disk::Disk;
use crate::format::entry::{Owned, Partner, Payload};
use crate::format::slot::Slot;
use crate::log::{self, Met};
use gannet_vfs::Result;
use std::collections::{HashMap, HashSet};

/// What a half of a rename across directories is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// The rename happened.
    Committed,
    /// The other half never became durable: this one is killed.
    Torn,
    /// Both stand and do not speak of each other.
    Damaged,
}

/// A half of a rename: inode, generation and sequence of its entry.
pub(crate) type HalfName = (u32, u32, u64);

/// Decides a last entry with a partner by sequence order: a partner's log that has moved past the partner's sequence, or
/// whose inode was freed since, proves that both halves were durable.
pub(crate) fn decide_half(disk: &Disk, this: HalfName, partner: Partner) -> Result<Half> {
    Ok(decide_halves(disk, &[(this, partner)])?.pop().unwrap_or(Half::Damaged))
}

/// The same for several that have their partners in one log, which is read once.
pub(crate) fn decide_halves(disk: &Disk, asked: &[(HalfName, Partner)]) -> Result<Vec<Half>> {
    let Some(&(_, Partner { inode, .. })) = asked.first() else { return Ok(Vec::new()) };
    let (generation, birth) = match disk.slot(inode)? {
        Slot::Used { generation, birth, .. } => (generation, birth),
        _ => return Ok(vec![Half::Committed; asked.len()]),
    };
    let owned = Owned { key: disk.key(), inode, generation };
    let wanted: HashSet<u64> = asked.iter().map(|(_, partner)| partner.sequence).collect();
    let mut found: HashMap<u64, Option<HalfName>> = HashMap::new();
    let mut first_sequence = None;
    let end = log::walk(disk, owned, birth.head, &mut |met| {
        match met {
            Met::Page { header, .. } => {
                first_sequence.get_or_insert(header.first_sequence);
            }
            Met::Entry { entry, .. } if wanted.contains(&entry.sequence) => {
                let back = match entry.payload {
                    Payload::Bind { partner: Some(back), .. } => Some((back.inode, back.generation, back.sequence)),
                    _ => None,
                };
                found.insert(entry.sequence, back);
            }
            Met::Entry { .. } => {}
        }
        Ok(())
    })?;
    let decide = |&(this, partner): &(HalfName, Partner)| match found.get(&partner.sequence) {
        _ if partner.generation != generation => Half::Committed,
        Some(back) if *back == Some(this) => Half::Committed,
        Some(_) => Half::Damaged,
        None if partner.sequence < first_sequence.unwrap_or(1) => Half::Committed,
        None if partner.sequence >= end.next_sequence => Half::Torn,
        None => Half::Damaged,
    };
    Ok(asked.iter().map(decide).collect())
}
