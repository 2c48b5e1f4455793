//! Real programs, each doing real work in a volume and the same on the host's file system: what they say and leave is the
//! same. Those that are not installed are left out by name; heavier ones run with `GANNET_LONG=1`
//! (`scripts/packages-long` names their packages).

mod common;

use common::{BUSY, Volume, have, run};
use std::process::{Command, Output};

/// What a script says and how it ends, in a directory of the host and in the volume.
fn in_both(volume: &Volume, seconds: u32, script: &str) -> [(Option<i32>, String, String); 2] {
    let host = tempfile::Builder::new().prefix("gannet-programs-").tempdir_in("/dev/shm").expect("/dev/shm");
    let told = |output: &Output| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let whole = format!("export HOME=$PWD LC_ALL=C TMPDIR=$PWD; umask 022\n{script}");
    let mut plain = Command::new("timeout");
    plain.args(["-s", "KILL", &(seconds * BUSY).to_string(), "bash", "-c", &whole]).current_dir(host.path());
    plain.stdin(std::process::Stdio::null());
    let plain = run(&mut plain);
    let inside = format!("mkdir -p /gannet/work; cd /gannet/work || exit 99\n{whole}");
    let ours = run(volume.command_with_time("bash", seconds).arg("-c").arg(inside));
    [told(&plain), told(&ours)]
}

/// Both must say the same, and this if it is not empty.
#[track_caller]
fn same_work(mebibytes: u64, script: &str, wanted: &str) {
    let volume = Volume::new(mebibytes);
    let [plain, ours] = in_both(&volume, 240, script);
    assert_eq!((ours.0, &ours.1), (plain.0, &plain.1), "{script}\nstandard error: {}\nthe host's: {}", ours.2, plain.2);
    assert!(wanted.is_empty() || plain.1.trim_end() == wanted, "on the host: {} {}", plain.1, plain.2);
}

fn long() -> bool {
    std::env::var_os("GANNET_LONG").is_some()
}

const TREE: &str = "mkdir -p t/a/b t/e; for i in $(seq 60); do seq $i > t/a/f$i; done; ln -s ../f3 t/a/b/l; ln t/a/f4 t/hard; mkfifo t/p; chmod 640 t/a/f5; touch -d '2001-02-03 04:05:06.789Z' t/a/f6; head -c 300000 /dev/zero | tr '\\0' z > t/big; truncate -s 3M t/sparse; setfattr -n user.x -v y t/a/f7 2>/dev/null; find t ! -name f6 -exec touch -h -d '2002-03-04 05:06:07.123Z' {} +; ";
const LISTING: &str = "find . -mindepth 1 -printf '%P %y %m %n %s %l %T@\\n' | grep -v ' d ' | sort; find . -type d -printf '%P %m\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum";

#[test]
fn copies_and_archives() {
    same_work(
        256,
        &format!(
            "{TREE} cp -a t u; cp -r --preserve=all t/a u2; mv u2/b u2/c; tar cf x.tar t; mkdir v; tar xf x.tar -C v; rm x.tar; (cd t && find . -depth | cpio -pdm ../w 2>/dev/null); rm -rf w; (cd t; {LISTING}) > /dev/null; cd u; {LISTING}; cd ../v; {LISTING}"
        ),
        "",
    );
    if have("rsync") {
        same_work(
            256,
            &format!(
                "{TREE} rsync -aHAX t/ r/; echo more >> t/a/f9; touch -d '2003-04-05 06:07:08Z' t/a/f9; rm t/a/f10; rsync -aHAX --delete --itemize-changes t/ r/; rsync -aHAXn --delete --itemize-changes t/ r/; cd r; {LISTING}"
            ),
            "",
        );
    }
    same_work(
        64,
        "seq 100000 | sort -R --random-source=/bin/sh -T . -S 100k | sort -n -T . -S 100k | sha256sum; split -l 1000 <(seq 20000) part-; cat part-* | wc -l; seq 5 | tee a b | wc -l; cmp a b; install -m 755 a c; stat -c %a c; rmdir $(mktemp -d XXXX); shred -u a; ls | wc -l; dd if=/dev/urandom of=r bs=4k count=100 status=none conv=fsync; cksum < r | cut -d' ' -f2; gzip r; gunzip r.gz; wc -c < r; sed -i s/3/x/ b; cat b; comm -12 b c; paste b c | join -j 1 - b | head -2; du --apparent-size -b c; df . >/dev/null && echo df; flock b echo locked; realpath --relative-to=. ./b/../c 2>&1 | head -1; ln -sfn c l; readlink l; chmod -R a-w part-aa; rm -f part-*; ls",
        "",
    );
}

