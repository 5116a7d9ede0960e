/* events.c: stands between the tape and the stage's listener, to log the events and to switch ranks there. */
#include <stdio.h>

#include "base/check.h"
#include "world/memory.h"
#include "world/events.h"
#include "world/world.h"

typedef struct Between {
    Tape *tape;
    TapeListener stage;
    bool in_ready; /* the stage handles gradient-ready */
} Between;

static Between *betweens[MOST_RANKS];

bool events_rank_is_in_ready(int rank)
{
    return betweens[rank] != NULL && betweens[rank]->in_ready;
}

static void log_parameter(LogKind kind, const Parameter *parameter)
{
    LogRecord record = {.kind = kind, .parameter = parameter->index};
    snprintf(record.name, sizeof record.name, "%s", parameter->name);
    log_add(record);
}

static void ready(void *self, Parameter *parameter)
{
    Between *between = self;
    baton_switch();
    log_parameter(LOG_READY, parameter);
    between->in_ready = true;
    if (between->stage.gradient_ready != NULL)
        between->stage.gradient_ready(between->stage.self, parameter);
    between->in_ready = false;
}

static void gradient_needed(void *self, Parameter *parameter)
{
    Between *between = self;
    log_parameter(LOG_GRADIENT_NEEDED, parameter);
    if (between->stage.gradient_needed != NULL)
        between->stage.gradient_needed(between->stage.self, parameter);
}

static void parameters_needed(void *self, Parameter *const *parameters, int count)
{
    Between *between = self;
    baton_switch();
    for (int i = 0; i < count; i++)
        log_parameter(LOG_NEEDED, parameters[i]);
    if (between->stage.parameters_needed != NULL)
        between->stage.parameters_needed(between->stage.self, parameters, count);
}

void watch_events(Tape *tape)
{
    Between *between = betweens[baton_rank()];
    if (between == NULL)
        between = betweens[baton_rank()] = world_alloc(sizeof *between);
    const TapeListener mine = {.self = between, .gradient_ready = ready, .gradient_needed = gradient_needed,
                               .parameters_needed = parameters_needed};
    const TapeListener before = tape_listen(tape, mine);
    if (before.self != between) /* else it is watched already */
        between->stage = before;
    between->tape = tape;
}

void unwatch_events(Tape *tape)
{
    Between *between = betweens[baton_rank()];
    if (between != NULL && tape->listener.self == between)
        tape_listen(tape, between->stage);
    world_free(between);
    betweens[baton_rank()] = NULL;
}
