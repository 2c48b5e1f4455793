//! Volumes that have no room: nothing is lost that could not be written.

use crate::common::Volume;

/// A volume with 8 KiB or a little less to spare.
fn nearly_full() -> Volume {
    let volume = Volume::new(32);
    volume.script("dd if=/dev/zero of=fill bs=1M 2>/dev/null; truncate -s -8192 fill", "");
    volume
}

#[test]
fn copies_that_do_not_fit_fail_and_what_is_moved_stays() {
    nearly_full().script(
        "host=$(mktemp -d); head -c 20000 /dev/urandom > $host/whole; cp $host/whole $host/kept
         for way in cp 'cp -a' install 'cp --reflink=never' mv; do
             $way $host/whole part 2>/dev/null; echo $way: $?; cmp $host/whole $host/kept && rm -f part
         done; rm -r $host",
        "cp: 1\ncp -a: 1\ninstall: 1\ncp --reflink=never: 1\nmv: 1",
    );
}

#[test]
fn a_transfer_from_the_host_leaves_its_position_behind_what_fitted() {
    nearly_full().script(
        r#"python3 - <<'P'
import errno, os
def ends(call):
    total = 0
    while True:
        try: got = call()
        except OSError as error: return total, errno.errorcode[error.errno]
        if got == 0: return total, 'end'
        total += got
for call in [lambda a, b: os.sendfile(b, a, None, 1 << 20), lambda a, b: os.copy_file_range(a, b, 1 << 20)]:
    a, b = os.memfd_create('from'), os.open('part', os.O_RDWR | os.O_CREAT)
    os.pwrite(a, bytes(range(200)) * 100, 0)
    total, end = ends(lambda: call(a, b))
    at = os.lseek(a, 0, os.SEEK_CUR)
    print(end, 0 < total < 20000, at == total == os.fstat(b).st_size, os.pread(b, total, 0) == os.pread(a, total, 0))
    os.close(b); os.unlink('part')
P"#,
        "ENOSPC True True True\nENOSPC True True True",
    );
}

#[test]
fn what_a_full_volume_does_not_take_out_of_a_pipe_stays_there() {
    nearly_full().script(
        r#"python3 - <<'P'
import errno, fcntl, os, struct, termios
r, w = os.pipe()
data = bytes(range(200)) * 300
os.write(w, data)
file = os.open('part', os.O_RDWR | os.O_CREAT)
left = lambda: struct.unpack('i', fcntl.ioctl(r, termios.FIONREAD, b'    '))[0]
got = os.splice(r, file, 60000)
print(0 < got < 60000, left() == 60000 - got)
for _ in range(2):
    try: print(os.splice(r, file, 60000))
    except OSError as error: print(errno.errorcode[error.errno], left() == 60000 - got)
print(os.pread(file, 60000, 0) + os.read(r, 60000) == data, os.open('/dev/null', 0) == file + 1)
P"#,
        "True True\nENOSPC True\nENOSPC True\nTrue True",
    );
}
