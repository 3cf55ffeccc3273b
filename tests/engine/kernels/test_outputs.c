/*
 * Outputs of every kernel of every set against those that the scalar specification gave on another
 * CPU: outputs.h has a hash of each, written by this program on x86-64 (`test_outputs print`). So a
 * set is the same not only as the scalar one beside it, but as any other anywhere.
 *
 * When the arithmetic changes on purpose, raise MODEL_ARITHMETIC and print them anew.
 */
#include "tests/engine/kernels/inputs.h"
#include "tests/engine/kernels/outputs.h"
#include "tests/engine/kernels/sets.h"

#include <stdio.h>

/* FNV-1a of 32-bit words; what is hashed, any NaN is one. */
struct hash {
    uint64_t value;
};

static void hash_words(struct hash *hash, const void *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)words + 4 * i, 4);
        for (int byte = 0; byte < 4; byte++)
            hash->value = (hash->value ^ (word >> 8 * byte & 255)) * 0x100000001B3u;
    }
}

static void hash_floats(struct hash *hash, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits = isnan(x[i]) ? 0x7FC00000u : bits;
        hash_words(hash, &bits, 1);
    }
}

static void hash_doubles(struct hash *hash, const double *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK(!isnan(x[i]));
    hash_words(hash, x, 2 * count);
}

/* ---- Cases: each hashes its inputs too ---- */

static void case_matmul(const struct kernels *kernels, enum tensor_format format, enum spice spice,
                        struct hash *hash)
{
    enum { N = 49, K = 768, ROWS = 7 };
    uint64_t row_bytes = format_row_bytes(format, K);
    uint8_t *weights = allocate(N * row_bytes);
    float *x = allocate(ROWS * K * sizeof *x), *y = allocate(ROWS * N * sizeof *y);
    fill_weights(weights, format, N, K, spice);
    fill_floats(x, ROWS * K, spice);
    fill_floats(y, ROWS * N, PLAIN);
    hash_words(hash, weights, N * row_bytes / 4);
    hash_floats(hash, x, ROWS * K);
    struct repacked_matrix matrix = {format, N, K, allocate(kernels->repacked_bytes(format, N, K))};
    kernels->repack(&matrix, 0, N, weights);
    struct activations activations = {ROWS, K, x, NULL};
    activations.quantized = allocate(kernels->quantized_row_bytes(K) * ROWS);
    kernels->quantize(&activations, 0, ROWS);
    kernels->matmul(&matrix, &activations, 0, ROWS, 0, (N + 15) / 16, spice == WILD, y, N);
    hash_floats(hash, y, ROWS * N);
    kernels->dequantize_row(&matrix, 3, x);
    hash_floats(hash, x, K);
    free(weights);
    free(x);
    free(y);
    free(matrix.data);
    free(activations.quantized);
}

static void case_rows(const struct kernels *kernels, enum spice spice, struct hash *hash)
{
    enum { COUNT = 1003 };
    float x[COUNT], w[COUNT], out[COUNT];
    fill_floats(x, COUNT, spice);
    fill_floats(w, COUNT, spice);
    kernels->rms_norm(x, w, 1e-5f, COUNT, out);
    hash_floats(hash, out, COUNT);
    void (*const binary[])(float *, const float *, uint32_t) = {
        kernels->silu_multiply, kernels->gelu_multiply, kernels->add};
    for (int f = 0; f < 3; f++) {
        memcpy(out, x, sizeof x);
        binary[f](out, w, COUNT);
        hash_floats(hash, out, COUNT);
    }
    for (int neox = 0; neox < 2; neox++) {
        memcpy(out, x, sizeof x);
        for (uint32_t i = 0; i < 40; i++) {
            w[i] = (float)math_cos(i * 1.37);
            w[40 + i] = (float)math_sin(i * 1.37);
        }
        kernels->rope(out, w, w + 40, 80, neox);
        hash_floats(hash, out, 80);
    }
}

/* What encoders have beside that. */
static void case_encoder(const struct kernels *kernels, enum spice spice, struct hash *hash)
{
    enum { COUNT = 1003 };
    float x[COUNT], w[COUNT], out[COUNT];
    fill_floats(x, COUNT, spice);
    fill_floats(w, COUNT, spice);
    kernels->layer_norm(x, w, x, 1e-12f, COUNT, out);
    hash_floats(hash, out, COUNT);
    kernels->gelu_erf(x, COUNT);
    hash_floats(hash, x, COUNT);
}

