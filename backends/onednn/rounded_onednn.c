/* rounded_onednn.c: rounded numbers and their products on a CPU with bf16 instructions (AVX512-BF16, AMX): 16 bits in
 * memory, products by oneDNN, sums in float32. Linked in place of common/device/device_cpu_rounded.c if CMake finds
 * oneDNN. Without these instructions, and for f16 and float32, it does the same as that file.
 *
 * The operands have the bits of the emulation, but sums may be in another order, so this build has its own bits. They
 * depend only on a product's shape and the number of threads, so all stages still give the same bits.
 *
 * Calls: the C interface of oneDNN 2.6 and of oneDNN 3, which changed two of them (matmul primitive,
 * https://oneapi-src.github.io/oneDNN/v2.6/ and .../v3.5/). */
#include "device/device_cpu_math.h"

#include "base/check.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>

static bool has_16_bits(DType precision)
{
    return precision == DTYPE_BF16 && __builtin_cpu_supports("avx512bf16");
}

size_t device_rounded_bytes(DType precision, int64_t n)
{
    return (size_t)n * (has_16_bits(precision) ? sizeof(uint16_t) : sizeof(float));
}

void device_store_rounded(void *rounded, const float *x, DType precision, int64_t n)
{
    if (has_16_bits(precision))
        half_from_floats(rounded, x, precision, n);
    else
        device_round(rounded, x, precision, n);
}

/* A product that oneDNN has prepared for one shape. Its three memories get their addresses when it is carried out. */
typedef struct Product {
    int64_t m, n, k;
    bool a_transposed, b_transposed, add;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} Product;

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static Product *products; /* of all shapes so far, kept until the process ends; only the computing thread uses them */
static int product_count;

static void expect_success(dnnl_status_t status, const char *call)
{
    CHECK(status == dnnl_success, "oneDNN: %s failed with status %d; without oneDNN: cmake -DLOCKSTEP_ONEDNN=OFF", call,
          (int)status);
}

/* ---- differences of oneDNN 2 and 3: a description is a struct, or a handle that must be destroyed ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t Description;
#define ADDRESS(description) (description)

static void describe(Description *desc, dnnl_data_type_t type, const dnnl_dims_t sizes, const dnnl_dims_t strides)
{
    expect_success(dnnl_memory_desc_create_with_strides(desc, 2, sizes, type, strides),
                   "dnnl_memory_desc_create_with_strides");
}

static void destroy(Description desc)
{
    dnnl_memory_desc_destroy(desc);
}

static dnnl_primitive_desc_t choose(Description a, Description b, Description c, dnnl_primitive_attr_t attributes)
{
    dnnl_primitive_desc_t chosen;
    expect_success(dnnl_matmul_primitive_desc_create(&chosen, engine, a, b, NULL, c, attributes),
                   "dnnl_matmul_primitive_desc_create");
    return chosen;
}

static void add_to_result(dnnl_post_ops_t after)
{
    expect_success(dnnl_post_ops_append_sum(after, 1, 0, dnnl_data_type_undef), "dnnl_post_ops_append_sum");
}
#else
typedef dnnl_memory_desc_t Description;
#define ADDRESS(description) (&(description))

static void describe(Description *desc, dnnl_data_type_t type, const dnnl_dims_t sizes, const dnnl_dims_t strides)
{
    expect_success(dnnl_memory_desc_init_by_strides(desc, 2, sizes, type, strides), "dnnl_memory_desc_init_by_strides");
}

static void destroy(Description desc)
{
    (void)desc;
}

static dnnl_primitive_desc_t choose(Description a, Description b, Description c, dnnl_primitive_attr_t attributes)
{
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t chosen;
    expect_success(dnnl_matmul_desc_init(&operation, &a, &b, NULL, &c), "dnnl_matmul_desc_init");
    expect_success(dnnl_primitive_desc_create(&chosen, &operation, attributes, engine, NULL),
                   "dnnl_primitive_desc_create");
    return chosen;
}

static void add_to_result(dnnl_post_ops_t after)
{
    expect_success(dnnl_post_ops_append_sum(after, 1), "dnnl_post_ops_append_sum");
}
#endif

/* ---- products ---- */

/* (rows, columns) of `type`. transposed: stored as (columns, rows). */
static Description matrix(dnnl_data_type_t type, int64_t rows, int64_t columns, bool transposed)
{
    Description desc;
    const dnnl_dims_t sizes = {rows, columns}, strides = {transposed ? 1 : columns, transposed ? rows : 1};
    describe(&desc, type, sizes, strides);
    return desc;
}

