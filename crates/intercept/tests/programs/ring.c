// io_uring is refused in a way that programs know: ENOSYS, at set-up. Then ordinary calls do the work.
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments) {
    struct io_uring ring;
    int result = io_uring_queue_init(8, &ring, 0);
    int file = open(arguments[1], O_RDWR | O_CREAT, 0600);
    if (result < 0) {
        printf("%s, %d bytes by pwrite\n", result == -ENOSYS ? "ENOSYS" : "another error", (int)pwrite(file, "fallback", 8, 0));
        return 0;
    }
    puts("io_uring is there");
    return 0;
}
