//! Paths and working directories: across the border to the host, over links, among several volumes.

use std::process::Stdio;

use crate::common::{Volume, check, compile, have, on_host, run};

#[test]
fn working_directories_and_paths_across_the_border() {
    let volume = Volume::new(64);
    volume.script(
        "mkdir -p a/b; cd a/b; pwd; cd ..; /bin/pwd; cd ../..; pwd; ls -d gannet/a; cd gannet; pwd",
        "/gannet/a/b\n/gannet/a\n/\ngannet/a\n/gannet",
    );
    volume.script("head -c 4 /gannet/../etc/passwd; echo; head -c 4 ../etc/passwd; echo; ln -s /etc e; head -c 4 e/passwd; echo; ln -s ../../gannet/a up; ls -d up/b", "root\nroot\nroot\nup/b");
    volume.script(
        "ls -d //gannet/./a/../a; cd /tmp; ls -d ../gannet/a; cat /gannet/nothing 2>/dev/null || echo none",
        "//gannet/./a/../a\n../gannet/a\nnone",
    );
    volume.script(
        "host=$(mktemp -d); mv a/b $host/no 2>/dev/null; ls -d a/b 2>/dev/null; ls $host; ln /etc/passwd p 2>/dev/null || echo xdev; rm -r $host",
        "no\nxdev",
    );
    volume.script("echo text > t; cat /dev/stdin < t; cat /dev/fd/0 < t; cat /proc/self/fd/0 < t", "text\ntext\ntext");
}

#[test]
fn links_of_proc_lead_to_what_the_process_has_of_a_volume() {
    let (_directory, program) = compile("processlinks");
    let directories = ["plain", "links", "others"].map(|_| tempfile::tempdir_in("/dev/shm").expect("a directory"));
    let [plain, links, others] = directories.each_ref().map(|directory| directory.path().to_str().expect("text"));
    let wanted = run(on_host(&program).args([plain, links]).stdin(Stdio::null()));
    assert!(wanted.status.success(), "{wanted:?}");
    let volume = Volume::new(64);
    let found = run(volume.command(&program.to_string_lossy()).args(["/gannet", others]).stdin(Stdio::null()));
    check(&found, "in a volume", &String::from_utf8_lossy(&wanted.stdout));
}

#[test]
fn a_link_to_a_standard_descriptor_leads_to_the_file_that_it_is() {
    let volume = Volume::new(64);
    volume.script(
        "for to in /proc/self/fd/1 /dev/stdout /dev/fd/1; do ln -sf $to log; sh -c 'echo one >> log; echo two | tee -a log' > out; cat out; done",
        "two\ntwo\ntwo\ntwo\ntwo\ntwo",
    );
    volume.script("ln -s /dev/stderr err; sh -c 'echo text > err' 2> out; cat out; echo shown > err", "text");
    volume.script(
        "ln -s /proc/self/fd/0 in; echo text > f; cat in < f; cat f | cat in; sh -c 'echo host > log' | cat",
        "text\ntext\nhost",
    );
    volume.script(
        "host=$(mktemp -d); ln -s /proc/self/fd/0 $host/in; ln -s /dev/stdout $host/out; ln -s /proc/self/cwd $host/cwd; echo text > f; \
         cat $host/in < f; sh -c \"echo more > $host/out\" > g; cat g; echo made > $host/cwd/made; cat made; echo host | cat $host/in; rm -r $host",
        "text\nmore\nmade\nhost",
    );
}

