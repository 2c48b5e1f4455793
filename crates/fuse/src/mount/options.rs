//! What a mount can be asked for, as a structure and as the words of `mount -o`.

use std::time::Duration;

use crate::dispatch::CachePolicy;
use crate::transport::Transport;

/// What mount(8) and fstab add for themselves, what is always so here, and what has no meaning here. Remounting repeats
/// what the kernel shows for each mount: `user_id`, `group_id`, `max_read`, `blksize`.
const IGNORED: &[&str] = &[
    "_netdev",
    "acl",
    "async",
    "auto",
    "blksize",
    "comment",
    "default_permissions",
    "defaults",
    "dirsync",
    "group",
    "group_id",
    "helper",
    "iversion",
    "lazytime",
    "loud",
    "mand",
    "max_read",
    "noauto",
    "nofail",
    "nogroup",
    "noiversion",
    "nolazytime",
    "nomand",
    "nonempty",
    "noowner",
    "nouser",
    "nousers",
    "owner",
    "silent",
    "sync",
    "uhelper",
    "user",
    "user_id",
    "user_xattr",
    "users",
];

/// How to mount. The default is what an ordinary user gets: `nosuid,nodev`, for the mounting user alone, coherent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountOptions {
    /// What `/proc/mounts` shows as the source; the file system's kind if empty.
    pub source: String,
    /// What `/proc/mounts` shows behind `fuse.` as the type; `gannet` if it is not said, and the type is `fuse` alone if it is empty.
    pub subtype: Option<String>,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Other users may enter, as permissions allow.
    pub allow_other: bool,
    /// Access times are not kept.
    pub no_access_time: bool,
    /// Reading directories moves no access time.
    pub no_directory_access_time: bool,
    /// Each read moves the access time, not only the first after a change and the first of a day. An automatic mount is
    /// coherent then; on an exclusive one what the page cache answers moves nothing. Where links lead is asked each time.
    pub strict_access_time: bool,
    /// No program can be run from it.
    pub no_execute: bool,
    /// No symbolic link on it is followed; they can be read.
    pub no_links: bool,
    /// Set-user-id bits and file capabilities count. Only root may say so, and only for a volume that only root can write:
    /// an image someone else wrote could hold a root shell.
    pub allow_set_user_id: bool,
    /// Device files work. As dangerous as the former.
    pub allow_devices: bool,
    /// All files appear to be this user's.
    pub user: Option<u32>,
    /// All files appear to be this group's.
    pub group: Option<u32>,
    /// The permission bits that all files lack; they have all others then, and no access control lists.
    pub umask: Option<u32>,
    /// What the kernel may remember.
    pub cache: CachePolicy,
    /// How long somebody who opens the volume waits for this mount to stop caching (automatic mounts); 2 seconds by default.
    pub cache_deadline: Option<Duration>,
    /// Locks exclude programs behind this mount only, not those who use the volume in other ways. Saves a request at each close.
    pub local_locks: bool,
    /// How data is written where a file does not say otherwise: for whoever opens the file system that is served.
    pub copy_on_write: Option<bool>,
    /// Which way requests take.
    pub transport: Transport,
    /// Where FUSE over io_uring is turned off, turn it on first: for the whole machine, until it boots again. Takes root.
    pub enable_ring: bool,
    /// Threads for `/dev/fuse`; by default one per core, 2 to 16.
    pub threads: Option<usize>,
}

