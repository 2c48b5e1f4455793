//! User namespaces below the one in which the tree was started (user_namespaces(7)): who the process is to a volume, whose ids are those
//! of where the tree was started.
//!
//! A process comes into another namespace by `unshare`, `clone`, `clone3` and `setns` ([`super::enter_users`]), and notes who it was before: its
//! ids stay the same to files, but the kernel tells them no more until a map says how they look, and those that no map names never.
//! `execve` hands it on (`GANNET_RUN_USERS`):
//!
//! ```text
//! ORIGIN                                                     the inode of the namespace in which the tree was started
//! ORIGIN;NAMESPACE;USERS;GROUPS;SET;USER GROUP REAL REAL;…   where the process is; maps from around it to the origin, as in uid_map but
//!                                                            with commas; which ids it has set since; who it was, and its groups
//! ```
//!
//! What is told is compared with the kernel's word: a process in a namespace that nobody told of does not see volumes. The variable is no
//! more to be believed than the program that has it, which has the volume mapped: what others may not do is the kernel's to prevent, by the
//! permissions of the volume's file and of its arena.
//!
//! The own maps are read in `/proc`, again as long as they are empty: they are written once, also by others. A process without namespaces
//! pays one look at `/proc/self/ns/user`, when it first opens a volume.

use super::{credentials, rights};
use crate::environment;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use gannet_vfs::namespace::{IdMap, UserNamespace};
use gannet_vfs::shared::shm::{self, Seen};
use std::fmt::Write;

/// Of `unshare`, `clone` and `setns`.
pub(crate) const CLONE_NEWUSER: usize = 0x1000_0000;
/// What the kernel tells of ids that a namespace does not know.
pub(super) const NOBODY: u32 = 65534;
/// More groups are not handed over an `execve`: a variable of the environment has its bounds.
const GROUPS_MAX: usize = 4096;

/// Who a process is, in the ids of the origin.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) real_user: u32,
    pub(crate) real_group: u32,
    pub(crate) groups: Vec<u32>,
}

/// A namespace that this process is in, below the origin.
#[derive(Debug)]
struct Inside {
    origin: u64,
    namespace: u64,
    /// From around the namespace to the origin.
    around: UserNamespace,
    /// Who came in.
    came: Ids,
    /// [`USER_SET`] and the like.
    set: AtomicU8,
    /// From the namespace to the origin; null until it was looked at. Never freed, as others may be reading it.
    maps: AtomicPtr<UserNamespace>,
}

const USER_SET: u8 = 1;
const GROUP_SET: u8 = 2;
const GROUPS_SET: u8 = 4;

/// Where this process is.
#[derive(Clone, Copy)]
enum Place {
    /// Where the tree was started.
    Origin,
    Inside(&'static Inside),
    /// In a namespace of which nobody told.
    Lost,
}

static PLACE: AtomicU8 = AtomicU8::new(NOT_LOOKED);
const NOT_LOOKED: u8 = 0;
const ORIGIN: u8 = 1;
const INSIDE: u8 = 2;
const LOST: u8 = 3;
/// There if [`PLACE`] is [`INSIDE`]; never freed.
static NAMESPACE: AtomicPtr<Inside> = AtomicPtr::new(core::ptr::null_mut());

#[inline]
fn place() -> Place {
    match PLACE.load(Ordering::Acquire) {
        ORIGIN => Place::Origin,
        // SAFETY: published before, and never freed.
        INSIDE => unsafe { NAMESPACE.load(Ordering::Acquire).as_ref() }.map_or(Place::Lost, Place::Inside),
        LOST => Place::Lost,
        _ => look(),
    }
}

#[cold]
fn look() -> Place {
    let Some(settings) = environment::settings() else { return Place::Origin };
    let told = core::str::from_utf8(settings.users()).unwrap_or_default();
    let inside = inside_of(told);
    let place = match (namespace_now(), origin_of(told), inside) {
        // Started by hand.
        (_, None, _) => ORIGIN,
        (Some(now), Some(origin), _) if now == origin => ORIGIN,
        (Some(now), _, Some(inside)) if now == inside.namespace => {
            NAMESPACE.store(Box::into_raw(Box::new(inside)), Ordering::Release);
            INSIDE
        }
        // Without /proc. Who is inside could not read the maps.
        (None, _, None) => ORIGIN,
        _ => LOST,
    };
    PLACE.store(place, Ordering::Release);
    self::place()
}

fn origin_of(told: &str) -> Option<u64> {
    told.split(';').next()?.parse().ok()
}

/// The origin's inode, for who is there.
fn origin() -> u64 {
    let told = environment::settings().map_or(&b""[..], environment::Settings::users);
    let told = core::str::from_utf8(told).ok().and_then(origin_of);
    told.or_else(namespace_now).unwrap_or(0)
}

/// The inode of the namespace that the process is in.
pub(super) fn namespace_now() -> Option<u64> {
    inode_of(c"/proc/self/ns/user".as_ptr() as usize)
}

/// The inode that a path ending in zero leads to.
pub(super) fn inode_of(path: usize) -> Option<u64> {
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(STAT, [path, status.as_mut_ptr() as usize]) };
    (!is_error(result)).then_some(status[1])
}

