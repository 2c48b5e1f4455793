#define _GNU_SOURCE
// Prints the environment, and looks for the auxiliary vector where the C library has it and right behind the environment.
#include <elf.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(int count, char **arguments, char **environment) {
    char **at = environment;
    if (environment != arguments + count + 1 || environment != environ) puts("the environment is elsewhere");
    for (; *at; at++) puts(*at);
    Elf64_auxv_t *entry = (Elf64_auxv_t *)(at + 1);
    int same = 0;
    for (; entry->a_type != AT_NULL; entry++)
        if (entry->a_type != AT_IGNORE && getauxval(entry->a_type) == entry->a_un.a_val) same++;
    printf("%s\n", same > 10 && getauxval(AT_PAGESZ) == (unsigned long)getpagesize() ? "found" : "lost");
    printf("%s\n", (const char *)getauxval(AT_EXECFN));
    return 0;
}
