/* mma.cpp: the tensor cores' instructions, as NVIDIA describes them (PTX ISA: "ldmatrix"; "Matrix Fragments for
 * mma.m16n8k16 with floating point type"). The terms are those of the description: a warp's lanes are eight groups of
 * four threads.
 */
#include "emulator.h"

namespace
{

const unsigned ALL = 0xffffffffu;

/* A thread's part of a product's operands. */
struct Fragments {
    float a[8], b[4];
};

/* a_i is in row group + 8 for i = 2, 3, 6, 7, otherwise in row group; in column 2 thread + i % 2, plus 8 for i >= 4.
 * So this is the i of a number, */
int index_in_a(int row, int column)
{
    return column % 2 + row / 8 * 2 + column / 8 * 4;
}

/* and this is the lane that has it. */
int lane_with_a(int row, int column)
{
    return row % 8 * 4 + column % 8 / 2;
}

/* b_i is in row 2 thread + i % 2, plus 8 for i >= 2; in column group. */
int index_in_b(int row)
{
    return row % 2 + row / 8 * 2;
}

int lane_with_b(int row, int column)
{
    return column * 4 + row % 8 / 2;
}

} // namespace

/* Lane l passes the address of row l % 8 of matrix l / 8. Each lane gets two neighbours of row `group` of each matrix;
 * transposed: of column `group`. */
void emulator_ldmatrix(uint32_t *to, const void *row, bool transposed, EmulatedPlace place)
{
    if ((uintptr_t)row % 16 != 0)
        emulator_fail("%s (%s:%d): each row must begin at a multiple of 16 bytes", place.call, place.file, place.line);
    const char *brought = emulator_exchange(&row, sizeof row, ALL, place);
    const int group = emulator_lane() / 4, thread = emulator_lane() % 4;
    for (int matrix = 0; matrix < 4; matrix++) {
        const unsigned short *rows[8];
        for (int i = 0; i < 8; i++)
            memcpy(&rows[i], brought + (8 * matrix + i) * EMULATED_SLOT, sizeof rows[i]);
        const unsigned low = transposed ? rows[2 * thread][group] : rows[group][2 * thread];
        const unsigned high = transposed ? rows[2 * thread + 1][group] : rows[group][2 * thread + 1];
        to[matrix] = low | high << 16;
    }
}

void emulator_mma(float *c, const float *a, const float *b, EmulatedPlace place)
{
    Fragments mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    const char *brought = emulator_exchange(&mine, sizeof mine, ALL, place);
    const int group = emulator_lane() / 4, thread = emulator_lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i < 2 ? group : group + 8, column = 2 * thread + i % 2;
        for (int k = 0; k < 16; k++) {
            const Fragments *with_a = (const Fragments *)(brought + lane_with_a(row, k) * EMULATED_SLOT);
            const Fragments *with_b = (const Fragments *)(brought + lane_with_b(k, column) * EMULATED_SLOT);
            c[i] += with_a->a[index_in_a(row, k)] * with_b->b[index_in_b(k)];
        }
    }
}