/// What the variable tells of a namespace.
fn inside_of(told: &str) -> Option<Inside> {
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
    fn tell(&self) -> String {
        let Ids { user, group, real_user, real_group, groups } = &self.came;
        let mut text = format!("{};{};", self.origin, self.namespace);
        for map in [&self.around.users, &self.around.groups] {
            for (index, range) in map.ranges().iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{} {} {}", range.inside, range.outside, range.count);
            }
            text.push(';');
        }
        let _ = write!(text, "{};{user} {group} {real_user} {real_group}", self.set.load(Ordering::Relaxed));
        for group in groups.iter().take(GROUPS_MAX) {
            let _ = write!(text, " {group}");
        }
        text
    }

    /// From the namespace to the origin, as far as it is known by now.
    fn maps(&self) -> &'static UserNamespace {
        let known = self.maps.load(Ordering::Acquire);
        // SAFETY: published below, and never freed.
        if let Some(known) = unsafe { known.as_ref() }
            && is_final(known)
        {
            return known;
        }
        let now = UserNamespace {
            users: map_at(c"/proc/self/uid_map").within(&self.around.users),
            groups: map_at(c"/proc/self/gid_map").within(&self.around.groups),
        };
        // SAFETY: as above.
        match unsafe { known.as_ref() } {
            Some(known) if *known == now => known,
            _ => {
                let now: &'static UserNamespace = Box::leak(Box::new(now));
                self.maps.store(core::ptr::from_ref(now).cast_mut(), Ordering::Release);
                now
            }
        }
    }

    fn has_set(&self, what: u8) -> bool {
        self.set.load(Ordering::Relaxed) & what != 0
    }
}

/// A map that is there stays.
fn is_final(maps: &UserNamespace) -> bool {
    !maps.users.is_empty() && !maps.groups.is_empty()
}

/// A map of this process as `/proc` tells it; nothing where it is not to be read.
fn map_at(path: &core::ffi::CStr) -> IdMap {
    /// 340 lines of three numbers, as the kernel pads them.
    const BYTES_MAX: usize = 340 * 33 + 1;
    let mut text = vec![0u8; BYTES_MAX];
    let mut used = 0;
    // SAFETY: a path that ends in zero, our own descriptor, and a buffer of that length.
    unsafe {
        let opened = syscall(OPENAT, [usize::MAX, path.as_ptr() as usize, 0o2000000, 0]);
        if is_error(opened) {
            return IdMap::NOTHING;
        }
        while used < text.len() {
            let length = syscall(READ, [opened as usize, text[used..].as_mut_ptr() as usize, text.len() - used]);
            match usize::try_from(length) {
                Ok(length) if length > 0 => used += length,
                _ => break,
            }
        }
        syscall(CLOSE, [opened as usize]);
    }
    core::str::from_utf8(&text[..used]).ok().and_then(IdMap::parse).unwrap_or(IdMap::NOTHING)
}

