//! Whose arenas are: users by their ids as they are where arenas were named, also in a process for which they look otherwise by now
//! (user_namespaces(7)).
//!
//! Whoever knows the process's namespace says how ids are translated ([`translate_users`]); nobody does as a rule, and ids are what they
//! look like.

use std::sync::OnceLock;

/// How an id of outside looks in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The id that the kernel tells.
    pub id: u32,
    /// Whether it tells that of all ids that the namespace does not know: whoever is seen by it may be somebody else.
    pub is_shared: bool,
}

/// A user or group of outside that is not known: the kernel has none with this id.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// How ids are translated.
#[derive(Debug)]
pub struct Translation {
    /// The user of outside that the process's effective one is, which looks so to the process; or `u32::MAX` if it is not known.
    pub outside: fn(u32) -> u32,
    /// Likewise, the group.
    pub group_outside: fn(u32) -> u32,
    /// How the owner of an arena looks to the process.
    pub inside: fn(u32) -> Seen,
}

static TRANSLATION: OnceLock<Translation> = OnceLock::new();

/// From now on arenas are named by what `translation` says. Said once.
pub fn translate_users(translation: Translation) {
    let _ = TRANSLATION.set(translation);
}

/// The process's effective user, as arenas are named.
pub fn user_of_process() -> u32 {
    let user = rustix::process::geteuid().as_raw();
    TRANSLATION.get().map_or(user, |translation| (translation.outside)(user))
}

/// The process's effective group, likewise.
pub fn group_of_process() -> u32 {
    let group = rustix::process::getegid().as_raw();
    TRANSLATION.get().map_or(group, |translation| (translation.group_outside)(group))
}

/// How `user` looks in this process.
pub(crate) fn as_seen(user: u32) -> Seen {
    let plain = Seen { id: user, is_shared: false };
    TRANSLATION.get().map_or(plain, |translation| (translation.inside)(user))
}

/// Whether files that look as if `user` owned them can be of several users, none of whom the process's namespace knows.
pub fn stands_for_several(user: u32) -> bool {
    let unknown = as_seen(UNKNOWN);
    unknown.is_shared && unknown.id == user
}
