//! User namespaces below the one in which the tree was started (user_namespaces(7)): who the process is to a volume, whose ids are those
//! of where the tree was started.
//!
//! A process comes into another namespace by `unshare`, `clone`, `clone3` and `setns` ([`super::enter_users`]), and notes who it was before: its
//! ids stay the same to files, but the kernel tells them no more until a map says how they look, and those that no map names never.
//! `execve` hands it on (`GANNET_RUN_USERS`):
//!
//! ```text
//! ORIGIN                                                     the inode of the namespace in which the tree was started
//! ORIGIN;NAMESPACE;USERS;GROUPS;SET;USER GROUP REAL REAL…    where the process is; maps from around it to the origin, as in uid_map but
//!                                                            with commas; which ids it has set to 65534; who it was, and its groups
//! ```
//!
//! What is told is compared with the kernel's word: a process in a namespace that nobody told of does not see volumes. The variable is no
//! more to be believed than the program that has it, which has the volume mapped: what others may not do is the kernel's to prevent, by the
//! permissions of the volume's file and of its arena.
//!
//! The own maps are read in `/proc`, again as long as they are empty: they are written once, also by others. While they cannot be read
//! (descriptors are full) the process is nobody ([`UNKNOWN`]), who owns nothing and makes nothing. A process without namespaces pays one look
//! at `/proc/self/ns/user`, when it first opens a volume.
//!
//! Whether ids are still what they were is asked of the kernel: other programs may have set them. Only where 65534 is mapped does it say the
//! same of two, and what the process was seen to set decides.

use super::user_maps::{groups_outside, map_at, outside};
use super::{credentials, rights};
use crate::environment;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::cell::Cell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use gannet_vfs::Errno;
use gannet_vfs::namespace::{Credentials, IdMap, UserNamespace};
use gannet_vfs::shared::shm::{self, Seen};
use std::fmt::Write;

/// Of `unshare`, `clone` and `setns`.
pub(crate) const CLONE_NEWUSER: usize = 0x1000_0000;
/// What the kernel tells of ids that a namespace does not know.
pub(super) const NOBODY: u32 = 65534;
/// More groups are not handed over an `execve`: a variable of the environment has its bounds.
pub(super) const GROUPS_MAX: usize = 4096;
/// Who is not known: never an inode's owner.
pub(super) const UNKNOWN: u32 = Credentials::UNKNOWN;
/// The maps of who is not known: no ids, and capabilities count for nothing.
static NO_MAPS: UserNamespace = UserNamespace { users: IdMap::NOTHING, groups: IdMap::NOTHING };

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
    /// What was set to 65534: [`USER_SET`] and the like.
    set: AtomicU8,
    /// From the namespace to the origin; null until it was looked at. Never freed, as others may be reading it.
    maps: AtomicPtr<UserNamespace>,
}

const USER_SET: u8 = 1;
const GROUP_SET: u8 = 2;
const GROUPS_SET: u8 = 4;
const REAL_USER_SET: u8 = 8;
const REAL_GROUP_SET: u8 = 16;

std::thread_local! {
    /// What a `vfork` child has set, which is not its parent's.
    static SET_BY_CHILD: Cell<u8> = const { Cell::new(0) };
    /// The maps of the namespace as this call of the thread's has read them, where they were not yet written. They are read once for a call.
    static READ_IN_CALL: Cell<Option<&'static UserNamespace>> = const { Cell::new(None) };
}

/// A call of this thread's begins.
#[inline]
pub(crate) fn begin_call() {
    if PLACE.load(Ordering::Relaxed) == INSIDE {
        READ_IN_CALL.set(None);
    }
}

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
        // Also where it is not known: a program that is not ours may have made a namespace, and brought the process out of the sight of
        // /proc, whose ids would be taken for those of outside.
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

/// The inode of the namespace that the process is in. Where /proc is not to be seen, as the kernel tells it since Linux 6.11.
pub(super) fn namespace_now() -> Option<u64> {
    inode_of(c"/proc/self/ns/user").or_else(namespace_of_process)
}

fn namespace_of_process() -> Option<u64> {
    const PIDFD_GET_USER_NAMESPACE: usize = 0xff09;
    // SAFETY: no pointers; a descriptor of our own, which is closed again. So is what the second call makes.
    unsafe {
        let process = syscall(PIDFD_OPEN, [syscall(GETPID, []) as usize, 0]);
        if is_error(process) {
            return None;
        }
        let namespace = syscall(IOCTL, [process as usize, PIDFD_GET_USER_NAMESPACE, 0]);
        syscall(CLOSE, [process as usize]);
        if is_error(namespace) {
            return None;
        }
        let mut status = [0u64; 18];
        let told = syscall(FSTAT, [namespace as usize, status.as_mut_ptr() as usize]);
        syscall(CLOSE, [namespace as usize]);
        (!is_error(told)).then_some(status[1])
    }
}

