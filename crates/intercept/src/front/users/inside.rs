//! What a process below the origin knows of its namespace: who came in, what the maps say by now, and which ids were set there; and how the next
//! program is told of it, by a field of `GANNET_RUN_USERS`.
//!
//! For [`super`]. Reads the maps by [`user_maps`](crate::front::user_maps), and keeps what it read for good: others may be reading it.

use super::{GROUPS_MAX, Ids};
use crate::front::user_maps::map_at;
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use gannet_vfs::namespace::{IdMap, UserNamespace};
use std::fmt::Write;

/// The maps of who is not known: no ids, and capabilities count for nothing.
pub(super) static NO_MAPS: UserNamespace = UserNamespace { users: IdMap::NOTHING, groups: IdMap::NOTHING };

/// A namespace that this process is in, below the origin.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) origin: u64,
    pub(super) namespace: u64,
    /// From around the namespace to the origin.
    pub(super) around: UserNamespace,
    /// Who came in.
    pub(super) came: Ids,
    /// What was set to 65534: [`USER_SET`] and the like.
    pub(super) set: AtomicU8,
    /// From the namespace to the origin; null until it was looked at. Never freed, as others may be reading it.
    pub(super) maps: AtomicPtr<UserNamespace>,
}

pub(super) const USER_SET: u8 = 1;
pub(super) const GROUP_SET: u8 = 2;
pub(super) const GROUPS_SET: u8 = 4;
pub(super) const REAL_USER_SET: u8 = 8;
pub(super) const REAL_GROUP_SET: u8 = 16;

std::thread_local! {
    /// What a `vfork` child has set, which is not its parent's.
    pub(super) static SET_BY_CHILD: Cell<u8> = const { Cell::new(0) };
    /// The maps of the namespace as this call of the thread's has read them, where they were not yet written. They are read once for a call.
    pub(super) static READ_IN_CALL: Cell<Option<&'static UserNamespace>> = const { Cell::new(None) };
}

pub(super) fn origin_of(told: &str) -> Option<u64> {
    told.split(';').next()?.parse().ok()
}

/// What the variable tells of a namespace.
pub(super) fn inside_of(told: &str) -> Option<Inside> {
    let fields: Vec<&str> = told.split(';').collect();
    let [origin, namespace, users, groups, set, ids] = fields[..] else { return None };
    let map = |text: &str| IdMap::parse(&text.replace(',', "\n"));
    let ids: Vec<u32> = ids.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let ([user, group, real_user, real_group], rest) = ids.split_first_chunk()?;
    Some(Inside {
        origin: origin.parse().ok()?,
        namespace: namespace.parse().ok()?,
        around: UserNamespace { users: map(users)?, groups: map(groups)? },
        came: Ids { user: *user, group: *group, real_user: *real_user, real_group: *real_group, groups: rest.to_vec() },
        set: AtomicU8::new(set.parse().ok()?),
        maps: AtomicPtr::default(),
    })
}

impl Inside {
    pub(super) fn tell(&self) -> String {
        let Ids { user, group, real_user, real_group, groups } = &self.came;
        let mut text = format!("{};{};", self.origin, self.namespace);
        for map in [&self.around.users, &self.around.groups] {
            for (index, range) in map.ranges().iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{} {} {}", range.inside, range.outside, range.count);
            }
            text.push(';');
        }
        let _ = write!(
            text,
            "{};{user} {group} {real_user} {real_group}",
            self.set.load(Ordering::Relaxed) | SET_BY_CHILD.get()
        );
        for group in groups.iter().take(GROUPS_MAX) {
            let _ = write!(text, " {group}");
        }
        text
    }

    /// From the namespace to the origin, as far as it is known in this call; [`NO_MAPS`] if it cannot be read.
    pub(super) fn maps(&self) -> &'static UserNamespace {
        if let Some(known) = self.known()
            && is_final(known)
        {
            return known;
        }
        READ_IN_CALL.get().unwrap_or_else(|| self.read_maps())
    }

    /// Likewise, as far as it is known by now.
    pub(super) fn read_maps(&self) -> &'static UserNamespace {
        let (Ok(users), Ok(groups)) = (map_at(c"/proc/self/uid_map"), map_at(c"/proc/self/gid_map")) else {
            return &NO_MAPS;
        };
        let now = UserNamespace { users: users.within(&self.around.users), groups: groups.within(&self.around.groups) };
        let maps = match self.known() {
            Some(known) if *known == now => known,
            _ => {
                let now: &'static UserNamespace = Box::leak(Box::new(now));
                self.maps.store(core::ptr::from_ref(now).cast_mut(), Ordering::Release);
                now
            }
        };
        READ_IN_CALL.set(Some(maps));
        maps
    }

    fn known(&self) -> Option<&'static UserNamespace> {
        // SAFETY: published by `read_maps`, and never freed.
        unsafe { self.maps.load(Ordering::Acquire).as_ref() }
    }

    pub(super) fn note(&self, what: u8, in_child: bool) {
        if in_child {
            SET_BY_CHILD.set(SET_BY_CHILD.get() | what);
        } else {
            self.set.fetch_or(what, Ordering::Relaxed);
        }
    }

    pub(super) fn has_set(&self, what: u8) -> bool {
        (self.set.load(Ordering::Relaxed) | SET_BY_CHILD.get()) & what != 0
    }
}

/// A map that is there stays.
pub(super) fn is_final(maps: &UserNamespace) -> bool {
    !maps.users.is_empty() && !maps.groups.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was() {
        let told = "4026531837;4026532000;0 1234 1,1 100000 65536;0 0 4294967295;5;1234 1235 1234 1235 7 8";
        let inside = inside_of(told).unwrap();
        assert_eq!(inside.tell(), told);
        assert_eq!((inside.came.user, &inside.came.groups[..]), (1234, &[7, 8][..]));
        assert!(inside.has_set(USER_SET) && !inside.has_set(GROUP_SET) && inside.has_set(GROUPS_SET));
        inside.note(GROUP_SET, true);
        assert!(inside.tell().contains(";7;"), "{}", inside.tell());
        SET_BY_CHILD.set(0);
        for wrong in ["", "4026531837", "1;2;x;;0;1 2 3 4", "1;2;;;0;1 2 3", "1;2;;;0;1 2 3 4;"] {
            assert!(inside_of(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn maps_that_are_not_written_are_read_once_for_a_call() {
        // Around it nothing is known, so that its maps stay empty whatever the kernel says.
        let inside = inside_of("4026531837;4026532000;;;0;1234 1235 1234 1235").unwrap();
        let reads = || crate::front::user_maps::READS.get();
        let before = reads();
        let first = inside.maps();
        assert!(!is_final(first) && reads() == before + 2);
        assert!(core::ptr::eq(inside.maps(), first) && reads() == before + 2);
        assert!(core::ptr::eq(inside.read_maps(), first) && reads() == before + 4);
        READ_IN_CALL.set(None);
        assert!(core::ptr::eq(inside.maps(), first) && reads() == before + 6);
        READ_IN_CALL.set(None);
    }
}
