/* Threads send each other open files and close theirs: what is received can be used, and goes when it is closed.
 *
 *   sent SECONDS */
#define FAILURES 6
#include "race.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAIRS = 2 };
static int ends[PAIRS][2];
static long passed;

static void *sends(void *which) {
    unsigned random = (long)which;
    char byte = 'x', room[CMSG_SPACE(sizeof(int))], name[20];
    snprintf(name, sizeof name, "f%ld", (long)which);
    while (!ended) {
        int file = open(name, O_RDONLY);
        if (file < 0) { note(0); continue; }
        struct iovec bytes = {&byte, 1};
        struct msghdr message = {0, 0, &bytes, 1, room, sizeof room, 0};
        memset(room, 0, sizeof room);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), &file, sizeof file);
        if (sendmsg(ends[(long)which][0], &message, 0) != 1) note(1);
        for (int i = rand_r(&random) % 400; i > 0; i--) __asm__ volatile("pause");
        if (close(file)) note(2);
    }
    close(ends[(long)which][0]);
    return 0;
}
static void *receives(void *which) {
    char byte, room[CMSG_SPACE(sizeof(int))], text[6];
    for (;;) {
        struct iovec bytes = {&byte, 1};
        struct msghdr message = {0, 0, &bytes, 1, room, sizeof room, 0};
        if (recvmsg(ends[(long)which][1], &message, 0) != 1) return 0;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        int file = -1;
        struct stat status;
        if (head) memcpy(&file, CMSG_DATA(head), sizeof file);
        if (read(file, text, 5) != 5 || lseek(file, 0, SEEK_CUR) != 5 || fstat(file, &status)) note(3);
        else passed++;
        if (close(file)) note(4);
    }
}
int main(int count, char **arguments) {
    double until = now() + (count > 1 ? atof(arguments[1]) : 1);
    pthread_t threads[2 * PAIRS];
    for (long i = 0; i < PAIRS; i++) {
        char name[20];
        snprintf(name, sizeof name, "f%ld", i);
        int file = open(name, O_CREAT | O_RDWR, 0600);
        if (write(file, "hello", 5) != 5) return perror("write"), 1;
        close(file);
        socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]);
        pthread_create(threads + 2 * i, 0, sends, (void *)i);
        pthread_create(threads + 2 * i + 1, 0, receives, (void *)i);
    }
    while (now() < until) usleep(10000);
    ended = 1;
    for (int i = 0; i < 2 * PAIRS; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < FAILURES; i++) if (failed[i]) printf("%d failed: %ld\n", i, failed[i]);
    fprintf(stderr, "%ld passed\n", passed);
    printf("done\n");
    return 0;
}
