// What the programs share whose threads are at it for a while: until when, and what failed how often. FAILURES: how many calls are told apart.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static volatile int ended;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

#ifdef FAILURES
static long failed[FAILURES];

/* A call failed; the first time it is said how. */
static void note(int what) {
    if (!__atomic_fetch_add(failed + what, 1, __ATOMIC_RELAXED)) fprintf(stderr, "%d: %s\n", what, strerror(errno));
}
#endif