/// The inode that a path leads to.
pub(super) fn inode_of(path: &CStr) -> Option<u64> {
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(STAT, [path.as_ptr() as usize, status.as_mut_ptr() as usize]) };
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
    fn maps(&self) -> &'static UserNamespace {
        if let Some(known) = self.known()
            && is_final(known)
        {
            return known;
        }
        READ_IN_CALL.get().unwrap_or_else(|| self.read_maps())
    }

    /// Likewise, as far as it is known by now.
    fn read_maps(&self) -> &'static UserNamespace {
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

    fn note(&self, what: u8, in_child: bool) {
        if in_child {
            SET_BY_CHILD.set(SET_BY_CHILD.get() | what);
        } else {
            self.set.fetch_or(what, Ordering::Relaxed);
        }
    }

    fn has_set(&self, what: u8) -> bool {
        (self.set.load(Ordering::Relaxed) | SET_BY_CHILD.get()) & what != 0
    }
}

/// A map that is there stays.
fn is_final(maps: &UserNamespace) -> bool {
    !maps.users.is_empty() && !maps.groups.is_empty()
}

/// Who the process is to volumes, by what the kernel says of it: `look`. The namespace is `None` at the origin; whether that is the last
/// word.
pub(crate) fn translate(look: impl Fn() -> Ids) -> (Ids, Option<&'static UserNamespace>, bool) {
    let inside = match place() {
        Place::Origin => return (look(), None, true),
        Place::Inside(inside) => inside,
        // What was open before stays so, but for nobody's eyes.
        Place::Lost => return (unknown(), Some(&NO_MAPS), true),
    };
    // What the kernel says is to be read by the maps that it said it by.
    let (mut maps, mut seen) = (inside.maps(), look());
    loop {
        if core::ptr::eq(maps, &NO_MAPS) {
            return (unknown(), Some(&NO_MAPS), false);
        }
        let now = if is_final(maps) { maps } else { inside.read_maps() };
        if core::ptr::eq(maps, now) {
            break;
        }
        (maps, seen) = (now, look());
    }
    let came = &inside.came;
    let user = |seen, came, set| outside(&maps.users, seen, came, inside.has_set(set));
    let group = |seen, came, set| outside(&maps.groups, seen, came, inside.has_set(set));
    let ids = Ids {
        user: user(seen.user, came.user, USER_SET),
        group: group(seen.group, came.group, GROUP_SET),
        real_user: user(seen.real_user, came.real_user, REAL_USER_SET),
        real_group: group(seen.real_group, came.real_group, REAL_GROUP_SET),
        groups: groups_outside(&maps.groups, &seen.groups, &came.groups, inside.has_set(GROUPS_SET)),
    };
    (ids, Some(maps), is_final(maps))
}

fn unknown() -> Ids {
    let (user, group) = (UNKNOWN, UNKNOWN);
    Ids { user, group, real_user: user, real_group: group, groups: Vec::new() }
}

/// Whether the maps of the namespace are others than `maps` by now.
pub(crate) fn have_changed(maps: Option<&'static UserNamespace>) -> bool {
    matches!(place(), Place::Inside(inside) if maps.is_none_or(|maps| !core::ptr::eq(maps, inside.maps())))
}

/// Before a volume is opened: arenas are named by ids of the origin. An error if those are not known, and why.
pub(crate) fn before_opening() -> Result<(), (Errno, &'static str)> {
    match place() {
        Place::Origin => {}
        Place::Inside(_) if user_outside(effective_user()) == UNKNOWN => {
            let why = "who this process is outside of its user namespace cannot be read in /proc/self/uid_map: are its descriptors used up?";
            return Err((Errno::MFILE, why));
        }
        Place::Inside(_) => translate_arenas(),
        Place::Lost => {
            let why = "this process is in a user namespace, and who it is outside is not known: the namespace was made by a program \
                       that does not see volumes, or there is no /proc";
            return Err((Errno::ACCESS, why));
        }
    }
    Ok(())
}

fn translate_arenas() {
    shm::translate_users(shm::Translation { outside: user_outside, group_outside, inside: user_seen });
}

fn effective_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(GETEUID, []) as u32 }
}

fn user_outside(seen: u32) -> u32 {
    id_outside(seen, |inside, maps| outside(&maps.users, seen, inside.came.user, inside.has_set(USER_SET)))
}

fn group_outside(seen: u32) -> u32 {
    id_outside(seen, |inside, maps| outside(&maps.groups, seen, inside.came.group, inside.has_set(GROUP_SET)))
}

