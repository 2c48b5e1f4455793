//! Extended attributes, and access control lists as such.

use crate::call::{run, run_plain};
use crate::memory::{Input, Output, Text};
use crate::volume::Volume;
use gannet_vfs::namespace::{LastMode, Namespace};
use gannet_vfs::{Errno, Error, NodeId, Result, XattrMode};
use std::ffi::{c_char, c_int, c_void};

const NAME_BYTES_MAX: usize = 255;
const VALUE_BYTES_MAX: usize = 65536;
const LIST_BYTES_MAX: usize = 65536;

type NameRoom = [u8; NAME_BYTES_MAX + 1];
const ROOM: NameRoom = [0; NAME_BYTES_MAX + 1];

fn get(namespace: &Namespace<'_, '_>, node: NodeId, name: Text, into: &Output<u8>, size: usize) -> Result<i64> {
    let mut room = ROOM;
    let name = name.read(&mut room, Errno::RANGE)?;
    namespace.xattr_within(node, name, size.min(VALUE_BYTES_MAX), |length, value| {
        if size != 0 {
            into.write(value.ok_or(Error::new(Errno::RANGE))?)?;
        }
        Ok(length as i64)
    })?
}

fn set(
    namespace: &Namespace<'_, '_>,
    node: NodeId,
    name: Text,
    from: &Input<u8>,
    size: usize,
    flags: c_int,
) -> Result<()> {
    let mode = match flags {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Error::because(Errno::INVAL, "flags that are not known")),
    };
    let mut room = ROOM;
    let name = name.read(&mut room, Errno::RANGE)?;
    if size > VALUE_BYTES_MAX {
        return Err(Error::because(Errno::TOOBIG, "a value has at most 65536 bytes"));
    }
    let mut value = vec![0; size];
    from.read(&mut value)?;
    namespace.set_xattr(node, name, &value, mode)
}

fn list(namespace: &Namespace<'_, '_>, node: NodeId, into: &Output<u8>, size: usize) -> Result<i64> {
    let mut names = Vec::new();
    namespace.list_xattrs(node, &mut |name| {
        names.extend_from_slice(name);
        names.push(0);
    })?;
    if size != 0 {
        if names.len() > size.min(LIST_BYTES_MAX) {
            let room_is_no_help = size >= LIST_BYTES_MAX;
            return Err(Error::new(if room_is_no_help { Errno::TOOBIG } else { Errno::RANGE }));
        }
        into.write(&names)?;
    }
    Ok(names.len() as i64)
}

fn remove(namespace: &Namespace<'_, '_>, node: NodeId, name: Text) -> Result<()> {
    let mut room = ROOM;
    namespace.remove_xattr(node, name.read(&mut room, Errno::RANGE)?)
}

/// Reads an extended attribute. With `size` 0 only its length is told.
///
/// Returns the length of the value in bytes; -ENODATA if there is none, -ERANGE if `size` is too small.
///
/// # Safety
/// `volume` is attached or NULL, `path` and `name` are strings, `value` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_getxattr(
    volume: *mut Volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (path, name, value) = unsafe { (Text::new(path), Text::new(name), Output::new(value.cast())) };
    let get = |volume: &Volume| {
        volume.at_existing(path, LastMode::Follow, |namespace, node| get(namespace, node, name, &value, size))
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_getxattr", volume, get) }
}

/// The same; a symbolic link at the end is not followed.
///
/// # Safety
/// As for `gannet_getxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lgetxattr(
    volume: *mut Volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (path, name, value) = unsafe { (Text::new(path), Text::new(name), Output::new(value.cast())) };
    let get = |volume: &Volume| {
        volume.at_existing(path, LastMode::NoFollow, |namespace, node| get(namespace, node, name, &value, size))
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_lgetxattr", volume, get) }
}

/// The same of an open file.
///
/// # Safety
/// As for `gannet_getxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fgetxattr(
    volume: *mut Volume,
    descriptor: c_int,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (Text::new(name), Output::new(value.cast())) };
    let get =
        |volume: &Volume| volume.with_open(descriptor, |file| get(&volume.namespace(), file.node, name, &value, size));
    // SAFETY: the caller's promise.
    unsafe { run("gannet_fgetxattr", volume, get) }
}

