/* slow_disk.c: loaded with LD_PRELOAD, this library lets one function of a program take SLOW_SECONDS longer, as a slow
 * disk, file server or reader does. SLOW is its name: fsync, mkostemps, rename, fflush (of stdout), or MPI_Iprobe, which
 * only the watchdog's thread calls. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void sleep_in(const char *function)
{
    const char *slow = getenv("SLOW"), *seconds = getenv("SLOW_SECONDS");
    if (slow != NULL && seconds != NULL && strcmp(slow, function) == 0)
        usleep((useconds_t)(1e6 * atof(seconds)));
}

int fsync(int file)
{
    int (*real)(int);
    *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    sleep_in("fsync");
    return real(file);
}

int mkostemps(char *name, int suffix, int flags)
{
    int (*real)(char *, int, int);
    *(void **)&real = dlsym(RTLD_NEXT, "mkostemps");
    sleep_in("mkostemps");
    return real(name, suffix, flags);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "rename");
    sleep_in("rename");
    return real(from, to);
}

int fflush(FILE *stream)
{
    int (*real)(FILE *);
    *(void **)&real = dlsym(RTLD_NEXT, "fflush");
    flockfile(stream == NULL ? stdout : stream); /* as in a write() that does not return */
    if (stream == stdout)
        sleep_in("fflush");
    int error = real(stream);
    funlockfile(stream == NULL ? stdout : stream);
    return error;
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    int (*real)(int, int, MPI_Comm, int *, MPI_Status *);
    *(void **)&real = dlsym(RTLD_NEXT, "MPI_Iprobe");
    sleep_in("MPI_Iprobe");
    return real(source, tag, comm, flag, status);
}
