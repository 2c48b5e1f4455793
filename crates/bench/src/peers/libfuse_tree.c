/*
 * A peer of the benchmark: a file system in memory over libfuse 3's low-level interface, with directories. As lean as
 * that allows: names in a hash table each directory, file data in one reserved piece of address space each, one lock around
 * names. The kernel may keep names and attributes for a second, as libfuse's high-level interface lets it, and file data
 * while nobody else changes it.
 *
 *   libfuse_tree DIRECTORY [-f] [-s]
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <errno.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define CAPACITY (4UL << 30) /* of a file, in address space */
#define SECONDS 1.0

struct entry {
    char *name;
    struct node *node;
    unsigned hash;
    struct entry *next; /* in its chain */
};

struct node {
    mode_t mode;
    uid_t uid;
    gid_t gid;
    nlink_t links;
    unsigned long lookups, users;
    struct timespec modified;
    size_t size;
    size_t reserved; /* of data */
    char *data;      /* of a file; the target of a link */
    struct entry **chains;
    size_t chain_count, entry_count;
    struct node *parent;
};

static struct node root;
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

static struct node *node_of(fuse_ino_t number) { return number == FUSE_ROOT_ID ? &root : (struct node *)number; }
static fuse_ino_t number_of(struct node *node) { return node == &root ? FUSE_ROOT_ID : (fuse_ino_t)node; }
static void now(struct node *node) { clock_gettime(CLOCK_REALTIME_COARSE, &node->modified); }

static unsigned hash_of(const char *name)
{
    unsigned value = 2166136261u;
    while (*name)
        value = (value ^ (unsigned char)*name++) * 16777619u;
    return value;
}

static struct entry **find(struct node *directory, const char *name)
{
    unsigned hash = hash_of(name);
    struct entry **at = &directory->chains[hash % directory->chain_count];
    while (*at && ((*at)->hash != hash || strcmp((*at)->name, name)))
        at = &(*at)->next;
    return at;
}

static int is_directory(struct node *node) { return S_ISDIR(node->mode); }

static void add(struct node *directory, const char *name, struct node *node)
{
    if (directory->entry_count >= 2 * directory->chain_count) {
        size_t count = 4 * directory->chain_count;
        struct entry **chains = calloc(count, sizeof *chains);
        for (size_t chain = 0; chains && chain < directory->chain_count; chain++)
            for (struct entry *entry = directory->chains[chain], *next; entry; entry = next) {
                next = entry->next;
                entry->next = chains[entry->hash % count];
                chains[entry->hash % count] = entry;
            }
        if (chains) {
            free(directory->chains);
            directory->chains = chains;
            directory->chain_count = count;
        }
    }
    struct entry *entry = malloc(sizeof *entry);
    entry->name = strdup(name);
    entry->node = node;
    entry->hash = hash_of(name);
    struct entry **chain = &directory->chains[entry->hash % directory->chain_count];
    entry->next = *chain;
    *chain = entry;
    directory->entry_count++;
    now(directory);
    if (is_directory(node))
        node->parent = directory;
}

/* Frees what nobody refers to any more. */
static void release(struct node *node)
{
    if (node == &root || node->links || node->lookups || node->users)
        return;
    if (node->reserved)
        munmap(node->data, node->reserved);
    else
        free(node->data);
    free(node->chains);
    free(node);
}

static void take(struct node *directory, struct entry **at)
{
    struct entry *entry = *at;
    *at = entry->next;
    entry->node->links -= is_directory(entry->node) ? 2 : 1;
    directory->entry_count--;
    now(directory);
    release(entry->node);
    free(entry->name);
    free(entry);
}

static void stat_of(struct node *node, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_ino = number_of(node);
    st->st_mode = node->mode;
    st->st_nlink = node->links;
    st->st_uid = node->uid;
    st->st_gid = node->gid;
    st->st_size = node->size;
    st->st_blocks = (node->size + 511) / 512;
    st->st_blksize = 4096;
    st->st_mtim = st->st_ctim = st->st_atim = node->modified;
}

static void entry_of(struct node *node, struct fuse_entry_param *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->ino = number_of(node);
    entry->attr_timeout = entry->entry_timeout = SECONDS;
    stat_of(node, &entry->attr);
    node->lookups++;
}

