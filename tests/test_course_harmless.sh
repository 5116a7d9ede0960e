#!/usr/bin/env bash
# test_course_harmless.sh: what a starter's `./check` accepts, the grader accepts. Harmless pieces of C, as one may
# write them in a solution or to debug one, stand in stage 1's ddp.c, and run in ddp_create(). Without --grade:
# symbols.sh accepts them in both builds, with and without the sanitizer. With --grade, in minutes: `./check` and grade.sh
# give all points to a ddp.c with all of them; and to none that calls exit().
#
# usage: test_course_harmless.sh ROOT [--grade]
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
root=$(cd "$1" && pwd) || exit 1

starter=$scratch/starter
status 0 "$root/course/make_starter.sh" 1 "$starter"
for sanitize in '' address; do # configured alone: compile_commands.json says how ddp.c is compiled
    status 0 cmake -G "Unix Makefiles" -S "$starter" -B "$starter/build${sanitize:+-$sanitize}" -DLOCKSTEP_SANITIZE=$sanitize
done

# with TEXT...: stage 1's ddp.c with these pieces. A piece is a function body, with `Tape *tape`, `ParameterList
# *parameters` and `ProcessGroup *pg`; or declarations, a line with ----, and a function body.
with() {
    local text number=0 headers="assert complex ctype errno fenv inttypes limits math pthread stdarg stdatomic stdbool
        stdint stdio stdlib string time sys/time unistd alloca"
    for text in $headers; do echo "#include <$text.h>"; done
    sed '/^struct Ddp {/,$d' "$root"/stage1_*/ddp.c
    for text in "$@"; do
        number=$((number + 1))
        [[ $text = *----* ]] || text="----$text"
        echo "${text%%----*}"
        echo "static volatile int sink_$number; __attribute__((noinline))"
        echo "static void piece_$number(ProcessGroup *pg, ParameterList *parameters, Tape *tape) {"
        echo "    (void)pg, (void)parameters, (void)tape; volatile int *sink = &sink_$number; *sink = 3;"
        echo "${text#*----} }"
    done
    sed -n '/^struct Ddp {/,$p' "$root"/stage1_*/ddp.c | while IFS= read -r text; do
        echo "$text"
        [[ $text != *'replicas_broadcast(pg, parameters);' ]] ||
            for ((; number > 0; number--)); do echo "    piece_$number(pg, parameters, tape);"; done
    done
}

pieces=()
harmless() { # TEXT
    pieces+=("$1")
}

# compiled BUILD: puts ddp.c's object there
compiled() {
    make -C "$1" -f CMakeFiles/ddp.dir/build.make CMakeFiles/ddp.dir/stage1_naive/ddp.c.o >"$scratch/out" 2>&1 ||
        fail "${1##*/} does not compile: $(grep error "$scratch/out")"
}

harmless 'bool used[parameters->count]; memset(used, 0, sizeof used); *sink += used[0];'
harmless 'float (*rows)[*sink] = malloc(5 * sizeof *rows); rows[4][2] = 1; *sink = (int)rows[4][2]; free(rows);'
harmless 'char *text = alloca((size_t)*sink + 60); sprintf(text, "%d parameters", parameters->count); *sink += text[0];'
harmless 'volatile char large[2 << 20]; large[*sink] = 1; large[sizeof large - 1] = 2; *sink += large[3];'
harmless 'static double table[1 << 16]; for (int i = 0; i < 1 << 16; i++) table[i] = sqrt(i); *sink += (int)table[9];'
harmless 'static int by_size(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
    ---- int n[] = {3, 1, 2, *sink}, key = 2; qsort(n, 4, sizeof *n, by_size); *sink += n[0];
    *sink += bsearch(&key, n, 4, sizeof *n, by_size) != NULL;'
harmless 'if (getenv("DEBUG_DDP") != NULL) fprintf(stderr, "rank %d: %s\n", pg_rank(pg), getenv("DEBUG_DDP"));'
harmless 'struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now); *sink += (int)now.tv_sec;'
harmless 'if (parameters->count < 0) { fprintf(stderr, "no parameters\n"); exit(EXIT_FAILURE); }'
harmless '*sink += (int)(log10(*sink) + log1p(*sink) + cbrt(*sink) + tanhf((float)*sink) + erf(*sink) + sinl(*sink));'
harmless '*sink += (int)llround(*sink * 1.5) + (int)lrintf(1.5f) + (int)nearbyint(2.5) + ilogb(*sink) + (int)fmaf(1,
    2, 3);'