/// Sets an extended attribute to a value of at most 65536 bytes. `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
///
/// # Safety
/// `volume` is attached or NULL, `path` and `name` are strings, `value` holds `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_setxattr(
    volume: *mut Volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, name, value) = unsafe { (Text::new(path), Text::new(name), Input::new(value.cast())) };
    let set = |volume: &Volume| {
        volume.at_existing(path, LastMode::Follow, |namespace, node| set(namespace, node, name, &value, size, flags))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_setxattr", volume, set) }
}

/// The same; a symbolic link at the end is not followed.
///
/// # Safety
/// As for `gannet_setxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lsetxattr(
    volume: *mut Volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, name, value) = unsafe { (Text::new(path), Text::new(name), Input::new(value.cast())) };
    let set = |volume: &Volume| {
        volume.at_existing(path, LastMode::NoFollow, |namespace, node| set(namespace, node, name, &value, size, flags))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_lsetxattr", volume, set) }
}

/// The same of an open file.
///
/// # Safety
/// As for `gannet_setxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fsetxattr(
    volume: *mut Volume,
    descriptor: c_int,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (Text::new(name), Input::new(value.cast())) };
    let set = |volume: &Volume| {
        volume.with_open(descriptor, |file| set(&volume.namespace(), file.node, name, &value, size, flags))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fsetxattr", volume, set) }
}

/// Stores the names of all extended attributes, each with a zero byte behind it. With `size` 0 only their length is told.
///
/// Returns the length of the names in bytes; -ERANGE if `size` is too small.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `names` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_listxattr(
    volume: *mut Volume,
    path: *const c_char,
    names: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (path, names) = unsafe { (Text::new(path), Output::new(names.cast())) };
    let list = |volume: &Volume| {
        volume.at_existing(path, LastMode::Follow, |namespace, node| list(namespace, node, &names, size))
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_listxattr", volume, list) }
}

/// The same; a symbolic link at the end is not followed.
///
/// # Safety
/// As for `gannet_listxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_llistxattr(
    volume: *mut Volume,
    path: *const c_char,
    names: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (path, names) = unsafe { (Text::new(path), Output::new(names.cast())) };
    let list = |volume: &Volume| {
        volume.at_existing(path, LastMode::NoFollow, |namespace, node| list(namespace, node, &names, size))
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_llistxattr", volume, list) }
}

/// The same of an open file.
///
/// # Safety
/// As for `gannet_listxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_flistxattr(
    volume: *mut Volume,
    descriptor: c_int,
    names: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let names = unsafe { Output::new(names.cast()) };
    let list =
        |volume: &Volume| volume.with_open(descriptor, |file| list(&volume.namespace(), file.node, &names, size));
    // SAFETY: the caller's promise.
    unsafe { run("gannet_flistxattr", volume, list) }
}

/// Removes an extended attribute.
///
/// Returns 0; -ENODATA if there is none.
///
/// # Safety
/// `volume` is attached or NULL, `path` and `name` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_removexattr(volume: *mut Volume, path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (path, name) = unsafe { (Text::new(path), Text::new(name)) };
    let remove =
        |volume: &Volume| volume.at_existing(path, LastMode::Follow, |namespace, node| remove(namespace, node, name));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_removexattr", volume, remove) }
}

/// The same; a symbolic link at the end is not followed.
///
/// # Safety
/// As for `gannet_removexattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lremovexattr(volume: *mut Volume, path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (path, name) = unsafe { (Text::new(path), Text::new(name)) };
    let remove =
        |volume: &Volume| volume.at_existing(path, LastMode::NoFollow, |namespace, node| remove(namespace, node, name));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_lremovexattr", volume, remove) }
}

/// The same of an open file.
///
/// # Safety
/// `volume` is attached or NULL, `name` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fremovexattr(volume: *mut Volume, descriptor: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { Text::new(name) };
    let remove = |volume: &Volume| volume.with_open(descriptor, |file| remove(&volume.namespace(), file.node, name));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fremovexattr", volume, remove) }
}
