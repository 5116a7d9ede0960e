/* idx.c: images and labels in MNIST's IDX format.
 *
 * An IDX file is a header of big-endian 32-bit numbers, then the elements:
 *     00 00 08 03 | images | rows | columns | pixels, one byte each      (08: unsigned bytes, 03: three dimensions)
 *     00 00 08 01 | labels | labels, one byte each
 * The header may be wrong, so it is compared with the length of the file before it is used.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "data/dataset.h"
#include "data/file_kind.h"

#define DEFAULT_DIRECTORY "/usr/share/datasets/fashion-mnist"
#define IDX_UNSIGNED_BYTE 0x08
#define IDX_MAX_DIMS 3

typedef struct IdxFile {
    char path[PATH_MAX];
    unsigned char *content;       /* header and elements; the Dataset owns it in the end */
    int64_t length;               /* bytes of content */
    int64_t header;               /* bytes of the header */
    uint32_t sizes[IDX_MAX_DIMS]; /* from the header */
} IdxFile;

bool dataset_image_path(char *path, const char *directory, int file, int name)
{
    static const char *const parts[IMAGE_FILES] = {"train-images", "train-labels", "t10k-images", "t10k-labels"};
    return snprintf(path, PATH_MAX, "%s/%s%cidx%d-ubyte%s", directory, parts[file], name < 2 ? '-' : '.',
                    file % 2 == 0 ? 3 : 1, name % 2 == 0 ? "" : ".gz") < PATH_MAX;
}

/* torchvision stores the files in a subdirectory of the directory that it is given. Writes the path of such a
 * subdirectory, for a hint; "" if there is none. It is not read, because there may be several, with different
 * pictures. */
static void find_subdirectory(char inner[PATH_MAX], const char *directory)
{
    static const char *const names[] = {"raw", "FashionMNIST/raw", "MNIST/raw"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (snprintf(inner, PATH_MAX, "%s/%s", directory, names[i]) < PATH_MAX && access(inner, F_OK) == 0)
            return;
    inner[0] = '\0';
}

/* Finds the file under one of its names. */
static void find_file(IdxFile *file, const char *directory, int which)
{
    const char *where = directory != NULL ? directory : DEFAULT_DIRECTORY;
    char inner[PATH_MAX];
    for (int name = 0; name < IMAGE_NAMES; name++) {
        if (!dataset_image_path(file->path, where, which, name))
            die("--data: the directory's name is too long");
        if (access(file->path, F_OK) == 0)
            return;
    }
    dataset_image_path(file->path, where, which, 0);
    const char *name = file->path + strlen(where) + 1;
    if (directory == NULL)
        die("no Fashion-MNIST in %s (no %s.gz there): install the Debian/Ubuntu package dataset-fashion-mnist, or "
            "name a directory that holds MNIST's four files with --data", where, name);
    find_subdirectory(inner, where);
    if (inner[0] != '\0')
        die("--data: neither %s nor %s.gz in '%s', but there is a directory '%s': is that the right one?", name, name,
            where, inner);
    die("--data: neither %s nor %s.gz in '%s', which must be a directory that holds MNIST's four files", name, name,
        where);
}

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The file does not begin like an IDX file of bytes in `dims` dimensions. */
static _Noreturn void die_not_idx(const IdxFile *file, int dims)
{
    const unsigned char *magic = file->content;
    const char *kind = file_kind(file->content, file->length);
    if (kind != NULL)
        die("--data: '%s' is not an IDX file of bytes in %d dimension(s), but %s", file->path, dims, kind);
    die("--data: '%s' is not an IDX file of bytes in %d dimension(s): it begins with %02x %02x %02x %02x, not with "
        "00 00 08 %02x", file->path, dims, magic[0], magic[1], magic[2], magic[3], dims);
}

/* Reads the file and its header of `dims` sizes. The sizes are not checked here. */
static void read_idx(IdxFile *file, const char *directory, int which, int dims)
{
    find_file(file, directory, which);
    file->content = read_file_or_die(file->path, &file->length);
    file->header = 4 + 4 * dims;
    const unsigned char *magic = file->content;
    if (file->length < file->header)
        die("--data: '%s' is too short for an IDX file: %lld bytes, and the header alone has %lld", file->path,
            (long long)file->length, (long long)file->header);
    if (magic[0] != 0 || magic[1] != 0 || magic[2] != IDX_UNSIGNED_BYTE || magic[3] != dims)
        die_not_idx(file, dims);
    for (int i = 0; i < dims; i++)
        file->sizes[i] = big_endian(file->content + 4 + 4 * i);
}

/* Checks that exactly sizes[0] items of item_bytes each follow the header, and moves them to the start of the content's
 * memory. It divides, because a product of two sizes from the header may overflow. */
static unsigned char *take_elements(const IdxFile *file, int64_t item_bytes)
{
    int64_t elements = file->length - file->header;
    if (elements / item_bytes != file->sizes[0] || elements % item_bytes != 0)
        die("--data: '%s' is damaged: its header claims %u items of %lld byte(s), but %lld bytes follow", file->path,
            file->sizes[0], (long long)item_bytes, (long long)elements);
    memmove(file->content, file->content + file->header, (size_t)elements);
    return file->content;
}

static void check_labels(const Dataset *dataset, const IdxFile *labels, int classes)
{
    if (labels->sizes[0] != dataset->size)
        die("--data: '%s' holds %u labels, but there are %lld images beside it; each image needs one label",
            labels->path, labels->sizes[0], (long long)dataset->size);
    for (int64_t i = 0; i < dataset->size; i++)
        if (dataset->labels[i] >= classes)
            die("--data: '%s': label %lld is %d, but the model has %d classes, 0 to %d", labels->path, (long long)i,
                dataset->labels[i], classes, classes - 1);
}

/* The header's sizes must be: images, rows, columns. Some programs write the number of images last. */
static void check_size_of_images(const IdxFile *images, int64_t inputs)
{
    const uint32_t *sizes = images->sizes;
    if ((uint64_t)sizes[1] * sizes[2] == (uint64_t)inputs)
        return;
    bool transposed = (uint64_t)sizes[0] * sizes[1] == (uint64_t)inputs;
    die("--data: '%s' holds images of %u x %u pixels, but the model takes %lld numbers%s", images->path, sizes[1],
        sizes[2], (long long)inputs, transposed ? "; is it transposed? The number of images comes first" : "");
}

void dataset_open_images(Dataset *dataset, const char *directory, DatasetSplit split, int64_t inputs, int classes)
{
    CHECK(inputs > 0 && classes > 0, "a model of %lld inputs and %d classes", (long long)inputs, classes);
    bool train = split == SPLIT_TRAIN;
    IdxFile images, labels;
    read_idx(&images, directory, train ? 0 : 2, 3);
    check_size_of_images(&images, inputs);
    *dataset = (Dataset){.kind = DATASET_IMAGES, .split = split, .size = images.sizes[0], .inputs = inputs,
                         .targets = 1, .input_bytes = (size_t)inputs * sizeof(float), .target_bytes = sizeof(int32_t)};
    snprintf(dataset->source, sizeof dataset->source, "%s", directory != NULL ? directory : DEFAULT_DIRECTORY);
    dataset->bytes = take_elements(&images, inputs);
    dataset->byte_count = dataset->size * inputs;
    if (dataset->size == 0)
        die("--data: '%s' holds no images", images.path);
    read_idx(&labels, directory, train ? 1 : 3, 1);
    dataset->labels = take_elements(&labels, 1);
    check_labels(dataset, &labels, classes);
}
