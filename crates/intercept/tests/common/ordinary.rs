//! Tests as an ordinary user. Root's tests start themselves again as `nobody`, with a `/dev/shm` of their own where every user
//! may make files, as on an ordinary system; copies of the test and of the injected library lie there, since the directory that
//! they were built in may be root's.

use super::library;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Names the copy of the injected library.
pub(super) const LIBRARY: &str = "GANNET_TEST_LIBRARY";
/// Names the directory for what is kept between runs.
const CACHE: &str = "GANNET_TEST_CACHE";

/// Where plans are kept.
pub(super) fn cache() -> OsString {
    std::env::var_os(CACHE).unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into())
}

const SCRIPT: &str = r#"
mount --make-rprivate / && mount -t tmpfs -o mode=1777 tmpfs /dev/shm || exit 77
mkdir /dev/shm/copies /dev/shm/cache && cp "$1" /dev/shm/copies/test && cp "$2" /dev/shm/copies/library.so || exit 1
chmod 755 /dev/shm/copies /dev/shm/copies/*; chown nobody /dev/shm/cache; cd /dev/shm || exit 1
export GANNET_TEST_LIBRARY=/dev/shm/copies/library.so GANNET_TEST_CACHE=/dev/shm/cache TMPDIR=/dev/shm
exec setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=-all /dev/shm/copies/test --exact "$3" --nocapture
"#;

/// Runs the test of that name as an ordinary user. True: the caller is one and goes on. False: it is done, or there is a reason,
/// which was named, why it cannot be.
pub(crate) fn is_ordinary_user(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        let writable = std::fs::metadata("/dev/shm").is_ok_and(|all| all.permissions().mode() & 0o2 != 0);
        if !writable {
            eprintln!("left out: {test}: only root may make files in /dev/shm");
        }
        return writable;
    }
    let this = std::env::current_exe().expect("this test");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(this).arg(library()).arg(test);
    let output = command.output().expect("unshare, of util-linux");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(77) || err.contains("unshare failed") {
        eprintln!("left out: {test}: root may not mount here: {err}");
        return false;
    }
    assert!(output.status.success() && out.contains("1 passed"), "as nobody: {}\n{out}\n{err}", output.status);
    false
}
