/* ranks.c: the processors of the ranks, as Linux's /proc and /sys show them, and their meeting memory. */
#include "ranks.h"

#include <glob.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fresh.h"

enum { WORD = 128 };

/* The first word of a small file, or "?". */
static void read_word(const char *directory, const char *name, char *word)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%127s", word) != 1)
        strcpy(word, "?");
    if (file != NULL)
        fclose(file);
}

/* "L2 1024K: 0 | 1" for each kind of cache: processors that share one stand together, as in "0-1". */
static void print_caches(void)
{
    static const char pattern[] = "/sys/devices/system/cpu/cpu[0-9]*/cache/index%d";
    char path[sizeof pattern + 8], level[WORD], type[WORD], size[WORD], sharers[WORD], last[WORD];
    glob_t found;
    int index = 0;
    printf("# caches, and the processors that share them:");
    for (; snprintf(path, sizeof path, pattern, index), glob(path, 0, NULL, &found) == 0; index++) {
        read_word(found.gl_pathv[0], "type", type);
        last[0] = '\0';
        for (size_t i = 0; i < found.gl_pathc && strcmp(type, "Instruction") != 0; i++) {
            read_word(found.gl_pathv[i], "shared_cpu_list", sharers);
            read_word(found.gl_pathv[i], "level", level);
            read_word(found.gl_pathv[i], "size", size);
            if (i == 0)
                printf("%s L%s %s: %s", index > 0 ? ";" : "", level, size, sharers);
            else if (strcmp(sharers, last) != 0)
                printf(" | %s", sharers);
            strcpy(last, sharers);
        }
        globfree(&found);
    }
    printf("%s\n", index > 0 ? "" : " not known");
}

/* The processors that this process may run on, as in "0-1". */
static void processors_of_this_rank(char *list)
{
    char line[512];
    FILE *file = fopen("/proc/self/status", "r");
    strcpy(list, "?");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Cpus_allowed_list: %127s", list) == 1)
            break;
    if (file != NULL)
        fclose(file);
}

void ranks_print_processors(void)
{
    char mine[WORD], *all = NULL;
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    processors_of_this_rank(mine);
    if (rank == 0)
        all = calloc((size_t)ranks, WORD);
    MPI_Gather(mine, WORD, MPI_CHAR, all, WORD, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (all == NULL)
        return;
    printf("# processors that rank 0, 1, ... may run on:");
    for (int r = 0; r < ranks; r++)
        printf("%s %s", r > 0 ? "," : "", all + r * WORD);
    printf("\n");
    print_caches();
    free(all);
}

static MPI_Win meeting = MPI_WIN_NULL;

void *ranks_create_meeting(void)
{
    MPI_Comm host;
    int ranks_of_host, ranks, rank;
    void *mine, *all = NULL;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &ranks_of_host);
    if (ranks_of_host == ranks) {
        MPI_Aint bytes;
        int unit;
        MPI_Win_allocate_shared(FRESH_ARRIVAL, 1, MPI_INFO_NULL, host, &mine, &meeting);
        memset(mine, 0, FRESH_ARRIVAL);
        MPI_Win_shared_query(meeting, 0, &bytes, &unit, &all); /* the other ranks' follow: windows are contiguous */
        MPI_Barrier(host);
        double seconds = fresh_seconds_of_a_meeting(all, rank, ranks);
        if (rank == 0)
            printf("# a meeting of all ranks in memory takes %.2f us\n", 1e6 * seconds);
    }
    MPI_Comm_free(&host);
    return all;
}

void ranks_free_meeting(void)
{
    if (meeting != MPI_WIN_NULL)
        MPI_Win_free(&meeting);
}
