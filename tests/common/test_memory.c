/* test_memory.c: the tape allocates no new memory from the second step on; arena pieces start on cache lines
 * (gradients: test_shapes.c); the hash of the weights depends on every bit. */
#include <stdlib.h>
#include <string.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

/* ---- the tape's memory ---- */

/* The batch is all zeros: the numbers do not matter here. */
#define MAX_SAMPLES 3
#define TIME 6

static const ModelSpec small_mlp = {.name = "mlp", .kind = MODEL_MLP, .mlp = {6, 9, 5, 4, true, ACTIVATION_GELU}};

typedef struct Setup {
    Model model;
    Tape tape;
    void *inputs, *targets, *gradients;
} Setup;

static void setup_create(Setup *setup, const ModelSpec *spec)
{
    *setup = (Setup){0};
    model_create(&setup->model, spec, 1);
    setup->gradients = parameters_allocate_gradients(&setup->model.parameters);
    setup->inputs = device_alloc(MAX_SAMPLES * TIME * sizeof(int32_t));
    setup->targets = device_alloc(MAX_SAMPLES * TIME * sizeof(int32_t));
}

static void setup_free(Setup *setup)
{
    device_free(setup->inputs);
    device_free(setup->targets);
    device_free(setup->gradients);
    model_free(&setup->model);
    tape_free(&setup->tape);
}

static void step(Setup *setup, int64_t samples)
{
    tape_begin(&setup->tape, true);
    Tensor *loss = model_loss(&setup->model, &setup->tape, setup->inputs, setup->targets, samples, TIME);
    tape_backward(&setup->tape, loss, 1);
}

/* The addresses of everything that the tape owns. */
typedef struct Places {
    const void *memory, *tensors, *nodes, *loss;
    size_t size;
    int blocks, tensor_capacity, node_capacity;
} Places;

static Places places_after_a_step(Setup *setup, int64_t samples)
{
    step(setup, samples);
    const Tape *tape = &setup->tape;
    Places places;
    memset(&places, 0, sizeof places); /* compared as bytes, padding included */
    places.memory = tape->arena.blocks[0].memory;
    places.size = tape->arena.blocks[0].size;
    places.blocks = tape->arena.block_count;
    places.tensors = tape->tensors;
    places.tensor_capacity = tape->tensor_capacity;
    places.nodes = tape->nodes;
    places.node_capacity = tape->capacity;
    places.loss = tape->nodes[tape->count - 1].output->data;
    return places;
}

static void test_later_steps_need_no_new_memory(void **state)
{
    /* Wide enough that the first step needs more than one of the arena's blocks. */
    ModelSpec spec = {.name = "gpt", .kind = MODEL_GPT, .gpt = {2, 2, 512, TIME, 11, 3000}};
    Setup setup;
    setup_create(&setup, &spec);
    step(&setup, 2);
    assert_true(setup.tape.arena.block_count > 1); /* else this test shows little: make the model larger */
    Places second = places_after_a_step(&setup, 2);
    assert_int_equal(second.blocks, 1);
    for (int i = 0; i < 3; i++) {
        Places later = places_after_a_step(&setup, 2);
        assert_memory_equal(&later, &second, sizeof later);
    }
    /* device_alloc() clears new memory: if this mark is still there, the block was kept. */
    uint32_t mark = 0x12345678, found = 0;
    device_from_host(setup.tape.arena.blocks[0].memory, &mark, sizeof mark);
    tape_begin(&setup.tape, true);
    device_to_host(&found, setup.tape.arena.blocks[0].memory, sizeof found);
    assert_int_equal(found, mark);

    Places smaller = places_after_a_step(&setup, 1); /* an uneven last batch: the same memory is enough */
    assert_ptr_equal(smaller.memory, second.memory);

    step(&setup, 3); /* a larger batch: the arena grows once more, and then no longer */
    Places larger = places_after_a_step(&setup, 3);
    assert_int_equal(larger.blocks, 1);
    Places again = places_after_a_step(&setup, 3);
    assert_memory_equal(&again, &larger, sizeof again);
    setup_free(&setup);
}

/* ---- the arena ---- */

static void test_arena_pieces_are_aligned_and_apart(void **state)
{
    Arena arena = {0};
    const size_t sizes[] = {1, 64, 0, 65, 3000000, 100, 2000000};
    for (int round = 0; round < 3; round++) {
        unsigned char *pieces[7];
        for (int i = 0; i < 7; i++) {
            pieces[i] = arena_alloc(&arena, sizes[i]);
            assert_int_equal((uintptr_t)pieces[i] % device_alignment(), 0);
            for (int k = 0; k < i; k++)
                assert_true(pieces[k] + sizes[k] <= pieces[i] || pieces[i] + sizes[i] <= pieces[k]);
        }
        assert_int_equal(arena.used, arena.peak);
        /* In the first round: the two large pieces, and two blocks of 1 MiB, which the small ones do not fill. */
        assert_int_equal(arena.held, round == 0 ? 5000000 + (2 << 20) : arena.peak);
        assert_int_equal(arena.peak_held, 5000000 + (2 << 20));
        arena_reset(&arena);
        assert_int_equal(arena.used, 0);
    }
    assert_int_equal(arena.block_count, 1);
    for (int round = 0; round < 2; round++) { /* an arena that was freed is as good as a new one */
        arena_free(&arena);
        assert_int_equal(arena.peak, 0);
        assert_int_equal((uintptr_t)arena_alloc(&arena, 1) % device_alignment(), 0);
    }
    arena_free(&arena);
}

/* ---- parameters ---- */

static void test_hash_sees_every_bit(void **state)
{
    Setup setup;
    setup_create(&setup, &small_mlp);
    ParameterList *list = &setup.model.parameters;
    int64_t count = parameters_total(list);
    assert_int_equal(count, 6 * 9 + 9 + 9 * 5 + 5 + 5 * 4 + 4);
    float *values = alloc_or_fault((size_t)count * sizeof *values);
    parameters_to_host(list, values);
    uint64_t before = parameters_hash(list);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits ^= 1;
        memcpy(&values[i], &bits, sizeof bits);
        parameters_from_host(list, values);
        assert_true(parameters_hash(list) != before);
        bits ^= 1;
        memcpy(&values[i], &bits, sizeof bits);
    }
    parameters_from_host(list, values);
    assert_true(parameters_hash(list) == before);
    free(values);
    setup_free(&setup);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("memory", cmocka_unit_test(test_later_steps_need_no_new_memory),
                     cmocka_unit_test(test_arena_pieces_are_aligned_and_apart),
                     cmocka_unit_test(test_hash_sees_every_bit));
}
