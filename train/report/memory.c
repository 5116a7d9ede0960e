/* memory.c: --trace: samples a rank's memory use; declared in trace.h. */
#include "autograd/rounding.h"
#include "base/clock.h"
#include "train/report/trace.h"

ShardedMemory memory_in_use(const MemoryWatch *watch)
{
    ShardedMemory memory = {0};
    if (!ddp_sharded_memory(watch->ddp, &memory)) {
        memory.weights = (size_t)parameters_total(watch->optimizer->parameters) * sizeof(float);
        memory.gradients = pg_shared_bytes(watch->pg);
    }
    memory.gradients += watch->codec->state_bytes;
    return memory;
}

void memory_watch_sample(const MemoryWatch *watch)
{
    if (watch->tape == NULL)
        return;
    const ShardedMemory held = memory_in_use(watch);
    const Tape *tape = watch->tape;
    const double now = now_seconds();
    const size_t bytes[MEMORY_KINDS] = {
        [MEMORY_WEIGHTS] = held.weights,
        [MEMORY_GATHERED_WEIGHTS] = held.gathered_weights,
        [MEMORY_OPERANDS] = parameters_operand_bytes(watch->optimizer->parameters),
        [MEMORY_GRADIENTS] = held.gradients,
        [MEMORY_WHOLE_GRADIENTS] = held.whole_gradients,
        [MEMORY_OPTIMIZER] = optimizer_state_bytes(watch->optimizer),
        [MEMORY_ACTIVATIONS] = tape->arena.used + tape->block_arena.used,
    };
    TimelineEvent event = {.row = ROW_MEMORY, .start = now, .end = now};
    for (int kind = 0; kind < MEMORY_KINDS; kind++)
        event.memory[kind] = (int64_t)bytes[kind];
    timeline_add_event(event);
}

static void gradient_ready(void *self, Parameter *parameter)
{
    const MemoryWatch *watch = self;
    if (watch->stage.gradient_ready != NULL)
        watch->stage.gradient_ready(watch->stage.self, parameter);
    memory_watch_sample(watch);
}

static void gradient_needed(void *self, Parameter *parameter)
{
    const MemoryWatch *watch = self;
    if (watch->stage.gradient_needed != NULL)
        watch->stage.gradient_needed(watch->stage.self, parameter);
    memory_watch_sample(watch);
}

static void parameters_needed(void *self, Parameter *const *parameters, int count)
{
    const MemoryWatch *watch = self;
    if (watch->stage.parameters_needed != NULL)
        watch->stage.parameters_needed(watch->stage.self, parameters, count);
    memory_watch_sample(watch);
}

void memory_watch_start(MemoryWatch *watch, Tape *tape)
{
    watch->tape = tape;
    watch->stage = tape_listen(tape, (TapeListener){.self = watch, .gradient_ready = gradient_ready,
                                                    .gradient_needed = gradient_needed,
                                                    .parameters_needed = parameters_needed});
}