#[test]
fn building() {
    same_work(256, "cat > configure <<'E'\n#!/bin/sh\nfor f in stdio.h stdlib.h unistd.h nothere.h sys/stat.h; do cat > conftest.c <<C\n#include <$f>\nint main(void) { return 0; }\nC\nif cc -o conftest conftest.c 2>/dev/null && ./conftest; then echo \"have $f\"; echo \"#define HAVE_$(echo $f | tr a-z./ A-Z__)\" >> config.h; else echo \"no $f\"; fi; rm -f conftest*; done\nsed \"s/@CC@/cc/\" Makefile.in > Makefile\nE\nchmod +x configure
for i in $(seq 12); do echo \"#include \\\"config.h\\\"
int f$i(void) { return $i; }\" > m$i.c; done; { echo '#include <stdio.h>'; for i in $(seq 12); do echo \"int f$i(void);\"; done; echo 'int main(void) { int s = 0;'; for i in $(seq 12); do echo \"s += f$i();\"; done; echo 'printf(\"%d\\n\", s); return 0; }'; } > main.c
printf 'O=$(patsubst %%.c,%%.o,$(wildcard *.c))\\nall: p\\nlib.a: $(filter-out main.o,$O)\\n\\t@ar rc $@ $^\\np: main.o lib.a\\n\\t@@CC@ -o $@ main.o lib.a\\n%%.o: %%.c config.h\\n\\t@@CC@ -O -c -o $@ $<\\n' > Makefile.in
./configure && make -s -j2 && ./p; touch m3.c; make -s; ./p; make -q && echo up to date; ls | wc -l", "");
    if have("cargo") {
        same_work(
            512,
            "export HOME=/root CARGO_TARGET_DIR=$PWD/out; mkdir -p c/src; printf '[package]\\nname = \"c\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[workspace]\\n' > c/Cargo.toml; echo 'fn main() { println!(\"{}\", c::twice(21)); }' > c/src/main.rs; echo 'pub fn twice(x: u32) -> u32 { x * 2 } #[test] fn t() { assert_eq!(twice(2), 4); }' > c/src/lib.rs; cd c; cargo build -q --offline 2>&1 && ../out/debug/c; cargo test -q --offline 2>&1 | grep 'test result' | head -1 | cut -d';' -f1; echo '// more' >> src/lib.rs; cargo build -q --offline && ../out/debug/c",
            "",
        );
    }
}

#[test]
fn git_with_thousands_of_objects() {
    if have("git") {
        same_work(
            512,
            "export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1; git init -q -b main r; cd r; git config user.name a; git config user.email a@b; mkdir d; for i in $(seq 1200); do echo $i > d/f$i; done; git add .; git commit -qm many; for i in $(seq 15); do echo $i >> d/f$((i * 7)); git commit -qam $i; done; git checkout -qb side HEAD~5; echo side > s; git add s; git commit -qm side; git merge -q -m merged main; git checkout -q main; git merge -q side; git log --format=%H | sha256sum; git gc -q; git fsck --full 2>&1; git count-objects -v | grep -E '^(in-pack|packs|garbage)'; git clone -q . ../c; cd ../c; git log --oneline | wc -l; git stash -q 2>/dev/null; git status --short; git grep -c 7 -- d | wc -l; git rm -qr d; git reset -q --hard; git worktree add -q ../w side 2>&1; ls ../w | wc -l; git bisect start -q HEAD HEAD~10 >/dev/null; git bisect reset -q 2>/dev/null; git archive HEAD | tar t | wc -l",
            "",
        );
    }
}

#[test]
fn languages() {
    if have("python3") {
        same_work(512, "python3 -m venv --without-pip v && v/bin/python -c 'import sys, os; print(sys.prefix == os.path.realpath(\"v\"), sys.version_info[0])'; mkdir -p w/pkg; echo 'answer = 42' > w/pkg/__init__.py; python3 - <<'P'
import zipfile, base64, hashlib
with zipfile.ZipFile('pkg-1.0-py3-none-any.whl', 'w') as z:
    z.write('w/pkg/__init__.py', 'pkg/__init__.py')
    z.writestr('pkg-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: pkg\\nVersion: 1.0\\n')
    z.writestr('pkg-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('pkg-1.0.dist-info/RECORD', 'pkg/__init__.py,,\\npkg-1.0.dist-info/METADATA,,\\npkg-1.0.dist-info/WHEEL,,\\npkg-1.0.dist-info/RECORD,,\\n')
P
python3 -m pip install -q --no-index --no-warn-script-location --target site ./pkg-1.0-py3-none-any.whl 2>/dev/null && PYTHONPATH=site python3 -c 'import pkg; print(pkg.answer)'
python3 - <<'P'
import sqlite3, multiprocessing, os, tempfile, shutil, dbm.dumb, pathlib, json, concurrent.futures, mmap
def add(i):
    c = sqlite3.connect('p.db', timeout=60); c.execute('insert into t values (?)', (i,)); c.commit(); c.close()
c = sqlite3.connect('p.db'); c.execute('pragma journal_mode=wal'); c.execute('create table t(a)'); c.close()
for method in ('fork', 'spawn', 'forkserver'):
    if method != 'fork': continue
    with multiprocessing.get_context(method).Pool(4) as pool: pool.map(add, range(40))
print(sqlite3.connect('p.db').execute('select count(*), sum(a) from t').fetchall())
q = multiprocessing.Queue(); p = multiprocessing.Process(target=lambda: q.put(os.getcwd() == os.path.realpath('.'))); p.start(); print(q.get()); p.join()
with concurrent.futures.ThreadPoolExecutor(8) as e: print(sum(e.map(lambda i: len(pathlib.Path('x%d' % i).write_text('y' * i) and pathlib.Path('x%d' % i).read_text()), range(1, 60))))
with dbm.dumb.open('d') as d: d['k'] = 'v'
print(dbm.dumb.open('d')['k'], sorted(json.load(open(shutil.copy(pathlib.Path('j').write_text('{\"a\": 1}') and 'j', 'k')))))
P", "");
    }
    if have("perl") {
        same_work(
            64,
            "perl -e 'use File::Find; use Fcntl qw(:flock SEEK_SET); use File::Temp qw(tempfile); use File::Copy; mkdir \"d\"; for (1..20) { open my $f, \">\", \"d/$_\"; print $f $_ x $_; } my $n = 0; find(sub { $n += -s if -f }, \"d\"); print \"$n\\n\"; open my $l, \"+>>\", \"d/1\"; flock($l, LOCK_EX); seek($l, 0, SEEK_SET); print scalar <$l>, \"\\n\"; my ($t, $name) = tempfile(DIR => \".\"); print $t \"x\"; close $t; copy($name, \"e\"); print -s \"e\", \"\\n\"; rename \"e\", \"f\"; print join(\",\", sort { $a <=> $b } map { s{.*/}{}r } glob(\"d/*\")), \"\\n\"; tie my @a, \"Tie::File\", \"g\" if eval \"use Tie::File; 1\"; push @a, \"line\"; untie @a; print -s \"g\", \"\\n\"; unlink glob(\"d/*\"); rmdir \"d\" or print \"no\"'",
            "",
        );
    }
    if have("node") {
        same_work(
            256,
            "cat > a.js <<'J'\nconst fs = require('fs'), path = require('path'), { Worker, isMainThread } = require('worker_threads');\nfs.mkdirSync('d/e', { recursive: true });\nfor (let i = 0; i < 50; i++) fs.writeFileSync(`d/${i}`, 'x'.repeat(i));\n(async () => {\n  const sizes = await Promise.all(fs.readdirSync('d').filter(n => n !== 'e').map(async n => (await fs.promises.stat(path.join('d', n))).size));\n  console.log(sizes.reduce((a, b) => a + b));\n  await new Promise(done => fs.createReadStream('d/40').pipe(fs.createWriteStream('copy')).on('finish', done));\n  console.log(fs.readFileSync('copy').length, fs.realpathSync('d/../copy') === path.join(fs.realpathSync('.'), 'copy'));\n  await fs.promises.cp('d', 'f', { recursive: true }); fs.rmSync('d', { recursive: true }); console.log(fs.readdirSync('f').length);\n  const h = await fs.promises.open('copy', 'r+'); await h.write('abc', 0); await h.truncate(5); console.log((await h.readFile()).toString()); await h.close();\n  new Worker('require(\"fs\").writeFileSync(\"w\", \"worker\")', { eval: true }).on('exit', () => console.log(fs.readFileSync('w', 'utf8')));\n})();\nJ\nnode a.js; mkdir -p p; echo '{\"name\": \"p\", \"version\": \"1.0.0\", \"main\": \"i.js\"}' > p/package.json; echo 'module.exports = 7' > p/i.js; npm install --silent --offline --no-audit --no-fund ./p >/dev/null 2>&1; node -e 'console.log(require(\"p\"))'",
            "",
        );
    }
    if have("erl") && have("erlc") {
        // Killed in the midst of its tables on disk.
        same_work(
            128,
            r#"export ERL_FLAGS='-start_epmd false'; cat > m.erl <<'E'
-module(m). -export([a/0, b/0]).
-record(t, {k, v}).
a() -> ok = mnesia:create_schema([node()]), ok = mnesia:start(), {atomic, ok} = mnesia:create_table(t, [{disc_copies, [node()]}, {attributes, record_info(fields, t)}]), {atomic, ok} = mnesia:create_table(u, [{disc_only_copies, [node()]}, {record_name, t}, {attributes, record_info(fields, t)}]),
 [{atomic, ok} = mnesia:transaction(fun() -> mnesia:write(t, #t{k = I, v = I}, write), mnesia:write(u, #t{k = I, v = I}, write) end) || I <- lists:seq(1, 200)], mnesia:dump_log(), mnesia:sync_log(), {ok, D} = dets:open_file(d, [{file, "d.dets"}]), [dets:insert(D, {I, I}) || I <- lists:seq(1, 500)], io:format("~p ~p~n", [mnesia:table_info(t, size), dets:info(D, size)]), os:cmd("kill -9 " ++ os:getpid()).
b() -> ok = mnesia:start(), ok = mnesia:wait_for_tables([t, u], 60000), io:format("~p~n", [mnesia:table_info(t, size)]), halt(0).
E
erlc m.erl; erl -noshell -mnesia dir '"mn"' -s m a 2> /dev/null; echo $?; erl -noshell -mnesia dir '"mn"' -s m b 2> /dev/null | tail -n 1"#,
            "",
        );
    }
    if have("javac") {
        same_work(
            256,
            "cat > A.java <<'J'\nimport java.nio.file.*; import java.nio.channels.*; import java.nio.*; import java.io.*;\npublic class A { public static void main(String[] x) throws Exception {\n Path d = Files.createDirectories(Paths.get(\"d/e\")); for (int i = 0; i < 30; i++) Files.writeString(d.resolve(\"f\" + i), \"x\".repeat(i));\n try (var s = Files.walk(Paths.get(\"d\"))) { System.out.println(s.filter(Files::isRegularFile).mapToLong(p -> p.toFile().length()).sum()); }\n try (FileChannel c = FileChannel.open(Paths.get(\"m\"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) { MappedByteBuffer b = c.map(FileChannel.MapMode.READ_WRITE, 0, 10000); b.put(9999, (byte) 7); b.force(); ByteBuffer r = ByteBuffer.allocate(1); c.read(r, 9999); System.out.println(r.get(0)); try (FileLock l = c.lock()) { System.out.println(l.isValid()); } }\n Files.move(Paths.get(\"m\"), Paths.get(\"n\"), StandardCopyOption.ATOMIC_MOVE); Files.copy(Paths.get(\"n\"), Paths.get(\"o\")); System.out.println(Files.size(Paths.get(\"o\")) + \" \" + Files.isSameFile(Paths.get(\"n\"), Paths.get(\"d/../n\")));\n try (RandomAccessFile f = new RandomAccessFile(\"o\", \"rw\")) { f.setLength(5); System.out.println(f.length()); }\n} }\nJ\njavac A.java && java -Xshare:auto A; jar cf a.jar A.class && java -cp a.jar A | tail -1",
            "",
        );
    }
}

#[test]
fn databases() {
    if have("sqlite3") {
        for mode in ["delete", "truncate", "persist", "wal"] {
            same_work(
                128,
                &format!(
                    "sqlite3 x.db 'pragma journal_mode={mode}; create table t(a integer primary key, b text)'; for p in 1 2 3; do (for i in $(seq 8); do sqlite3 x.db '.timeout 60000' \"begin immediate; insert into t(b) values(hex(zeroblob($p*$i))); commit\"; done) & done; wait; sqlite3 x.db 'pragma mmap_size=100000000; select count(*), sum(length(b)) from t; vacuum; pragma integrity_check'; ls | grep -c journal"
                ),
                "",
            );
        }
    }
    if have("redis-server") {
        // Killed in the midst of sets that were acknowledged: none is lost.
        let script = "redis-server --unixsocket $PWD/r.sock --port 0 --appendonly yes --appendfsync always --save '' --daemonize no --dir $PWD > log 2>&1 & P=$!; S=$PWD/r.sock; for i in $(seq 2000); do redis-cli -s $S ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done; for i in $(seq 100); do echo \"set k$i v$i\"; done | redis-cli -s $S | grep -c OK; kill -9 $P; wait $P 2>/dev/null; rm -f $S; redis-server --unixsocket $S --port 0 --appendonly yes --appendfsync always --save '' --dir $PWD > log2 2>&1 & P=$!; for i in $(seq 2000); do redis-cli -s $S ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done; redis-cli -s $S dbsize; redis-cli -s $S get k77; redis-cli -s $S bgrewriteaof >/dev/null; sleep 0.5; redis-cli -s $S dbsize; redis-cli -s $S shutdown nosave 2>/dev/null; wait $P; echo $?";
        same_work(256, script, "");
    }
    if have("db_bench") && have("ldb") {
        same_work(
            1024,
            "db_bench --benchmarks=fillseq,fillrandom,readrandom,overwrite,deleterandom --num=3000 --db=$PWD/db --sync=1 --wal_dir=$PWD/db --compression_type=none > log 2>&1; echo $?; ldb --db=$PWD/db2 --create_if_missing put a b; ldb --db=$PWD/db2 put c d; ldb --db=$PWD/db2 scan; ldb --db=$PWD/db2 checkconsistency; ldb --db=$PWD/db2 compact; ldb --db=$PWD/db2 get c",
            "",
        );
    }
}

#[test]
fn asynchronous_requests_of_databases_and_machines() {
    // A thread waits in io_getevents before anything is written, and the server is killed in the midst of transactions.
    if have("mariadbd") && have("mysql_install_db") && have("mysql") {
        same_work(
            512,
            r#"S=$(mktemp -u /tmp/gannet-mariadb-XXXXXX); trap 'rm -f $S' EXIT; q() { mysql --no-defaults -S $S -N -B "$@"; }
mysql_install_db --no-defaults --datadir=$PWD/data --user=root --auth-root-authentication-method=normal --skip-test-db > installed 2>&1; echo $?
up() { mariadbd --no-defaults --datadir=$PWD/data --socket=$S --skip-networking --skip-grant-tables --user=root --innodb-buffer-pool-size=32M --innodb-log-file-size=16M --innodb-flush-method=O_DIRECT --innodb-use-native-aio=1 --log-bin=$PWD/binlog --server-id=1 --sync-binlog=1 --pid-file=$PWD/pid > log.$1 2>&1 & P=$!; for i in $(seq 2000); do q -e 'select 1' > /dev/null 2>&1 && break; sleep 0.05; done; }
up 1; q -e 'create database d; use d; create table t(id int auto_increment primary key, k int, c char(200), key(k)) engine=innodb; create table m(a int primary key) engine=myisam'
C=; for p in 1 2 3; do (for i in $(seq 150); do echo "begin; insert into t(k, c) values($i, repeat('a', 200)); commit; insert ignore into m values($i);"; done | q d && echo done) & C="$C $!"; done; wait $C
q d -e 'select count(*) from t; select count(*) from m; alter table t add column z int default 5, algorithm=copy; check table t, m'
(for i in $(seq 100000); do echo 'insert into t(k) values(-1); select 1;'; done | q -n d > confirmed 2> /dev/null) & W=$!; for i in $(seq 2000); do [ "$(wc -l < confirmed)" -ge 50 ] && break; sleep 0.05; done; kill -9 $P; wait $P $W 2> /dev/null; rm -f $S
up 2; [ $(q d -e 'select count(*) from t where k = -1') -ge $(wc -l < confirmed) ] && echo all are there; q d -e 'check table t; select count(*) from t where k >= 0'; q -e shutdown; wait $P; echo $?"#,
            "",
        );
    }
    // It looks at the ring in its own memory and makes no call.
    if have("qemu-io") && have("qemu-img") {
        same_work(
            256,
            "qemu-img create -q -f raw r 64M; qemu-img create -q -f qcow2 q 64M; for a in native threads; do for f in r q; do F=raw; [ $f = q ] && F=qcow2; qemu-io -t none -i $a -f $F -c 'aio_write -P 3 0 1M' -c 'aio_write -P 4 2M 1M' -c aio_flush -c 'aio_read -P 3 0 1M' -c 'read -P 4 2M 1M' -c 'discard 0 64k' $f 2>&1 | grep -v ops | sort; done; done; qemu-img check q | grep -c 'No errors'; qemu-img convert -m 4 -W -T none -O raw q c; qemu-img compare -f raw -F raw r c",
            "",
        );
    }
}

#[test]
fn version_control_with_databases() {
    if have("svn") && have("svnadmin") {
        same_work(
            128,
            "U=file://$PWD/s; svnadmin create s; svn co -q $U w; cd w; for i in $(seq 60); do seq $i > $i; done; ln -s 3 l; svn add -q *; svn ci -q -m a; echo x >> 5; svn mv -q 6 six; svn ci -q -m b; svn up -q; svn info | grep Revision; svn cp -q 7 seven; svn revert -q -R .; svn st; cd ..; for i in 1 2 3; do svn mkdir -q -m d $U/d$i & done; wait; svnadmin verify -q s; echo $?; svnadmin pack -q s; svnadmin hotcopy s h; svn ls file://$PWD/h | wc -l",
            "",
        );
    }
    if have("hg") {
        same_work(
            128,
            "export HGUSER=a; hg init h; cd h; for i in $(seq 60); do seq $i > $i; done; hg add -q; hg ci -m a -d '0 0'; for i in 1 2 3; do echo $i >> $i; hg ci -m c$i -d \"$i 0\"; done; hg up -q 1; echo z > z; hg add z; hg ci -q -m z -d '9 0'; hg merge -q; hg ci -m m -d '10 0'; hg log -T '{node} ' | sha256sum; hg verify -q; echo $?; hg clone -q . ../c; hg -R ../c st | wc -l; hg mv 5 five; hg st; hg revert -qa; hg st",
            "",
        );
    }
}

#[test]
fn measuring_and_stressing() {
    if have("fio") {
        for engine in ["psync", "pvsync2", "mmap", "libaio", "posixaio", "sync", "vsync"] {
            same_work(
                256,
                &format!(
                    "fio --name=x --directory=$PWD --size=4m --bs=4k --rw=randrw --ioengine={engine} --verify=crc32c --verify_fatal=1 --end_fsync=1 --numjobs=2 --iodepth=4 --fallocate=none --output=log; echo $?; stat -c %s x.0.0 x.1.0"
                ),
                "0\n4194304\n4194304",
            );
        }
        // io_uring is refused: fio says so and fails, without harm.
        let volume = Volume::new(64);
        let output = run(volume
            .command("bash")
            .arg("-c")
            .arg("cd /gannet; fio --name=x --size=1m --rw=write --ioengine=io_uring --output=log 2>&1; echo $?"));
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().last(), Some("1"), "{output:?}");
    }
    if long() && have("stress-ng") {
        let volume = Volume::new(1024);
        for stressor in [
            "access",
            "chdir",
            "chmod",
            "chown",
            "copy-file",
            "dentry",
            "dir",
            "dirdeep",
            "dirmany",
            "dup",
            "fallocate",
            "fcntl",
            "fiemap",
            "filename",
            "flock",
            "fpunch",
            "fstat",
            "getdent",
            "hdd",
            "lease",
            "link",
            "locka",
            "lockf",
            "lockofd",
            "mknod",
            "mmapaddr",
            "open",
            "readahead",
            "rename",
            "seek",
            "sendfile",
            "splice",
            "symlink",
            "sync-file",
            "touch",
            "unlink",
            "utime",
            "verity",
            "xattr",
        ] {
            let script = format!(
                "cd /gannet; stress-ng --{stressor} 2 --{stressor}-ops 200 --timeout 20 --temp-path /gannet --metrics-brief 2>&1 | grep -iE 'fail|error|signal' | grep -v 'failed: 0' | head -5"
            );
            let output = run(volume.command_with_time("bash", 120).arg("-c").arg(script));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.trim().is_empty() && output.status.success(), "{stressor}: {:?} {text}", output.status);
        }
    }
}

#[test]
fn on_a_terminal_and_under_seccomp() {
    if have("vim") && have("script") {
        same_work(
            64,
            "printf 'one\\ntwo\\n' > a; TERM=xterm script -qec \"vim -u NONE -n -c '%s/o/0/g' -c 'wq' a\" /dev/null > /dev/null; cat a; TERM=xterm script -qec \"vim -u NONE -c 'set backup' -c 'normal Goline' -c 'wq' a\" /dev/null > /dev/null; cat a; ls -A",
            "",
        );
    }
    if have("tmux") {
        same_work(
            64,
            "export TMUX_TMPDIR=/tmp TERM=xterm; L=gannet-$$; tmux -L $L -f /dev/null new-session -d -x 80 -y 24 \"sh -c 'echo in tmux > f; tty > /dev/null && echo tty >> f'\"; for i in $(seq 2000); do [ -s f ] && grep -q tty f && break; sleep 0.05; done; cat f; tmux -L $L kill-server 2>/dev/null; true",
            "",
        );
    }
    if have("file") {
        same_work(
            64,
            "printf '#!/bin/sh\\n' > a; cp /bin/true b; gzip < a > c.gz; file a c.gz | cut -d, -f1; file -b --mime-type b",
            "",
        );
    }
    if have("man") {
        same_work(
            64,
            "mkdir -p man/man1; printf '.TH X 1\\n.SH NAME\\nx \\\\- a page\\n' > man/man1/x.1; MANPAGER=cat man -M $PWD/man x 2>/dev/null | grep -c 'a page'; man -l man/man1/x.1 2>/dev/null | grep -c NAME",
            "",
        );
    }
    if have("gdb") {
        same_work(
            64,
            "printf 'int main(void) { return 3; }\\n' > m.c; cc -g -o m m.c; gdb -batch -ex 'break main' -ex run -ex bt ./m 2>/dev/null | grep -c 'main ()'; strace -f -o s -e trace=exit_group ./m; echo $?",
            "",
        );
    }
}

#[test]
fn sanitized_programs_and_their_own_preloads() {
    let volume = Volume::new(64);
    volume.script("printf '#include <stdio.h>\\n#include <stdlib.h>\\nint main(int c, char **v) { FILE *f = fopen(\"out\", \"w\"); fputs(\"sanitized\\\\n\", f); fclose(f); char *p = malloc(4); if (c > 1) p[4] = 1; free(p); return 0; }\\n' > a.c; cc -g -fsanitize=address -o a a.c 2>/dev/null || { echo none; exit 0; }; ./a; cat out; ./a bad 2>&1 | grep -c ERROR; printf 'int getpid(void) { return 4711; }\\n' > l.c; cc -shared -fPIC -o l.so l.c; host=$(mktemp -d); cp l.so $host; LD_PRELOAD=$host/l.so python3 -c 'import os; print(os.getpid(), open(\"out\").read().strip())'; rm -r $host",
        "sanitized\n1\n4711 sanitized");
}

#[test]
fn the_thread_sanitizer_sees_nothing_of_the_engine() {
    let volume = Volume::new(64);
    // Where its library cannot be had, or memory is laid out as it cannot cope with, that is said.
    volume.script(
        r#"cat > t.c <<'C'
#include <pthread.h>
#include <stdio.h>
static void *work(void *number) {
    char name[20], text[9]; sprintf(name, "f%d", (int)(long)number); FILE *file = fopen(name, "w+");
    for (int i = 0; i < 1000; i++) fprintf(file, "%d\n", i);
    rewind(file); fread(text, 1, 8, file); fclose(file); rename(name, "same"); return 0;
}
int main(void) { pthread_t all[4]; for (long i = 0; i < 4; i++) pthread_create(all + i, 0, work, (void *)i); for (int i = 0; i < 4; i++) pthread_join(all[i], 0); return 0; }
C
host=$(mktemp -d); trap 'rm -rf $host' EXIT
cc -g -fsanitize=thread -pthread -o $host/tsan t.c 2> /dev/null && (cd $host && setarch -R ./tsan > /dev/null 2>&1) || { echo 0; exit; }
setarch -R $host/tsan > told 2>&1; code=$?; head -50 told >&2; echo $code"#,
        "0",
    );
}
