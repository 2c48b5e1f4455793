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

struct Translation {
    outside: fn(u32) -> u32,
    inside: fn(u32) -> Seen,
}

static TRANSLATION: OnceLock<Translation> = OnceLock::new();

/// From now on arenas are named by what `outside` says of the process's effective user, as it looks to the process; and `inside` says how
/// the owner of an arena looks to it. Said once.
pub fn translate_users(outside: fn(u32) -> u32, inside: fn(u32) -> Seen) {
    let _ = TRANSLATION.set(Translation { outside, inside });
}

/// The process's effective user, as arenas are named.
pub fn user_of_process() -> u32 {
    let user = rustix::process::geteuid().as_raw();
    TRANSLATION.get().map_or(user, |translation| (translation.outside)(user))
}

/// How `user` looks in this process.
pub(crate) fn as_seen(user: u32) -> Seen {
    let plain = Seen { id: user, is_shared: false };
    TRANSLATION.get().map_or(plain, |translation| (translation.inside)(user))
}

/// Whether files that look as if `user` owned them can be of several users, none of whom the process's namespace knows.
pub fn stands_for_several(user: u32) -> bool {
    let unknown = as_seen(u32::MAX);
    unknown.is_shared && unknown.id == user
}