/// The origin's id of one that looks like `seen`; by `translate` in a namespace whose maps can be read.
fn id_outside(seen: u32, translate: impl FnOnce(&Inside, &UserNamespace) -> u32) -> u32 {
    match place() {
        Place::Origin => seen,
        Place::Inside(inside) => match inside.maps() {
            maps if core::ptr::eq(maps, &NO_MAPS) => UNKNOWN,
            maps => translate(inside, maps),
        },
        Place::Lost => UNKNOWN,
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

/// Whether the process may set any id by this call, which may take that right away.
pub(crate) fn could_set(number: usize) -> bool {
    const CAP_SETGID: u32 = 1 << 6;
    const CAP_SETUID: u32 = 1 << 7;
    let capability = match number {
        SETUID | SETFSUID => CAP_SETUID,
        SETGID | SETFSGID => CAP_SETGID,
        _ => return false,
    };
    matches!(place(), Place::Inside(_)) && rights::has_any_capability(capability)
}

/// The program has set ids of its own by this call, a `vfork` child (`in_child`) its own only. Where that is 65534, which must be mapped then, or
/// becomes so in a program that is not ours, the kernel says the same of it as of one that is not known. `could`: what [`could_set`] said before.
pub(crate) fn note_set(number: usize, arguments: &[usize; 6], could: bool, in_child: bool) {
    let Place::Inside(inside) = place() else { return };
    let if_nobody = |id: usize, what: u8| if id as u32 == NOBODY { what } else { 0 };
    // One that is set is mapped, and one that is not cannot be named again.
    let if_set = |id: usize, what: u8| if id as u32 != u32::MAX { what } else { 0 };
    let (real, acting) = match number {
        SETUID | SETREUID | SETRESUID | SETFSUID => (REAL_USER_SET, USER_SET),
        SETGID | SETREGID | SETRESGID | SETFSGID => (REAL_GROUP_SET, GROUP_SET),
        SETGROUPS => {
            inside.note(GROUPS_SET, in_child);
            return;
        }
        _ => return,
    };
    let set = match number {
        SETRESUID | SETRESGID | SETREUID | SETREGID => if_set(arguments[0], real) | if_set(arguments[1], acting),
        SETUID | SETGID => if_set(arguments[0], if could { real | acting } else { acting }),
        // These never say that they failed.
        SETFSUID | SETFSGID if could || inside.has_set(real) => {
            let maps = inside.maps();
            let map = if acting == USER_SET { &maps.users } else { &maps.groups };
            if map.outside(NOBODY).is_some() { if_nobody(arguments[0], acting) } else { 0 }
        }
        _ => 0,
    };
    inside.note(set, in_child);
}

/// What a `vfork` child set is not set any more: it has ended.
pub(crate) fn forget_child() {
    SET_BY_CHILD.set(0);
}

/// A child that a `vfork` child forked: what that set is set in it for good, as its memory is its own.
#[inline]
pub(crate) fn adopt_child() {
    if PLACE.load(Ordering::Relaxed) == INSIDE
        && SET_BY_CHILD.get() != 0
        && let Place::Inside(inside) = place()
    {
        inside.note(SET_BY_CHILD.take(), false);
    }
}

/// Whether the process is in a namespace that nobody told of.
pub(crate) fn is_lost() -> bool {
    matches!(place(), Place::Lost)
}

/// Whether what `GANNET_RUN_USERS` is to tell the next program makes where the process is the origin: a `gannet run` in here.
pub(crate) fn begins_here(told: &[u8]) -> bool {
    let told = core::str::from_utf8(told).ok().and_then(origin_of);
    told.is_some() && told == namespace_now()
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
    /// `None` if it is not known who it is: nor is it in there.
    pub(crate) fn look() -> Option<Self> {
        let (origin, around) = match place() {
            Place::Origin => (origin(), UserNamespace { users: IdMap::same(), groups: IdMap::same() }),
            // Nobody is let further in before both maps are there.
            Place::Inside(inside) => (inside.origin, inside.maps().clone()),
            Place::Lost => return None,
        };
        let came = credentials::ids();
        (![came.user, came.group].contains(&UNKNOWN)).then_some(Self { origin, around, came })
    }

    /// The process is in another now.
    pub(crate) fn entered(before: Option<Self>) {
        forget_child();
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
                translate_arenas();
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
        let reads = || super::super::user_maps::READS.get();
        let before = reads();
        let first = inside.maps();
        assert!(!is_final(first) && reads() == before + 2);
        assert!(core::ptr::eq(inside.maps(), first) && reads() == before + 2);
        assert!(core::ptr::eq(inside.read_maps(), first) && reads() == before + 4);
        READ_IN_CALL.set(None);
        assert!(core::ptr::eq(inside.maps(), first) && reads() == before + 6);
        READ_IN_CALL.set(None);
    }

    #[test]
    fn the_kernel_tells_the_namespace_without_proc() {
        // None before Linux 6.11.
        let told = namespace_of_process();
        assert!(told.is_none() || told == inode_of(c"/proc/self/ns/user"), "{told:?}");
    }
}
