// Two processes that make the steps in turn: the second one is a child of the first, forked in the midst of it or executed by a forked one, so that it
// has what the first has open; now and then it ends and another takes its place. Each makes the steps that fall to it while the other waits.
static pid_t partner;
static int to_partner = -1, from_partner = -1;
enum { TURNS_AT = 210 };

struct turn { long step; int allocated_any, mapped_any; };
// What an executed partner has to know.
struct known { char top[4096]; int slots[SLOTS]; struct timespec began; };

static int is_pipe_broken(int file, void *bytes, size_t count, int writes) {
    long got = writes ? syscall(SYS_write, file, bytes, count) : syscall(SYS_read, file, bytes, count);
    return got != (long)count;
}
static int exchange(int file, struct turn *turn, int writes) {
    if (writes) turn->allocated_any = allocated_any, turn->mapped_any = mapped_any;
    if (is_pipe_broken(file, turn, sizeof *turn, writes)) return 0;
    if (!writes) allocated_any = turn->allocated_any, mapped_any = turn->mapped_any;
    return 1;
}
// Which of the two makes a step; by itself, so that no chance is used up.
static int is_partners(uint64_t seed, long step) { return partner && (seed * 0x9e3779b97f4a7c15u + (uint64_t)step * 0xbf58476d1ce4e5b9u) >> 40 & 1; }

static void ends_partner(void) {
    if (!partner) return;
    int status = -1;
    close(to_partner), close(from_partner);
    waitpid(partner, &status, 0);
    tell("partner ended %d; ", status);
    partner = 0;
}
// The partner's part, until the other has no more.
static void follow(int from, int to, void (*make)(long)) {
    struct turn turn;
    while (exchange(from, &turn, 0)) {
        make(turn.step);
        if (!exchange(to, &turn, 1)) break;
    }
    _exit(0);
}
static void begins_partner(int executes, char **arguments, void (*make)(long)) {
    int there[2], back[2], ends[4];
    ends_partner();
    if (pipe(there) || pipe(back)) { tell("no pipe"); return; }
    int all[4] = {there[0], there[1], back[0], back[1]};
    for (int i = 0; i < 4; i++) ends[i] = fcntl(all[i], F_DUPFD, TURNS_AT);
    for (int i = 0; i < 4; i++) close(all[i]);
    if ((partner = fork()) == 0) {
        close(ends[1]), close(ends[2]);
        if (executes) {
            char numbers[64];
            snprintf(numbers, sizeof numbers, "%d,%d,%d", ends[0], ends[3], told_to);
            fcntl(told_to, F_SETFD, 0);
            execl(arguments[0], arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], "", numbers, (char *)NULL);
            _exit(9);
        }
        partner = 0;
        follow(ends[0], ends[3], make);
    }
    if (partner < 0) { tell("fork = %s; ", name_of(errno)); partner = 0; }
    close(ends[0]), close(ends[3]);
    to_partner = ends[1], from_partner = ends[2];
    if (partner && executes) {
        struct known known = {.began = began};
        strcpy(known.top, top);
        memcpy(known.slots, slots, sizeof slots);
        is_pipe_broken(to_partner, &known, sizeof known, 1);
    }
    tell("partner %s; ", executes ? "executed" : "forked");
}
// A program that is executed as a partner.
static void executed_partner(const char *numbers, void (*make)(long)) {
    int from, to;
    struct known known;
    sscanf(numbers, "%d,%d,%d", &from, &to, &told_to);
    fcntl(told_to, F_SETFD, FD_CLOEXEC);
    if (is_pipe_broken(from, &known, sizeof known, 0)) _exit(8);
    strcpy(top, known.top);
    memcpy(slots, known.slots, sizeof slots);
    began = known.began;
    follow(from, to, make);
}
// The partner makes this step.
static void partner_makes(long step) {
    struct turn turn = {.step = step};
    if (!exchange(to_partner, &turn, 1) || !exchange(from_partner, &turn, 0)) tell("%ld partner is gone", step);
}
