/* confine.c: see confine.h. */
#include "confine.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<linux/landlock.h>)
#include <linux/landlock.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_SANITIZER
#define STARTS_A_SYMBOLIZER /* clang's reports get their lines from a program */
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define WITH_SANITIZER /* it looks for leaks from a process that traces this one */
#endif

#ifdef __x86_64__
enum { ARCHITECTURE = AUDIT_ARCH_X86_64, X32 = 0x40000000 }; /* numbers from there on are calls of another kind */
#else
enum { ARCHITECTURE = AUDIT_ARCH_AARCH64, X32 = 0x7fffffff };
#endif

static const int refused[] = {
#ifndef STARTS_A_SYMBOLIZER
    SYS_execve, SYS_execveat,
#ifdef SYS_fork
    SYS_fork, SYS_vfork,
#endif
#endif
#ifndef WITH_SANITIZER
    SYS_ptrace,
#endif
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_tkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
#ifdef SYS_pidfd_getfd
    SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pidfd_getfd,
#endif
};

static struct sock_filter filter[64];
static unsigned short length;

static void add(int code, unsigned value, int skip_if_true, int skip_if_false)
{
    filter[length++] = (struct sock_filter){(unsigned short)code, (unsigned char)skip_if_true,
                                            (unsigned char)skip_if_false, value};
}

static void load(size_t offset)
{
    add(BPF_LD | BPF_W | BPF_ABS, (unsigned)offset, 0, 0);
}

/* The next `count` instructions are only for this system call. */
static void for_call(int number, int count)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, count);
}

static void end(unsigned action)
{
    add(BPF_RET | BPF_K, action, 0, 0);
}

static void fill_filter(void)
{
    const unsigned no = SECCOMP_RET_ERRNO | EPERM, first_argument = offsetof(struct seccomp_data, args);
    load(offsetof(struct seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    end(no);
    load(offsetof(struct seccomp_data, nr));
    add(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
    end(no);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        for_call(refused[i], 1);
        end(no);
    }
#ifdef SYS_clone3 /* its flags are in memory; the C library falls back to clone() */
    for_call(SYS_clone3, 1);
    end(SECCOMP_RET_ERRNO | ENOSYS);
#endif
#ifndef WITH_SANITIZER
    for_call(SYS_clone, 4); /* threads only */
    load(first_argument);
    add(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
    end(no);
    end(SECCOMP_RET_ALLOW);
#endif
    const int signals[] = {SYS_kill, SYS_tgkill};
    for (int i = 0; i < 2; i++) { /* only to itself, as abort() does */
        for_call(signals[i], 4);
        load(first_argument);
        add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)getpid(), 1, 0);
        end(no);
        end(SECCOMP_RET_ALLOW);
    }
    end(SECCOMP_RET_ALLOW);
}

/* Any rule set keeps a process out of the memory and the descriptors of processes without these rules, also by way of
 * /proc. What this one forbids, only root can do. Where UCX does not share its memory by way of /proc, a rank that is
 * killed leaves files in /dev/shm: so only in a sandbox, which has its own. */
static void keep_out_of_others(void)
{
    if (getenv("LOCKSTEP_SANDBOX") == NULL)
        return;
    setenv("UCX_POSIX_USE_PROC_LINK", "n", 1);
#if defined(SYS_landlock_create_ruleset) && defined(LANDLOCK_ACCESS_FS_MAKE_BLOCK)
    const struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_BLOCK};
    const int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (fd < 0)
        return;
    syscall(SYS_landlock_restrict_self, fd, 0);
    close(fd);
#endif
}

void confine(void)
{
    if (getenv("LOCKSTEP_CONFINE") == NULL) /* off: under it MPI waits, and a grading takes ten times as long */
        return;
    fill_filter();
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1); /* Open MPI would read other ranks' memory */
    setenv("OMPI_MCA_smsc", "^cma", 1);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return;
    keep_out_of_others();
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){length, filter});
}
#else
void confine(void)
{
}
#endif
