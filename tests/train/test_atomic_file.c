/* test_atomic_file.c: a file appears whole or not at all, under any name, and no other file is touched. */
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_run.h"
#include "expect.h"
#include "train/files/atomic_file.h"

static void expect_no_temporary_file(void)
{
    glob_t left = {0};
    if (glob(test_path("*.tmp"), 0, NULL, &left) != GLOB_NOMATCH)
        fail_msg("%s is left, which was to be renamed or removed", left.gl_pathv[0]);
}

static void test_saving_leaves_no_temporary_file(void **unused)
{
    save(test_path("once"), &adamw);
    save(test_path("once"), &adamw); /* replaces it */
    assert_int_equal(access(test_path("once"), R_OK), 0);
    expect_no_temporary_file();
}

/* A temporary name that is easy to guess may exist already: a file of the user, of another run, or a link. */
static void test_saving_touches_no_other_file(void **unused)
{
    char text[8] = "";
    write_file(test_path("victim"), "dear", 4);
    write_file(test_path("mine.tmp"), "dear", 4);
    assert_int_equal(symlink("victim", test_path("p.tmp")), 0);
    save(test_path("mine"), &adamw);
    save(test_path("p"), &adamw);
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(test_path(i == 0 ? "victim" : "mine.tmp"), "r");
        if (file == NULL || fgets(text, sizeof text, file) == NULL || strcmp(text, "dear") != 0)
            fail_msg("saving to %s has overwritten %s", i == 0 ? "p" : "mine", i == 0 ? "victim, by way of p.tmp" : "mine.tmp");
        fclose(file);
    }
    unlink(test_path("mine.tmp"));
    unlink(test_path("p.tmp"));
}

/* Two runs write one file at the same time: the run that finishes last wins, and the file is whole. */
static void test_two_writers_of_one_file_do_not_mix(void **unused)
{
    AtomicFile first, second;
    size_t count = 0;
    atomic_open(&first, test_path("both"));
    atomic_open(&second, test_path("both"));
    atomic_write(&first, "aaaa", 4);
    atomic_write(&second, "bb", 2);
    atomic_commit(&first);
    unsigned char *bytes = read_file(test_path("both"), &count);
    if (count != 4 || memcmp(bytes, "aaaa", 4) != 0)
        fail_msg("the first of two writers is done, and the file holds %zu bytes, not its 4: both write to one file", count);
    free(bytes);
    atomic_commit(&second);
    bytes = read_file(test_path("both"), &count);
    assert_int_equal(count, 2);
    assert_memory_equal(bytes, "bb", 2);
    free(bytes);
}

static void expect_mode(const char *path, mode_t mode)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    if ((info.st_mode & 0777) != mode)
        fail_msg("%s has mode %o, expected %o", path, info.st_mode & 0777, mode);
}

static void test_permissions_stay(void **unused)
{
    mode_t before = umask(027);
    save(test_path("modes"), &adamw);
    umask(before);
    expect_mode(test_path("modes"), 0640); /* as any new file */
    chmod(test_path("modes"), 0600);
    save(test_path("modes"), &adamw);
    expect_mode(test_path("modes"), 0600);
}

static void check_writable(void *path)
{
    atomic_check_writable("save", path);
}

static void test_a_protected_file_is_refused(void **unused)
{
    save(test_path("guarded"), &adamw);
    chmod(test_path("guarded"), 0444);
    expect_dies(check_writable, test_path("guarded"), 2, "guarded: cannot be written: it is write-protected");
    chmod(test_path("guarded"), 0666);
    if (geteuid() == 0 && chown(test_path("guarded"), 65534, (gid_t)-1) == 0) /* root alone can give files away */
        expect_dies(check_writable, test_path("guarded"), 2, "guarded: cannot be written: it is another user's file");
    unlink(test_path("guarded"));
    expect_no_temporary_file();
}

/* ---- a save that fails ---- */

static void save_into_missing_directory(void *unused)
{
    if (chdir(test_path("work")) != 0)
        exit(3);
    save(test_path("missing/file"), &adamw);
}

static void save_into_removed_directory(void *unused)
{
    if (mkdir(test_path("gone"), 0700) != 0 || chdir(test_path("gone")) != 0 || rmdir(test_path("gone")) != 0)
        exit(3);
    save("file", &adamw);
}

/* The only file in the directory that begins with file.rescued-; fails if there is none. free() it. */
static char *find_rescued(const char *directory)
{
    glob_t found = {0};
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s/file.rescued-*", directory);
    if (glob(test_path(pattern), 0, NULL, &found) != 0 || found.gl_pathc != 1)
        fail_msg("%zu files in %s, expected the one that holds the weights", found.gl_pathc, directory);
    char *path = strdup(found.gl_pathv[0]);
    globfree(&found);
    return path;
}

