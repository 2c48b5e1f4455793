/*
 * The peer of the benchmark: a flat file system in memory over libfuse 3's low-level interface, as lean as that allows.
 * One directory, regular files of fixed capacity, a lock around the names only. Direct I/O, no caching of entries.
 *
 *   libfuse_memory DIRECTORY [-f] [-s] [-o clone_fd]
 */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILES_MAX 65536
#define CAPACITY (1UL << 30)

struct file {
    char *name;
    char *data;
    size_t size;
    int next; /* in its hash chain */
};

static struct file files[FILES_MAX];
static int chains[FILES_MAX], free_files[FILES_MAX], free_count;
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

static unsigned hash(const char *name)
{
    unsigned value = 2166136261u;
    while (*name)
        value = (value ^ (unsigned char)*name++) * 16777619u;
    return value % FILES_MAX;
}

static int find(const char *name)
{
    int index = chains[hash(name)];
    while (index && strcmp(files[index].name, name))
        index = files[index].next;
    return index;
}

static void stat_of(fuse_ino_t node, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_ino = node;
    if (node == FUSE_ROOT_ID) {
        st->st_mode = S_IFDIR | 0777;
        st->st_nlink = 2;
    } else {
        st->st_mode = S_IFREG | 0644;
        st->st_nlink = 1;
        st->st_size = files[node].size;
        st->st_blksize = 4096;
    }
}

static void do_init(void *data, struct fuse_conn_info *connection)
{
    (void)data;
    connection->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
    connection->max_write = 1 << 20;
}

static void reply_entry(fuse_req_t request, int index, struct fuse_file_info *info)
{
    struct fuse_entry_param entry = { .ino = index };
    stat_of(index, &entry.attr);
    if (info) {
        info->direct_io = 1;
        fuse_reply_create(request, &entry, info);
    } else {
        fuse_reply_entry(request, &entry);
    }
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    (void)parent;
    pthread_mutex_lock(&names);
    int index = find(name);
    pthread_mutex_unlock(&names);
    if (index)
        reply_entry(request, index, NULL);
    else
        fuse_reply_err(request, ENOENT);
}

static void do_getattr(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    (void)info;
    struct stat st;
    stat_of(node, &st);
    fuse_reply_attr(request, &st, 0);
}

static void do_setattr(fuse_req_t request, fuse_ino_t node, struct stat *st, int set, struct fuse_file_info *info)
{
    (void)info;
    if (node != FUSE_ROOT_ID && (set & FUSE_SET_ATTR_SIZE)) {
        if ((size_t)st->st_size > CAPACITY) {
            fuse_reply_err(request, EFBIG);
            return;
        }
        files[node].size = st->st_size;
    }
    do_getattr(request, node, NULL);
}

static void do_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *info)
{
    (void)parent;
    (void)mode;
    pthread_mutex_lock(&names);
    int index = find(name);
    if (!index && free_count) {
        index = free_files[--free_count];
        struct file *file = &files[index];
        file->name = strdup(name);
        file->size = 0;
        file->next = chains[hash(name)];
        chains[hash(name)] = index;
    }
    pthread_mutex_unlock(&names);
    if (index)
        reply_entry(request, index, info);
    else
        fuse_reply_err(request, ENOSPC);
}

static void do_unlink(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    (void)parent;
    pthread_mutex_lock(&names);
    int *link = &chains[hash(name)];
    while (*link && strcmp(files[*link].name, name))
        link = &files[*link].next;
    int index = *link;
    if (index) {
        *link = files[index].next;
        free(files[index].name);
        free_files[free_count++] = index;
    }
    pthread_mutex_unlock(&names);
    fuse_reply_err(request, index ? 0 : ENOENT);
}

static void do_open(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    (void)node;
    info->direct_io = 1;
    fuse_reply_open(request, info);
}

static char *data_of(fuse_ino_t node)
{
    struct file *file = &files[node];
    char *data = __atomic_load_n(&file->data, __ATOMIC_ACQUIRE);
    if (data)
        return data;
    pthread_mutex_lock(&names);
    if (!file->data)
        __atomic_store_n(&file->data,
                         mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
                         __ATOMIC_RELEASE);
    pthread_mutex_unlock(&names);
    return file->data;
}

static void do_read(fuse_req_t request, fuse_ino_t node, size_t count, off_t offset, struct fuse_file_info *info)
{
    (void)info;
    struct file *file = &files[node];
    if ((size_t)offset >= file->size)
        count = 0;
    else if (count > file->size - offset)
        count = file->size - offset;
    fuse_reply_buf(request, data_of(node) + offset, count);
}

static void do_write(fuse_req_t request, fuse_ino_t node, const char *data, size_t count, off_t offset,
                     struct fuse_file_info *info)
{
    (void)info;
    struct file *file = &files[node];
    if (offset + count > CAPACITY) {
        fuse_reply_err(request, EFBIG);
        return;
    }
    memcpy(data_of(node) + offset, data, count);
    if (offset + count > file->size)
        file->size = offset + count;
    fuse_reply_write(request, count);
}

static void do_nothing(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    (void)node;
    (void)info;
    fuse_reply_err(request, 0);
}

static void do_fsync(fuse_req_t request, fuse_ino_t node, int data, struct fuse_file_info *info)
{
    (void)data;
    do_nothing(request, node, info);
}

static const struct fuse_lowlevel_ops operations = {
    .init = do_init,
    .lookup = do_lookup,
    .getattr = do_getattr,
    .setattr = do_setattr,
    .create = do_create,
    .unlink = do_unlink,
    .open = do_open,
    .read = do_read,
    .write = do_write,
    .release = do_nothing,
    .fsync = do_fsync,
};

int main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    struct fuse_cmdline_opts options;
    if (fuse_parse_cmdline(&args, &options) || !options.mountpoint)
        return 1;
    for (int index = FILES_MAX - 1; index > 1; index--)
        free_files[free_count++] = index;
    struct fuse_session *session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, options.mountpoint))
        return 1;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, options.clone_fd);
    fuse_loop_cfg_set_max_threads(config, options.max_threads);
    fuse_loop_cfg_set_idle_threads(config, options.max_idle_threads);
    int result = options.singlethread ? fuse_session_loop(session) : fuse_session_loop_mt(session, config);
    fuse_session_unmount(session);
    return result;
}
