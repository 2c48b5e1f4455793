/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* libgannet: volumes for programs in C. Made from the comments of the library's source; do not edit. */

#ifndef GANNET_H
#define GANNET_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
struct timespec;

/**
 * Nothing may change.
 */
#define GANNET_ATTACH_READ_ONLY 1

/**
 * Data is written copy-on-write: each write happens whole or not at all, also in a crash. Files that say otherwise by a flag (`gannet_setflags`)
 * are excepted; nobody else who has the volume attached is concerned.
 */
#define GANNET_ATTACH_COPY_ON_WRITE 2

/**
 * Data is written in place, with the same exceptions. Without either, it is written as the volume was made.
 */
#define GANNET_ATTACH_IN_PLACE 4

/**
 * No handlers for SIGSEGV and SIGBUS are installed. Then a bad pointer passed to this library ends the process instead of
 * giving -EFAULT, and so does an access to a part of the medium that has failed.
 */
#define GANNET_ATTACH_KEEP_SIGNAL_HANDLERS 8

/**
 * Reading does not move access times; else it moves them when they are not later than the times of modification and change,
 * or a day old.
 */
#define GANNET_ATTACH_NO_ACCESS_TIMES 16

/**
 * In place of a directory's descriptor: the volume's root.
 */
#define GANNET_AT_ROOT -100

/**
 * Flag of an inode: its data is written in place, whatever the volume was made or attached with. It is `FS_NOCOW_FL`, `chattr +C`.
 */
#define GANNET_FLAG_IN_PLACE 8388608

/**
 * Flag of an inode: its data is written copy-on-write, each call whole or not at all, whatever the volume was made or attached with.
 */
#define GANNET_FLAG_COPY_ON_WRITE 16777216

/**
 * A volume that this process has attached. Made by `gannet_attach`, ended by `gannet_detach`; any thread may use it at any
 * time in between.
 */
struct gannet_volume;

/**
 * How a volume is attached. Set all to zero, then `size`.
 */
struct gannet_attach_options {
    /**
     * `sizeof(struct gannet_attach_options)`.
     */
    size_t size;
    /**
     * `GANNET_ATTACH_*`.
     */
    uint32_t flags;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Bound on the shared memory for indexes in bytes; who attaches the volume first decides. 0: 1 GiB.
     */
    uint64_t index_bytes_max;
};

/**
 * Who uses a handle. Set all to zero, then `size` and the others.
 */
struct gannet_credentials {
    /**
     * `sizeof(struct gannet_credentials)`.
     */
    size_t size;
    /**
     * User id.
     */
    uint32_t user;
    /**
     * Group id.
     */
    uint32_t group;
    /**
     * Supplementary groups: how many, at most 65536.
     */
    uint32_t group_count;
    /**
     * File mode creation mask.
     */
    uint32_t mask;
    /**
     * Supplementary groups; not kept.
     */
    const uint32_t *groups;
    /**
     * Capabilities with the kernel's bits (`1 << CAP_CHOWN`, …); those about files count.
     */
    uint64_t capabilities;
};

/**
 * A run of a file's blocks.
 */
struct gannet_file_extent {
    /**
     * Where in the file, in bytes.
     */
    uint64_t file_offset;
    /**
     * Where in the medium, in bytes.
     */
    uint64_t medium_offset;
    /**
     * How long, in bytes.
     */
    uint64_t length;
    /**
     * 1 if other files share the blocks, else 0.
     */
    uint32_t shared;
    /**
     * 0.
     */
    uint32_t reserved;
};

/**
 * What a file is. Times are nanoseconds since 1970-01-01 UTC, negative before it.
 */
struct gannet_stat {
    /**
     * The volume, as for `st_dev`.
     */
    uint64_t device;
    /**
     * Inode number.
     */
    uint64_t inode;
    /**
     * Type and permission bits, as `st_mode`.
     */
    uint32_t mode;
    /**
     * Tells a file from earlier ones of the same inode number.
     */
    uint32_t generation;
    /**
     * Number of hard links.
     */
    uint64_t links;
    /**
     * User that owns it.
     */
    uint32_t user;
    /**
     * Group that owns it.
     */
    uint32_t group;
    /**
     * The device that a device file stands for, as `st_rdev`.
     */
    uint64_t special_device;
    /**
     * Size in bytes.
     */
    uint64_t size;
    /**
     * Allocated space in bytes.
     */
    uint64_t allocated;
    /**
     * The preferred size of reads and writes in bytes.
     */
    uint32_t block_size;
    /**
     * Flags as of `FS_IOC_GETFLAGS`, see `gannet_setflags`.
     */
    uint32_t flags;
    /**
     * Last access.
     */
    int64_t accessed;
    /**
     * Last change of the data.
     */
    int64_t modified;
    /**
     * Last change of the inode.
     */
    int64_t changed;
    /**
     * Birth.
     */
    int64_t created;
};

