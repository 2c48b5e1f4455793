//! The suite and the random tester are themselves tested: each of a list of faults, put between them and a right file
//! system, is noticed, and without a fault nothing is.

use std::panic::catch_unwind;

use gannet_fstest::random::{Plan, check};
use gannet_fstest::{Features, cases, run_group};
use gannet_memfs::{Limits, MemoryFs};
use gannet_usermem::{Destination, Source};
use gannet_vfs::shared::Shared;
use gannet_vfs::{
    AllocateMode, AttributeChange, Attributes, DirectoryEntry, Errno, Error, Extent, FileSystem, Found, ModeChange,
    Name, NewNode, NodeId, Owner, RemoveKind, RenameFlags, Result, SeekTarget, Statistics, SyncScope, WriteFlags,
    WritePosition, Written, XattrMode,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    WrongErrno,
    ShortRead,
    LostAppend,
    TruncateTooFar,
    StaleBytes,
    RenameReplaces,
    ExchangeMovesOnly,
    LinkForgetsName,
    ReaddirSkipsOne,
    ReaddirTwice,
    ModeKeepsSetId,
    OwnerSwapped,
    XattrCutShort,
    XattrModeIgnored,
    ParentIsRoot,
    CollapseKeepsSize,
    PunchLeavesEdge,
    HoleNotFound,
    CloneCopiesTooLittle,
    TimesStand,
    RetireFreesNothing,
}

const FAULTS: [Fault; 21] = [
    Fault::WrongErrno,
    Fault::ShortRead,
    Fault::LostAppend,
    Fault::TruncateTooFar,
    Fault::StaleBytes,
    Fault::RenameReplaces,
    Fault::ExchangeMovesOnly,
    Fault::LinkForgetsName,
    Fault::ReaddirSkipsOne,
    Fault::ReaddirTwice,
    Fault::ModeKeepsSetId,
    Fault::OwnerSwapped,
    Fault::XattrCutShort,
    Fault::XattrModeIgnored,
    Fault::ParentIsRoot,
    Fault::CollapseKeepsSize,
    Fault::PunchLeavesEdge,
    Fault::HoleNotFound,
    Fault::CloneCopiesTooLittle,
    Fault::TimesStand,
    Fault::RetireFreesNothing,
];

