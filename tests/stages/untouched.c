/* untouched.c: the linker calls the functions below in place of ddp.h's. A stage may write weights and gradients, but
 * not what parameters there are: tests and the optimizer look at those in the model's list, and would see nothing. Nor
 * may it change the tape, but for its listener, the options, or the group. The same holds in the tape's events and the
 * partition's functions: they come here first. The stage sees its own listener in the tape, or one that has come since.
 * (In a judge, judge.h, there is no stage: nothing is called.) */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "judge.h"
#include "stage5_sharded/sharded.h"

#ifdef LOCKSTEP_STAGE_IS_APART
#include "stage_calls.h"
#else /* the project's own stages get the group itself */
static ProcessGroup *stage_handle(ProcessGroup *pg)
{
    return pg;
}

static void stage_begins(void)
{
}

static void stage_ends(const char *call)
{
    (void)call;
}

static bool stage_has_function(const void *function)
{
    return function != NULL;
}
#endif

typedef struct Before {
    const Ddp *ddp;
    Tape *tape, tape_before; /* the tape, and what it was before the call that runs */
    const ParameterList *list;
    int count;
    Parameter **items;
    Tensor *tensors; /* their values, but not their contents */
    TapeListener stage, own; /* the stage's; the one below in its place */
    TapeListener around;     /* what was in the tape before the call that runs */
    DdpOptions options, *lent;  /* lent: what the stage got, a page of its own; after ddp_create() it cannot be read */
    Partition partition, passed; /* the stage's; what the test gets instead */
} Before;

enum { MOST = 16 };
static Before known[MOST]; /* ddp: NULL if it is free */

static Before *before(const Ddp *ddp)
{
    int i = 0;
    while (i < MOST && known[i].ddp != ddp)
        i++;
    CHECK(i < MOST, "more than %d of them at a time, or none that ddp_create() returned", MOST);
    return &known[i];
}

static Before look_at(const ParameterList *list)
{
    const size_t count = (size_t)list->count;
    Before now = {.list = list, .count = list->count, .items = alloc_or_fault(count * sizeof *now.items),
                  .tensors = alloc_or_fault(count * sizeof *now.tensors)};
    for (size_t i = 0; i < count; i++) {
        now.items[i] = list->items[i];
        now.tensors[i] = list->items[i]->tensor;
    }
    return now;
}

static void expect_untouched(const Before *was, const char *call)
{
    CHECK(was->list->count == was->count, "%s changed the number of the model's parameters from %d to %d", call,
          was->count, was->list->count);
    for (int i = 0; i < was->count; i++) {
        CHECK(was->list->items[i] == was->items[i], "%s changed the list of the model's parameters", call);
        const Tensor *tensor = &was->items[i]->tensor, *then = &was->tensors[i];
        CHECK(tensor->ndim == then->ndim && memcmp(tensor->shape, then->shape, sizeof then->shape) == 0 &&
                  tensor->dtype == then->dtype && tensor->requires_grad == then->requires_grad,
              "%s changed the shape or type of %s, or whether it is trained", call, was->items[i]->name);
    }
}

static void expect_own(const void *function, const char *what, const char *call)
{
    CHECK(function == NULL || stage_has_function(function), "%s: %s is no function of ddp.c", call, what);
}

/* ---- the tape ---- */

enum { MOST_NODES = 4096 };
static void (*backward[MOST_NODES])(Tape *tape, Node *node); /* of the tape's nodes, before the call that runs */

/* Another listener is between the tape and the stage. */
static bool others_listen(const Before *was)
{
    return was->ddp != NULL && memcmp(&was->around, &was->own, sizeof was->own) != 0;
}

static void begin_event(Before *was)
{
    Tape *tape = was->tape;
    CHECK(tape->count <= MOST_NODES, "the tests' models have at most %d operations", MOST_NODES);
    was->around = tape->listener;
    if (!others_listen(was))
        tape->listener = was->stage;
    was->tape_before = *tape;
    for (int i = 0; i < tape->count; i++)
        backward[i] = tape->nodes[i].backward;
    stage_begins();
}

