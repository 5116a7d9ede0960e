/* step_log.c: see step_log.h. */
#include "train/report/step_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/files/atomic_file.h"

/* note: log-of-a-resumed-run
 * Steps after the checkpoint are trained again, so their rows are removed: each step has one row, and a plot has no
 * jump back. An incomplete last row, which a killed run leaves, is removed, too. */
static void keep_rows(AtomicFile *file, FILE *old, long last_step)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    while ((length = getline(&line, &size, old)) > 0 && line[length - 1] == '\n' && atol(line) <= last_step)
        atomic_write(file, line, (size_t)length);
    free(line);
}

/* Opens the log that a resumed run continues, and reads its header. NULL: there is none. */
static FILE *open_old(const char *path, const char *header)
{
    char line[256];
    FILE *old = fopen(path, "r");
    if (old == NULL && errno != ENOENT)
        die("--log: cannot read %s, which this run would continue: %s; name another file", path, strerror(errno));
    if (old != NULL && fgets(line, sizeof line, old) != NULL && strcmp(line, header) != 0)
        die("--log: %s exists, but does not begin like the log that this run would continue; name another file", path);
    return old;
}

void step_log_open(StepLog *log, const char *path, long first_step, const char *unit)
{
    AtomicFile file;
    char header[160];
    snprintf(header, sizeof header, "step,loss,learning_rate,gradient_norm,loss_scale,step_ms,exposed_comm_ms,"
             "%s_per_s\n", unit);
    local_work_begin("writes", path);
    FILE *old = first_step > 0 ? open_old(path, header) : NULL;
    atomic_open(&file, path);
    atomic_write(&file, header, strlen(header));
    if (old != NULL) {
        keep_rows(&file, old, first_step);
        fclose(old);
    }
    atomic_commit(&file);
    *log = (StepLog){.path = path, .file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC)};
    CHECK(log->file >= 0, "%s: open failed: %s", path, strerror(errno));
    log->size = lseek(log->file, 0, SEEK_END);
    local_work_end();
}

/* printf() would show the meaningless sign of a NaN: "-nan". */
static double without_sign_of_nan(double x)
{
    return isnan(x) ? fabs((double)NAN) : x;
}

void step_log_add(StepLog *log, const StepRow *row)
{
    char line[256];
    const int length = snprintf(line, sizeof line, "%ld,%.9g,%.7g,%.9g,%.9g,%.3f,%.3f,%.1f\n", row->step,
                                without_sign_of_nan(row->loss), row->learning_rate,
                                without_sign_of_nan(row->gradient_norm), row->loss_scale, 1e3 * row->seconds,
                                1e3 * row->exposed, row->units / row->seconds);
    local_work_begin("writes", log->path);
    errno = ENOSPC; /* if only a part of the row was written */
    if (write(log->file, line, (size_t)length) == length) {
        log->size += length;
    } else {
        if (log->lost++ == 0)
            advise("%s: write failed: %s; the row of step %ld is left out, and training goes on", log->path,
                   strerror(errno), row->step);
        if (ftruncate(log->file, log->size) != 0) /* no half row */
            log->lost++;
    }
    local_work_end();
}

/* False if the file was removed or replaced, for example by another run's log. */
static bool is_in_place(const StepLog *log)
{
    struct stat own, there;
    return fstat(log->file, &own) == 0 && stat(log->path, &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

bool step_log_close(StepLog *log)
{
    const bool in_place = is_in_place(log);
    if (close(log->file) != 0)
        log->lost++;
    if (!in_place)
        job_say_fault("%s: this run's rows are missing: the file was removed, moved or replaced meanwhile; does "
                      "another run write to it?", log->path);
    else if (log->lost > 0)
        job_say_fault("%s: lacks %ld row(s), which could not be written: was the disk full?", log->path, log->lost);
    return in_place && log->lost == 0;
}
