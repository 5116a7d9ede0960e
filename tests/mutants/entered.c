/* entered.c: which functions does a test enter? Linked into programs that are compiled with -finstrument-functions.
 * Each program marks the functions that it enters in a file of $ENTERED_DIRECTORY, one byte per address. The file is
 * mapped, so that a process that is killed leaves its marks behind, too. random_mutation.py reads them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern char __executable_start[], etext[];
static volatile char *entered;

void __cyg_profile_func_enter(void *function, void *call_site);
void __cyg_profile_func_exit(void *function, void *call_site);

__attribute__((constructor, no_instrument_function)) static void map_marks(void)
{
    const char *directory = getenv("ENTERED_DIRECTORY");
    char program[2048] = "", path[4096];
    if (directory == NULL || readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return;
    for (char *slash = program; (slash = strchr(slash, '/')) != NULL;)
        *slash = '!';
    snprintf(path, sizeof path, "%s/%s", directory, program);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    size_t size = (size_t)(etext - __executable_start);
    if (file < 0 || ftruncate(file, (off_t)size) != 0)
        return;
    void *marks = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    entered = marks == MAP_FAILED ? NULL : marks;
    close(file);
}

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *call_site)
{
    (void)call_site;
    if (entered != NULL)
        entered[(char *)function - __executable_start] = 1;
}

__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *call_site)
{
    (void)function;
    (void)call_site;
}