static dnnl_memory_t memory_of(Description desc)
{
    dnnl_memory_t memory;
    expect_success(dnnl_memory_create(&memory, ADDRESS(desc), engine, DNNL_MEMORY_NONE), "dnnl_memory_create");
    return memory;
}

/* Fills in the primitive and the memories. */
static void prepare(Product *product)
{
    if (engine == NULL) {
        expect_success(dnnl_engine_create(&engine, dnnl_cpu, 0), "dnnl_engine_create");
        expect_success(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "dnnl_stream_create");
    }
    Description a = matrix(dnnl_bf16, product->m, product->k, product->a_transposed);
    Description b = matrix(dnnl_bf16, product->k, product->n, product->b_transposed);
    Description c = matrix(dnnl_f32, product->m, product->n, false);
    dnnl_post_ops_t after;
    dnnl_primitive_attr_t attributes;
    expect_success(dnnl_post_ops_create(&after), "dnnl_post_ops_create");
    if (product->add)
        add_to_result(after);
    expect_success(dnnl_primitive_attr_create(&attributes), "dnnl_primitive_attr_create");
    expect_success(dnnl_primitive_attr_set_post_ops(attributes, after), "dnnl_primitive_attr_set_post_ops");
    dnnl_primitive_desc_t chosen = choose(a, b, c, attributes);
    expect_success(dnnl_primitive_create(&product->primitive, chosen), "dnnl_primitive_create");
    dnnl_primitive_desc_destroy(chosen);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_post_ops_destroy(after);
    product->a = memory_of(a);
    product->b = memory_of(b);
    product->c = memory_of(c);
    destroy(a);
    destroy(b);
    destroy(c);
}

/* Returns the product that is prepared for wanted's shape; prepares it if there is none. */
static const Product *find(const Product *wanted)
{
    for (int i = 0; i < product_count; i++) {
        const Product *known = &products[i];
        if (known->m == wanted->m && known->n == wanted->n && known->k == wanted->k && known->add == wanted->add &&
            known->a_transposed == wanted->a_transposed && known->b_transposed == wanted->b_transposed)
            return known;
    }
    products = realloc(products, (size_t)(product_count + 1) * sizeof *products);
    CHECK(products != NULL, "no memory for %d products", product_count + 1);
    products[product_count] = *wanted;
    prepare(&products[product_count]);
    return &products[product_count++];
}

void rounded_product(float *c, const void *a, bool a_transposed, const void *b, bool b_transposed, bool add, int64_t m,
                     int64_t n, int64_t k, DType precision)
{
    if (!has_16_bits(precision) || m == 0 || n == 0 || k == 0) { /* without terms, matmul() reads neither a nor b */
        matmul(c, n, 1, a, a_transposed ? m : k, a_transposed ? CblasTrans : CblasNoTrans, b, b_transposed ? k : n,
               b_transposed ? CblasTrans : CblasNoTrans, add ? 1 : 0, m, n, k);
        return;
    }
    const Product *product = find(&(Product){.m = m, .n = n, .k = k, .a_transposed = a_transposed,
                                             .b_transposed = b_transposed, .add = add});
    /* oneDNN only reads a and b, but its interface has no const pointers. */
    expect_success(dnnl_memory_set_data_handle(product->a, (void *)a), "dnnl_memory_set_data_handle");
    expect_success(dnnl_memory_set_data_handle(product->b, (void *)b), "dnnl_memory_set_data_handle");
    expect_success(dnnl_memory_set_data_handle(product->c, c), "dnnl_memory_set_data_handle");
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, product->a}, {DNNL_ARG_WEIGHTS, product->b}, {DNNL_ARG_DST, product->c}};
    expect_success(dnnl_primitive_execute(product->primitive, stream, 3, arguments), "dnnl_primitive_execute");
    expect_success(dnnl_stream_wait(stream), "dnnl_stream_wait");
}

void rounded_accumulate(float *sum, const void *rounded, int64_t first, DType precision, int64_t n)
{
    if (!has_16_bits(precision)) {
        device_accumulate(sum, (const float *)rounded + first, n);
        return;
    }
    const uint16_t *bf16 = (const uint16_t *)rounded + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += float_of((uint32_t)bf16[i] << 16); /* bf16 is the upper half of a float32 */
}

const char *rounded_products_by(void)
{
    static char by[48];
    const dnnl_version_t *version = dnnl_version();
    snprintf(by, sizeof by, ", oneDNN %d.%d.%d for bf16", version->major, version->minor, version->patch);
    return has_16_bits(DTYPE_BF16) ? by : "";
}