/// The origin's id of one that looks like `seen`, where the process came in as `came`; `was_set`: it may have changed since.
fn outside(map: &IdMap, seen: u32, came: u32, was_set: bool) -> u32 {
    match map.outside(seen) {
        Some(outside) if seen != NOBODY || was_set || map.inside(came).is_some() => outside,
        // Not known inside: it is what it was. Without a map none could have been set.
        _ if seen == NOBODY && !(was_set && map.is_empty()) => came,
        // The map is not to be read.
        _ => NOBODY,
    }
}

/// Who the process is to volumes, from what the kernel says of it. The namespace is `None` at the origin; whether that is the last word.
pub(crate) fn translate(seen: Ids) -> (Ids, Option<&'static UserNamespace>, bool) {
    /// Knows no ids: capabilities count for nothing.
    static UNKNOWN: UserNamespace = UserNamespace { users: IdMap::NOTHING, groups: IdMap::NOTHING };
    let inside = match place() {
        Place::Origin => return (seen, None, true),
        Place::Inside(inside) => inside,
        // What was open before stays so, but for nobody's eyes.
        Place::Lost => {
            let (user, group) = (NOBODY, NOBODY);
            let ids = Ids { user, group, real_user: user, real_group: group, groups: Vec::new() };
            return (ids, Some(&UNKNOWN), true);
        }
    };
    let (maps, came) = (inside.maps(), &inside.came);
    let user = |seen, came| outside(&maps.users, seen, came, inside.has_set(USER_SET));
    let group = |seen, came| outside(&maps.groups, seen, came, inside.has_set(GROUP_SET));
    let groups = if inside.has_set(GROUPS_SET) {
        seen.groups.iter().filter_map(|seen| maps.groups.outside(*seen)).collect()
    } else {
        came.groups.clone()
    };
    let ids = Ids {
        user: user(seen.user, came.user),
        group: group(seen.group, came.group),
        real_user: user(seen.real_user, came.real_user),
        real_group: group(seen.real_group, came.real_group),
        groups,
    };
    (ids, Some(maps), is_final(maps))
}

/// Whether the maps of the namespace are others than `maps` by now.
pub(crate) fn have_changed(maps: Option<&'static UserNamespace>) -> bool {
    matches!(place(), Place::Inside(inside) if maps.is_none_or(|maps| !core::ptr::eq(maps, inside.maps())))
}

/// Before a volume is opened: arenas are named by ids of the origin. An error if those are not known, and why.
pub(crate) fn before_opening() -> Result<(), &'static str> {
    match place() {
        Place::Origin => {}
        Place::Inside(_) => shm::translate_users(user_outside, user_seen),
        Place::Lost => {
            return Err(
                "this process is in a user namespace, and who it is outside is not known: the namespace was made by a program \
                         that does not see volumes, or there is no /proc",
            );
        }
    }
    Ok(())
}

fn user_outside(seen: u32) -> u32 {
    match place() {
        Place::Inside(inside) => outside(&inside.maps().users, seen, inside.came.user, inside.has_set(USER_SET)),
        _ => seen,
    }
}

/// How a user of the origin looks here.
pub(crate) fn user_seen(user: u32) -> Seen {
    match place() {
        Place::Inside(inside) => {
            let id = inside.maps().users.inside(user).unwrap_or(NOBODY);
            Seen { id, is_shared: id == NOBODY }
        }
        _ => Seen { id: user, is_shared: false },
    }
}

/// Whether a file that looks as if `user` owned it can be of somebody else.
pub(crate) fn can_be_another(user: u32) -> bool {
    user == NOBODY && !matches!(place(), Place::Origin)
}

/// The maps of the namespace that the process is in; `None` at the origin. For what is asked in every call: nothing is looked up, since who has a
/// volume open has looked.
#[inline]
pub(super) fn maps() -> Option<&'static UserNamespace> {
    if PLACE.load(Ordering::Relaxed) == INSIDE { maps_inside() } else { None }
}

