//! The library that `gannet run` injects: beside the command, or, where that was installed by itself (`cargo install`), inside it; then
//! it is laid down once where its user keeps what can be made again. Relies on build.rs.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where the library is; `None` if it is nowhere.
///
/// # Errors
/// Where it cannot be known what is beside this command, and none is inside it.
pub(crate) fn find() -> std::io::Result<Option<PathBuf>> {
    match gannet_intercept::find_library() {
        Ok(Some(path)) => Ok(Some(path)),
        other => inside().map_or(other, |path| Ok(Some(path))),
    }
}

/// What [`gannet_open::BUILD`] was when the library at `path` was made; `None` if it does not say.
pub(crate) fn build_of(path: &Path) -> Option<String> {
    const PROGRAM_HEADER_BYTES: usize = 56;
    const PT_NOTE: u32 = 4;
    const NAME: &[u8] = b"Gannet\0\0";
    let file = std::fs::File::open(path).ok()?;
    let mut head = [0; 4096];
    file.read_exact_at(&mut head, 0).ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    let short = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?) as usize);
    if !head.starts_with(b"\x7fELF\x02\x01") || short(54)? != PROGRAM_HEADER_BYTES {
        return None;
    }
    for index in 0..short(56)? {
        let header = usize::try_from(word(32)?).ok()?.checked_add(index * PROGRAM_HEADER_BYTES)?;
        if word(header)? as u32 != PT_NOTE {
            continue;
        }
        let mut notes = vec![0; usize::try_from(word(header + 32)?).ok()?.min(NOTES_BYTES_MAX)];
        file.read_exact_at(&mut notes, word(header + 8)?).ok()?;
        // The name is unlike anything else there; behind it stands the number.
        if let Some(at) = notes.windows(NAME.len()).position(|bytes| bytes == NAME) {
            let number = notes.get(at + NAME.len()..at + NAME.len() + gannet_open::BUILD.len())?;
            return String::from_utf8(number.to_vec()).ok();
        }
    }
    None
}

/// Longer notes are not looked at.
const NOTES_BYTES_MAX: usize = 64 * 1024;

#[cfg(not(library_inside))]
fn inside() -> Option<PathBuf> {
    None
}

#[cfg(library_inside)]
fn inside() -> Option<PathBuf> {
    const BYTES: &[u8] = include_bytes!(env!("GANNET_LIBRARY_FILE"));
    laid_down(&directory()?, concat!("libgannet_preload-", env!("GANNET_LIBRARY_HASH"), ".so"), BYTES).ok()
}

/// A directory that no other user can write to.
#[cfg(library_inside)]
fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        // Programs may go on as another user, who must be able to read it.
        return Some("/var/cache/gannet".into());
    }
    let from = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    Some(from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache")))?.join("gannet"))
}

/// Writes a file unless it is there already.
#[cfg(any(library_inside, test))]
fn laid_down(directory: &std::path::Path, name: &str, bytes: &[u8]) -> std::io::Result<PathBuf> {
    use std::fs::{self, DirBuilder, Permissions};
    use std::io::{Error, ErrorKind};
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let about = fs::symlink_metadata(directory)?;
    // Whoever can write there decides what runs in all programs.
    if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o022 != 0 {
        return Err(Error::new(ErrorKind::PermissionDenied, "not this user's own directory"));
    }
    let path = directory.join(name);
    if fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(path);
    }
    let new = directory.join(format!("{name}.{}", std::process::id()));
    fs::write(&new, bytes)?;
    fs::set_permissions(&new, Permissions::from_mode(0o755))?;
    fs::rename(&new, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_laid_down_once_and_mended_and_not_where_others_can_write() {
        let base = tempfile::TempDir::new().unwrap();
        let directory = base.path().join("a/b");
        let path = laid_down(&directory, "library", b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::write(&path, b"cut").unwrap();
        assert_eq!(laid_down(&directory, "library", b"one").unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert!(laid_down(&directory, "library", b"one").is_err());
    }
}
