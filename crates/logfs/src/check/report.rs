//! What a check found, in words: findings with their place, what they mean and what repair does about them.
//!
//! Plain data, no access to a volume. The command prints it; tests compare it.

use crate::recover::RecoveryReport;
use core::fmt;

/// How many findings are kept; a volume full of damage has no use for a longer list.
const FINDINGS_MAX: usize = 10_000;

/// What a check shall do.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Recover a volume that was not closed cleanly, and repair damage. Needs a medium that may be stored to.
    pub repair: bool,
    /// Threads that read the inodes.
    pub threads: usize,
}

/// How far a check has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// What is being done.
    pub stage: &'static str,
    /// Steps done.
    pub done: u64,
    /// Steps in total.
    pub total: u64,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing, nothing is wrong.
    Note,
    /// An invariant of the format does not hold.
    Damage,
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The structure.
    pub structure: &'static str,
    /// Where it stands, in bytes from the start of the volume.
    pub offset_bytes: u64,
    /// The inode that it concerns, or 0.
    pub inode: u32,
    /// A path of that inode, where one is known, as its names stand on the volume.
    pub path: Option<Vec<u8>>,
    /// What is wrong.
    pub what: String,
    /// What repair does, and loses.
    pub remedy: &'static str,
    /// Whether it was repaired.
    pub repaired: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at {:#x}", self.structure, self.offset_bytes)?;
        match (self.inode, &self.path) {
            (0, _) => {}
            // A name can be anything, also what terminals obey.
            (inode, Some(path)) => write!(out, ", inode {inode} ({})", path.escape_ascii())?,
            (inode, None) => write!(out, ", inode {inode}")?,
        }
        write!(out, ": {}", self.what)?;
        match (self.severity, self.repaired, self.remedy) {
            (Severity::Note, _, _) | (_, _, "") => Ok(()),
            (Severity::Damage, true, remedy) => write!(out, ". Repaired: {remedy}"),
            (Severity::Damage, false, remedy) => write!(out, ". Repair: {remedy}"),
        }
    }
}

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is wrong.
    Sound,
    /// Something was wrong, and is not any more.
    Repaired,
    /// Something is wrong.
    Damaged,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// What it came to.
    pub outcome: Outcome,
    /// What was found, in the order in which it was met.
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub findings_left_out: u64,
    /// Whether the volume was closed cleanly. If not, the next attach recovers it; that is no damage.
    pub closed_cleanly: bool,
    /// What recovery did, if this check ran it.
    pub recovery: Option<RecoveryReport>,
    /// Inodes in use.
    pub inodes: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Blocks in use, of 4096 bytes; everything counted.
    pub blocks_used: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Its medium was cut: nothing else was looked at, and nothing is counted.
    pub is_cut: bool,
}

impl CheckReport {
    /// Adds findings.
    pub(super) fn take(&mut self, findings: &mut Findings) {
        self.findings_left_out += std::mem::take(&mut findings.left_out);
        for finding in findings.list.drain(..) {
            if self.findings.len() < FINDINGS_MAX || finding.severity == Severity::Note {
                self.findings.push(finding);
            } else {
                self.findings_left_out += 1;
            }
        }
    }
}

/// Findings as they are collected.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
    pub(super) left_out: u64,
    damaged: bool,
}

impl Findings {
    /// Adds one.
    pub(super) fn push(&mut self, finding: Finding) {
        self.damaged |= finding.severity == Severity::Damage;
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding);
        } else {
            self.left_out += 1;
        }
    }

    /// Adds damage.
    pub(super) fn damage(
        &mut self,
        structure: &'static str,
        offset_bytes: u64,
        inode: u32,
        what: impl Into<String>,
        remedy: &'static str,
    ) {
        self.push(Finding {
            severity: Severity::Damage,
            structure,
            offset_bytes,
            inode,
            path: None,
            what: what.into(),
            remedy,
            repaired: false,
        });
    }

    /// Adds a note.
    pub(super) fn note(&mut self, structure: &'static str, offset_bytes: u64, inode: u32, what: impl Into<String>) {
        self.push(Finding {
            severity: Severity::Note,
            structure,
            offset_bytes,
            inode,
            path: None,
            what: what.into(),
            remedy: "",
            repaired: false,
        });
    }

    /// Whether any of them is damage.
    pub(super) fn damaged(&self) -> bool {
        self.damaged
    }

    /// Takes over another's.
    pub(super) fn append(&mut self, other: Findings) {
        self.left_out += other.left_out;
        self.damaged |= other.damaged;
        other.list.into_iter().for_each(|finding| self.push(finding));
    }
}