static struct node *make(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, int *error)
{
    struct node *directory = node_of(parent);
    if (*find(directory, name)) {
        *error = EEXIST;
        return NULL;
    }
    struct node *node = calloc(1, sizeof *node);
    if (!node) {
        *error = ENOMEM;
        return NULL;
    }
    const struct fuse_ctx *context = fuse_req_ctx(request);
    node->mode = mode;
    node->uid = context->uid;
    node->gid = context->gid;
    node->links = S_ISDIR(mode) ? 2 : 1;
    if (S_ISDIR(mode)) {
        node->chain_count = 16;
        node->chains = calloc(node->chain_count, sizeof *node->chains);
    }
    now(node);
    add(directory, name, node);
    return node;
}

static void do_init(void *data, struct fuse_conn_info *connection)
{
    (void)data;
    connection->max_write = 1 << 20;
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    pthread_mutex_lock(&names);
    struct entry *found = *find(node_of(parent), name);
    if (found)
        entry_of(found->node, &entry);
    pthread_mutex_unlock(&names);
    if (found)
        fuse_reply_entry(request, &entry);
    else
        fuse_reply_err(request, ENOENT);
}

static void forget(fuse_ino_t number, uint64_t count)
{
    struct node *node = node_of(number);
    pthread_mutex_lock(&names);
    node->lookups -= count < node->lookups ? count : node->lookups;
    release(node);
    pthread_mutex_unlock(&names);
}

static void do_forget(fuse_req_t request, fuse_ino_t number, uint64_t count)
{
    forget(number, count);
    fuse_reply_none(request);
}

static void do_forget_multi(fuse_req_t request, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t index = 0; index < count; index++)
        forget(forgets[index].ino, forgets[index].nlookup);
    fuse_reply_none(request);
}

static void do_getattr(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *info)
{
    (void)info;
    struct stat st;
    stat_of(node_of(number), &st);
    fuse_reply_attr(request, &st, SECONDS);
}

static int reserve(struct node *node)
{
    pthread_mutex_lock(&names);
    if (!node->data) {
        char *data = mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data != MAP_FAILED) {
            node->reserved = CAPACITY;
            __atomic_store_n(&node->data, data, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&names);
    return node->data ? 0 : ENOMEM;
}

static void do_setattr(fuse_req_t request, fuse_ino_t number, struct stat *st, int set, struct fuse_file_info *info)
{
    (void)info;
    struct node *node = node_of(number);
    if (set & FUSE_SET_ATTR_SIZE) {
        size_t size = st->st_size;
        if (size > CAPACITY || (size && reserve(node))) {
            fuse_reply_err(request, EFBIG);
            return;
        }
        if (size < node->size) {
            /* What is cut off reads as zeros should the file grow again. */
            size_t page = (size + 4095) & ~4095UL;
            memset(node->data + size, 0, (page < node->size ? page : node->size) - size);
            if (page < node->size)
                madvise(node->data + page, node->size - page, MADV_DONTNEED);
        }
        node->size = size;
        now(node);
    }
    if (set & FUSE_SET_ATTR_MODE)
        node->mode = (node->mode & S_IFMT) | (st->st_mode & 07777);
    if (set & FUSE_SET_ATTR_UID)
        node->uid = st->st_uid;
    if (set & FUSE_SET_ATTR_GID)
        node->gid = st->st_gid;
    if (set & FUSE_SET_ATTR_MTIME)
        node->modified = st->st_mtim;
    if (set & FUSE_SET_ATTR_MTIME_NOW)
        now(node);
    do_getattr(request, number, NULL);
}

static void reply_made(fuse_req_t request, struct node *node, int error, struct fuse_entry_param *entry)
{
    if (node)
        fuse_reply_entry(request, entry);
    else
        fuse_reply_err(request, error);
}

static void do_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct fuse_entry_param entry;
    int error = 0;
    pthread_mutex_lock(&names);
    struct node *node = make(request, parent, name, S_IFDIR | mode, &error);
    if (node) {
        node_of(parent)->links++;
        entry_of(node, &entry);
    }
    pthread_mutex_unlock(&names);
    reply_made(request, node, error, &entry);
}

static void do_mknod(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
    struct fuse_entry_param entry;
    int error = 0;
    (void)device;
    pthread_mutex_lock(&names);
    struct node *node = make(request, parent, name, mode, &error);
    if (node)
        entry_of(node, &entry);
    pthread_mutex_unlock(&names);
    reply_made(request, node, error, &entry);
}

static void do_symlink(fuse_req_t request, const char *target, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    int error = 0;
    pthread_mutex_lock(&names);
    struct node *node = make(request, parent, name, S_IFLNK | 0777, &error);
    if (node) {
        node->data = strdup(target);
        node->size = strlen(target);
        entry_of(node, &entry);
    }
    pthread_mutex_unlock(&names);
    reply_made(request, node, error, &entry);
}