static void expect_rescued_in(const char *directory)
{
    size_t count = 0, expected_count = 0;
    char *path = find_rescued(directory);
    unsigned char *bytes = read_file(path, &count), *expected = read_file(test_path("whole"), &expected_count);
    assert_int_equal(count, expected_count);
    assert_memory_equal(bytes, expected, count);
    free(bytes);
    free(expected);
    unlink(path);
    free(path);
}

static void test_a_file_that_cannot_be_written_goes_elsewhere(void **unused)
{
    save(test_path("whole"), &adamw);
    assert_int_equal(mkdir(test_path("work"), 0700), 0);
    assert_int_equal(mkdir(test_path("spare"), 0700), 0);
    expect_dies(save_into_missing_directory, NULL, 1, "missing/file: open failed: No such file or directory; the "
                "weights and the optimizer's state are in ");
    expect_rescued_in("work");

    /* Nothing can be written to the current directory either; not by root. */
    setenv("TMPDIR", test_path("spare"), 1);
    expect_dies(save_into_removed_directory, NULL, 1, "/spare/file.rescued-");
    expect_rescued_in("spare");
    unsetenv("TMPDIR");
    rmdir(test_path("work"));
    rmdir(test_path("spare"));
}

/* ---- through a link ---- */

/* Makes writes fail after some bytes, as on a full disk. */
static void save_on_a_full_disk(void *path)
{
    const struct rlimit limit = {100, 100};
    signal(SIGXFSZ, SIG_IGN); /* write() fails instead */
    setrlimit(RLIMIT_FSIZE, &limit);
    save(path, &sgd);
}

static void expect_link(const char *path)
{
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    if (!S_ISLNK(info.st_mode))
        fail_msg("%s was a link, and is a file now: was the new file renamed onto the link itself?", path);
}

static void test_a_full_disk_leaves_the_old_file_behind_a_link(void **unused)
{
    size_t before = 0, after = 0;
    save(test_path("good"), &adamw);
    assert_int_equal(symlink("good", test_path("latest")), 0);
    unsigned char *old = read_file(test_path("good"), &before);
    expect_dies(save_on_a_full_disk, test_path("latest"), 1, "latest: write failed: File too large; nor could");
    unsigned char *left = read_file(test_path("good"), &after);
    if (after != before || memcmp(left, old, before) != 0)
        fail_msg("the save failed, and %zu bytes of the old checkpoint are left of %zu: it was overwritten",
                 after, before);
    expect_link(test_path("latest"));
    expect_no_temporary_file();
    free(old);
    free(left);
}

/* Saving through a link replaces the file that the link leads to. */
static void expect_saved_through(const char *link, const char *target)
{
    size_t count = 0, expected_count = 0;
    save(test_path("plain"), &adamw);
    save(test_path(link), &adamw);
    expect_link(test_path(link));
    unsigned char *expected = read_file(test_path("plain"), &expected_count);
    unsigned char *bytes = read_file(test_path(target), &count);
    if (count != expected_count || memcmp(bytes, expected, count) != 0)
        fail_msg("saved to the link %s, but %s, where it leads to, is not what was saved", link, target);
    free(bytes);
    free(expected);
}

static void test_a_link_is_followed(void **unused)
{
    assert_int_equal(mkdir(test_path("elsewhere"), 0700), 0);
    save(test_path("elsewhere/old"), &sgd);
    assert_int_equal(symlink("elsewhere/old", test_path("to_old")), 0);
    expect_saved_through("to_old", "elsewhere/old");

    save(test_path("new"), &sgd);
    assert_int_equal(symlink("../new", test_path("elsewhere/up")), 0); /* relative to the directory of the link */
    assert_int_equal(symlink("elsewhere/up", test_path("chain")), 0);
    expect_saved_through("chain", "new");
    expect_link(test_path("elsewhere/up"));
    unlink(test_path("new"));
    expect_dies(check_writable, test_path("chain"), 2, "chain: cannot be written");
    unlink(test_path("elsewhere/up"));
    unlink(test_path("elsewhere/old"));
    rmdir(test_path("elsewhere"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saving_leaves_no_temporary_file),
        cmocka_unit_test(test_saving_touches_no_other_file),
        cmocka_unit_test(test_two_writers_of_one_file_do_not_mix),
        cmocka_unit_test(test_permissions_stay),
        cmocka_unit_test(test_a_protected_file_is_refused),
        cmocka_unit_test(test_a_file_that_cannot_be_written_goes_elsewhere),
        cmocka_unit_test(test_a_full_disk_leaves_the_old_file_behind_a_link),
        cmocka_unit_test(test_a_link_is_followed),
    };
    return cmocka_run_group_tests(tests, checkpoint_tests_start, checkpoint_tests_end);
}
