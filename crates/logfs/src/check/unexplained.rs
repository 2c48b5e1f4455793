//! Links that lead to no page of their log, on a volume that was not closed cleanly, and that no crash leaves: recovery refuses them by the same
//! rules (`dangling`), so they are damage here.
//!
//! Changes nothing.

use super::model::Model;
use super::trace::Trace;
use crate::dangling::{Dangling, unexplained};
use crate::format::page::LinePlace;
use gannet_vfs::Result;

impl Model<'_> {
    /// To be asked once what is in use is known.
    pub(super) fn check_dangling(&mut self) -> Result<()> {
        if self.ground.clean() {
            return Ok(());
        }
        let disk = self.ground.disk;
        let (mut dangling, mut born) = (Vec::new(), Vec::new());
        for examined in self.inodes.values() {
            let is_kept = !examined.rebuild && !examined.rewrite && !self.release.contains(&examined.inode);
            if let Some(at) = examined.log.dangling.filter(|_| is_kept) {
                let (log, link) = (&examined.log, disk.load(at)?);
                dangling.push(Dangling {
                    inode: examined.inode,
                    generation: examined.generation,
                    at,
                    link,
                    next_sequence: log.next_sequence,
                    is_head: log.pages.is_empty(),
                    is_on_new_page: is_on_new_page(log, disk.epoch()),
                });
            }
            if examined.is_directory() && examined.log.epoch == disk.epoch() && examined.last.place.is_some() {
                let names = examined.names.values().filter(|bound| Some(bound.place) == examined.last.place);
                born.extend(names.map(|bound| bound.inode));
            }
        }
        born.sort_unstable();
        for link in unexplained(disk, &dangling, &born, &self.used)? {
            let what = "it leads to no page of the log, and no crash leaves such a link";
            let repair = "it is cleared: what the log said from there on is lost";
            self.findings.damage("link to a log page", link.at, link.inode, what, repair);
        }
        Ok(())
    }
}

fn is_on_new_page(log: &Trace, epoch: u32) -> bool {
    let is_only = |block: &u64| log.last == Some(LinePlace::new(*block, 1)) && log.page_epoch == epoch;
    !log.pages.is_empty() && (log.entries_on_page == 0 || log.pages.last().is_some_and(is_only))
}
