/* Maps, and copies from file to file. */
#include "breadth.h"

static void s_priv(struct context *c) {
    c->fd = mk(P(c, "f"), 16 << 20);
}

static void s_two(struct context *c) {
    s_priv(c);
    c->fd2 = open(P(c, "g"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(c->fd2);
}

static void s_maps(struct context *c) {
    s_priv(c);
    c->maplen = 16 << 20;
    c->map = mmap(0, c->maplen, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (c->map == MAP_FAILED) fail("mmap");
}

static void s_mapwarm(struct context *c) {
    s_maps(c);
    for (size_t i = 0; i<c->maplen; i+=4096) c->map[i]++;
}

CALL(cfr128k) {
    loff_t a = (i&127) << 17, b = (i&63) << 17;
    CHECK(copy_file_range(c->fd, &a, c->fd2, &b, 128 << 10, 0));
}

CALL(cfr16m) {
    loff_t a = 0, b = 0;
    long left = 16 << 20;
    while (left>0) { long r = copy_file_range(c->fd, &a, c->fd2, &b, left, 0); CHECK(r); left-=r; }
    CHECK(ftruncate(c->fd2, 0));
}

CALL(cfr4k) {
    loff_t a = (i&4095) << 12, b = (i&4095) << 12;
    CHECK(copy_file_range(c->fd, &a, c->fd2, &b, 4096, 0));
}

CALL(cfr1000) {
    loff_t a = (i&4095)*1000, b = (i&4095)*1000;
    CHECK(copy_file_range(c->fd, &a, c->fd2, &b, 1000, 0));
}

CALL(sendf128k) {
    off_t a = (i&127) << 17;
    CHECK(lseek(c->fd2, (i&63) << 17, SEEK_SET));
    CHECK(sendfile(c->fd2, c->fd, &a, 128 << 10));
}

CALL(sendf4k) {
    off_t a = (i&127) << 12;
    CHECK(lseek(c->fd2, (i&63) << 12, SEEK_SET));
    CHECK(sendfile(c->fd2, c->fd, &a, 4096));
}

CALL(sendpipe) {
    off_t a = (i&127) << 12;
    CHECK(sendfile(c->fd3, c->fd, &a, 4096));
    CHECK(read(c->fd2, c->buf, 4096));
}

static void s_pipe(struct context *c) {
    s_priv(c);
    int p[2];
    CHECK(pipe(p));
    c->fd2 = p[0];
    c->fd3 = p[1];
}

CALL(splicepipe) {
    loff_t a = (i&127) << 12;
    CHECK(splice(c->fd, &a, c->fd3, 0, 4096, 0));
    CHECK(read(c->fd2, c->buf, 4096));
}

CALL(mmapun) {
    char*m = mmap(0, 65536, PROT_READ, MAP_SHARED, c->fd, 0);
    if (m == MAP_FAILED) fail("mmap");
    munmap(m, 65536);
}

CALL(mmaprd1) {
    char*m = mmap(0, 4096, PROT_READ, MAP_SHARED, c->fd, 0);
    if (m == MAP_FAILED) fail("mmap");
    c->buf[0] = m[5];
    munmap(m, 4096);
}

CALL(mmappriv) {
    char*m = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE, c->fd, 0);
    if (m == MAP_FAILED) fail("mmap");
    m[5] = 1;
    munmap(m, 65536);
}

CALL(mmap16m) {
    char*m = mmap(0, 16 << 20, PROT_READ, MAP_SHARED, c->fd, 0);
    if (m == MAP_FAILED) fail("mmap");
    long s = 0;
    for (size_t k = 0; k<(16 << 20); k+=4096) s+=m[k];
    c->buf[0] = s;
    munmap(m, 16 << 20);
}

CALL(mmap16mw) {
    char*m = mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (m == MAP_FAILED) fail("mmap");
    for (size_t k = 0; k<(16 << 20); k+=4096) m[k]++;
    munmap(m, 16 << 20);
}

CALL(mmapfresh) {
    CHECK(ftruncate(c->fd2, 1 << 20));
    char*m = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd2, 0);
    if (m == MAP_FAILED) fail("mmap");
    for (size_t k = 0; k<(1 << 20); k+=4096) m[k]++;
    munmap(m, 1 << 20);
    CHECK(ftruncate(c->fd2, 0));
}

CALL(mapsecond) {
    c->map[((i*4096)+64)&0xffffff]++;
}

CALL(mapmsync) {
    long at = (i*4096)&0xffffff;
    c->map[at]++;
    CHECK(msync(c->map+at, 4096, MS_SYNC));
}

CALL(mapsyncall) {
    c->map[(i*4096)&0xffffff]++;
    CHECK(msync(c->map, c->maplen, MS_SYNC));
}

CALL(mapmemcpy) {
    memcpy(c->map+((i*4096)&0xffffff), c->buf, 4096);
}

CALL(mincore_) {
    unsigned char v[16];
    CHECK(mincore(c->map, 65536, v));
}

CALL(madvise_) {
    CHECK(madvise(c->map, 65536, MADV_WILLNEED));
}

const struct operation maps_operations[] = {
    {"copy_file_range 128K", s_two, cfr128k, 0, 0},
    {"copy_file_range 16M", s_two, cfr16m, 0, 0},
    {"copy_file_range 4K", s_two, cfr4k, 0, 0},
    {"copy_file_range 1000 B", s_two, cfr1000, 0, 0},
    {"sendfile 128K", s_two, sendf128k, 0, 0},
    {"sendfile 4K", s_two, sendf4k, 0, 0},
    {"sendfile to pipe 4K", s_pipe, sendpipe, 0, 0},
    {"splice to pipe 4K", s_pipe, splicepipe, 0, 0},
    {"mmap munmap 64K", s_priv, mmapun, 0, 0},
    {"mmap, read 1, munmap", s_priv, mmaprd1, 0, 0},
    {"mmap private, write 1, munmap", s_priv, mmappriv, 0, 0},
    {"mmap 16M, read all, munmap", s_priv, mmap16m, 0, 0},
    {"mmap 16M, write all, munmap", s_priv, mmap16mw, 0, 0},
    {"mmap 1M fresh, write all", s_two, mmapfresh, 0, 0},
    {"map second touch", s_mapwarm, mapsecond, 0, 0},
    {"map store msync 4K", s_mapwarm, mapmsync, 0, 0},
    {"map store msync 16M", s_mapwarm, mapsyncall, 0, 0},
    {"map memcpy 4K", s_mapwarm, mapmemcpy, 0, 0},
    {"mincore", s_mapwarm, mincore_, 0, 0},
    {"madvise", s_mapwarm, madvise_, 0, 0},
    {0},
};
