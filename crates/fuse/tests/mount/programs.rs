//! Programs that people use, on the mount.

use std::fs;
use std::process::Command;

use crate::files::pattern;
use crate::{Outcome, Server, Test, content, run};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "coreutils", body: coreutils, every_way: true },
    Test { name: "git_commits_and_clones", body: git_commits_and_clones, every_way: true },
    Test { name: "sqlite_transactions", body: sqlite_transactions, every_way: true },
    Test { name: "programs_run_from_the_mount", body: programs_run_from_the_mount, every_way: true },
    Test { name: "fio_verifies", body: fio_verifies, every_way: true },
    Test { name: "a_build_with_make", body: a_build_with_make, every_way: true },
];

fn coreutils(way: &str) -> Outcome {
    let server = Server::start(way);
    let directory = server.path();
    let sh = |script: &str| run(&directory, "sh", &["-e", "-c", script]);
    sh("mkdir -p t/a/b t/c; for i in 1 2 3 4 5 6 7 8; do echo $i > t/a/$i; done; ln -s ../a/1 t/c/l")?;
    sh("cp -a t u; diff -r t u; mv u v; tar cf x.tar t; mkdir w; tar xf x.tar -C w; diff -r t w/t")?;
    assert_eq!(sh("cat t/a/* | sort -n | tail -1")?.trim(), "8");
    assert_eq!(sh("find v -type f | wc -l")?.trim(), "8");
    sh("seq 100000 > s; sort -rn s > r; sort -n r | cmp - s; wc -l < s; split -l 1000 s part.; cat part.* | cmp - s")?;
    sh("dd if=/dev/zero of=z bs=64k count=64 status=none; truncate -s 1M z; test $(stat -c %s z) = 1048576")?;
    sh(
        "chmod 600 s; test $(stat -c %a s) = 600; touch -d '2001-02-03 04:05:06 UTC' s; test $(stat -c %Y s) = 981173106",
    )?;
    sh("rm -r t v w x.tar part.* s r z; test -z \"$(ls -A)\"")?;
    server.end();
    Ok(())
}

fn git_commits_and_clones(way: &str) -> Outcome {
    let server = Server::start(way);
    let repository = server.at("repository");
    fs::create_dir(&repository).unwrap();
    let git = |arguments: &[&str]| run(&repository, "git", arguments);
    git(&["init", "-q", "."])?;
    for index in 0..60 {
        fs::create_dir_all(repository.join(format!("d{}", index % 7))).unwrap();
        fs::write(repository.join(format!("d{}/f{index}", index % 7)), pattern(index * 100, index as u64)).unwrap();
    }
    git(&["add", "."])?;
    git(&["commit", "-q", "-m", "first"])?;
    fs::write(repository.join("d1/f1"), "changed").unwrap();
    git(&["commit", "-q", "-a", "-m", "second"])?;
    git(&["gc", "-q"])?;
    git(&["fsck", "--full", "--strict"])?;
    run(&server.path(), "git", &["clone", "-q", "--no-hardlinks", "repository", "clone"])?;
    run(&server.path(), "diff", &["-r", "-x", ".git", "repository", "clone"])?;
    assert_eq!(run(&server.at("clone"), "git", &["status", "--porcelain"])?, "");
    server.end();
    Ok(())
}

fn sqlite_transactions(way: &str) -> Outcome {
    let server = Server::start(way);
    for journal in ["delete", "wal"] {
        let database = format!("{journal}.db");
        let script = format!(
            "pragma journal_mode={journal}; create table t(a integer primary key, b text);
             begin; with recursive n(i) as (select 1 union all select i+1 from n where i<5000)
             insert into t select i, hex(randomblob(40)) from n; commit;
             update t set b='x' where a%3=0; begin; delete from t; rollback; vacuum;
             select count(*), sum(b='x') from t; pragma integrity_check;"
        );
        let said = run(&server.path(), "sqlite3", &[&database, &script])?;
        assert_eq!(said, format!("{journal}\n5000|1666\nok\n"));
        // A second process finds what the first one left.
        let count = run(&server.path(), "sqlite3", &[&database, "select count(*) from t"])?;
        assert_eq!(count.trim(), "5000");
    }
    server.end();
    Ok(())
}

fn programs_run_from_the_mount(way: &str) -> Outcome {
    let server = Server::start(way);
    fs::copy("/bin/sh", server.at("shell")).unwrap();
    let said = Command::new(server.at("shell")).args(["-c", "echo from the mount"]).output().unwrap();
    assert_eq!(said.stdout, b"from the mount\n");
    fs::write(server.at("script"), "#!/bin/sh\necho script $1\n").unwrap();
    run(&server.path(), "chmod", &["+x", "script"])?;
    assert_eq!(run(&server.path(), "./script", &["runs"])?, "script runs\n");
    server.end();
    Ok(())
}

fn fio_verifies(way: &str) -> Outcome {
    let server = Server::start(way);
    let size = if std::env::var_os("GANNET_LONG").is_some() { "64m" } else { "4m" };
    for (engine, direct) in [("psync", "1"), ("psync", "0"), ("mmap", "0"), ("libaio", "1")] {
        let arguments = [
            "--name=verify",
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--numjobs=2",
            "--output=/dev/null",
            &format!("--size={size}"),
            &format!("--ioengine={engine}"),
            &format!("--direct={direct}"),
        ];
        run(&server.path(), "fio", &arguments)?;
    }
    server.end();
    Ok(())
}

fn a_build_with_make(way: &str) -> Outcome {
    let server = Server::start(way);
    let directory = server.path();
    fs::write(directory.join("Makefile"), "all: p\np: a.o b.o\n\tcc -o p a.o b.o\n%.o: %.c\n\tcc -c $<\n").unwrap();
    fs::write(directory.join("a.c"), "int f(void); int main(void) { return f(); }\n").unwrap();
    fs::write(directory.join("b.c"), "int f(void) { return 0; }\n").unwrap();
    run(&directory, "make", &["-j2", "-s"])?;
    run(&directory, "./p", &[])?;
    assert!(run(&directory, "make", &[])?.contains("Nothing to be done"), "modification times are kept");
    assert!(content(&directory.join("p")).starts_with(b"\x7fELF"));
    server.end();
    Ok(())
}