#[cold]
fn maps_inside() -> Option<&'static UserNamespace> {
    match place() {
        Place::Inside(inside) => Some(inside.maps()),
        _ => None,
    }
}

/// The program has set ids of its own by this call.
pub(crate) fn note_set(number: usize, arguments: &[usize; 6]) {
    let ids = match number {
        SETRESUID | SETRESGID => &arguments[..3],
        SETREUID | SETREGID => &arguments[..2],
        _ => &arguments[..1],
    };
    // Nothing is set, or only asked for, by an impossible id.
    if number != SETGROUPS && ids.iter().all(|id| *id as u32 == u32::MAX) {
        return;
    }
    if let Place::Inside(inside) = place() {
        let what = match number {
            SETUID | SETREUID | SETRESUID | SETFSUID => USER_SET,
            SETGID | SETREGID | SETRESGID | SETFSGID => GROUP_SET,
            SETGROUPS => GROUPS_SET,
            _ => return,
        };
        inside.set.fetch_or(what, Ordering::Relaxed);
    }
}

/// What the next program is told, in `GANNET_RUN_USERS`.
pub(crate) fn told() -> Vec<u8> {
    if PLACE.load(Ordering::Acquire) == INSIDE
        && let Place::Inside(inside) = place()
    {
        return inside.tell().into_bytes();
    }
    environment::settings().map_or_else(Vec::new, |settings| settings.users().to_vec())
}

/// What a process knows of itself before it comes into another namespace.
pub(crate) struct Before {
    origin: u64,
    around: UserNamespace,
    came: Ids,
}

impl Before {
    /// `None` if it is not known who it is: nor is it behind it.
    pub(crate) fn look() -> Option<Self> {
        let (origin, around) = match place() {
            Place::Origin => (origin(), UserNamespace { users: IdMap::same(), groups: IdMap::same() }),
            // Nobody is let further in before both maps are there.
            Place::Inside(inside) => (inside.origin, inside.maps().clone()),
            Place::Lost => return None,
        };
        Some(Self { origin, around, came: credentials::ids() })
    }

    /// The process is in another now.
    pub(crate) fn entered(before: Option<Self>) {
        let inside = before.map(|Before { origin, around, came }| {
            // Without /proc it is told of as one that nobody is in.
            let namespace = namespace_now().unwrap_or(0);
            let (set, maps) = (AtomicU8::new(0), AtomicPtr::default());
            Inside { origin, namespace, around, came, set, maps }
        });
        match inside {
            Some(inside) => {
                NAMESPACE.store(Box::into_raw(Box::new(inside)), Ordering::Release);
                PLACE.store(INSIDE, Ordering::Release);
                shm::translate_users(user_outside, user_seen);
            }
            None => PLACE.store(LOST, Ordering::Release),
        }
        credentials::forget();
        rights::forget_opener();
        super::note_identity_change();
    }
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
        for wrong in ["", "4026531837", "1;2;x;;0;1 2 3 4", "1;2;;;0;1 2 3", "1;2;;;0;1 2 3 4;"] {
            assert!(inside_of(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn ids_that_look_like_nobody_are_what_they_were() {
        let narrow = IdMap::parse("0 100000 10").unwrap();
        let wide = IdMap::parse("0 100000 65536").unwrap();
        assert_eq!(outside(&narrow, 3, 5, false), 100_003);
        assert_eq!(outside(&narrow, NOBODY, 5, true), 5);
        assert_eq!(outside(&wide, NOBODY, 5, false), 5);
        assert_eq!(outside(&wide, NOBODY, 5, true), 165_534);
        assert_eq!(outside(&wide, NOBODY, 165_534, false), 165_534);
        assert_eq!(outside(&IdMap::NOTHING, NOBODY, 5, false), 5);
        assert_eq!([outside(&IdMap::NOTHING, 0, 5, false), outside(&IdMap::NOTHING, NOBODY, 5, true)], [NOBODY; 2]);
    }
}
