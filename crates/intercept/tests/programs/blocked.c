/* Calls that wait for others while they concern a file: signals get through to their handlers, which can make them go on, or leave them by a jump; threads
 * in them can be cancelled. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };
static int file, ends[2], pipes[2], jumps, writer = -1;
static volatile int handled;
static sigjmp_buf back;
static const char *fifo = "/dev/shm/gannet-blocked";

static void handle(int signal) {
    static char bytes[SIZE];
    handled++;
    if (jumps) siglongjmp(back, 1);
    /* What the call waits for. */
    while (recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0) ;
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    while (read(pipes[0], bytes, sizeof bytes) > 0) ;
    writer = open(fifo, O_RDWR);
}
/* So much is put into a pipe and a socket that neither takes more. */
static void fill(int kind) {
    char bytes[4096] = "";
    for (int i = 0; i < 2; i++) close(ends[i]), close(pipes[i]);
    if (writer >= 0) close(writer), writer = -1;
    if (socketpair(AF_UNIX, kind, 0, ends) || pipe(pipes)) perror("pair");
    while (send(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0) ;
    fcntl(pipes[1], F_SETFL, O_NONBLOCK);
    while (write(pipes[1], bytes, sizeof bytes) > 0) ;
    fcntl(pipes[1], F_SETFL, 0);
}
static long send_file(void) {
    char byte = 'x', room[CMSG_SPACE(sizeof(int))];
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {0, 0, &bytes, 1, room, sizeof room, 0};
    memset(room, 0, sizeof room);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &file, sizeof file);
    return sendmsg(ends[0], &message, 0);
}
static long send_several(void) {
    char byte = 'x', room[CMSG_SPACE(sizeof(int))];
    struct iovec bytes = {&byte, 1};
    struct mmsghdr message = {{0, 0, &bytes, 1, room, sizeof room, 0}, 0};
    memset(room, 0, sizeof room);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message.msg_hdr);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &file, sizeof file);
    return sendmmsg(ends[0], &message, 1, 0);
}
static long transfer(void) {
    off_t from = 0;
    long sent = sendfile(ends[0], file, &from, 1000);
    return sent < 0 ? sent : sent == from;
}
static long splices(void) {
    loff_t from = 0;
    long sent = splice(file, &from, pipes[1], 0, 1000, 0);
    return sent < 0 ? sent : sent == from;
}
static long opens(void) {
    int other = open("up/gannet-blocked", O_RDONLY);
    if (other >= 0) close(other);
    return other < 0 ? -1 : 1;
}
static long (*const calls[])(void) = {transfer, splices, send_file, send_several, opens};
static const char *const names[] = {"sendfile", "splice", "sendmsg", "sendmmsg", "open"};
enum { CALLS = sizeof calls / sizeof *calls };

static void soon(void) {
    struct itimerval once = {{0, 0}, {0, 60000}};
    setitimer(ITIMER_REAL, &once, 0);
}
static void *waits(void *which) {
    calls[(long)which]();
    return 0;
}
int main(void) {
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, 0, _IOLBF, 0);
    unlink(fifo);
    mkfifo(fifo, 0600);
    if (symlink("/dev/shm", "up") && errno != EEXIST) perror("symlink");
    file = open("f", O_CREAT | O_RDWR, 0600);
    ftruncate(file, SIZE);
    static const int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET};
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sigaction action = {.sa_handler = handle, .sa_flags = restarts ? SA_RESTART : 0};
        sigaction(SIGALRM, &action, 0);
        for (int kind = 0; kind < 2; kind++)
            for (int i = 0; i < CALLS; i++) {
                fill(kinds[kind]);
                handled = 0;
                soon();
                errno = 0;
                long result = calls[i]();
                printf("%d %s: %ld %s, handled %d\n", restarts, names[i], result, result < 0 ? strerrorname_np(errno) : "", handled);
            }
        for (int i = 0; i < CALLS; i++) {
            fill(SOCK_STREAM);
            handled = 0;
            jumps = 1;
            if (!sigsetjmp(back, 1)) {
                soon();
                calls[i]();
                printf("%s ended\n", names[i]);
            } else printf("%s left, handled %d\n", names[i], handled);
            jumps = 0;
            struct stat status;
            if (fstat(file, &status) || status.st_size != SIZE) perror("the file");
        }
    }
    for (int i = 1; i < CALLS; i++) {
        pthread_t thread;
        void *end = 0;
        fill(SOCK_STREAM);
        pthread_create(&thread, 0, waits, (void *)(long)i);
        usleep(50000);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        printf("%s cancelled: %d\n", names[i], end == PTHREAD_CANCELED);
    }
    unlink(fifo);
    return 0;
}
