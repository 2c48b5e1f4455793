//! Between the machinery and the volumes.

use crate::dispatch::Outcome;
use crate::entry::Frame;
use crate::start::OpenVolume;
use crate::thread::Record;

pub(crate) fn initialise(_open: OpenVolume) {}

pub(crate) fn handle(_frame: &mut Frame, _record: &mut Record, _in_child: bool) -> Outcome {
    Outcome::Pass
}
pub(crate) fn before_exec(_frame: &mut Frame, _record: &mut Record, _in_child: bool) -> Outcome {
    Outcome::Pass
}
pub(crate) fn inheritance(_record: &mut Record, _in_child: bool) -> Vec<u8> {
    Vec::new()
}
pub(crate) fn before_vfork(_record: &mut Record) {}
pub(crate) fn drop_private_table(_record: &mut Record) {}
pub(crate) fn before_fork() {}
pub(crate) fn after_fork_in_child(_record: &mut Record) {}
pub(crate) fn after_fork_in_parent() {}
pub(crate) fn thread_exits() {}