/* ddp_create() may set the three functions that listen, and what they get. */
static void expect_tape_untouched(const Before *was, const char *call)
{
    const Tape now = *was->tape, then = was->tape_before;
    bool same = memcmp(&now.arena, &then.arena, sizeof now.arena) == 0 && now.tensors == then.tensors &&
                now.tensor_count == then.tensor_count && now.tensor_capacity == then.tensor_capacity &&
                now.nodes == then.nodes && now.count == then.count && now.capacity == then.capacity &&
                now.recording == then.recording && now.running == then.running && now.precision == then.precision;
    for (int i = 0; i < then.count && same; i++)
        same = now.nodes[i].backward == backward[i];
    CHECK(same, "%s changed the tape: a stage sets its listener, and nothing else; or it wrote beyond memory of its own, "
                "which the address sanitizer names", call);
}

static TapeListener listener_of(Before *was);

static void expect_own_listener(const TapeListener *listener, const char *call)
{
    expect_own((const void *)listener->gradient_ready, "gradient_ready of the tape's listener", call);
    expect_own((const void *)listener->gradient_needed, "gradient_needed of the tape's listener", call);
    expect_own((const void *)listener->parameters_needed, "parameters_needed of the tape's listener", call);
}

static void finish_event(Before *was, const char *call)
{
    Tape *tape = was->tape;
    stage_ends(call);
    expect_tape_untouched(was, call);
    if (others_listen(was)) {
        CHECK(memcmp(&tape->listener, &was->around, sizeof was->around) == 0,
              "%s changed the tape's listener, and pushed out who has listened since ddp_create(): a stage begins to "
              "listen there, and only there", call);
        return;
    }
    expect_own_listener(&tape->listener, call);
    was->stage = tape->listener;
    was->own = listener_of(was);
    tape->listener = was->own;
}

static void pass_gradient_ready(void *self, Parameter *parameter)
{
    Before *was = self;
    begin_event(was);
    was->stage.gradient_ready(was->stage.self, parameter);
    finish_event(was, "ddp.c in the gradient-ready event");
}

static void pass_gradient_needed(void *self, Parameter *parameter)
{
    Before *was = self;
    begin_event(was);
    was->stage.gradient_needed(was->stage.self, parameter);
    finish_event(was, "ddp.c in the gradient-needed event");
}

static void pass_parameters_needed(void *self, Parameter *const *parameters, int count)
{
    Before *was = self;
    begin_event(was);
    was->stage.parameters_needed(was->stage.self, parameters, count);
    finish_event(was, "ddp.c in the parameters-needed event");
}

/* What hears the tape in the stage's place: the events that the stage hears. */
static TapeListener listener_of(Before *was)
{
    return (TapeListener){.self = was,
                          .gradient_ready = was->stage.gradient_ready != NULL ? pass_gradient_ready : NULL,
                          .gradient_needed = was->stage.gradient_needed != NULL ? pass_gradient_needed : NULL,
                          .parameters_needed = was->stage.parameters_needed != NULL ? pass_parameters_needed : NULL};
}

/* ---- the partition ---- */

static void pass_add_up(void *owner, double *squares, size_t count)
{
    Before *was = owner;
    begin_event(was);
    was->partition.add_up(was->partition.owner, squares, count);
    finish_event(was, "add_up() of ddp_partition()");
}

static void pass_gather(void *owner, int parameter, const float *slice, float *whole)
{
    Before *was = owner;
    begin_event(was);
    was->partition.gather(was->partition.owner, parameter, slice, whole);
    finish_event(was, "gather() of ddp_partition()");
}

/* ---- ddp.h ---- */

static void begin(Before *was)
{
    expect_untouched(was, "the stage");
    begin_event(was);
}

static void finish(Before *was, const char *call)
{
    finish_event(was, call);
    expect_untouched(was, call);
}

/* ---- the options ---- */

enum { PAGE = 4096 };
static struct sigaction others_handler; /* cmocka sets its own for each case */

