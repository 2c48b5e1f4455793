//! Programs with their files in a volume over several media.

use crate::common::Volume;

/// Maps a file twice, shared, and one part of it privately; forks; stores through the maps and by calls; compares.
const MAPS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define SIZE (6 << 20)
#define CHECK(what) do { if (!(what)) { printf("%d: %s\n", __LINE__, #what); return 1; } } while (0)
int main(void) {
    unsigned *data = malloc(SIZE), *back = malloc(SIZE);
    for (int i = 0; i < SIZE / 4; i++) data[i] = i * 2654435761u;
    int file = open("mapped", O_RDWR | O_CREAT, 0600);
    CHECK(write(file, data, SIZE) == SIZE);
    unsigned *one = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    unsigned *two = mmap(0, SIZE, PROT_READ, MAP_SHARED, file, 0);
    unsigned *own = mmap(0, SIZE - 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 4096);
    CHECK(one != MAP_FAILED && two != MAP_FAILED && own != MAP_FAILED);
    CHECK(!memcmp(one, data, SIZE) && !memcmp(own, data + 1024, SIZE - 4096));
    for (int i = 0; i < SIZE / 4; i += 1021) one[i] = data[i] = i;
    CHECK(!memcmp(two, data, SIZE));
    CHECK(pread(file, back, SIZE, 0) == SIZE && !memcmp(back, data, SIZE));
    for (int i = 0; i < SIZE / 4 - 1024; i += 4096) own[i] = 1;
    CHECK(!memcmp(two, data, SIZE));
    if (fork() == 0) {
        for (int i = 5; i < SIZE / 4; i += 1021) one[i] = ~i;
        _exit(pread(file, back, SIZE, 0) == SIZE && !memcmp(back, two, SIZE) ? 0 : 1);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    for (int i = 5; i < SIZE / 4; i += 1021) data[i] = ~i;
    CHECK(!memcmp(two, data, SIZE));
    memset(data, 7, SIZE);
    CHECK(pwrite(file, data, SIZE, 0) == SIZE && !memcmp(one, data, SIZE) && !memcmp(two, data, SIZE));
    CHECK(msync(one, SIZE, MS_SYNC) == 0 && fsync(file) == 0);
    CHECK(mremap(one, SIZE, SIZE / 2, 0) == one && !munmap(one, SIZE / 2) && !munmap(two, SIZE) && !munmap(own, SIZE - 4096));
    close_range(3, ~0u, 0);
    puts("same");
}
"#;

/// A volume of which the first medium has room for little.
fn volume() -> Volume {
    let volume = Volume::over(&[4, 2, 58]);
    volume.script("head -c 2M /dev/zero > ballast; stat -c %s ballast", "2097152");
    volume
}

#[test]
fn maps_over_several_media_are_one() {
    let volume = volume();
    volume.script(
        &format!("cat > maps.c <<'C'\n{MAPS}\nC\ncc -O1 -D_GNU_SOURCE -o maps maps.c && ./maps && ./maps && cmp -n 6291456 mapped <(yes $'\\a' | tr -d '\\n' | head -c 6M) && echo all"),
        "same\nsame\nall",
    );
}

#[test]
fn programs_that_lie_on_several_media_run() {
    let volume = volume();
    volume.script(
        "cp \"$(readlink -f \"$(command -v bash)\")\" sh && cp /bin/ls list && ./sh -c './list -d sh; ./sh -c \"echo inner\"' && filefrag sh >/dev/null 2>&1; cmp sh \"$(readlink -f \"$(command -v bash)\")\" && echo equal",
        "sh\ninner\nequal",
    );
    volume.script(
        "tar cf - -C /usr/include linux | tar xf - && diff -r /usr/include/linux linux && rm -r linux && echo same",
        "same",
    );
}

#[test]
fn a_program_cannot_close_the_media() {
    let volume = Volume::over(&[2, 2, 2, 2, 2, 2, 2, 2]);
    volume.script(
        "head -c 12M /dev/urandom > a; for n in $(seq 500 540); do eval \"exec $n>&-\"; done 2>/dev/null; cp a b 2>/dev/null; cmp -n 1000000 a b && echo same; rm b; cat a | cmp - a && echo all",
        "same\nall",
    );
}