#[test]
fn paths_that_are_the_hosts_by_their_first_letter() {
    let (_directory, program) = compile("paths");
    let paths = [
        "/",
        "/usr",
        "/usr/",
        "/usr//bin",
        "/usr/./bin",
        "/usr/.",
        "/usr/..",
        "/usr/../usr/bin",
        "/usr/bin/env",
        "/usr/none",
        "/usr/bin/env/",
    ];
    let more = [
        "//usr",
        "/./usr",
        "/.none",
        "/proc/self/exe",
        "/proc/self/fd/0",
        "/dev/null",
        "/dev/stdin",
        "/etc/passwd",
        "usr",
        "",
        "/u",
        "/g",
        "/none",
    ];
    let paths = || paths.iter().chain(&more);
    let wanted = run(on_host(&program).current_dir("/usr").stdin(Stdio::null()).args(paths()));
    let volume = Volume::new(64);
    volume.script("echo text > file; ln -s file link", "");
    assert!(wanted.status.success());
    let wanted = String::from_utf8_lossy(&wanted.stdout).into_owned();
    let found = run(volume.command(&program.to_string_lossy()).current_dir("/usr").args(paths()));
    check(&found, "beside a volume", &wanted);
    // And what leads into it by such a beginning.
    let inside = [
        "/usr/../gannet/file",
        "/usr/../gannet/link",
        "/./gannet/file",
        "/gannet",
        "/gannet/none",
        "/usr/bin/../../gannet/file/",
    ];
    let found = run(volume.command(&program.to_string_lossy()).args(inside));
    let told = String::from_utf8_lossy(&found.stdout).into_owned();
    let lines: Vec<_> = told.lines().take(inside.len()).collect();
    let wanted = [
        "/usr/../gannet/file: yes yes yes yes EINVAL yes yes yes",
        "/usr/../gannet/link: yes yes yes yes yes yes yes yes",
        "/./gannet/file: yes yes yes yes EINVAL yes yes yes",
        "/gannet: yes yes yes yes EINVAL yes yes yes",
        "/gannet/none: ENOENT ENOENT ENOENT ENOENT ENOENT ENOENT ENOENT ENOENT",
        "/usr/bin/../../gannet/file/: ENOTDIR ENOTDIR ENOTDIR ENOTDIR ENOTDIR ENOTDIR ENOTDIR ENOTDIR",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn symbolic_links_of_the_host() {
    let volume = Volume::new(64);
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink("/gannet/d", directory.path().join("link")).expect("a link");
    std::os::unix::fs::symlink("link", directory.path().join("second")).expect("a link");
    std::os::unix::fs::symlink("/gannet/d/p", directory.path().join("program")).expect("a link");
    let at = directory.path().display();
    volume.script(&format!("mkdir d; echo text > {at}/link/f; cat d/f {at}/second/f; mkdir {at}/link/e; mv {at}/link/f {at}/second/e/; ls {at}/link {at}/second/e; stat -c %F {at}/link; stat -L -c %F {at}/link/"),
        &format!("text\ntext\n{at}/link:\ne\n\n{at}/second/e:\nf\nsymbolic link\ndirectory"));
    volume.script(&format!("cd {at}/second/e && /bin/pwd && cat f; cp /bin/echo /gannet/d/p; {at}/program run; cat {at}/link/none 2>/dev/null || echo none; cat {at}/nothing 2>/dev/null || echo none; rm -r {at}/link/e; ls /gannet/d"),
        "/gannet/d/e\ntext\nrun\nnone\nnone\np");
}

#[test]
fn links_of_descriptors_name_paths() {
    let volume = Volume::new(64);
    let link = "link() { readlink /proc/self/fd/$1; }";
    // As the shell opened it, over fork and exec; renamed, in its directory and to another, removed; reopened through the link.
    volume.script(
        &format!("{link}; mkdir -p d/e; echo text > d/f; exec 7<d/f 8<d; link 7; link 8; mv d/f d/g; link 7; mv d/g d/e/h; link 7; mv d d2; link 7; link 8; cat /proc/self/fd/7; cat /dev/fd/7; rm d2/e/h; link 7; cat < /proc/self/fd/7; rmdir d2/e d2; link 8; link 7"),
        "/gannet/d/f\n/gannet/d\n/gannet/d/g\n/gannet/d/e/h\n/gannet/d2/e/h\n/gannet/d2\ntext\ntext\n/gannet/d2/f (deleted)\ntext\n/gannet/d (deleted)\n/gannet/f (deleted)",
    );
    volume.script(
        &format!("{link}; echo x > a; ln a b; exec 5<a 6<b 7>&5; link 5; link 6; link 7; rm a; link 5 # its other name
link 6; mv b c; link 6; exec 9<c; ln -s c s; exec 8<s; link 8; long=$(printf %0200d 7); echo > $long; exec 4<$long; [ $(link 4) = /gannet/$long ] && echo long; mv $long $long$long 2>/dev/null; ls -l /proc/self/fd | grep -c ' -> /gannet/'"),
        "/gannet/a\n/gannet/b\n/gannet/a\n/gannet/b\n/gannet/b\n/gannet/c\n/gannet/c\nlong\n6",
    );
    if have("python3") {
        volume.script(
            "python3 - <<'P'
import os, sys
f = os.open('py', os.O_CREAT | os.O_RDWR); os.write(f, b'abc')
d = os.open('/proc/self/fd', os.O_RDONLY)
print(os.readlink(str(f), dir_fd=d), os.path.realpath('/dev/fd/%d' % f), os.readlink('/proc/%d/fd/%d' % (os.getpid(), f)))
g = os.open('/proc/self/fd/%d' % f, os.O_WRONLY | os.O_TRUNC); print(os.fstat(f).st_size, os.readlink('/proc/self/fd/%d' % g))
h = os.dup(g); os.dup2(g, 50); print(os.readlink('/proc/self/fd/%d' % h), os.readlink('/proc/self/fd/50'))
print(os.stat('/proc/self/fd/50').st_ino == os.stat('py').st_ino)
t = os.open('.', os.O_TMPFILE | os.O_RDWR); print(os.readlink('/proc/self/fd/%d' % t).replace(str(os.fstat(t).st_ino), 'N'))
os.link('/proc/self/fd/%d' % t, 'named', src_dir_fd=d, follow_symlinks=True); print(os.readlink('/proc/self/fd/%d' % t))
if os.fork() == 0: print(os.readlink('/proc/self/fd/%d' % f)); sys.stdout.flush(); os._exit(0)
os.wait(); os.set_inheritable(f, True); os.execvp('readlink', ['readlink', '/proc/self/fd/%d' % f])
P",
            "/gannet/py /gannet/py /gannet/py\n0 /gannet/py\n/gannet/py /gannet/py\nTrue\n/gannet/#N (deleted)\n/gannet/named\n/gannet/py\n/gannet/py",
        );
    }
}

#[test]
fn two_volumes() {
    let (first, second) = (Volume::new(64), Volume::new(64));
    let mut volumes = first.path().into_os_string();
    volumes.push("\x1f/gannet\x1f");
    volumes.push(second.path());
    volumes.push("\x1f/other");
    let script = "echo 1 > /gannet/a; cp /gannet/a /other/b; mv /other/b /gannet/c; cat /gannet/c
        python3 -c 'import os; os.rename(\"/gannet/c\", \"/other/c\")' 2>&1 | tail -1 | grep -o 'Errno 18'
        cd /other; echo 2 > x; ls . ../gannet; ln -s /gannet/a l; cat l; cd ..; pwd; stat -c %d gannet/a > gannet/d; stat -c %d other/x | cmp -s - gannet/d || echo different";
    let output = run(first.command("bash").env("GANNET_RUN_VOLUMES", volumes).arg("-c").arg(script));
    check(&output, script, "1\nErrno 18\n.:\nx\n\n../gannet:\na\nc\n1\n/\ndifferent");
}

#[test]
fn one_volume_below_anothers_place() {
    let (first, second) = (Volume::new(64), Volume::new(64));
    let mut volumes = first.path().into_os_string();
    volumes.push("\x1f/gannet\x1f");
    volumes.push(second.path());
    volumes.push("\x1f/gannet/d/inner");
    let script = "cd /gannet; mkdir -p d/e; echo outer > f; echo inner > d/inner/f; cat d/inner/f d/inner/../../f d/e/../inner/f; cd d; cat inner/f; cd inner; pwd; cat ../../f; cat f /gannet/d/e/../inner/f
        cd ../e; cat ../inner/f; ls ../inner/; mkdir ../inner/new; ls ../inner; mv ../inner/f ../inner/g; cat ../inner/g; ls ..; stat -c %d . ../inner/ | uniq | wc -l
        python3 -c 'import os; os.rename(\"/gannet/f\", \"../inner/f\")' 2>&1 | grep -o 'Errno 18'; python3 -c 'import os; d = os.open(\"..\", os.O_RDONLY); print(os.listdir(d), os.stat(\"inner/g\", dir_fd=d).st_size)'";
    let output = run(first.command("bash").env("GANNET_RUN_VOLUMES", volumes).arg("-c").arg(script));
    check(
        &output,
        script,
        "inner\nouter\ninner\ninner\n/gannet/d/inner\nouter\ninner\ninner\ninner\nf\nf\nnew\ninner\ne\n2\nErrno 18\n['e'] 6",
    );
}

#[test]
fn what_the_kernel_says_of_links_of_descriptors() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(64);
    let script = r#"
import os, errno
os.makedirs('d'); open('f', 'w').write('x')
def told(what, call, *arguments, **named):
    try: result = call(*arguments, **named); print(what, 'ok')
    except OSError as error: print(what, errno.errorcode[error.errno])
for name, flags in (('f', os.O_RDWR), ('d', os.O_RDONLY)):
    fd = os.open(name, flags)
    for place in ('/proc/self/fd/%d', '/dev/fd/%d', '/proc/thread-self/fd/%d', '/proc/%d/task/%d/fd/%%d' % (os.getpid(), os.getpid())):
        link = place % fd
        told('unlink', os.unlink, link); told('rmdir', os.rmdir, link); told('mkdir', os.mkdir, link); told('symlink', os.symlink, 'x', link)
        told('link to', os.link, 'f', link); told('mknod', os.mknod, link)
        print(os.path.samefile(link, name), os.path.basename(os.path.realpath(link)))
        told('tmpfile', lambda: os.write(os.open(link, os.O_TMPFILE | os.O_RDWR, 0o600), b'abc'))
    os.close(fd)
"#;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("script");
    std::fs::write(&path, script).expect("the script");
    let host =
        std::process::Command::new("python3").arg(&path).current_dir(directory.path()).output().expect("python3");
    volume.script(&format!("python3 {}", path.display()), &String::from_utf8_lossy(&host.stdout));
}

/// The working directory by its link in `/proc`, however the process is named there: nothing of it is to happen in the host's root.
#[test]
fn the_working_directory_by_its_link() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(64);
    let script = r#"
import os, errno, stat, threading
os.makedirs('d/e'); os.chdir('d')
root = set(os.listdir('/'))
def told(what, call, *arguments, **named):
    try: result = call(*arguments, **named); print(what, 'ok' if result is None else result)
    except OSError as error: print(what, errno.errorcode[error.errno])
def put(path, **named):
    with open(path, 'w', **named) as file: file.write('x')
def opened(path, flags):
    file = os.open(path, flags); result = stat.S_IFMT(os.fstat(file).st_mode), os.readlink('/proc/self/fd/%d' % file) == os.getcwd(); os.close(file); return result
def look():
    own, thread = os.getpid(), threading.get_native_id()
    for place in ('/proc/self', '/proc/thread-self', '/proc/%d' % own, '/proc/self/task/%d' % thread, '/proc/%d/task/%d' % (own, thread)):
        link = place + '/cwd'
        print(os.path.samefile(link, '.'), os.path.samefile(link + '/', '.'), os.path.islink(link), os.readlink(link) == os.getcwd(), sorted(os.listdir(link)))
        told('put', put, link + '/made'); print(os.path.exists('made')); told('unlink', os.unlink, link + '/made')
        told('mkdir', os.mkdir, link + '//new'); told('rmdir', os.rmdir, 'new'); told('up', os.stat, link + '/../none')
        print(os.path.samefile(link + '/..', '..'), os.path.isdir(link + '/e'))
        told('mkdir it', os.mkdir, link); told('unlink it', os.unlink, link); told('create it', os.open, link, os.O_CREAT | os.O_RDWR); told('anew', os.open, link, os.O_CREAT | os.O_EXCL)
        told('open', opened, link, os.O_RDONLY); told('path', opened, link, os.O_PATH); told('no link', os.open, link, os.O_NOFOLLOW); print(opened(link, os.O_PATH | os.O_NOFOLLOW)[0])
        told('nobody', os.stat, place + '/cwdx'); told('chmod', os.chmod, link, 0o755); told('access', os.access, link, os.W_OK)
        at = os.open(place, os.O_RDONLY)
        print(stat.S_IFMT(os.stat('cwd', dir_fd=at, follow_symlinks=False).st_mode), os.path.sameopenfile(os.open('cwd', os.O_RDONLY, dir_fd=at), os.open('.', os.O_RDONLY)))
        told('put', put, 'cwd/made', opener=lambda path, flags: os.open(path, flags, dir_fd=at)); told('unlink', os.unlink, 'cwd/made', dir_fd=at); told('none', os.stat, 'cwd/none', dir_fd=at)
        os.chdir('e'); os.chdir(link + '/..'); os.chdir(link); print(os.path.basename(os.getcwd()))
look()
thread = threading.Thread(target=look); thread.start(); thread.join()
if os.fork() == 0: look(); os._exit(0)
os.wait()
print(set(os.listdir('/')) - root)
"#;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("script");
    std::fs::write(&path, script).expect("the script");
    let host =
        std::process::Command::new("python3").arg(&path).current_dir(directory.path()).output().expect("python3");
    assert!(host.status.success(), "{host:?}");
    volume.script(&format!("python3 {}", path.display()), &String::from_utf8_lossy(&host.stdout));
}

#[test]
fn the_working_directory_is_told_by_what_the_directories_above_are_called_now() {
    if !have("python3") {
        return;
    }
    let volume = Volume::new(64);
    volume.script(
        r#"python3 -u - <<'P'
import os, random, threading
random.seed(5)
above = ['/gannet'] + ['d%d' % i for i in range(50)]
os.makedirs('/'.join(above)); os.mkdir('/gannet/aside'); os.chdir('/'.join(above))
def is_it():
    # Twice: the second time it is known.
    for turn in range(2):
        if os.getcwd() != '/'.join(above): print(os.getcwd(), 'instead of', '/'.join(above))
def by_another(work):
    child = os.fork()
    if child == 0: work(); os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
is_it()
for turn in range(300):
    level = random.randrange(1, 51)
    before = '/'.join(above[:level + 1]); above[level] = 'n%d' % turn; after = '/'.join(above[:level + 1])
    work = lambda: os.rename(before, after)
    random.choice([work, lambda: by_another(work)])()
    if turn % 3 == 0: os.mkdir(before); os.rmdir(before)
    is_it()
# Elsewhere, with all that is below.
by_another(lambda: os.rename('/gannet/' + above[1], '/gannet/aside/moved')); above[1:2] = ['aside', 'moved']; is_it()
# One of two, while another renames.
one, two, stop = '/gannet/aside', '/gannet/beside', False
def renames():
    while not stop: os.rename(one, two); os.rename(two, one)
thread = threading.Thread(target=renames); thread.start()
told = set(os.getcwd().split('/')[2] for turn in range(3000)); stop = True; thread.join()
print(sorted(told - {'aside', 'beside'})); is_it()
def gone():
    try: return os.getcwd()
    except OSError as e: return e.errno
os.mkdir('last'); os.chdir('last'); above.append('last'); is_it()
by_another(lambda: os.rmdir('/'.join(above))); print(gone()); by_another(lambda: os.mkdir('/'.join(above))); print(gone())
os.chdir('/gannet'); print(os.getcwd())
P"#,
        "[]\n2\n2\n/gannet",
    );
}