impl MountOptions {
    /// Applies the comma-separated words of `mount -o`.
    ///
    /// # Errors
    /// The word that is not understood, with why.
    pub fn parse(&mut self, words: &str) -> Result<(), String> {
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
            let number = || -> Result<u32, String> {
                value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("{word}: a number is needed"))
            };
            match key {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "allow_other" => self.allow_other = true,
                "noatime" => self.no_access_time = true,
                "atime" => self.no_access_time = false,
                "nodiratime" => self.no_directory_access_time = true,
                "diratime" => self.no_directory_access_time = false,
                "strictatime" => (self.no_access_time, self.strict_access_time) = (false, true),
                "relatime" => (self.no_access_time, self.strict_access_time) = (false, false),
                "norelatime" | "nostrictatime" => self.strict_access_time = false,
                "noexec" => self.no_execute = true,
                "exec" => self.no_execute = false,
                "nosymfollow" => self.no_links = true,
                "symfollow" => self.no_links = false,
                // mount(8) keeps `suid` and `dev` to itself, and passes on only their opposites.
                "suid" | "allow_suid" => self.allow_set_user_id = true,
                "nosuid" => self.allow_set_user_id = false,
                "dev" | "allow_dev" => self.allow_devices = true,
                "nodev" => self.allow_devices = false,
                "uid" => self.user = Some(number()?),
                "gid" => self.group = Some(number()?),
                "threads" => self.threads = Some(number()?.clamp(1, 256) as usize),
                "fsname" => self.source = value.unwrap_or_default().into(),
                "subtype" => self.subtype = Some(value.unwrap_or_default().into()),
                "cache" => {
                    self.cache = match value {
                        Some("automatic") => CachePolicy::Automatic,
                        Some("coherent") => CachePolicy::Coherent,
                        Some("exclusive") => CachePolicy::Exclusive { writeback: false },
                        Some("writeback") => CachePolicy::Exclusive { writeback: true },
                        _ => return Err(format!("{word}: automatic, coherent, exclusive or writeback")),
                    };
                }
                "cache_deadline" => {
                    let seconds: Option<f64> = value.and_then(|value| value.parse().ok());
                    let deadline = seconds.filter(|seconds| (0.0..=600.0).contains(seconds));
                    let deadline = deadline.ok_or_else(|| format!("{word}: seconds, 0 to 600"))?;
                    self.cache_deadline = Some(Duration::from_secs_f64(deadline));
                }
                "locks" => {
                    self.local_locks = match value {
                        Some("local") => true,
                        Some("shared") => false,
                        _ => return Err(format!("{word}: local or shared")),
                    };
                }
                "data" => {
                    self.copy_on_write = match value {
                        Some("cow") => Some(true),
                        Some("inplace") => Some(false),
                        _ => return Err(format!("{word}: cow or inplace")),
                    };
                }
                "transport" => {
                    self.transport = match value {
                        Some("automatic") => Transport::Automatic,
                        Some("classic") => Transport::Classic,
                        Some("ring") => Transport::Ring,
                        _ => return Err(format!("{word}: automatic, classic or ring")),
                    };
                }
                "enable_ring" => self.enable_ring = true,
                "umask" => {
                    let mask = value.and_then(|value| u32::from_str_radix(value, 8).ok());
                    let mask = mask.filter(|mask| mask & !0o777 == 0);
                    self.umask = Some(mask.ok_or_else(|| format!("{word}: an octal number up to 777 is needed"))?);
                }
                key if key.starts_with("x-") || key.starts_with("X-") || IGNORED.contains(&key) => {}
                _ => return Err(format!("{word}: unknown mount option")),
            }
        }
        Ok(())
    }

    /// What `/proc/mounts` shows behind `fuse.`; nothing if the type is `fuse` alone.
    pub(super) fn subtype(&self) -> &str {
        self.subtype.as_deref().unwrap_or("gannet")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_set_what_they_say() {
        let mut options = MountOptions::default();
        options
            .parse(
                "rw,noatime,uid=5,,gid=6,allow_other,cache=writeback,transport=classic,threads=3,x-foo=1,locks=local,cache_deadline=1.5,data=cow",
            )
            .unwrap();
        let expected = MountOptions {
            no_access_time: true,
            allow_other: true,
            user: Some(5),
            group: Some(6),
            cache: CachePolicy::Exclusive { writeback: true },
            transport: Transport::Classic,
            copy_on_write: Some(true),
            threads: Some(3),
            local_locks: true,
            cache_deadline: Some(Duration::from_millis(1500)),
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        options.parse("_netdev,nofail,x-systemd.automount,x-systemd.requires=a.service,user=me,umask=022").unwrap();
        assert_eq!(options, MountOptions { umask: Some(0o22), ..expected });
        options.parse("ro,suid,nosuid,enable_ring").unwrap();
        assert!(options.read_only && !options.allow_set_user_id && options.enable_ring);
        assert_eq!(options.subtype(), "gannet");
        options.parse("noatime,strictatime").unwrap();
        assert!(options.strict_access_time && !options.no_access_time);
        options.parse("relatime").unwrap();
        assert!(!options.strict_access_time);
        options.parse("nodiratime").unwrap();
        assert!(options.no_directory_access_time && !options.no_access_time);
        options.parse("diratime").unwrap();
        assert!(!options.no_directory_access_time);
        // What the kernel shows for a mount is repeated by remounting.
        options.parse("rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=131072").unwrap();
        options.parse("acl,user_xattr,nosymfollow,mand,nomand,iversion,noiversion").unwrap();
        assert!(options.no_links);
        options.parse("allow_suid,allow_dev,subtype=,symfollow").unwrap();
        assert!(!options.no_links);
        assert_eq!(options.subtype(), "");
        assert!(options.allow_set_user_id && options.allow_devices);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let mut options = MountOptions::default();
        assert!(options.parse("ro,speed=11").unwrap_err().starts_with("speed=11"));
        assert!(options.parse("umask=9").is_err());
        // There are no mounts without these.
        assert!(options.parse("noacl").is_err() && options.parse("nouser_xattr").is_err());
        assert!(options.parse("umask=1000").is_err());
        assert!(options.parse("uid=root").unwrap_err().contains("number"));
        assert!(options.parse("cache=maybe").is_err());
        assert!(options.parse("data=journal").is_err() && options.parse("data").is_err());
        assert!(options.parse("cache_deadline=-1").is_err());
        assert!(options.parse("cache_deadline=NaN").is_err());
    }
}