/* Floats of all magnitudes through the vector forms of exp. */
static void case_activations(const struct kernels *kernels, struct hash *hash)
{
    enum { COUNT = 1024 };
    float x[COUNT], out[COUNT], ones[COUNT];
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1.0f;
    for (uint64_t bits = 0; bits <= 0xFFFFFFFFu;) {
        for (int i = 0; i < COUNT; i++, bits += 65521) {
            uint32_t low = (uint32_t)bits;
            memcpy(&x[i], &low, 4);
        }
        memcpy(out, x, sizeof x);
        kernels->silu_multiply(out, ones, COUNT);
        hash_floats(hash, out, COUNT);
        memcpy(out, x, sizeof x);
        kernels->gelu_multiply(out, ones, COUNT);
        hash_floats(hash, out, COUNT);
    }
}

/* The last 9 of 600 tokens see those before them; what is stored is hashed as well. */
static void case_attention(const struct kernels *kernels, enum kv_type type, uint32_t head_dim,
                           struct hash *hash)
{
    enum { TOKENS = 600, QUERIES = 9, GROUP = 3, PAGE = 16 };
    uint32_t pages[(TOKENS + PAGE - 1) / PAGE];
    struct kv_layout kv = kv_layout_of(type, 1, 1, head_dim, PAGE);
    uint64_t pool_bytes = kv.page_bytes * (sizeof pages / sizeof *pages);
    kv.pool = allocate(pool_bytes);
    memset(kv.pool, 0, pool_bytes);
    float key[256], value[256];
    for (uint32_t t = 0; t < TOKENS; t++) {
        pages[t / PAGE] = t / PAGE;
        fill_floats(key, head_dim, PLAIN);
        fill_floats(value, head_dim, t % 2 ? PLAIN : WILD);
        kernels->kv_store(&kv, 0, 0, t, key, value);
    }
    hash_words(hash, kv.pool, pool_bytes / 4);
    uint32_t values = QUERIES * GROUP * head_dim;
    float *q = allocate(values * sizeof *q), *out = allocate(values * sizeof *out);
    fill_floats(q, values, PLAIN);
    for (int variant = 0; variant < 3; variant++) { /* plain, a window, a soft cap */
        struct attention_task task = {
            .kv = &kv,
            .pages = pages,
            .first_position = TOKENS - QUERIES,
            .query_count = QUERIES,
            .gqa_group = GROUP,
            .q = q,
            .q_stride = (size_t)GROUP * head_dim,
            .scale = 0.5f,
            .softcap = variant == 2 ? 2.0f : 0.0f,
            .window = variant == 1 ? 100 : 0,
            .out = out,
            .out_stride = (size_t)GROUP * head_dim,
            .scratch = allocate(kernels->attention_scratch_bytes(head_dim, GROUP)),
        };
        kernels->attention(&task);
        hash_floats(hash, out, values);
        free(task.scratch);
    }
    free(q);
    free(out);
    free(kv.pool);
}

/* math.c, which the sampler and RoPE's tables use too: the same for all sets. */
static void case_math(struct hash *hash)
{
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = random_u32();
        float x, floats[5];
        memcpy(&x, &bits, 4);
        floats[0] = math_exp(x);
        floats[1] = math_log(x);
        floats[2] = math_tanh(x);
        floats[3] = math_f16_to_f32((uint16_t)bits);
        floats[4] = math_bf16_to_f32(math_f32_to_bf16(isnan(x) ? 0 : x));
        hash_floats(hash, floats, 5);
        bits = math_f32_to_f16(isnan(x) ? 0 : x);
        hash_words(hash, &bits, 1);
        double y = (double)random_float() * (i % 3 ? 10 : 1000), positive = fabs(y) + 1e-6;
        double doubles[] = {math_sin(y), math_cos(y), math_exp_double(y * 0.1),
                            math_log_double(positive), math_pow(positive, y * 0.01)};
        hash_doubles(hash, doubles, sizeof doubles / sizeof *doubles);
    }
}

/* ---- All of them, in the order of outputs.h ---- */

#define OUTPUT_COUNT (sizeof OUTPUTS / sizeof OUTPUTS[0])