struct Faulty {
    fs: MemoryFs,
    fault: Fault,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        let limits = Limits { data_bytes: 64 << 20, inodes: 10_000 };
        Self { fs: MemoryFs::new(limits, 0o755, Owner::default()).unwrap(), fault }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl FileSystem for Faulty {
    fn kind(&self) -> &'static str {
        "faulty"
    }
    fn root(&self) -> NodeId {
        self.fs.root()
    }
    fn statistics(&self) -> Result<Statistics> {
        self.fs.statistics()
    }
    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        let got = self.fs.attributes(node)?;
        let stands = self.has(Fault::TimesStand);
        Ok(if stands { Attributes { modified: got.created, changed: got.created, ..got } } else { got })
    }
    fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        let mut change = *change;
        match (self.fault, change.size_bytes) {
            (Fault::TruncateTooFar, Some(size)) if size % 4096 != 0 => change.size_bytes = Some(size - 1),
            (Fault::StaleBytes, Some(size)) => {
                let old = self.fs.attributes(node)?.size_bytes;
                if size > old && old % 4096 != 0 {
                    self.fs.set_attributes(node, &change)?;
                    let mut byte = Source::from_slice(b"!");
                    self.fs.write(node, WritePosition::At(old), &mut byte, WriteFlags::empty())?;
                }
            }
            (Fault::ModeKeepsSetId, _) if change.mode == ModeChange::DropSetId => change.mode = ModeChange::Keep,
            (Fault::OwnerSwapped, _) => (change.user, change.group) = (change.group, change.user),
            _ => {}
        }
        self.fs.set_attributes(node, &change)
    }
    fn xattr(&self, node: NodeId, name: &[u8], value: &mut [u8]) -> Result<usize> {
        let length = self.fs.xattr(node, name, value)?;
        Ok(if self.has(Fault::XattrCutShort) { length.min(1000) } else { length })
    }
    fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let mode = if self.has(Fault::XattrModeIgnored) { XattrMode::Any } else { mode };
        self.fs.set_xattr(node, name, value, mode)
    }
    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.fs.remove_xattr(node, name)
    }
    fn list_xattrs(&self, node: NodeId, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.fs.list_xattrs(node, sink)
    }
    fn lookup(&self, directory: NodeId, name: Name<'_>) -> Result<Found> {
        self.fs.lookup(directory, name)
    }
    fn parent(&self, directory: NodeId) -> Result<NodeId> {
        let parent = self.fs.parent(directory)?;
        Ok(if self.has(Fault::ParentIsRoot) { self.fs.root() } else { parent })
    }
    fn create(&self, directory: NodeId, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId> {
        self.fs.create(directory, name, new)
    }
    fn create_unnamed(&self, directory: NodeId, new: &NewNode<'_>) -> Result<NodeId> {
        self.fs.create_unnamed(directory, new)
    }
    fn link(&self, node: NodeId, directory: NodeId, name: Name<'_>) -> Result<()> {
        self.fs.link(node, directory, name)?;
        if self.has(Fault::LinkForgetsName) && name.bytes().len() > 2 {
            self.fs.remove(directory, name, RemoveKind::NonDirectory)?;
        }
        Ok(())
    }
    fn remove(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId> {
        self.fs.remove(directory, name, kind).map_err(|error| match (self.fault, error.errno()) {
            (Fault::WrongErrno, Errno::ISDIR) => Error::new(Errno::PERM),
            _ => error,
        })
    }
    fn rename(&self, a: NodeId, from: Name<'_>, b: NodeId, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        let flags = match (self.fault, flags) {
            (Fault::RenameReplaces, RenameFlags::NO_REPLACE) => RenameFlags::empty(),
            (Fault::ExchangeMovesOnly, RenameFlags::EXCHANGE) => RenameFlags::empty(),
            (_, flags) => flags,
        };
        self.fs.rename(a, from, b, to, flags)
    }
    fn read_link(&self, node: NodeId, target: &mut [u8]) -> Result<usize> {
        self.fs.read_link(node, target)
    }
    fn read_directory(
        &self,
        directory: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut count = 0;
        self.fs.read_directory(directory, cookie, &mut |entry| {
            count += 1;
            match self.fault {
                Fault::ReaddirSkipsOne if count == 3 => true,
                Fault::ReaddirTwice if count == 3 => sink(entry) && sink(entry),
                _ => sink(entry),
            }
        })
    }
    fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        if self.has(Fault::ShortRead) && into.remaining() > 5000 {
            into.truncate(5000);
        }
        self.fs.read(node, offset_bytes, into)
    }
    fn write(&self, node: NodeId, at: WritePosition, from: &mut Source<'_>, flags: WriteFlags) -> Result<Written> {
        let at = match (self.fault, at) {
            (Fault::LostAppend, WritePosition::Append) => {
                WritePosition::At(self.fs.attributes(node)?.size_bytes.saturating_sub(1))
            }
            (_, at) => at,
        };
        self.fs.write(node, at, from, flags)
    }
    fn sync(&self, node: NodeId, scope: SyncScope) -> Result<()> {
        self.fs.sync(node, scope)
    }
    fn allocate(&self, node: NodeId, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        match (self.fault, mode) {
            (Fault::PunchLeavesEdge, AllocateMode::PunchHole) if length > 1 => {
                self.fs.allocate(node, mode, offset, length - 1)
            }
            (Fault::CollapseKeepsSize, AllocateMode::Collapse) => {
                let size_bytes = Some(self.fs.attributes(node)?.size_bytes);
                self.fs.allocate(node, mode, offset, length)?;
                self.fs.set_attributes(node, &AttributeChange { size_bytes, ..Default::default() }).map(drop)
            }
            _ => self.fs.allocate(node, mode, offset, length),
        }
    }
    fn seek(&self, node: NodeId, target: SeekTarget, offset: u64) -> Result<u64> {
        let found = self.fs.seek(node, target, offset)?;
        // A hole one block too early hides data.
        let early = self.has(Fault::HoleNotFound) && target == SeekTarget::Hole && found >= offset + 4096;
        Ok(if early { found - 4096 } else { found })
    }
    fn clone_range(&self, a: NodeId, from: u64, b: NodeId, to: u64, length: u64) -> Result<()> {
        let less = self.has(Fault::CloneCopiesTooLittle) && length > 4096 && length.is_multiple_of(4096);
        self.fs.clone_range(a, from, b, to, if less { length - 4096 } else { length })
    }
    fn dedupe_range(&self, a: NodeId, from: u64, b: NodeId, to: u64, length: u64) -> Result<bool> {
        self.fs.dedupe_range(a, from, b, to, length)
    }
    fn extents(&self, node: NodeId, at: u64, length: u64, sink: &mut dyn FnMut(&Extent) -> bool) -> Result<()> {
        self.fs.extents(node, at, length, sink)
    }
    fn shared(&self) -> &Shared {
        self.fs.shared()
    }
    fn retire(&self, node: NodeId) -> Result<()> {
        if self.has(Fault::RetireFreesNothing) { Ok(()) } else { self.fs.retire(node) }
    }
}

fn suite_notices(fault: Fault) -> bool {
    // The case that fills a file system is slow and none of the faults is its business.
    cases::GROUPS.iter().any(|(group, _)| {
        catch_unwind(|| {
            run_group(group, Features::all().difference(Features::SHARING).difference(Features::ACCESS_TIMES), &|| {
                Box::new(Faulty::new(fault))
            })
        })
        .is_err()
    })
}

fn random_notices(fault: Fault) -> bool {
    (0..6).any(|seed| catch_unwind(|| check(&Plan::new(seed, 800), &|| Faulty::new(fault))).is_err())
}

#[test]
fn every_fault_is_noticed_and_nothing_else() {
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<String> = FAULTS
        .into_iter()
        .flat_map(|fault| {
            // Times are not in the model.
            let by_random = fault == Fault::TimesStand || random_notices(fault);
            [
                (!suite_notices(fault)).then(|| format!("{fault:?} by the suite")),
                (!by_random).then(|| format!("{fault:?} by random operations")),
            ]
        })
        .flatten()
        .collect();
    let wrongly = suite_notices(Fault::None) || random_notices(Fault::None);
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
    assert!(!wrongly, "a right file system fails");
}
