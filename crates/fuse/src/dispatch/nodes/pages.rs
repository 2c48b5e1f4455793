//! Whether a file is open through the kernel's pages or past them, and whether those pages are right.
//!
//! For opens, reads and the end of caching. An epoch of caching ends when others may change the volume: pages of an older one are wrong until they
//! are dropped, and are only dropped where nobody has the file open past them.

use super::{Nodes, Record, lock};

/// Pages of the file were never in the kernel: it was not opened since the kernel knows it.
pub(super) const NO_PAGES: u32 = u32::MAX;
/// The kernel may have pages of the file that others have changed since.
pub(super) const ANY_PAGES: u32 = 0;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenMode {
    /// Through the kernel's pages.
    Cached,
    /// Past them.
    Direct,
}

impl Nodes {
    /// Notes that a file is being opened. Through the kernel's pages only if caching is allowed in this `epoch`, all pages
    /// that the kernel may have are right, and nobody passes them by; nor does this one want to (`O_DIRECT`), unless others use them.
    pub(crate) fn opened(&self, id: u64, epoch: Option<u32>, wants_direct: bool) -> OpenMode {
        let mut shard = lock(self.shard(id));
        let Some(record) = shard.get_mut(&id) else { return OpenMode::Direct };
        if let Some(epoch) = epoch
            && record.direct_opens == 0
            && (!wants_direct || record.cached_opens > 0)
            && (record.pages_epoch == epoch || record.pages_epoch == NO_PAGES)
        {
            record.pages_epoch = epoch;
            record.cached_opens += 1;
            return OpenMode::Cached;
        }
        record.direct_opens += 1;
        record.direct_serial = record.direct_serial.wrapping_add(1);
        record.pages_epoch = ANY_PAGES;
        OpenMode::Direct
    }

    /// The same for a file that goes through the kernel's pages even if those may be wrong: then each read must ask. Whether they are right.
    pub(crate) fn opened_cached(&self, id: u64, epoch: Option<u32>) -> bool {
        let mut shard = lock(self.shard(id));
        let Some(record) = shard.get_mut(&id) else { return false };
        record.cached_opens += 1;
        let right = record.direct_opens == 0
            && epoch.is_some_and(|epoch| record.pages_epoch == epoch || record.pages_epoch == NO_PAGES);
        record.pages_epoch = epoch.filter(|_| right).unwrap_or(ANY_PAGES);
        right
    }

    /// Notes that an open file is gone.
    pub(crate) fn closed(&self, id: u64, mode: OpenMode) {
        if let Some(record) = lock(self.shard(id)).get_mut(&id) {
            let opens = match mode {
                OpenMode::Cached => &mut record.cached_opens,
                OpenMode::Direct => &mut record.direct_opens,
            };
            *opens = opens.saturating_sub(1);
        }
    }

    /// Whether programs read a file through pages that may be wrong: each read must ask, and drop them.
    pub(crate) fn reads_old_pages(&self, id: u64, epoch: Option<u32>) -> bool {
        let shard = lock(self.shard(id));
        shard.get(&id).is_some_and(|record| record.cached_opens > 0 && epoch != Some(record.pages_epoch))
    }

    /// The files that are open through the kernel's pages.
    pub(crate) fn with_cached_opens(&self) -> Vec<u64> {
        self.chosen(|record| record.cached_opens > 0)
    }

    /// The files of which the kernel may have wrong pages, and that nobody has open past them.
    pub(crate) fn to_cleanse(&self, epoch: u32) -> Vec<u64> {
        let clean = [epoch, NO_PAGES];
        self.chosen(|record| record.direct_opens == 0 && !clean.contains(&record.pages_epoch))
    }

    fn chosen(&self, choose: impl Fn(&Record) -> bool) -> Vec<u64> {
        let mut chosen = Vec::new();
        for shard in &self.records {
            chosen.extend(lock(shard).iter().filter(|(_, record)| choose(record)).map(|(&id, _)| id));
        }
        chosen
    }

    /// Has `drop_pages` drop the kernel's pages of a file, and notes that those to come are right.
    pub(crate) fn cleanse(&self, id: u64, epoch: u32, drop_pages: impl FnOnce()) {
        let serial_of = |record: &Record| (record.direct_opens == 0).then_some(record.direct_serial);
        let before = lock(self.shard(id)).get(&id).and_then(serial_of);
        if before.is_none() {
            return;
        }
        // Not under the lock: dropping pages may wait for requests that are served meanwhile.
        drop_pages();
        if let Some(record) = lock(self.shard(id)).get_mut(&id)
            && serial_of(record) == before
        {
            record.pages_epoch = epoch;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gannet_vfs::NodeId;

    #[test]
    fn files_are_opened_through_pages_that_are_right_only() {
        let nodes = Nodes::new(NodeId::new(1, 0));
        let id = nodes.id(NodeId::new(9, 0));
        assert_eq!(nodes.opened(id, Some(1), false), OpenMode::Direct, "nobody knows it");
        nodes.hold(id);
        // Alone: through pages. A recall makes those old, and what is opened then passes them by.
        assert_eq!(nodes.opened(id, Some(1), false), OpenMode::Cached);
        assert_eq!(nodes.opened(id, Some(1), true), OpenMode::Cached, "others use the pages");
        assert!(!nodes.reads_old_pages(id, Some(1)));
        assert!(nodes.reads_old_pages(id, None) && nodes.reads_old_pages(id, Some(2)));
        assert_eq!(nodes.with_cached_opens(), [id]);
        assert_eq!(nodes.opened(id, None, false), OpenMode::Direct);
        // Alone again, but somebody passes the pages by.
        assert_eq!(nodes.opened(id, Some(2), false), OpenMode::Direct);
        assert!(nodes.to_cleanse(2).is_empty());
        nodes.cleanse(id, 2, || panic!("in use past its pages"));
        nodes.closed(id, OpenMode::Direct);
        nodes.closed(id, OpenMode::Direct);
        assert_eq!(nodes.to_cleanse(2), [id]);
        // Somebody opens it while its pages are dropped: then that was for nothing.
        nodes.cleanse(id, 2, || assert_eq!(nodes.opened(id, Some(2), false), OpenMode::Direct));
        nodes.closed(id, OpenMode::Direct);
        assert!(nodes.reads_old_pages(id, Some(2)));
        nodes.cleanse(id, 2, || ());
        assert!(!nodes.reads_old_pages(id, Some(2)) && nodes.to_cleanse(2).is_empty());
        nodes.closed(id, OpenMode::Cached);
        nodes.closed(id, OpenMode::Cached);
        assert_eq!(nodes.opened(id, Some(2), true), OpenMode::Direct, "it asked for that");
        assert_eq!(nodes.opened(id, Some(2), false), OpenMode::Direct);
        // Somebody must go through the pages: others' may be old then.
        assert!(!nodes.opened_cached(id, Some(2)) && nodes.reads_old_pages(id, Some(2)));
        let new = nodes.id(NodeId::new(10, 0));
        nodes.hold(new);
        assert!(nodes.opened_cached(new, Some(2)) && !nodes.reads_old_pages(new, Some(2)));
        assert!(!nodes.opened_cached(new, None) && nodes.reads_old_pages(new, None));
    }
}