static void do_readlink(fuse_req_t request, fuse_ino_t number) { fuse_reply_readlink(request, node_of(number)->data); }

static void do_link(fuse_req_t request, fuse_ino_t number, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    struct node *node = node_of(number);
    pthread_mutex_lock(&names);
    int error = *find(node_of(parent), name) ? EEXIST : 0;
    if (!error) {
        node->links++;
        add(node_of(parent), name, node);
        entry_of(node, &entry);
    }
    pthread_mutex_unlock(&names);
    reply_made(request, error ? NULL : node, error, &entry);
}

static void do_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *info)
{
    struct fuse_entry_param entry;
    int error = 0;
    pthread_mutex_lock(&names);
    struct node *node = make(request, parent, name, mode, &error);
    if (node) {
        node->users++;
        entry_of(node, &entry);
    }
    pthread_mutex_unlock(&names);
    if (node)
        fuse_reply_create(request, &entry, info);
    else
        fuse_reply_err(request, error);
}

static void removed(fuse_req_t request, fuse_ino_t parent, const char *name, int directory)
{
    int error = 0;
    pthread_mutex_lock(&names);
    struct entry **at = find(node_of(parent), name);
    if (!*at)
        error = ENOENT;
    else if (directory && !is_directory((*at)->node))
        error = ENOTDIR;
    else if (!directory && is_directory((*at)->node))
        error = EISDIR;
    else if (directory && (*at)->node->entry_count)
        error = ENOTEMPTY;
    else {
        node_of(parent)->links -= directory;
        take(node_of(parent), at);
    }
    pthread_mutex_unlock(&names);
    fuse_reply_err(request, error);
}

static void do_unlink(fuse_req_t request, fuse_ino_t parent, const char *name) { removed(request, parent, name, 0); }
static void do_rmdir(fuse_req_t request, fuse_ino_t parent, const char *name) { removed(request, parent, name, 1); }

static void do_rename(fuse_req_t request, fuse_ino_t from, const char *name, fuse_ino_t to, const char *name_new,
                      unsigned flags)
{
    int error = flags ? EINVAL : 0;
    pthread_mutex_lock(&names);
    struct entry **at = find(node_of(from), name), **there = find(node_of(to), name_new);
    if (!error && !*at)
        error = ENOENT;
    if (!error && *there && (*there)->node != (*at)->node) {
        if (is_directory((*there)->node) != is_directory((*at)->node))
            error = is_directory((*there)->node) ? EISDIR : ENOTDIR;
        else if ((*there)->node->entry_count)
            error = ENOTEMPTY;
    }
    if (!error && !(*there && (*there)->node == (*at)->node)) {
        struct node *node = (*at)->node;
        int directory = is_directory(node);
        if (*there) {
            node_of(to)->links -= directory;
            take(node_of(to), there);
        }
        node->links += directory ? 2 : 1;
        take(node_of(from), find(node_of(from), name));
        node_of(from)->links -= directory;
        node_of(to)->links += directory;
        add(node_of(to), name_new, node);
    }
    pthread_mutex_unlock(&names);
    fuse_reply_err(request, error);
}

static void do_open(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *info)
{
    pthread_mutex_lock(&names);
    node_of(number)->users++;
    pthread_mutex_unlock(&names);
    info->keep_cache = 1;
    fuse_reply_open(request, info);
}

static void do_release(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *info)
{
    (void)info;
    pthread_mutex_lock(&names);
    struct node *node = node_of(number);
    node->users--;
    release(node);
    pthread_mutex_unlock(&names);
    fuse_reply_err(request, 0);
}

static void do_read(fuse_req_t request, fuse_ino_t number, size_t count, off_t offset, struct fuse_file_info *info)
{
    (void)info;
    struct node *node = node_of(number);
    if ((size_t)offset >= node->size || !node->data)
        count = 0;
    else if (count > node->size - offset)
        count = node->size - offset;
    fuse_reply_buf(request, node->data + offset, count);
}

static void do_write(fuse_req_t request, fuse_ino_t number, const char *data, size_t count, off_t offset,
                     struct fuse_file_info *info)
{
    (void)info;
    struct node *node = node_of(number);
    if (offset + count > CAPACITY || (!node->data && reserve(node))) {
        fuse_reply_err(request, EFBIG);
        return;
    }
    memcpy(node->data + offset, data, count);
    if (offset + count > node->size)
        node->size = offset + count;
    now(node);
    fuse_reply_write(request, count);
}

