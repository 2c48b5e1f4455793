//! The Debian package: builds the programs as they are shipped, lays the files out as a system has them, and lets `dpkg-deb` pack
//! them. Relies on Debian's `dpkg-dev`, which every machine has that builds (`build-essential`).

use crate::{Outcome, at, root, run};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where libraries are on this architecture.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The name that programs ask the loader for, as `crates/capi/build.rs` gives it.
const SONAME: &str = "libgannet.so.0";

const ABOUT: &str = "file systems in user space at memory speed
 A volume is one file in memory, on persistent memory or on a disk. Programs use it
 without changes under \"gannet run\", where a system call becomes a function call, or
 through \"gannet mount\" (FUSE), or as a library. Any number of processes use one volume
 at once, and any of them can be killed at any instruction.
";

/// Builds `gannet_VERSION_amd64.deb` in a directory.
pub(crate) fn build(directory: &Path) -> Outcome {
    at(directory, fs::create_dir_all(directory))?;
    eprintln!("building as it is shipped (profile dist): this takes minutes");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "build",
        "--profile",
        "dist",
        "--locked",
        "-p",
        "gannet-cli",
        "-p",
        "gannet-preload",
        "-p",
        "gannet-capi",
    ]);
    cargo.current_dir(root()).stdin(Stdio::null());
    let status = cargo.status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo: {status}"));
    }
    let build = tempfile::TempDir::new().map_err(|error| error.to_string())?;
    let tree = Tree { root: build.path().join("debian/gannet"), built: target().join("dist") };
    tree.programs()?;
    tree.library()?;
    tree.documents()?;
    tree.control(build.path())?;
    let package = directory.join(format!("gannet_{VERSION}_amd64.deb"));
    run(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree.root).arg(&package))?;
    println!("{}", package.display());
    Ok(())
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The files as a system will have them.
struct Tree {
    root: PathBuf,
    built: PathBuf,
}

impl Tree {
    /// The path of a file of the package; the directories above it are there then.
    fn path(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.root.join(name);
        if let Some(parent) = path.parent() {
            at(parent, fs::create_dir_all(parent))?;
        }
        Ok(path)
    }

    fn copy(&self, from: &Path, name: &str, mode: u32) -> Outcome {
        let path = self.path(name)?;
        at(from, fs::copy(from, &path))?;
        at(&path, fs::set_permissions(&path, Permissions::from_mode(mode)))
    }

    fn text(&self, name: &str, text: &str) -> Outcome {
        let path = self.path(name)?;
        at(&path, fs::write(&path, text))
    }

    fn link(&self, to: &str, name: &str) -> Outcome {
        let path = self.path(name)?;
        at(&path, symlink(to, &path))
    }

    /// A program or a shared library, without what only debuggers need.
    fn stripped(&self, built: &str, name: &str, mode: u32) -> Outcome {
        self.copy(&self.built.join(built), name, mode)?;
        run(Command::new("strip").arg("--strip-unneeded").arg(self.root.join(name))).map(drop)
    }

    fn programs(&self) -> Outcome {
        self.stripped("gannet", "usr/bin/gannet", 0o755)?;
        self.stripped("gannet-workload", "usr/lib/gannet/gannet-workload", 0o755)?;
        self.stripped("libgannet_preload.so", "usr/lib/gannet/libgannet_preload.so", 0o644)?;
        // mount(8) looks in /sbin, which is /usr/sbin.
        self.link("../bin/gannet", "usr/sbin/mount.fuse.gannet")?;
        let units = root().join("contrib/systemd");
        self.copy(&units.join("gannet@.service"), "usr/lib/systemd/system/gannet@.service", 0o644)?;
        self.copy(&units.join("srv-volume.mount"), "usr/share/doc/gannet/examples/srv-volume.mount", 0o644)
    }