static void on_fault(int signal_number, siginfo_t *fault, void *context)
{
    (void)context;
    static const char text[] = "test: fault: ddp.c has used the options after ddp_create() returned: it must copy "
                               "them, because the caller's memory may be gone\n";
    const char *address = fault->si_addr;
    for (int i = 0; i < MOST; i++) {
        const char *page = (const char *)known[i].lent;
        if (known[i].ddp != NULL && address >= page && address < page + PAGE)
            _exit(write(STDERR_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
    }
    sigaction(signal_number, &others_handler, NULL); /* the same fault again goes there */
}

static DdpOptions *lend_options(const DdpOptions *options)
{
    DdpOptions *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED, "no memory for options");
    memcpy(page, options, sizeof *options); /* with what is between its members: memcmp() sees that, too */
    return page;
}

static void end_options(Before *was)
{
    const struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    CHECK(memcmp(was->lent, &was->options, sizeof was->options) == 0, "ddp_create() changed the options that it got");
    mprotect(was->lent, PAGE, PROT_NONE);
    struct sigaction set;
    sigaction(SIGSEGV, &ours, &set);
    if (set.sa_sigaction != on_fault)
        others_handler = set;
}

/* ---- the calls ---- */

Ddp *__real_ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
void __real_ddp_destroy(Ddp *ddp);
void __real_ddp_before_forward(Ddp *ddp, bool which);
void __real_ddp_before_backward(Ddp *ddp, Tensor *loss);
void __real_ddp_after_backward(Ddp *ddp, float gradient_scale);
void __real_ddp_after_update(Ddp *ddp);
void __real_ddp_gather_weights(Ddp *ddp);
const Partition *__real_ddp_partition(Ddp *ddp);

/* In a judge the result is the memory of the gradients. */
Ddp *__wrap_ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    if (in_judge())
        return parameters_allocate_gradients(parameters);
    Before *place = before(NULL);
    *place = look_at(parameters);
    place->tape = tape;
    place->stage = tape->listener;
    place->lent = lend_options(options);
    memcpy(&place->options, options, sizeof *options);
    pg = stage_handle(pg);
    begin(place);
    Ddp *ddp = __real_ddp_create(pg, parameters, tape, place->lent);
    finish(place, "ddp_create()");
    end_options(place);
    place->ddp = ddp;
    return ddp;
}

void __wrap_ddp_destroy(Ddp *ddp)
{
    if (in_judge()) {
        device_free(ddp);
        return;
    }
    Before *was = before(ddp);
    begin(was);
    was->tape->listener = was->stage; /* a stage may remove its own listener only, and must find it here */
    __real_ddp_destroy(ddp);
    stage_ends("ddp_destroy()");
    expect_tape_untouched(was, "ddp_destroy()");
    const TapeListener left = was->tape->listener;
    CHECK(left.gradient_ready == NULL && left.gradient_needed == NULL && left.parameters_needed == NULL,
          "after ddp_destroy() the tape still raises its events, to a listener whose memory is freed: end it with "
          "tape_listen(tape, (TapeListener){0})");
    free(was->items);
    free(was->tensors);
    munmap(was->lent, PAGE);
    *was = (Before){0};
}

const Partition *__wrap_ddp_partition(Ddp *ddp)
{
    if (in_judge())
        return NULL;
    Before *was = before(ddp);
    begin_event(was);
    const Partition *partition = __real_ddp_partition(ddp);
    finish_event(was, "ddp_partition()");
    if (partition == NULL)
        return NULL;
    was->partition = *partition;
    expect_own((const void *)was->partition.add_up, "add_up", "ddp_partition()");
    expect_own((const void *)was->partition.gather, "gather", "ddp_partition()");
    was->passed = (Partition){was->partition.slices, pass_add_up, pass_gather, was};
    return &was->passed;
}

void __wrap_ddp_before_forward(Ddp *ddp, bool which)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_before_forward(ddp, (which)); /* (): it is passed on as it is, also where a script rewrites callers */
    finish(was, "ddp_before_forward()");
}

void __wrap_ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_before_backward(ddp, loss);
    finish(was, "ddp_before_backward()");
}

void __wrap_ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_after_backward(ddp, gradient_scale);
    finish(was, "ddp_after_backward()");
}

void __wrap_ddp_after_update(Ddp *ddp)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_after_update(ddp);
    finish(was, "ddp_after_update()");
}

void __wrap_ddp_gather_weights(Ddp *ddp)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_gather_weights(ddp);
    finish(was, "ddp_gather_weights()");
}
