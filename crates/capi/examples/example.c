/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A journal of notes in a volume: with calls, and with stores into the volume's own memory.
 *
 * With libgannet installed:
 *     gannet mkfs /dev/shm/notes --size 64M
 *     cc example.c $(pkg-config --cflags --libs gannet) -o example && ./example /dev/shm/notes
 */
#include <errno.h>
#include <gannet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends the program if a call failed; the library knows which and why. */
static int64_t check(int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", gannet_error_text());
        exit(1);
    }
    return result;
}

/* Appends one note; it is durable when this returns. */
static void append(struct gannet_volume *volume, const char *text)
{
    int file = check(gannet_open(volume, "journal/notes", O_WRONLY | O_CREAT | O_APPEND, 0644));
    check(gannet_write(volume, file, text, strlen(text)));
    check(gannet_close(volume, file));
}

/* Archives what there is: a copy that shares the blocks, written aside and put in place whole. Each process writes its own. */
static void archive(struct gannet_volume *volume)
{
    char aside[40];
    snprintf(aside, sizeof aside, "archive.%ld", (long)getpid());
    int journal = check(gannet_open(volume, "journal", O_RDONLY | O_DIRECTORY, 0));
    int notes = check(gannet_openat(volume, journal, "notes", O_RDONLY, 0));
    int copy = check(gannet_openat(volume, journal, aside, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    while (check(gannet_copy_file_range(volume, notes, NULL, copy, NULL, 1 << 30, 0)) > 0)
        ;
    /* What is written to the archive later is written whole or not at all. */
    uint32_t flags;
    check(gannet_getflags(volume, copy, &flags));
    check(gannet_setflags(volume, copy, flags | GANNET_FLAG_COPY_ON_WRITE));
    check(gannet_renameat2(volume, journal, aside, journal, "archive", 0));
    struct gannet_stat status;
    check(gannet_fstatat(volume, journal, "archive", &status, AT_SYMLINK_NOFOLLOW));
    printf("archived %llu bytes\n", (unsigned long long)status.size);
    check(gannet_close(volume, copy));
    check(gannet_close(volume, notes));
    check(gannet_close(volume, journal));
}

/* Counts how often the example ran, in place: the counter is a word of the file, mapped. */
static uint64_t count_runs(struct gannet_volume *volume)
{
    int file = check(gannet_open(volume, "journal/runs", O_RDWR | O_CREAT, 0644));
    check(gannet_ftruncate(volume, file, sizeof(uint64_t)));
    void *address;
    check(gannet_mmap(volume, file, 0, sizeof(uint64_t), 1, &address));
    uint64_t *counter = address;
    uint64_t runs = *counter + 1;
    *counter = runs;
    check(gannet_msync(volume, counter, sizeof *counter));
    check(gannet_munmap(volume, address));
    check(gannet_close(volume, file));
    return runs;
}

/* Lists a directory. */
static void list(struct gannet_volume *volume, const char *path)
{
    int directory = check(gannet_open(volume, path, O_RDONLY | O_DIRECTORY, 0));
    struct gannet_entry entries[16];
    uint64_t cookie = 0;
    int64_t count;
    while ((count = check(gannet_readdir(volume, directory, &cookie, entries, 16))) > 0) {
        for (int64_t index = 0; index < count; index++) {
            char name[512];
            snprintf(name, sizeof name, "%s/%s", path, entries[index].name);
            struct gannet_stat status;
            int found = gannet_lstat(volume, name, &status);
            if (found == -ENOENT)
                continue; /* another process has put its archive in place */
            check(found);
            printf("%s: %llu bytes\n", name, (unsigned long long)status.size);
        }
    }
    check(gannet_close(volume, directory));
}

int main(int argument_count, char **arguments)
{
    if (argument_count != 2) {
        fprintf(stderr, "usage: %s VOLUME\n", arguments[0]);
        return 2;
    }
    int error;
    struct gannet_volume *volume = gannet_attach(arguments[1], NULL, &error);
    if (volume == NULL) {
        fprintf(stderr, "%s\n", gannet_error_text());
        return 1;
    }
    /* The directory may be there from an earlier run. */
    int made = gannet_mkdir(volume, "journal", 0755);
    if (made < 0 && gannet_access(volume, "journal", W_OK) < 0)
        check(made);
    append(volume, "a note\n");
    archive(volume);
    printf("run %llu\n", (unsigned long long)count_runs(volume));
    list(volume, "journal");
    return check(gannet_detach(volume)) == 0 ? 0 : 1;
}