    fn library(&self) -> Outcome {
        let file = format!("{SONAME}.{VERSION}");
        self.stripped("libgannet.so", &format!("{LIBRARIES}/{file}"), 0o644)?;
        self.link(&file, &format!("{LIBRARIES}/{SONAME}"))?;
        self.link(SONAME, &format!("{LIBRARIES}/libgannet.so"))?;
        let archive = format!("{LIBRARIES}/libgannet.a");
        self.copy(&self.built.join("libgannet.a"), &archive, 0o644)?;
        run(Command::new("strip").arg("--strip-debug").arg(self.root.join(archive)))?;
        let capi = root().join("crates/capi");
        self.copy(&capi.join("include/gannet.h"), "usr/include/gannet.h", 0o644)?;
        self.copy(&capi.join("examples/example.c"), "usr/share/doc/gannet/examples/example.c", 0o644)?;
        let template = capi.join("gannet.pc.in");
        let text = at(&template, fs::read_to_string(&template))?;
        let text = text
            .replace("@prefix@", "/usr")
            .replace("@libdir@", &format!("/{LIBRARIES}"))
            .replace("@includedir@", "/usr/include")
            .replace("@version@", VERSION)
            .replace("@libs_private@", "-lgcc_s -lpthread -lm -ldl -lc");
        self.text(&format!("{LIBRARIES}/pkgconfig/gannet.pc"), &text)
    }

    fn documents(&self) -> Outcome {
        let gannet = self.root.join("usr/bin/gannet");
        let pages = self.path("usr/share/man/man1/any")?;
        let pages = pages.parent().ok_or("no directory for manual pages")?;
        run(Command::new(&gannet).arg("man").arg(pages))?;
        for page in at(pages, fs::read_dir(pages))?.flatten() {
            run(Command::new("gzip").args(["-9", "-n"]).arg(page.path()))?;
        }
        for (shell, name) in [
            ("bash", "usr/share/bash-completion/completions/gannet"),
            ("zsh", "usr/share/zsh/vendor-completions/_gannet"),
            ("fish", "usr/share/fish/vendor_completions.d/gannet.fish"),
        ] {
            self.text(name, &run(Command::new(&gannet).args(["completion", shell]))?)?;
        }
        for (file, name) in [
            ("README.md", "README.md"),
            ("SECURITY.md", "SECURITY.md"),
            ("docs/guide.md", "guide.md"),
            ("CHANGELOG.md", "changelog"),
        ] {
            self.copy(&root().join(file), &format!("usr/share/doc/gannet/{name}"), 0o644)?;
        }
        run(Command::new("gzip").args(["-9", "-n"]).arg(self.root.join("usr/share/doc/gannet/changelog")))?;
        let licence = root().join("LICENSE-MIT");
        let mit = at(&licence, fs::read_to_string(&licence))?;
        let copyright = format!(
            "Gannet, copyright (c) the Gannet contributors.\nLicence: MIT OR Apache-2.0, at your choice. The Apache License 2.0 is in \
             /usr/share/common-licenses/Apache-2.0.\n\n{mit}"
        );
        self.text("usr/share/doc/gannet/copyright", &copyright)
    }

    /// What dpkg must know: also which versions of the system's libraries are needed, which `dpkg-shlibdeps` finds out.
    fn control(&self, build: &Path) -> Outcome {
        let source = format!(
            "Source: gannet\nMaintainer: The Gannet contributors <gannet@localhost>\n\nPackage: gannet\nArchitecture: amd64\nDescription: {ABOUT}"
        );
        let path = build.join("debian/control");
        at(&path, fs::write(&path, source))?;
        let mut command = Command::new("dpkg-shlibdeps");
        command.arg("-O").args([
            "debian/gannet/usr/bin/gannet",
            "debian/gannet/usr/lib/gannet/libgannet_preload.so",
            &format!("debian/gannet/{LIBRARIES}/{SONAME}.{VERSION}"),
        ]);
        let found = run(command.current_dir(build))?;
        let depends = found.trim().strip_prefix("shlibs:Depends=").ok_or("dpkg-shlibdeps found no libraries")?;
        let kilobytes = run(Command::new("du").arg("-sk").arg(&self.root))?;
        let kilobytes = kilobytes.split_whitespace().next().unwrap_or("0");
        let control = format!(
            "Package: gannet\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: The Gannet contributors <gannet@localhost>\n\
             Installed-Size: {kilobytes}\nDepends: {depends}\nRecommends: fuse3\nSection: utils\nPriority: optional\nDescription: {ABOUT}"
        );
        self.text("DEBIAN/control", &control)?;
        self.text("DEBIAN/triggers", "activate-noawait ldconfig\n")?;
        let sums = "cd \"$1\" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums";
        run(Command::new("sh").args(["-c", sums, "sums"]).arg(&self.root))?;
        Ok(())
    }
}