harmless 'static void say(const char *format, ...) { va_list a; va_start(a, format); vfprintf(stderr, format, a);
    va_end(a); }
    ---- if (pg_rank(pg) == 0) say("%d of %s\n", parameters->count, "parameters");'
harmless 'typedef struct Range { long from, to; double weight[6]; } Range;
    static Range half(Range r) { r.to = (r.from + r.to) / 2; return r; }
    ---- Range r = half(half((Range){0, parameters->count, {1}})); *sink += (int)r.to;'
harmless 'const int *p = (const int[]){1, 2, *sink}; *sink += p[2]; *sink += ((struct { int a, b; }){.b = 7}).b;'
harmless '*sink += _Generic(parameters->count, int: 1, long: 2, default: 3) + _Generic(1.0f, float: 4, double: 5);'
harmless 'static atomic_int hits; static _Atomic double total;
    ---- atomic_fetch_add(&hits, 2); total += 0.5; atomic_thread_fence(memory_order_seq_cst);
    *sink += atomic_load(&hits);'
harmless '*sink += __builtin_popcount((unsigned)*sink) + __builtin_ctzl(8) + __builtin_clz(9) + __builtin_ffs(*sink);
    int sum; if (__builtin_add_overflow(*sink, 1, &sum) || __builtin_expect(sum < 0, 0)) *sink = 0;'
harmless 'static long ways(int n) { return n < 2 ? 1 : ways(n - 1) + ways(n - 2); } ---- *sink += (int)ways(20);'
harmless 'static int one(int i) { return i + 1; } static int two(int i) { return i + 2; }
    static int (*const steps[])(int) = {one, two};
    ---- for (int i = 0; i < 2; i++) *sink = steps[*sink % 2](*sink);'
harmless 'struct Flags { unsigned ready : 1, sent : 1; int bucket : 12; };
    ---- struct Flags f = {.ready = 1, .bucket = *sink}; f.sent = !f.ready; *sink += f.bucket + (int)sizeof f;'
harmless 'enum { SMALL, LARGE, KINDS }; static const char *const names[KINDS] = {[LARGE] = "large", [SMALL] = "small"};
    ---- switch (*sink % 5) { case 0: *sink += 4; break; case 1: *sink -= 4; break; case 2: *sink = names[LARGE][0];
    break;
    case 3: puts(names[SMALL]); break; default: putchar(10); }'
harmless 'assert(parameters != NULL && "a model"); static_assert(sizeof(float) == 4, "float"); assert(tape || !tape);'
harmless 'errno = ENOMEM; perror("ddp"); fprintf(stdout, "%s, %s\n", strerror(errno), strerror(*sink)); errno = 0;'
harmless 'char line[80]; snprintf(line, sizeof line, "%-8s|%5.2f|%p", "x", 1.5, (void *)tape); fputs(line, stdout);
    fputc(10, stdout); fwrite(line, 1, 3, stderr); putc(10, stderr); fflush(stdout); fflush(NULL);'
harmless 'time_t now = time(NULL); struct tm day; char text[64]; localtime_r(&now, &day);
    strftime(text, sizeof text, "%F %T", &day); struct timeval t; gettimeofday(&t, NULL);
    printf("%s %ld\n", text, t.tv_usec);'
harmless 'const char *hit = memmem("bucket 12", 9, "12", 2); *sink += hit != NULL ? atoi(hit) : 0;'
harmless 'unsigned __int128 wide = (unsigned __int128)*sink << 70; wide /= 7; wide %= 1000003; *sink += (int)wide;
    *sink += (int)((double)wide * 0.5) + (int)(__int128)(1e20 * *sink);'
harmless 'double complex z = *sink + 2 * I, w = cexp(z) * z / (z + 1); *sink += (int)cabs(w) + (int)creal(csqrt(z));'
harmless 'long double sum = 0; for (int i = 1; i < 9; i++) sum += 1.0L / i + powl(sum, 0.5L);
    *sink += (int)floorl(sum);'