/* The whole listing is made when the directory is opened, so that offsets stay true while entries come and go. */
struct listing {
    char *bytes;
    size_t size;
};

static void list(fuse_req_t request, struct listing *listing, const char *name, struct node *node)
{
    struct stat st = { .st_ino = number_of(node), .st_mode = node->mode };
    size_t length = fuse_add_direntry(request, NULL, 0, name, NULL, 0);
    listing->bytes = realloc(listing->bytes, listing->size + length);
    fuse_add_direntry(request, listing->bytes + listing->size, length, name, &st, listing->size + length);
    listing->size += length;
}

static void do_opendir(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *info)
{
    struct node *directory = node_of(number);
    struct listing *listing = calloc(1, sizeof *listing);
    pthread_mutex_lock(&names);
    directory->users++;
    list(request, listing, ".", directory);
    list(request, listing, "..", directory->parent);
    for (size_t chain = 0; chain < directory->chain_count; chain++)
        for (struct entry *entry = directory->chains[chain]; entry; entry = entry->next)
            list(request, listing, entry->name, entry->node);
    pthread_mutex_unlock(&names);
    info->fh = (uintptr_t)listing;
    fuse_reply_open(request, info);
}

static void do_readdir(fuse_req_t request, fuse_ino_t number, size_t count, off_t offset, struct fuse_file_info *info)
{
    (void)number;
    struct listing *listing = (struct listing *)(uintptr_t)info->fh;
    size_t left = (size_t)offset < listing->size ? listing->size - offset : 0;
    /* Entries are not cut: the kernel would take the rest for another. Each says in its offset where the next begins. */
    size_t end = 0;
    while (end < left) {
        const char *entry = listing->bytes + offset + end;
        unsigned name_length;
        memcpy(&name_length, entry + 16, sizeof name_length);
        size_t length = (24 + name_length + 7) & ~7UL;
        if (end + length > count)
            break;
        end += length;
    }
    fuse_reply_buf(request, listing->bytes + offset, end);
}

static void do_releasedir(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *info)
{
    struct listing *listing = (struct listing *)(uintptr_t)info->fh;
    free(listing->bytes);
    free(listing);
    do_release(request, number, info);
}

static void do_fsync(fuse_req_t request, fuse_ino_t number, int data, struct fuse_file_info *info)
{
    (void)number, (void)data, (void)info;
    fuse_reply_err(request, 0);
}

static void do_statfs(fuse_req_t request, fuse_ino_t number)
{
    (void)number;
    struct statvfs st = { .f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1 << 20, .f_bfree = 1 << 19,
                          .f_bavail = 1 << 19, .f_files = 1 << 20, .f_ffree = 1 << 19, .f_namemax = 255 };
    fuse_reply_statfs(request, &st);
}

static const struct fuse_lowlevel_ops operations = {
    .init = do_init,
    .lookup = do_lookup,
    .forget = do_forget,
    .forget_multi = do_forget_multi,
    .getattr = do_getattr,
    .setattr = do_setattr,
    .mknod = do_mknod,
    .mkdir = do_mkdir,
    .symlink = do_symlink,
    .readlink = do_readlink,
    .link = do_link,
    .create = do_create,
    .unlink = do_unlink,
    .rmdir = do_rmdir,
    .rename = do_rename,
    .open = do_open,
    .read = do_read,
    .write = do_write,
    .release = do_release,
    .fsync = do_fsync,
    .opendir = do_opendir,
    .readdir = do_readdir,
    .releasedir = do_releasedir,
    .statfs = do_statfs,
};

int main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    struct fuse_cmdline_opts options;
    if (fuse_parse_cmdline(&args, &options) || !options.mountpoint) {
        fprintf(stderr, "libfuse_tree: usage: libfuse_tree DIRECTORY [-f] [-s]\n");
        return 1;
    }
    root.mode = S_IFDIR | 0755;
    root.uid = getuid();
    root.gid = getgid();
    root.links = 2;
    root.parent = &root;
    root.chain_count = 16;
    root.chains = calloc(root.chain_count, sizeof *root.chains);
    now(&root);
    fuse_opt_add_arg(&args, "-odefault_permissions,fsname=libfuse_tree");
    struct fuse_session *session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, options.mountpoint))
        return 1;
    fuse_daemonize(options.foreground);
    fuse_set_signal_handlers(session);
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    int result = options.singlethread ? fuse_session_loop(session) : fuse_session_loop_mt(session, config);
    fuse_session_unmount(session);
    return result;
}