/**
 * Space and inodes of a volume.
 */
struct gannet_statfs {
    /**
     * The volume, as for `st_dev`.
     */
    uint64_t device;
    /**
     * Size of a block in bytes.
     */
    uint64_t block_size;
    /**
     * All blocks that files can use.
     */
    uint64_t blocks;
    /**
     * Blocks that are free.
     */
    uint64_t blocks_free;
    /**
     * Blocks that are free to those without privilege.
     */
    uint64_t blocks_available;
    /**
     * All inodes.
     */
    uint64_t inodes;
    /**
     * Inodes that are free.
     */
    uint64_t inodes_free;
    /**
     * The longest name in bytes.
     */
    uint64_t name_max;
};

/**
 * An entry of a directory.
 */
struct gannet_entry {
    /**
     * Inode number.
     */
    uint64_t inode;
    /**
     * Reading goes on behind this entry when given this cookie, whatever happened to the directory.
     */
    uint64_t cookie;
    /**
     * Type: `DT_REG`, `DT_DIR`, …
     */
    uint32_t kind;
    /**
     * Length of the name in bytes.
     */
    uint32_t name_length;
    /**
     * The name, with a zero byte behind it.
     */
    char name[256];
};

/**
 * A piece of a file and where it lies.
 */
struct gannet_extent {
    /**
     * Where in the file, in bytes; a multiple of 4096.
     */
    uint64_t file_offset;
    /**
     * How long, in bytes; a multiple of 4096.
     */
    uint64_t length;
    /**
     * Where in the medium, in bytes; 0 for a hole.
     */
    uint64_t medium_offset;
    /**
     * The kernel's descriptor of the medium, to be used with `mmap(2)` and not to be closed; -1 for a hole, and behind the end.
     */
    int32_t medium;
    /**
     * 0.
     */
    uint32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Attaches the volume at `path` (a file or a device made by `gannet mkfs`; `memory:` or `memory:MIB` for a new one in the
 * memory of this process) and returns a handle. Recovers the volume if nobody has it attached and it was not closed
 * cleanly. `options` may be NULL. With NULL returned, `*error` is a negative errno value, else 0; `error` may be NULL.
 *
 * A handle is for all threads of the process, and for its children by `fork(2)`, which go on with the descriptors that were
 * open; each process detaches for itself. Operations are done as the user that the calling process is now, see
 * `gannet_set_credentials`. Installs handlers for SIGSEGV and SIGBUS that concern copies by this library only and pass
 * everything else on to the handlers there were, see `GANNET_ATTACH_KEEP_SIGNAL_HANDLERS`.
 *
 * A bad pointer is -EFAULT by those handlers. A thread that has these signals blocked gets none: the kernel ends the process then. Calls need
 * 64 KiB of the thread's stack. `RLIMIT_FSIZE` does not bound the files of a volume.
 *
 * Unless a function says otherwise: paths are relative to the volume's root, with or without a slash at the beginning, and
 * never leave the volume; permissions are checked as Linux does; what a function changed is as durable as the medium allows
 * when it returns; it returns 0, or on failure a negative errno value, and `gannet_error_text` says more. Flags and
 * structures of the system's headers have their values.
 *
 * Requires:
 * `path` is a string; `options` and `error` point to their structures or are NULL.
 */
struct gannet_volume *gannet_attach(const char *path,
                                    const struct gannet_attach_options *options,
                                    int *error);

/**
 * Ends a handle: unmaps and closes everything, and detaches the volume, which the last process leaves cleanly closed.
 * Also when it returns an error the handle is gone and the volume detached. NULL is allowed.
 *
 * An error of the last process says that the volume could not be closed, and the next use recovers it: -EIO where its file was made
 * shorter or could not be synced, -EUCLEAN where other content was put into it. `gannet fsck` says what there is.
 *
 * Requires:
 * `volume` is NULL or a handle of this process that no thread uses now or later.
 */
int gannet_detach(struct gannet_volume *volume);

/**
 * Makes all later operations on a handle those of another user; with NULL of the user that the calling process is now (after
 * `setuid(2)`, `umask(2)` and the like, which a handle does not notice by itself). It is for servers that act for others,
 * not a barrier: whoever can attach a volume for writing can change all of it.
 *
 * Returns 0. -EINVAL for a size that is not that of this header's structure.
 *
 * Requires:
 * `volume` is attached or NULL; `credentials` points to its structure and that to its groups, or is NULL.
 */
int gannet_set_credentials(struct gannet_volume *volume,
                           const struct gannet_credentials *credentials);

/**
 * What the calling thread's last failed call was about: the function, the path or descriptor, what was found, and what can
 * be done. Empty if none failed so far. The text stays until the thread calls this function again.
 */
const char *gannet_error_text(void);

/**
 * Opens a file as `open(2)` does; `mode` counts when it makes one. The access mode 3 asks for permission to read and to write, and gives
 * a descriptor for neither. The descriptor is a number of this handle only, not one of the
 * kernel's, and is not inherited by `exec`.
 *
 * Returns the descriptor, the lowest that is free.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_open(struct gannet_volume *volume,
                const char *path,
                int flags,
                uint32_t mode);

/**
 * The same for a path relative to an open directory, or to the root (`GANNET_AT_ROOT`).
 *
 * Requires:
 * As for `gannet_open`.
 */
int gannet_openat(struct gannet_volume *volume, int directory, const char *path, int flags, uint32_t mode);

/**
 * The same with rules for the walk, of `openat2(2)`: `RESOLVE_BENEATH`, `RESOLVE_IN_ROOT`, `RESOLVE_NO_SYMLINKS`, `RESOLVE_NO_XDEV`,
 * `RESOLVE_NO_MAGICLINKS`. With the first two an absolute path is refused or begins at the directory.
 *
 * Returns the descriptor. -EXDEV where the path would leave the directory, -ELOOP at a symbolic link that is forbidden.
 *
 * Requires:
 * As for `gannet_open`.
 */
int gannet_openat2(struct gannet_volume *volume,
                   int directory,
                   const char *path,
                   int flags,
                   uint32_t mode,
                   uint64_t resolve);

/**
 * Tells how a descriptor was opened: the access mode and the status flags, as `F_GETFL` of `fcntl(2)`.
 *
 * Returns the flags.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_getfl(struct gannet_volume *volume, int descriptor);

/**
 * Sets `O_APPEND`, `O_NONBLOCK` and `O_DIRECT` of the open file description, as `F_SETFL` of `fcntl(2)`; other flags stay what they are.
 *
 * Returns 0. -EPERM where `O_APPEND` of an append-only file would change.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_setfl(struct gannet_volume *volume,
                 int descriptor,
                 int flags);

/**
 * Closes a descriptor. As POSIX has it, the process's record locks on the file go as well. With the last user of a removed
 * file its space is free. Also when it returns an error the descriptor is closed, unless that is -EBADF, or -ENOMEM, which says that the
 * calling thread has no place among the 4096 that can use a volume at once: another one has to close it.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_close(struct gannet_volume *volume,
                 int descriptor);

/**
 * Makes another descriptor for the same open file description: offset, status flags and locks are common to both.
 *
 * Returns the new descriptor.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_dup(struct gannet_volume *volume, int descriptor);

/**
 * Reads up to `count` bytes at the file's offset and moves it. Fewer only at the end of the file (0 there).
 *
 * Returns the number of bytes.
 *
 * Requires:
 * `volume` is attached or NULL; `buffer` has room for `count` bytes that nothing else uses meanwhile.
 */
int64_t gannet_read(struct gannet_volume *volume, int descriptor, void *buffer, size_t count);

/**
 * Reads up to `count` bytes at `offset`.
 *
 * Returns the number of bytes, fewer than `count` only at the end of the file.
 *
 * Requires:
 * As for `gannet_read`.
 */
int64_t gannet_pread(struct gannet_volume *volume, int descriptor, void *buffer, size_t count, int64_t offset);

/**
 * Writes `count` bytes at the file's offset (with `O_APPEND` at the end of the file) and moves it.
 *
 * Returns the number of bytes, fewer than `count` only when the volume filled up.
 *
 * Requires:
 * `volume` is attached or NULL; `buffer` holds `count` bytes.
 */
int64_t gannet_write(struct gannet_volume *volume, int descriptor, const void *buffer, size_t count);

/**
 * Writes `count` bytes at `offset` (with `O_APPEND`, as on Linux, at the end of the file).
 *
 * Returns the number of bytes, fewer than `count` only when the volume filled up.
 *
 * Requires:
 * As for `gannet_write`.
 */
int64_t gannet_pwrite(struct gannet_volume *volume, int descriptor, const void *buffer, size_t count, int64_t offset);

/**
 * Moves the file's offset; `whence` is `SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA` or `SEEK_HOLE`.
 *
 * Returns the new offset.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int64_t gannet_lseek(struct gannet_volume *volume, int descriptor, int64_t offset, int whence);

/**
 * Reads at the file's offset into several buffers (at most 1024), one after the other.
 *
 * Returns the number of bytes.
 *
 * Requires:
 * As for `gannet_read`, for each buffer; `buffers` points to `buffer_count` of them.
 */
int64_t gannet_readv(struct gannet_volume *volume, int descriptor, const struct iovec *buffers, int buffer_count);

/**
 * The same at `offset`, which leaves the file's offset where it is.
 *
 * Returns the number of bytes.
 *
 * Requires:
 * As for `gannet_readv`.
 */
int64_t gannet_preadv(struct gannet_volume *volume,
                      int descriptor,
                      const struct iovec *buffers,
                      int buffer_count,
                      int64_t offset);

/**
 * Writes several buffers (at most 1024), one after the other, at the file's offset, as one write.
 *
 * Returns the number of bytes.
 *
 * Requires:
 * As for `gannet_write`, for each buffer; `buffers` points to `buffer_count` of them.
 */
int64_t gannet_writev(struct gannet_volume *volume, int descriptor, const struct iovec *buffers, int buffer_count);

/**
 * The same at `offset`, which leaves the file's offset where it is; with `O_APPEND`, as on Linux, at the end of the file.
 *
 * Returns the number of bytes.
 *
 * Requires:
 * As for `gannet_writev`.
 */
int64_t gannet_pwritev(struct gannet_volume *volume,
                       int descriptor,
                       const struct iovec *buffers,
                       int buffer_count,
                       int64_t offset);

/**
 * Changes the size of an open file: cuts it, or extends it with a hole.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_ftruncate(struct gannet_volume *volume, int descriptor, int64_t length);

/**
 * Reserves space for a range, or makes a hole of it, and so on: `fallocate(2)` with its modes.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_fallocate(struct gannet_volume *volume, int descriptor, int mode, int64_t offset, int64_t length);

/**
 * Makes stores through maps of the file durable, and on a medium that is not persistent memory, as far as it can, the rest.
 * What was written by calls is durable already.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_fsync(struct gannet_volume *volume,
                 int descriptor);

/**
 * The same without what is not needed to find the data again.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_fdatasync(struct gannet_volume *volume, int descriptor);

/**
 * `gannet_fsync` for the whole volume.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_sync(struct gannet_volume *volume);

/**
 * Makes a range of `to` share the blocks of `from`: nothing is copied until one of them is written to. Both are open files of
 * the volume, `from` for reading and `to` for writing. Offsets are multiples of 4096, and so is the length unless the range
 * ends where `from` ends and `to` then ends; length 0 is all up to the end of `from`. After a crash, ranges of few pieces (240)
 * are shared or not; longer ones may be shared in part.
 *
 * Returns 0. -EINVAL for ranges that do not fit these rules, or overlap in one file; -EBADF for a target with `O_APPEND`; -EOPNOTSUPP while
 * either range is mapped by somebody.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_clone_range(struct gannet_volume *volume,
                       int from,
                       uint64_t from_offset,
                       int to,
                       uint64_t to_offset,
                       uint64_t length);

/**
 * Makes a range of `to` share the blocks of `from` if both hold the same bytes; nothing else changes, times included. Offsets and length are
 * as for `gannet_clone_range`, and both ranges lie within their files; what is less than a block at the end, and not the end of both files, is
 * neither compared nor shared. `to` need not be open for writing if it may be written to.
 *
 * Returns 1 if they held the same and share blocks now, 0 if they differ. -EINVAL for ranges that do not fit these rules.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_dedupe_range(struct gannet_volume *volume,
                        int from,
                        uint64_t from_offset,
                        int to,
                        uint64_t to_offset,
                        uint64_t length);

/**
 * Copies `count` bytes between two open files of the volume, as `copy_file_range(2)`: whole blocks of 64 KiB and more are shared instead, where that can be.
 * With NULL for an offset the file's own is used and moved; else what stands there is used, and moved by what was copied. `flags` is 0.
 *
 * Returns the number of bytes, fewer than `count` only at the end of `from` or when the volume filled up. -EINVAL for ranges of one file that
 * overlap, -EBADF for a target with `O_APPEND`.
 *
 * Requires:
 * `volume` is attached or NULL; the offsets are NULL or can be read and written.
 */
int64_t gannet_copy_file_range(struct gannet_volume *volume,
                               int from,
                               int64_t *from_offset,
                               int to,
                               int64_t *to_offset,
                               size_t count,
                               uint32_t flags);

/**
 * Tells where the bytes of a range of a file lie, in ascending order, as `FS_IOC_FIEMAP` does; holes are left out. Nothing keeps them there: to use
 * them in place there is `gannet_map`. With `capacity` 0 only their number is told.
 *
 * Returns the number of extents, at most `capacity` if that is not 0; the rest is found behind the last one.
 *
 * Requires:
 * `volume` is attached or NULL, `extents` has room for `capacity` of them.
 */
int64_t gannet_extents(struct gannet_volume *volume,
                       int descriptor,
                       uint64_t offset,
                       uint64_t length,
                       struct gannet_file_extent *extents,
                       size_t capacity);

/**
 * Makes a directory.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_mkdir(struct gannet_volume *volume, const char *path, uint32_t mode);

/**
 * The same for a path relative to an open directory, or to the root (`GANNET_AT_ROOT`). As with all such functions the directory does
 * not count for a path that begins with a slash; it can be open with `O_PATH`.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_mkdirat(struct gannet_volume *volume,
                   int directory,
                   const char *path,
                   uint32_t mode);

/**
 * Makes a file of the type that `mode` says, as `mknod(2)`: `S_IFREG` or no type, `S_IFIFO`, `S_IFSOCK`, or `S_IFCHR` and `S_IFBLK` for the device
 * `device` (as `st_rdev` has it), which takes `CAP_MKNOD`. Pipes, sockets and devices are names only here.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_mknod(struct gannet_volume *volume,
                 const char *path,
                 uint32_t mode,
                 uint64_t device);

/**
 * The same for a path relative to an open directory.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_mknodat(struct gannet_volume *volume, int directory, const char *path, uint32_t mode, uint64_t device);

/**
 * Removes an empty directory.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_rmdir(struct gannet_volume *volume, const char *path);

/**
 * Removes a name that is not a directory's. The file lives on while it has other names, or is open in any process.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_unlink(struct gannet_volume *volume, const char *path);

/**
 * Removes a name relative to an open directory: with `AT_REMOVEDIR` in `flags` that of an empty directory, with 0 another.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_unlinkat(struct gannet_volume *volume,
                    int directory,
                    const char *path,
                    int flags);

/**
 * Moves a name, atomically; what has the new name is replaced. `flags` is 0 or of `renameat2(2)`: `RENAME_NOREPLACE`,
 * `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
 *
 * Requires:
 * `volume` is attached or NULL, the paths are strings.
 */
int gannet_rename(struct gannet_volume *volume, const char *from, const char *to, uint32_t flags);

/**
 * The same for paths relative to open directories.
 *
 * Requires:
 * `volume` is attached or NULL, the paths are strings.
 */
int gannet_renameat2(struct gannet_volume *volume,
                     int from_directory,
                     const char *from,
                     int to_directory,
                     const char *to,
                     uint32_t flags);

/**
 * Gives a file another name. A symbolic link at the end of `existing` is not followed.
 *
 * Requires:
 * `volume` is attached or NULL, the paths are strings.
 */
int gannet_link(struct gannet_volume *volume, const char *existing, const char *path);

/**
 * The same for paths relative to open directories. `flags` is 0 or of `AT_SYMLINK_FOLLOW` and `AT_EMPTY_PATH`: with that an empty `existing` is the
 * file that `existing_directory` is open on, which gives a name to one made with `O_TMPFILE`.
 *
 * Requires:
 * `volume` is attached or NULL, the paths are strings.
 */
int gannet_linkat(struct gannet_volume *volume,
                  int existing_directory,
                  const char *existing,
                  int directory,
                  const char *path,
                  int flags);

/**
 * Makes a symbolic link that leads to `target` (1 to 4095 bytes). An absolute target begins at the volume's root.
 *
 * Requires:
 * `volume` is attached or NULL, `target` and `path` are strings.
 */
int gannet_symlink(struct gannet_volume *volume, const char *target, const char *path);

/**
 * The same for a path relative to an open directory.
 *
 * Requires:
 * `volume` is attached or NULL, `target` and `path` are strings.
 */
int gannet_symlinkat(struct gannet_volume *volume, const char *target, int directory, const char *path);

/**
 * Stores where a symbolic link leads in `buffer`, cut to `size` bytes and without a zero byte at the end.
 *
 * Returns the number of bytes stored.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `buffer` has room for `size` bytes.
 */
int64_t gannet_readlink(struct gannet_volume *volume, const char *path, char *buffer, size_t size);

/**
 * The same for a path relative to an open directory; the empty path is the link that it is open on (`O_PATH` with `O_NOFOLLOW`).
 *
 * Returns the number of bytes stored.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `buffer` has room for `size` bytes.
 */
int64_t gannet_readlinkat(struct gannet_volume *volume,
                          int directory,
                          const char *path,
                          char *buffer,
                          size_t size);

/**
 * Says whether a file exists and may be read, written or executed: `mode` is `F_OK`, or of `R_OK`, `W_OK`, `X_OK`. As with
 * `access(2)` the real user is asked about.
 *
 * Returns 0 if so, -EACCES if it may not.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_access(struct gannet_volume *volume,
                  const char *path,
                  int mode);

/**
 * The same for a path relative to an open directory; `flags` is 0 or of `AT_EACCESS` (the effective user is asked about), `AT_SYMLINK_NOFOLLOW`
 * and `AT_EMPTY_PATH`.
 *
 * Returns 0 if so, -EACCES if it may not.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_faccessat(struct gannet_volume *volume,
                     int directory,
                     const char *path,
                     int mode,
                     int flags);

/**
 * Tells what the file at `path` is.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `result` can be written.
 */
int gannet_stat(struct gannet_volume *volume, const char *path, struct gannet_stat *result);

/**
 * The same; a symbolic link at the end is not followed.
 *
 * Requires:
 * As for `gannet_stat`.
 */
int gannet_lstat(struct gannet_volume *volume, const char *path, struct gannet_stat *result);

/**
 * The same of an open file.
 *
 * Requires:
 * `volume` is attached or NULL, `result` can be written.
 */
int gannet_fstat(struct gannet_volume *volume, int descriptor, struct gannet_stat *result);

/**
 * Tells the space and the inodes of the volume.
 *
 * Requires:
 * `volume` is attached or NULL, `result` can be written.
 */
int gannet_statfs(struct gannet_volume *volume, struct gannet_statfs *result);

/**
 * Changes the permission bits.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_chmod(struct gannet_volume *volume, const char *path, uint32_t mode);

/**
 * The same of an open file.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_fchmod(struct gannet_volume *volume, int descriptor, uint32_t mode);

/**
 * Changes the owners; `(uint32_t)-1` keeps one.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_chown(struct gannet_volume *volume, const char *path, uint32_t user, uint32_t group);

/**
 * The same; a symbolic link at the end is not followed.
 *
 * Requires:
 * As for `gannet_chown`.
 */
int gannet_lchown(struct gannet_volume *volume, const char *path, uint32_t user, uint32_t group);

/**
 * The same of an open file.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_fchown(struct gannet_volume *volume, int descriptor, uint32_t user, uint32_t group);

/**
 * Changes the times of access and modification to `times[0]` and `times[1]`, or to now if it is NULL. `UTIME_NOW` and
 * `UTIME_OMIT` are understood, and `AT_SYMLINK_NOFOLLOW` in `flags`.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `times` NULL or two.
 */
int gannet_utimens(struct gannet_volume *volume, const char *path, const struct timespec *times, int flags);

/**
 * The same of an open file.
 *
 * Requires:
 * `volume` is attached or NULL, `times` NULL or two.
 */
int gannet_futimens(struct gannet_volume *volume, int descriptor, const struct timespec *times);

/**
 * Changes the size of a file: cuts it, or extends it with a hole.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_truncate(struct gannet_volume *volume, const char *path, int64_t length);

/**
 * Tells what the file at `path` is, relative to an open directory, or to the root (`GANNET_AT_ROOT`). `flags` is 0 or of `AT_SYMLINK_NOFOLLOW` and
 * `AT_EMPTY_PATH`, with which the empty path is the open file itself. The structure has what `statx(2)` tells: birth and flags of the inode, too.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `result` can be written.
 */
int gannet_fstatat(struct gannet_volume *volume,
                   int directory,
                   const char *path,
                   struct gannet_stat *result,
                   int flags);

/**
 * Changes the permission bits, by a path relative to an open directory; `flags` as for `gannet_fstatat`. Those of symbolic links cannot be
 * changed: -EOPNOTSUPP.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_fchmodat(struct gannet_volume *volume,
                    int directory,
                    const char *path,
                    uint32_t mode,
                    int flags);

/**
 * Changes the owners, by a path relative to an open directory; `(uint32_t)-1` keeps one, `flags` as for `gannet_fstatat`.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string.
 */
int gannet_fchownat(struct gannet_volume *volume,
                    int directory,
                    const char *path,
                    uint32_t user,
                    uint32_t group,
                    int flags);

/**
 * Changes the times of access and modification to `times[0]` and `times[1]`, or to now if it is NULL, by a path relative to an open directory.
 * `UTIME_NOW` and `UTIME_OMIT` are understood, `flags` is as for `gannet_fstatat`.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `times` NULL or two.
 */
int gannet_utimensat(struct gannet_volume *volume,
                     int directory,
                     const char *path,
                     const struct timespec *times,
                     int flags);

/**
 * Tells an open file's flags, as `FS_IOC_GETFLAGS` does: `FS_IMMUTABLE_FL`, `FS_APPEND_FL`, `FS_NODUMP_FL`, `FS_NOATIME_FL`, `FS_SYNC_FL`, and how its data is
 * written, `GANNET_FLAG_IN_PLACE` or `GANNET_FLAG_COPY_ON_WRITE`. Without either of the last two the volume's default counts.
 *
 * Requires:
 * `volume` is attached or NULL, `flags` can be written.
 */
int gannet_getflags(struct gannet_volume *volume,
                    int descriptor,
                    uint32_t *flags);

/**
 * Sets an open file's flags, as `FS_IOC_SETFLAGS` does; those that are not named are cleared. What is made in a directory inherits `FS_NODUMP_FL`,
 * `FS_NOATIME_FL`, `FS_SYNC_FL` and how data is written. Of the two flags for that, the one that was not set before replaces the other.
 *
 * Returns 0; -EACCES for who does not own the file, -EPERM for the first two flags without `CAP_LINUX_IMMUTABLE`, -EOPNOTSUPP for flags that mean nothing
 * here, -EINVAL for both ways to write data at once.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_setflags(struct gannet_volume *volume,
                    int descriptor,
                    uint32_t flags);

/**
 * Reads an extended attribute. With `size` 0 only its length is told.
 *
 * Returns the length of the value in bytes; -ENODATA if there is none, -ERANGE if `size` is too small.
 *
 * Requires:
 * `volume` is attached or NULL, `path` and `name` are strings, `value` has room for `size` bytes.
 */
int64_t gannet_getxattr(struct gannet_volume *volume, const char *path, const char *name, void *value, size_t size);

/**
 * The same; a symbolic link at the end is not followed.
 *
 * Requires:
 * As for `gannet_getxattr`.
 */
int64_t gannet_lgetxattr(struct gannet_volume *volume, const char *path, const char *name, void *value, size_t size);

/**
 * The same of an open file.
 *
 * Requires:
 * As for `gannet_getxattr`.
 */
int64_t gannet_fgetxattr(struct gannet_volume *volume, int descriptor, const char *name, void *value, size_t size);

/**
 * Sets an extended attribute to a value of at most 65536 bytes. `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
 *
 * Requires:
 * `volume` is attached or NULL, `path` and `name` are strings, `value` holds `size` bytes.
 */
int gannet_setxattr(struct gannet_volume *volume,
                    const char *path,
                    const char *name,
                    const void *value,
                    size_t size,
                    int flags);

/**
 * The same; a symbolic link at the end is not followed.
 *
 * Requires:
 * As for `gannet_setxattr`.
 */
int gannet_lsetxattr(struct gannet_volume *volume,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t size,
                     int flags);

/**
 * The same of an open file.
 *
 * Requires:
 * As for `gannet_setxattr`.
 */
int gannet_fsetxattr(struct gannet_volume *volume,
                     int descriptor,
                     const char *name,
                     const void *value,
                     size_t size,
                     int flags);

/**
 * Stores the names of all extended attributes, each with a zero byte behind it. With `size` 0 only their length is told.
 *
 * Returns the length of the names in bytes; -ERANGE if `size` is too small.
 *
 * Requires:
 * `volume` is attached or NULL, `path` a string, `names` has room for `size` bytes.
 */
int64_t gannet_listxattr(struct gannet_volume *volume,
                         const char *path,
                         char *names,
                         size_t size);

/**
 * The same; a symbolic link at the end is not followed.
 *
 * Requires:
 * As for `gannet_listxattr`.
 */
int64_t gannet_llistxattr(struct gannet_volume *volume, const char *path, char *names, size_t size);

/**
 * The same of an open file.
 *
 * Requires:
 * As for `gannet_listxattr`.
 */
int64_t gannet_flistxattr(struct gannet_volume *volume, int descriptor, char *names, size_t size);

/**
 * Removes an extended attribute.
 *
 * Returns 0; -ENODATA if there is none.
 *
 * Requires:
 * `volume` is attached or NULL, `path` and `name` are strings.
 */
int gannet_removexattr(struct gannet_volume *volume, const char *path, const char *name);

/**
 * The same; a symbolic link at the end is not followed.
 *
 * Requires:
 * As for `gannet_removexattr`.
 */
int gannet_lremovexattr(struct gannet_volume *volume, const char *path, const char *name);

/**
 * The same of an open file.
 *
 * Requires:
 * `volume` is attached or NULL, `name` a string.
 */
int gannet_fremovexattr(struct gannet_volume *volume, int descriptor, const char *name);

/**
 * Stores up to `capacity` entries of an open directory, beginning behind the entry of `*cookie` (0: at the beginning), and sets
 * `*cookie` to go on from. `.` and `..` are not among them. An entry that is neither made nor removed meanwhile is told
 * exactly once. The descriptor's offset is not used, so that any number of readers can share it.
 *
 * Returns the number of entries stored, 0 at the end.
 *
 * Requires:
 * `volume` is attached or NULL, `cookie` can be read and written, `entries` has room for `capacity` of them.
 */
int64_t gannet_readdir(struct gannet_volume *volume,
                       int descriptor,
                       uint64_t *cookie,
                       struct gannet_entry *entries,
                       size_t capacity);

/**
 * Locks or unlocks a whole file for its open file description, as `flock(2)`: `LOCK_SH`, `LOCK_EX`, `LOCK_UN`, with
 * `LOCK_NB` without waiting. A signal does not end the wait.
 *
 * Returns 0. -EAGAIN if another has it locked.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_flock(struct gannet_volume *volume, int descriptor, int operation);

/**
 * Locks, unlocks or asks about a range of a file, as `fcntl(2)` does: for the process (`F_SETLK`, `F_SETLKW`, `F_GETLK`) or
 * the open file description (`F_OFD_SETLK`, `F_OFD_SETLKW`, `F_OFD_GETLK`). A signal does not end the wait.
 *
 * A process that has attached the volume twice is two processes to record locks: those made by one handle are in the way of the other,
 * and who waits for itself like that waits for ever.
 *
 * Returns 0. -EAGAIN if another's lock is in the way, -EDEADLK if processes would wait for each other, -ENOLCK.
 *
 * Requires:
 * `volume` is attached or NULL, `lock` can be read and written.
 */
int gannet_lock(struct gannet_volume *volume,
                int descriptor,
                int command,
                struct flock *lock);

/**
 * Maps a range of a file into memory, in one piece, and stores its address in `*address`. Loads and stores there go to the
 * volume itself; other processes that have the volume attached see stores at once. While a file is mapped, data of it is
 * written in place, also where it would be copy-on-write.
 *
 * `offset` is a multiple of 4096; the range is rounded up to whole pages. The file must be open for reading, with `writable`
 * not 0 also for writing. Holes of a writable range get space; it must end within the file (rounded up to
 * a page): -ENXIO otherwise, see `gannet_ftruncate`.
 * Holes of a range that is only read get space as well, so that it shows what is written there later. Where the volume was
 * attached for reading, has no room for them, or they are more than 256 MiB, they hold zeros as long as the range is mapped.
 * So does what lies in pages behind the end of the file, also if that grows. On a volume attached for reading the last page can be a
 * copy, which shows the end of the file as it was.
 * Stores are durable after `gannet_msync` or `gannet_fsync`. While the range is mapped its blocks stay where they are,
 * also if the file is truncated or removed, or a hole is made in it; the range goes on showing them then. Closing the descriptor does not end the map, `gannet_detach` does. A forked child
 * does not have it.
 *
 * Returns 0. -ENODEV for a volume in memory (`memory:`) and for what is not a regular file, -EACCES, -EINVAL, -ENOSPC.
 *
 * Requires:
 * `volume` is attached or NULL, `address` can be written.
 */
int gannet_mmap(struct gannet_volume *volume,
                int descriptor,
                uint64_t offset,
                size_t length,
                int writable,
                void **address);

/**
 * Ends a map made by `gannet_mmap`, whole. Stores that were not made durable become so at some time, or not, as with
 * `munmap(2)`.
 *
 * Returns 0. -EINVAL if `address` is not what `gannet_mmap` stored.
 *
 * Requires:
 * `volume` is attached or NULL. Nothing uses the memory from now on.
 */
int gannet_munmap(struct gannet_volume *volume, void *address);

/**
 * Makes all stores to the bytes durable that a map shows in this range, in whichever maps of the file they were made.
 *
 * Returns 0. -EINVAL if no map made by `gannet_mmap` holds all of the range.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_msync(struct gannet_volume *volume, void *address, size_t length);

/**
 * Pins a range of a file in place and tells where it lies, in ascending order and without gaps; `*token` names the pin. The
 * caller maps or reads the pieces itself, with `medium` and `medium_offset`, until `gannet_unmap`; the blocks stay where
 * they are as long, also if the file is truncated or removed. Rules and errors are those of `gannet_mmap`, which does the
 * mapping as well. The pin is this process's: a child by `fork(2)` must not use the range (see `MADV_DONTFORK`). Stores by
 * the caller are durable after `gannet_commit` or `gannet_fsync`.
 *
 * Where `gannet_mmap` makes a copy of the last page of a file on a volume attached for reading, this tells where the page lies; behind the
 * end of the file it can hold anything.
 *
 * A program that closes descriptors which it does not know (`closefrom(3)`) closes the medium's too. `gannet_mmap` does not
 * need it; here it is -EBADF, and a number that the program has put another file under is not told as the medium's.
 *
 * With `capacity` 0 the number of pieces is told and nothing is pinned; it may change until the next call.
 *
 * Returns the number of pieces. -ERANGE if there are more than `capacity`; nothing is pinned then.
 *
 * Requires:
 * `volume` is attached or NULL, `extents` has room for `capacity` of them, `token` can be written or `capacity` is 0.
 */
int64_t gannet_map(struct gannet_volume *volume,
                   int descriptor,
                   uint64_t offset,
                   uint64_t length,
                   int writable,
                   struct gannet_extent *extents,
                   size_t capacity,
                   uint64_t *token);

/**
 * Gives a pinned range back. The caller has unmapped it before.
 *
 * Returns 0. -EINVAL if `token` is not that of a pinned range.
 *
 * Requires:
 * `volume` is attached or NULL. Nothing uses the range any more.
 */
int gannet_unmap(struct gannet_volume *volume, uint64_t token);

/**
 * Makes all stores to the file of a pinned range durable, in whichever of its maps they were made.
 *
 * Returns 0. -EINVAL if `token` is not that of a pinned range.
 *
 * Requires:
 * `volume` is attached or NULL.
 */
int gannet_commit(struct gannet_volume *volume, uint64_t token);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GANNET_H */
