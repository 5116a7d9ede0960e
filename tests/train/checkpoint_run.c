/* checkpoint_run.c: see checkpoint_run.h. */
#include "checkpoint_run.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"

const OptimizerOptions adamw = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
const OptimizerOptions sgd = {.kind = OPTIMIZER_SGD};
const OptimizerOptions sgd_momentum = {.kind = OPTIMIZER_SGD, .momentum = 0.9f};

void run_create(Run *run, const OptimizerOptions *options)
{
    static const int64_t matrix[] = {2, 3}, vector[] = {3};
    *run = (Run){.state = {.loss_scale = 1}};
    snprintf(run->state.model, sizeof run->state.model, "--model mlp --activation gelu --optimizer %s",
             options->kind == OPTIMIZER_ADAMW ? "adamw" : "sgd");
    checkpoint_add_setting(&run->state, "seed", "--seed 77");
    checkpoint_add_setting(&run->state, CHECKPOINT_DATA, "data of 60 samples, checksum 0123abcd");
    checkpoint_add_setting(&run->state, CHECKPOINT_PRECISION, "--precision fp16");
    parameters_add(&run->parameters, "fc1.weight", 2, matrix);
    parameters_add(&run->parameters, "fc1.bias", 1, vector);
    optimizer_create(&run->optimizer, options, &run->parameters);
    optimizer_allocate_state(&run->optimizer);
}

void run_free(Run *run)
{
    optimizer_free(&run->optimizer);
    parameters_free(&run->parameters);
}

static void fill(float *device, int count, float first)
{
    float values[MATRIX];
    for (int i = 0; i < count; i++)
        values[i] = first + 0.1f * (float)i;
    device_from_host(device, values, (size_t)count * sizeof(float));
}

void run_train(Run *run)
{
    const float values[VALUES] = {0.1f, -0.0f, 1e-45f, 3.4e38f, 0, 1.0f / 3, 7, 8, 9};
    parameters_from_host(&run->parameters, values);
    for (int i = 0; i < run->parameters.count; i++) {
        int count = i == 0 ? MATRIX : VECTOR;
        if (run->optimizer.state1[i] != NULL)
            fill(run->optimizer.state1[i], count, 10.0f * (float)(i + 1));
        if (run->optimizer.state2[i] != NULL)
            fill(run->optimizer.state2[i], count, 100.0f * (float)(i + 1));
        run->optimizer.steps[i] = 16 + i;
    }
    run->state.step = 17;
    run->state.loss_scale = 1.0f / 3;
    run->state.good_steps = 41;
    run->state.learning_rate = 0.0271828f;
    run->state.place = (DataPlace){.epoch = 2, .samples = 123456789012};
}

void save(const char *path, const OptimizerOptions *options)
{
    Run run;
    run_create(&run, options);
    run_train(&run);
    checkpoint_save(path, &run.optimizer, &run.state, RESCUE);
    run_free(&run);
}

void load(void *path)
{
    Run run;
    run_create(&run, &adamw);
    checkpoint_load(path, &run.optimizer, &run.state);
    run_free(&run);
}

/* ---- files ---- */

static char directory[200];

static void stop(const char *path)
{
    perror(path);
    exit(99);
}

char *test_path(const char *name)
{
    static char paths[2][256];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%.40s", directory, name);
    return paths[turn];
}

int checkpoint_tests_start(void **unused)
{
    (void)unused;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.150s/test_checkpoint_XXXXXX", parent != NULL ? parent : "/tmp");
    if (mkdtemp(directory) == NULL)
        stop(directory);
    return 0;
}

int checkpoint_tests_end(void **unused)
{
    (void)unused;
    DIR *all = opendir(directory);
    for (struct dirent *entry = NULL; all != NULL && (entry = readdir(all)) != NULL;)
        if (entry->d_name[0] != '.')
            unlink(test_path(entry->d_name));
    closedir(all);
    return rmdir(directory);
}

void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        stop(path);
}

unsigned char *read_file(const char *path, size_t *count)
{
    enum { LARGEST = 1 << 16 };
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = malloc(LARGEST);
    if (file == NULL || bytes == NULL)
        stop(path);
    *count = fread(bytes, 1, LARGEST, file);
    fclose(file);
    return bytes;
}

void write_hand_made(const char *path, const char *header, size_t data_bytes)
{
    char bytes[2048];
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes / 4; i++)
        memcpy(bytes + 8 + length + 4 * i, &(float){(float)i}, 4);
    write_file(path, bytes, 8 + length + data_bytes);
}
