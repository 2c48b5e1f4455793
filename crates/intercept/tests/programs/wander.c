/* Threads move the working directory while others use it: each call sees it where it was before or where it is then, and what nobody is in is gone. */
#define FAILURES 8
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLACES = 4 };
static long wrong;
static char top[4096], host[64], places[PLACES][4200];
/* A call that was found to be about the host's directory before another thread entered a volume fails there, so mostly it is not gone to. */
static int used;

static void *looks(void *unused) {
    while (!ended) {
        char text[4200], letter;
        struct stat status;
        int file = open("f", O_RDONLY);
        if (file < 0) note(0);
        else {
            if (read(file, &letter, 1) != 1) note(1);
            else if (letter < 'a' || letter >= 'a' + PLACES) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
            close(file);
        }
        if (stat("f", &status)) note(2);
        if (!getcwd(text, sizeof text)) note(3);
        else {
            int i = 0;
            while (i < PLACES && strcmp(places[i], text)) i++;
            if (i == PLACES && !__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED)) fprintf(stderr, "%s\n", text);
        }
    }
    return unused;
}
static void *moves(void *which) {
    unsigned seed = (long)which;
    int open_places[PLACES];
    for (int i = 0; i < PLACES; i++) open_places[i] = open(places[i], O_RDONLY | O_DIRECTORY);
    while (!ended) {
        int i = rand_r(&seed) % used;
        if (rand_r(&seed) % 2 ? chdir(places[i]) : fchdir(open_places[i])) note(4);
    }
    return 0;
}
/* Directories that are removed while somebody is in them stay as long. */
static void *leaves(void *which) {
    char name[4300];
    for (unsigned i = 0; !ended; i++) {
        snprintf(name, sizeof name, "%s/t%ld.%u", top, (long)which, i);
        if (mkdir(name, 0700)) note(5);
        if (chdir(name)) note(6);
        if (rmdir(name)) note(7);
    }
    return 0;
}
static void *forks(void *unused) {
    while (!ended) {
        struct stat status;
        pid_t child = fork();
        if (child == 0) _exit(stat("f", &status) != 0);
        int how = 0;
        if (child < 0 || waitpid(child, &how, 0) != child || how) note(1);
    }
    return unused;
}
static long files(void) {
    struct statfs about;
    statfs(top, &about);
    return about.f_files - about.f_ffree;
}
int main(int count, char **arguments) {
    double until = now() + (count > 1 ? atof(arguments[1]) : 1);
    const char *what = count > 2 ? arguments[2] : "used";
    used = strcmp(what, "host") ? PLACES - 1 : PLACES;
    getcwd(top, sizeof top);
    snprintf(host, sizeof host, "/dev/shm/gannet-wander-%d", getpid());
    for (int i = 0; i < PLACES; i++) {
        char name[4300];
        if (i < PLACES - 1) snprintf(places[i], sizeof places[i], "%s/%c", top, 'a' + i);
        else strcpy(places[i], host);
        mkdir(places[i], 0700);
        /* Numbers of inodes that have been used before: their generations differ. */
        for (int j = 0; j <= i; j++) rmdir(places[i]), mkdir(places[i], 0700);
        snprintf(name, sizeof name, "%s/f", places[i]);
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        char letter = 'a' + i;
        if (write(file, &letter, 1) != 1) return perror("write"), 1;
        close(file);
    }
    chdir(places[0]);
    long before = files();
    void *(*uses[])(void *) = {looks, moves, looks, forks, moves};
    void *(*removes[])(void *) = {leaves, leaves, leaves};
    void *(**works)(void *) = strcmp(what, "removed") ? uses : removes;
    int many = works == uses ? 5 : 3;
    pthread_t threads[8];
    for (long i = 0; i < many; i++) pthread_create(threads + i, 0, works[i], (void *)i);
    while (now() < until) usleep(10000);
    ended = 1;
    for (int i = 0; i < many; i++) pthread_join(threads[i], 0);
    if (chdir(host)) perror("chdir");
    if (access("f", R_OK)) perror("the host's own directory");
    chdir("/");
    long left = works == removes ? files() - before : 0;
    char name[4300];
    snprintf(name, sizeof name, "%s/f", host);
    unlink(name);
    rmdir(host);
    for (int i = 0; i < FAILURES; i++) if (failed[i]) printf("%d failed: %ld\n", i, failed[i]);
    printf("wrong: %ld, left: %ld\n", wrong, left);
    return 0;
}
