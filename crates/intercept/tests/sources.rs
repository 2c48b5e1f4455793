//! C projects as Debian's source packages have them, configured and built in a volume and on the host: what is made is the same.
//!
//! The packages come through apt with lists and a cache of its own, so that nothing of the system changes; they are kept beside
//! the tests. Where they cannot be had the test is left out, and says so.

mod common;

use common::{BUSY, Volume, check, have, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fetches into `$1` the source packages named behind it.
const FETCH: &str = r#"
set -e
directory=$1; shift
. /etc/os-release
[ "$ID" = debian ] || { echo "this is not Debian" >&2; exit 1; }
work=$(mktemp -d "$directory/apt.XXXXXX"); trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME main" > "$work/sources.list"
apt() { apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$work/lists" \
    -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root -o Acquire::Retries=2 "$@"; }
timeout 120 apt-get --version > /dev/null
apt update
cd "$directory"
apt source --download-only "$@"
"#;

/// The upstream archive of a source package, fetched now if it was not.
fn source(package: &str) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sources").join(package);
    let found = || {
        let names = std::fs::read_dir(&directory).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        names
            .filter(|path| path.extension().is_some_and(|end| end == "xz" || end == "gz" || end == "bz2"))
            .find(|path| path.to_string_lossy().contains(".orig.tar."))
    };
    if let Some(path) = found() {
        return Some(path);
    }
    if !have("apt-get") {
        return None;
    }
    std::fs::create_dir_all(&directory).expect("a directory beside the tests");
    let output = run(Command::new("timeout").args(["300", "bash", "-c", FETCH, "bash"]).arg(&directory).arg(package));
    let archive = found().filter(|_| output.status.success());
    if archive.is_none() {
        eprintln!("left out: no source of {package}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    archive
}

/// The same work on the host and in a volume: both say the same.
#[track_caller]
fn same_build(package: &str, mebibytes: u64, seconds: u32, work: &str) {
    if !have("make") || !have("cc") {
        return;
    }
    let Some(archive) = source(package) else { return };
    let script = format!(
        "export HOME=$PWD LC_ALL=C TMPDIR=$PWD SOURCE_DATE_EPOCH=1000000000; umask 022; mkdir w && cd w && tar xf {} --strip-components=1 || exit 1\n{work}",
        archive.display()
    );
    let host = tempfile::Builder::new().prefix("gannet-sources-").tempdir_in("/dev/shm").expect("/dev/shm");
    let mut plain = Command::new("timeout");
    plain.args(["-s", "KILL", &(seconds * BUSY).to_string(), "bash", "-c", &script]).current_dir(host.path());
    let plain = run(plain.stdin(std::process::Stdio::null()));
    assert!(plain.status.success(), "on the host: {plain:?}");
    let wanted = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(wanted.lines().last() == Some("done"), "on the host: {plain:?}");
    drop(host);
    let volume = Volume::new(mebibytes);
    let inside = format!("cd /gannet || exit 99\n{script}");
    check(&run(volume.command_with_time("bash", seconds).arg("-c").arg(inside)), package, &wanted);
}

/// What a tree of a build holds: names, kinds, sizes and contents, but for what tells where and when.
const LISTING: &str = "find . ! -type d ! -name config.log ! -name config.status -printf '%P %y %m\\n' | sort; find . -type f \\( -name '*.o' -o -name '*.a' -o -perm -u+x \\) ! -name config.status ! -name libtool -print0 | sort -z | xargs -0 sha256sum; echo done";

#[test]
fn lua_is_built() {
    same_build(
        "lua5.4",
        256,
        240,
        &format!(
            "make -s -j2 linux MYCFLAGS=-w > made 2>&1 || cat made; rm made; echo 'local t = {{}} for i = 1, 1000 do t[i] = i * i end io.output(\"out\") io.write(table.concat(t, \",\")) io.close() for l in io.lines(\"out\") do print(#l) end print(os.rename(\"out\", \"out2\"), io.open(\"out\") == nil, os.remove(\"out2\"))' > t.lua; src/lua t.lua; make -s install INSTALL_TOP=$PWD/installed > /dev/null; installed/bin/luac -l -p t.lua | grep -c instruction; make -q linux > /dev/null; touch src/lapi.c; make -s linux MYCFLAGS=-w > /dev/null 2>&1; {LISTING}"
        ),
    );
}

#[test]
fn hello_is_configured_and_built() {
    same_build(
        "hello",
        256,
        500,
        &format!(
            "./configure -C --disable-dependency-tracking CFLAGS=-O > configured 2>&1; echo $?; cat configured; make -s -j2 > made 2>&1 || cat made; ./hello; make -s install DESTDIR=$PWD/root > /dev/null 2>&1; find root | sort; rm configured made; sed -i 's/^ac_cv_env.*//' config.cache; {LISTING}"
        ),
    );
}

#[test]
fn sqlite_is_built() {
    if std::env::var_os("GANNET_LONG").is_none() {
        eprintln!("left out: SQLite's build takes minutes (GANNET_LONG=1)");
        return;
    }
    same_build(
        "sqlite3",
        1024,
        900,
        &format!(
            "./configure -q --disable-tcl CFLAGS=-O1 > configured 2>&1; echo $?; make -s -j2 sqlite3 > made 2>&1 || tail made; ./sqlite3 x.db 'create table t(a); insert into t values(42); select * from t; pragma integrity_check'; rm -f x.db configured made; {LISTING}"
        ),
    );
}
