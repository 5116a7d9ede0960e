/* test_unfinished_files.c: what a process leaves that is killed while it writes: the next save to the same place
 * removes that, and nothing else. */
#include <fcntl.h>
#include <glob.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint_run.h"
#include "expect.h"
#include "train/files/atomic_file.h"

static bool on_a_network;

int __real_fstatfs(int descriptor, struct statfs *info);
int __wrap_fstatfs(int descriptor, struct statfs *info);
int __wrap_fstatfs(int descriptor, struct statfs *info)
{
    int status = __real_fstatfs(descriptor, info);
    info->f_type = on_a_network ? NFS_SUPER_MAGIC : TMPFS_MAGIC; /* whatever the test's directory is on */
    return status;
}

/* Starts a process that is in the middle of saving to `path`. Kill it with kill_writer(). */
static pid_t start_writer(const char *path)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        AtomicFile file;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test fails */
        atomic_open(&file, path);
        atomic_write(&file, "half", 4);
        fflush(file.stream);
        _exit(write(ready[1], &byte, 1) == 1 ? pause() : 1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void kill_writer(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static size_t count_unfinished(const char *of)
{
    glob_t left = {0};
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s.*.tmp", of);
    size_t count = glob(test_path(pattern), 0, NULL, &left) == 0 ? left.gl_pathc : 0;
    globfree(&left);
    return count;
}

static void test_the_next_save_removes_what_killed_ones_left(void **unused)
{
    pid_t first = start_writer(test_path("ck")), second = start_writer(test_path("ck"));
    kill_writer(first);
    kill_writer(second);
    pid_t other = start_writer(test_path("ck2")); /* another file, in the same directory */
    kill_writer(other);
    assert_int_equal(count_unfinished("ck"), 2);
    atomic_check_writable("save", test_path("ck"));
    if (count_unfinished("ck") != 0)
        fail_msg("%zu unfinished files of killed processes are left", count_unfinished("ck"));
    kill_writer(start_writer(test_path("ck")));
    save(test_path("ck"), &adamw);
    assert_int_equal(count_unfinished("ck"), 0);
    assert_int_equal(count_unfinished("ck2"), 1);
    save(test_path("ck2"), &adamw);
    assert_int_equal(count_unfinished("ck2"), 0);
}

static void test_the_file_of_a_living_process_stays(void **unused)
{
    pid_t child = start_writer(test_path("live"));
    save(test_path("live"), &adamw);
    atomic_check_writable("save", test_path("live"));
    if (count_unfinished("live") != 1)
        fail_msg("a save has removed the file that another process was writing");
    kill(child, SIGSTOP); /* stopped is not dead */
    save(test_path("live"), &adamw);
    assert_int_equal(count_unfinished("live"), 1);
    kill_writer(child);
    save(test_path("live"), &adamw);
    assert_int_equal(count_unfinished("live"), 0);
}

/* Names that are similar, and what is no file of this user's own. */
static void test_files_of_the_user_stay(void **unused)
{
    static const char *const files[] = {"u.backup.tmp", "u.lockstep-backu.tmp", "u.lockstep-backups.tmp", "u.lockstep-",
                                        "u.lockstep-back_p.tmp", "u.lockstep-backup.tmp2", "v.lockstep-backup.tmp",
                                        "u.lockstep-linked.tmp", "u.lockstep-linkto.tmp", "u.lockstep-person.tmp"};
    enum { FILES = sizeof files / sizeof *files };
    for (int i = 0; i < FILES - 2; i++)
        write_file(test_path(files[i]), "dear", 4);
    write_file(test_path("target"), "dear", 4);
    assert_int_equal(link(test_path("u.lockstep-linked.tmp"), test_path("second")), 0);
    assert_int_equal(symlink("target", test_path("u.lockstep-linkto.tmp")), 0);
    write_file(test_path("u.lockstep-person.tmp"), "dear", 4);
    if (geteuid() != 0 || chown(test_path("u.lockstep-person.tmp"), 65534, (gid_t)-1) != 0) /* root alone can */
        unlink(test_path("u.lockstep-person.tmp"));
    save(test_path("u"), &adamw);
    for (int i = 0; i < FILES - (geteuid() != 0); i++)
        if (access(test_path(files[i]), F_OK) != 0)
            fail_msg("saving to u has removed %s", files[i]);
        else
            unlink(test_path(files[i]));
    assert_int_equal(access(test_path("target"), F_OK), 0);
    assert_int_equal(unlink(test_path("second")), 0);
}

/* ---- two processes at one moment ---- */

static void (*meanwhile)(void); /* what another process does just before the next flock() or rename(); NULL: nothing */

static void do_meanwhile(void)
{
    void (*action)(void) = meanwhile;
    meanwhile = NULL;
    if (action != NULL)
        action();
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    do_meanwhile();
    return __real_rename(from, to);
}

int __real_flock(int descriptor, int operation);
int __wrap_flock(int descriptor, int operation);
int __wrap_flock(int descriptor, int operation)
{
    do_meanwhile();
    return __real_flock(descriptor, operation);
}

static void another_process_checks(void)
{
    pid_t child = fork();
    if (child == 0) {
        atomic_check_writable("save", test_path("busy"));
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* What another process does that has found the file before it was locked. */
static void another_process_removes(void)
{
    glob_t found = {0};
    assert_int_equal(glob(test_path("busy.*.tmp"), 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        unlink(found.gl_pathv[i]);
    globfree(&found);
}

/* ... and that still holds the lock. */
static void another_process_locks(void)
{
    glob_t found = {0};
    assert_int_equal(glob(test_path("busy.*.tmp"), 0, NULL, &found), 0);
    int descriptor = open(found.gl_pathv[0], O_RDWR); /* never closed: locked until the end of the test */
    assert_int_equal(__real_flock(descriptor, LOCK_EX | LOCK_NB), 0);
    globfree(&found);
}

static void test_a_save_is_never_disturbed(void **unused)
{
    AtomicFile file;
    void (*const actions[])(void) = {another_process_checks, another_process_removes, another_process_locks};
    for (int i = 0; i < 3; i++) {
        size_t count = 0;
        if (i > 0)
            meanwhile = actions[i];
        atomic_open(&file, test_path("busy"));
        if (i == 0)
            meanwhile = actions[i]; /* before the rename */
        atomic_write(&file, "whole", 5);
        if (!atomic_try_commit(&file))
            fail_msg("case %d: the save failed, because another process has removed its file: %s", i, file.problem);
        assert_null(meanwhile); /* it was called */
        free(read_file(test_path("busy"), &count));
        assert_int_equal(count, 5);
        assert_int_equal(count_unfinished("busy"), 0);
    }
}

/* ---- another host ---- */

static void check_and_end(void *path)
{
    on_a_network = true;
    atomic_check_writable("save", path);
    exit(0);
}

/* On a network's file system, another host may be writing a file that nobody here has locked. */
static void test_on_a_network_they_are_named(void **unused)
{
    kill_writer(start_writer(test_path("net")));
    expect_dies(check_and_end, test_path("net"), 0, "net: 1 unfinished file(s) are beside it");
    assert_int_equal(count_unfinished("net"), 1);
    on_a_network = true;
    save(test_path("net"), &adamw);
    on_a_network = false;
    assert_int_equal(count_unfinished("net"), 1);
    save(test_path("net"), &adamw);
    assert_int_equal(count_unfinished("net"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_next_save_removes_what_killed_ones_left),
        cmocka_unit_test(test_the_file_of_a_living_process_stays),
        cmocka_unit_test(test_files_of_the_user_stay),
        cmocka_unit_test(test_a_save_is_never_disturbed),
        cmocka_unit_test(test_on_a_network_they_are_named),
    };
    return cmocka_run_group_tests(tests, checkpoint_tests_start, checkpoint_tests_end);
}