/* Formats and functions that came later stand behind all others: a case's numbers depend on its place. */
enum {
    MATMULS = 15 * SPICE_COUNT,
    LATER_MATMULS = FORMAT_COUNT * SPICE_COUNT - MATMULS,
    ATTENTIONS = 2 * KV_TYPES,
    FIRST_CASES = MATMULS + SPICE_COUNT + 1 + ATTENTIONS + 1,
    ENCODERS = FIRST_CASES + LATER_MATMULS, /* the first of them */
    CASES = ENCODERS + SPICE_COUNT
};

static struct output output_of(const struct kernels *kernels, int index)
{
    static const char *const SPICES[] = {"plain", "wild", "broken"};
    struct output output = {.name = "math"};
    struct hash hash = {0xCBF29CE484222325u};
    random_state = (uint64_t)index + 1;
    if (index >= (int)ENCODERS) {
        index -= (int)ENCODERS;
        snprintf(output.name, sizeof output.name, "encoder %s", SPICES[index]);
        case_encoder(kernels, (enum spice)index, &hash);
        output.hash = hash.value;
        return output;
    }
    if (index < (int)MATMULS || index >= (int)FIRST_CASES) {
        index = index < (int)MATMULS ? index : index - (int)FIRST_CASES + (int)MATMULS;
        enum tensor_format format = FORMATS[index / SPICE_COUNT];
        enum spice spice = (enum spice)(index % SPICE_COUNT);
        snprintf(output.name, sizeof output.name, "matmul %s %s", format_info(format)->name,
                 SPICES[spice]);
        case_matmul(kernels, format, spice, &hash);
    } else if ((index -= (int)MATMULS) < SPICE_COUNT) {
        snprintf(output.name, sizeof output.name, "rows %s", SPICES[index]);
        case_rows(kernels, (enum spice)index, &hash);
    } else if ((index -= SPICE_COUNT) < 1) {
        snprintf(output.name, sizeof output.name, "activations");
        case_activations(kernels, &hash);
    } else if ((index -= 1) < ATTENTIONS) {
        enum kv_type type = (enum kv_type)(index / 2);
        uint32_t head_dim = index % 2 ? 96 : 64;
        snprintf(output.name, sizeof output.name, "attention %s %u", kv_type_name(type), head_dim);
        case_attention(kernels, type, head_dim, &hash);
    } else {
        case_math(&hash);
    }
    output.hash = hash.value;
    return output;
}

START_TEST(outputs_are_those_of_another_cpu)
{
    ck_assert_uint_eq(OUTPUT_COUNT, CASES);
    for (const struct kernels *const *at = sets_tested(); *at; at++) {
        struct output got = output_of(*at, _i);
        ck_assert_str_eq(got.name, OUTPUTS[_i].name);
        ck_assert_msg(got.hash == OUTPUTS[_i].hash, "%s: %s: %016llx instead of %016llx",
                      (*at)->name, got.name, (unsigned long long)got.hash,
                      (unsigned long long)OUTPUTS[_i].hash);
    }
}
END_TEST

/* That a hash tells: another bit, and another place of it. */
START_TEST(hashes_tell_bits_apart)
{
    struct hash a = {1}, b = {1}, c = {1}, d = {1};
    hash_floats(&a, (const float[]){1, 2, NAN}, 3);
    hash_floats(&b, (const float[]){1, 2, -NAN}, 3);
    hash_floats(&c, (const float[]){1, 2 + 0x1p-22f, NAN}, 3);
    hash_floats(&d, (const float[]){2, 1, NAN}, 3);
    ck_assert(a.value == b.value && a.value != c.value && a.value != d.value);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "print") == 0) {
        for (int i = 0; i < (int)CASES; i++) {
            struct output output = output_of(kernels_available()[0], i); /* scalar */
            printf("    {\"%s\", 0x%016llx},\n", output.name, (unsigned long long)output.hash);
        }
        return EXIT_SUCCESS;
    }
    if (!sets_tested()[0])
        return STATUS_SKIPPED;
    Suite *suite = suite_create("outputs");
    TCase *tcase = tcase_create("outputs");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, outputs_are_those_of_another_cpu, 0, (int)CASES);
    tcase_add_test(tcase, hashes_tell_bits_apart);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