harmless 'static inline float half_of(float x) { return 0.5f * x; }
    ---- float x[64]; for (int i = 0; i < 64; i++) x[i] = half_of((float)(i + *sink)); *sink += (int)x[63];'
harmless 'setvbuf(stdout, NULL, _IONBF, 0); setbuf(stderr, NULL); vprintf("a line\n", (va_list){0}); printf("%s", "");'
harmless 'srand(7); unsigned seed = 1; *sink += rand() % 5 + rand_r(&seed) % 5 + (int)(5 * drand48());'
harmless 'char *end; *sink += (int)strtol("12 x", &end, 10) + (int)strtod(end, NULL) + (int)strtoull("ff", NULL, 16);
    int number; if (sscanf("bucket 3", "bucket %d", &number) == 1) *sink += number;'
harmless 'char words[] = "a,b;c", *rest = words, *word; while ((word = strsep(&rest, ",;")) != NULL) *sink += word[0];
    *sink += isdigit(*sink) + toupper(97) + (int)strspn("aab", "a") + strcasecmp("A", "a"); free(strdup("x"));'
harmless 'feclearexcept(FE_ALL_EXCEPT); volatile double zero = 0;
    *sink += isnan(zero / 1) + (fetestexcept(FE_INVALID) != 0);'
harmless 'static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; static _Thread_local int mine;
    ---- pthread_mutex_lock(&lock); mine++; *sink += mine; pthread_mutex_unlock(&lock);'
harmless 'void *target = &&out; if (*sink == 77) goto *target; char *text;
    if (asprintf(&text, "%d", *sink) > 0) free(text);
    out: *sink += 1;'
harmless 'int64_t *list = reallocarray(NULL, 8, sizeof *list); list = realloc(list, 99); list[3] = INT64_C(1) << 40;
    printf("%" PRId64 "\n", list[3]); free(list); free(aligned_alloc(64, 128));'

with "${pieces[@]}" >"$scratch/all.c"
for build in "$starter/build" "$starter/build-address"; do
    # The allow-list is made from the objects of common/, which are not built here: so from what a solution uses.
    cp "$root/stage1_naive/ddp.c" "$starter/stage1_naive/ddp.c"
    compiled "$build"
    mkdir -p "$build/CMakeFiles/common.dir"
    { nm -u -j "$build/CMakeFiles/ddp.dir/stage1_naive/ddp.c.o" && echo pg_rank; } | grep -v '^__' |
        sed 's/.*/void &(void) { }/' |
        "${CC:-cc}" -w -xc -c -o "$build/CMakeFiles/common.dir/all.o" - || fail "no list of names"
    cp "$scratch/all.c" "$starter/stage1_naive/ddp.c"
    compiled "$build"
    bash "$starter/tests/stages/symbols.sh" stage1_naive "$build" >"$scratch/out" ||
        fail "${build##*/}: rejected: $(cat "$scratch/out")"
done

if [ "${2-}" = --grade ]; then
    # shellcheck source-path=SCRIPTDIR/..
    source "$root/scripts/mpi.sh"
    rm -rf "$starter/build" "$starter/build-address"
    "$starter/check" >"$scratch/out" 2>&1 || fail "./check: $(cat "$scratch/out")"
    "$starter/check" --sanitize >"$scratch/out" 2>&1 || fail "./check --sanitize: $(cat "$scratch/out")"
    "$root/course/grade.sh" 1 "$scratch/all.c" --json "$scratch/json" >"$scratch/out" 2>&1
    [ "$(jq .points "$scratch/json")" = 100 ] || fail "grade.sh, what ./check accepts: $(cat "$scratch/out")"
    # A rank that ends early has not passed, whatever its status.
    with 'exit(0);' >"$starter/stage1_naive/ddp.c"
    "$starter/check" >"$scratch/out" 2>&1
    grep -q ' 0/ 95  total' "$scratch/out" || fail "exit(0) has passed: $(cat "$scratch/out")"
    grep -q 'ddp.c has called exit(0)' "$scratch/out" || fail "exit(0) is not named: $(cat "$scratch/out")"
fi

echo "${#pieces[@]} harmless pieces"
finish
