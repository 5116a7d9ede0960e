/* live_bytes.c: counts memory. It may be used from several threads. */
#include "live_bytes.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "comm/process_group.h"

static _Atomic int64_t live, peak;

static void add(int64_t bytes)
{
    const int64_t now = atomic_fetch_add(&live, bytes) + bytes;
    int64_t most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
        continue;
}

static void *count(void *memory)
{
    add((int64_t)malloc_usable_size(memory));
    return memory;
}

static void forget(void *memory)
{
    atomic_fetch_sub(&live, (int64_t)malloc_usable_size(memory));
}

int64_t live_bytes(void)
{
    return atomic_load(&live);
}

int64_t live_bytes_peak(void)
{
    return atomic_load(&peak);
}

void live_bytes_restart(void)
{
    atomic_store(&peak, atomic_load(&live));
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void __real_free(void *memory);

void *__wrap_malloc(size_t bytes)
{
    return count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t elements, size_t bytes)
{
    return count(__real_calloc(elements, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    forget(memory);
    return count(__real_realloc(memory, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return count(__real_aligned_alloc(alignment, bytes));
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    const int status = __real_posix_memalign(memory, alignment, bytes);
    if (status == 0)
        count(*memory);
    return status;
}

void __wrap_free(void *memory)
{
    forget(memory);
    __real_free(memory);
}

/* ---- the others that give what free() takes ---- */

void *__wrap_reallocarray(void *memory, size_t elements, size_t bytes)
{
    size_t all;
    return __builtin_mul_overflow(elements, bytes, &all) ? NULL : __wrap_realloc(memory, all);
}

char *__wrap_strndup(const char *text, size_t most)
{
    const size_t length = strnlen(text, most);
    char *copy = __wrap_calloc(length + 1, 1);
    return copy != NULL ? memcpy(copy, text, length) : NULL;
}

char *__wrap_strdup(const char *text)
{
    return __wrap_strndup(text, strlen(text));
}

int __real_vasprintf(char **text, const char *format, va_list arguments);
int __wrap_vasprintf(char **text, const char *format, va_list arguments)
{
    const int length = __real_vasprintf(text, format, arguments);
    if (length >= 0)
        count(*text);
    return length;
}

int __wrap_asprintf(char **text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = __wrap_vasprintf(text, format, arguments);
    va_end(arguments);
    return length;
}

int __wrap___vasprintf_chk(char **text, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return __wrap_vasprintf(text, format, arguments);
}

int __wrap___asprintf_chk(char **text, int flag, const char *format, ...)
{
    (void)flag;
    va_list arguments;
    va_start(arguments, format);
    const int length = __wrap_vasprintf(text, format, arguments);
    va_end(arguments);
    return length;
}

/* ---- windows, which are not from malloc() ---- */

typedef struct Window {
    void *memory;
    int64_t bytes;
    struct Window *next;
} Window;
static Window *windows;

void *__real_pg_alloc_shared(ProcessGroup *pg, size_t bytes);
void __real_pg_free_shared(ProcessGroup *pg, void *memory);

void *__wrap_pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    const int64_t before = live_bytes();
    void *memory = __real_pg_alloc_shared(pg, bytes);
    if (live_bytes() - before >= (int64_t)bytes)
        return memory; /* no window: it is counted already */
    Window *window = __real_malloc(sizeof *window);
    *window = (Window){memory, (int64_t)bytes, windows};
    windows = window;
    add((int64_t)bytes);
    return memory;
}

void __wrap_pg_free_shared(ProcessGroup *pg, void *memory)
{
    for (Window **at = &windows; *at != NULL; at = &(*at)->next) {
        Window *window = *at;
        if (window->memory != memory)
            continue;
        *at = window->next;
        add(-window->bytes);
        __real_free(window);
        break;
    }
    __real_pg_free_shared(pg, memory);
}
