/* Reads and writes, sizes, room. */
#include "breadth.h"

static void s_priv(struct context *c) {
    c->fd = mk(P(c, "f"), 16 << 20);
}

static void s_shared(struct context *c) {
    c->fd = mk(S(c, "f"), 16 << 20);
}

static void s_empty(struct context *c) {
    c->fd = open(P(c, "e"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(c->fd);
}

static void s_shappend(struct context *c) {
    c->fd = open(S(c, "ap"), O_RDWR | O_CREAT | O_APPEND, 0644);
    CHECK(c->fd);
}

static void s_append(struct context *c) {
    c->fd = open(P(c, "ap"), O_RDWR | O_CREAT | O_APPEND | O_TRUNC, 0644);
    CHECK(c->fd);
}

static void s_fq(struct context *c) {
    s_priv(c);
    strcpy(c->q, P(c, "f"));
}

CALL(rd4k) {
    CHECK(pread(c->fd, c->buf, 4096, (i*4096)&((16 << 20)-1)));
}

CALL(rdsame) {
    CHECK(pread(c->fd, c->buf, 4096, 0));
}

CALL(rddiff) {
    CHECK(pread(c->fd, c->buf, 4096, c->idx*4096));
}

CALL(rdrnd) {
    CHECK(pread(c->fd, c->buf, 4096, (rnd(c)%4096)*4096));
}

CALL(rd64) {
    CHECK(pread(c->fd, c->buf, 64, 64));
}

CALL(rd1m) {
    CHECK(pread(c->fd, c->buf, 1 << 20, (i&15) << 20));
}

CALL(rd128k) {
    CHECK(pread(c->fd, c->buf, 128 << 10, (i&127) << 17));
}

CALL(seqrd128k) {
    if ((i&127) == 0) CHECK(lseek(c->fd, 0, SEEK_SET));
    CHECK(read(c->fd, c->buf, 128 << 10));
}

CALL(lseek1) {
    CHECK(lseek(c->fd, (i*7)&0xfffff, SEEK_SET));
    CHECK(read(c->fd, c->buf, 1));
}

CALL(lseekonly) {
    CHECK(lseek(c->fd, i&0xfffff, SEEK_SET));
}

CALL(lseekend) {
    CHECK(lseek(c->fd, 0, SEEK_END));
}

CALL(lseekdata) {
    CHECK(lseek(c->fd, 0, SEEK_HOLE));
}

CALL(read1) {
    if ((i&0xfffff) == 0) CHECK(lseek(c->fd, 0, SEEK_SET));
    CHECK(read(c->fd, c->buf, 1));
}

CALL(readv8) {
    struct iovec v[8];
    for (int k = 0; k<8; k++) { v[k].iov_base = c->buf+k*8192; v[k].iov_len = 512; }
    CHECK(preadv(c->fd, v, 8, (i*4096)&0xffffff));
}

CALL(writev8) {
    struct iovec v[8];
    for (int k = 0; k<8; k++) { v[k].iov_base = c->buf+k*8192; v[k].iov_len = 512; }
    CHECK(pwritev(c->fd, v, 8, (i*4096)&0xffffff));
}

CALL(wr4k) {
    CHECK(pwrite(c->fd, c->buf, 4096, (i*4096)&0xffffff));
}

CALL(wrsame) {
    CHECK(pwrite(c->fd, c->buf, 4096, 0));
}

CALL(wrdiff) {
    CHECK(pwrite(c->fd, c->buf, 4096, c->idx*4096));
}

CALL(wrdiff64k) {
    CHECK(pwrite(c->fd, c->buf, 4096, c->idx*65536));
}

CALL(wr64) {
    CHECK(pwrite(c->fd, c->buf, 64, 64));
}

CALL(wr1) {
    CHECK(pwrite(c->fd, c->buf, 1, 5000));
}

CALL(wr1m) {
    CHECK(pwrite(c->fd, c->buf, 1 << 20, (i&15) << 20));
}

CALL(wr128k) {
    CHECK(pwrite(c->fd, c->buf, 128 << 10, (i&127) << 17));
}

CALL(fresh1m) {
    CHECK(pwrite(c->fd, c->buf, 1 << 20, (off_t)i << 20));
}

CALL(fresh64k) {
    CHECK(pwrite(c->fd, c->buf, 64 << 10, (off_t)i << 16));
}

static void r_trunc(struct context *c, long n) {
    CHECK(ftruncate(c->fd, 0));
}

CALL(append4k) {
    CHECK(write(c->fd, c->buf, 4096));
}

CALL(append100) {
    CHECK(write(c->fd, c->buf, 100));
}

CALL(append1) {
    CHECK(write(c->fd, c->buf, 1));
}

static void r_lseek(struct context *c, long n) {
    CHECK(ftruncate(c->fd, 0));
    CHECK(lseek(c->fd, 0, SEEK_SET));
}

CALL(sparse) {
    CHECK(pwrite(c->fd, c->buf, 4096, (off_t)(rnd(c)%100000)*65536));
}

CALL(sparse1) {
    CHECK(pwrite(c->fd, c->buf, 1, (off_t)i*1048576));
}

CALL(trunc4k) {
    CHECK(ftruncate(c->fd, (off_t)(4095-i)*4096));
}

static void r_fill16(struct context *c, long n) {
    fillto(c->fd, 16 << 20);
}

CALL(truncud) {
    CHECK(ftruncate(c->fd, i&1?0:100000));
}

CALL(truncpath) {
    CHECK(truncate(c->q, i&1?1000:2000));
}

CALL(c_fsync) {
    CHECK(fsync(c->fd));
}

CALL(wrfsync) {
    CHECK(pwrite(c->fd, c->buf, 4096, 0));
    CHECK(fsync(c->fd));
}

CALL(c_fdatasync) {
    CHECK(fdatasync(c->fd));
}

CALL(falloc64k) {
    CHECK(fallocate(c->fd, 0, (off_t)i << 16, 65536));
}

CALL(falloc16m) {
    CHECK(fallocate(c->fd, 0, 0, 16 << 20));
    CHECK(ftruncate(c->fd, 0));
}

CALL(fallockeep) {
    CHECK(fallocate(c->fd, FALLOC_FL_KEEP_SIZE, (off_t)i << 12, 4096));
}

CALL(falloc4k) {
    CHECK(fallocate(c->fd, 0, (off_t)i << 12, 4096));
}

CALL(fallocthere) {
    CHECK(fallocate(c->fd, 0, 0, 16 << 20));
}

CALL(punch) {
    CHECK(fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 65536));
    CHECK(pwrite(c->fd, c->buf, 65536, 0));
}

CALL(fadvise) {
    CHECK(posix_fadvise(c->fd, 0, 65536, POSIX_FADV_WILLNEED));
}

CALL(readahead_) {
    CHECK(readahead(c->fd, 0, 65536));
}

CALL(sharedwr1k) {
    CHECK(pwrite(c->fd, c->buf, 1000, (off_t)(rnd(c)%16000)*1000));
}

CALL(syncfs_) {
    CHECK(syncfs(c->fd));
}

CALL(odsync) {
    CHECK(pwrite(c->fd2, c->buf, 4096, (i*4096)&0xffffff));
}

static void s_dsync(struct context *c) {
    s_priv(c);
    c->fd2 = open(P(c, "f"), O_RDWR | O_DSYNC);
    CHECK(c->fd2);
}

CALL(seekwrite) {
    CHECK(lseek(c->fd, (i*100)&0xfffff, SEEK_SET));
    CHECK(write(c->fd, c->buf, 100));
}

const struct operation data_operations[] = {
    {"read 4K private, in order", s_priv, rd4k, 0, 0},
    {"read 4K shared, same block (DRBH)", s_shared, rdsame, 0, 0},
    {"read 4K shared, own blocks (DRBM)", s_shared, rddiff, 0, 0},
    {"read 4K private, random", s_priv, rdrnd, 0, 0},
    {"read 64 B", s_priv, rd64, 0, 0},
    {"read 1 MiB", s_priv, rd1m, 0, 0},
    {"read 128 KiB", s_priv, rd128k, 0, 0},
    {"read 128 KiB sequential", s_priv, seqrd128k, 0, 0},
    {"lseek + read 1 B", s_priv, lseek1, 0, 0},
    {"read 1 B", s_priv, read1, 1<<20, 0},
    {"lseek", s_priv, lseekonly, 0, 0},
    {"lseek end", s_priv, lseekend, 0, 0},
    {"lseek hole", s_priv, lseekdata, 0, 0},
    {"preadv 8 x 512", s_priv, readv8, 0, 0},
    {"pwritev 8 x 512", s_priv, writev8, 0, 0},
    {"write 4K private, in order", s_priv, wr4k, 0, 0},
    {"write 4K shared, same block", s_shared, wrsame, 0, 0},
    {"write 4K shared, own blocks (DWOM)", s_shared, wrdiff, 0, 0},
    {"write 4K shared, 64K apart", s_shared, wrdiff64k, 0, 0},
    {"write 64 B", s_priv, wr64, 0, 0},
    {"write 1 B", s_priv, wr1, 0, 0},
    {"write 1 MiB", s_priv, wr1m, 0, 0},
    {"write 128 KiB", s_priv, wr128k, 0, 0},
    {"write 1000 B shared, random", s_shared, sharedwr1k, 0, 0},
    {"lseek + write 100 B", s_priv, seekwrite, 0, 0},
    {"write 1 MiB fresh", s_empty, fresh1m, 64, r_trunc},
    {"write 64 KiB fresh", s_empty, fresh64k, 512, r_trunc},
    {"append 4K (DWAL)", s_empty, append4k, 4096, r_lseek},
    {"append 100 B", s_empty, append100, 10000, r_lseek},
    {"append 1 B", s_empty, append1, 10000, r_lseek},
    {"O_APPEND 100 B own", s_append, append100, 10000, r_trunc},
    {"O_APPEND 100 B shared", s_shappend, append100, 5000, r_trunc},
    {"O_APPEND 4K shared", s_shappend, append4k, 2000, r_trunc},
    {"sparse 4K random", s_empty, sparse, 2000, r_trunc},
    {"sparse 1 B each 1M", s_empty, sparse1, 1000, r_trunc},
    {"truncate by 4K (DWTL)", s_priv, trunc4k, 4096, r_fill16},
    {"truncate up and down", s_empty, truncud, 0, 0},
    {"truncate by path", s_fq, truncpath, 0, 0},
    {"fsync", s_priv, c_fsync, 0, 0},
    {"write 4K + fsync (DWSL)", s_priv, wrfsync, 0, 0},
    {"fdatasync", s_priv, c_fdatasync, 0, 0},
    {"O_DSYNC write 4K", s_dsync, odsync, 0, 0},
    {"syncfs", s_priv, syncfs_, 0, 0},
    {"fallocate 64K", s_empty, falloc64k, 256, r_trunc},
    {"fallocate 4K", s_empty, falloc4k, 2048, r_trunc},
    {"fallocate 4K keep size", s_empty, fallockeep, 2048, r_trunc},
    {"fallocate 16M, truncate", s_empty, falloc16m, 0, 0},
    {"fallocate 16M there", s_priv, fallocthere, 0, 0},
    {"punch 64K and write", s_priv, punch, 0, 0},
    {"fadvise", s_priv, fadvise, 0, 0},
    {"readahead", s_priv, readahead_, 0, 0},
    {0},
};
