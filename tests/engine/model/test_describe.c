/* Model files that are right, wrong and unknown: what model_describe says about them. */
#include "base/limits.h"
#include "engine/model/layer_groups.h"
#include "engine/model/model.h"
#include "tests/engine/model/made_up.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status describe(const struct made_up *spec, struct model_config *config,
                            struct error *error)
{
    char path[64];
    struct gguf *gguf;
    made_up_write(spec, path);
    error_clear(error);
    enum status status = gguf_open(path, &gguf, error);
    ck_assert_msg(status == STATUS_OK, "%s", error->message);
    status = model_describe(gguf, config, error);
    gguf_close(gguf);
    unlink(path);
    return status;
}

/* The file is refused, and the message names what is wrong. */
static void refused(const struct made_up *spec, enum status wanted, const char *named)
{
    struct model_config config;
    struct error error;
    enum status status = describe(spec, &config, &error);
    ck_assert_msg(status == wanted, "%s: status %d, %s", named, status, error.message);
    ck_assert_msg(strstr(error.message, named) != NULL, "'%s' does not name %s", error.message,
                  named);
}

START_TEST(test_right)
{
    struct made_up spec = made_up_default(FORMAT_Q8_0);
    struct model_config config;
    struct error error;
    ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    ck_assert_str_eq(config.architecture, "llama");
    ck_assert_str_eq(config.name, "llama");
    ck_assert_uint_eq(config.layers, 3);
    ck_assert_uint_eq(config.embedding, 64);
    ck_assert_uint_eq(config.heads, 4);
    ck_assert_uint_eq(config.kv_heads, 2);
    ck_assert_uint_eq(config.head_dim, 16);
    ck_assert_uint_eq(config.rotary, 16);
    ck_assert_uint_eq(config.vocabulary, 203);
    ck_assert_uint_eq(config.context, 1024);
    ck_assert(config.tied_output);
    uint64_t layer = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 96 * 3 + 2 * 64;
    ck_assert_uint_eq(config.parameter_count, 203 * 64 + 3 * layer + 64);
    spec.separate_output = true;
    ck_assert(describe(&spec, &config, &error) == STATUS_OK);
    ck_assert(!config.tied_output);
    ck_assert_uint_eq(config.parameter_count, 2 * 203 * 64 + 3 * layer + 64);
}
END_TEST

START_TEST(test_families)
{
    static const char *const families[] = {"llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"};
    for (size_t i = 0; i < 6; i++) {
        struct made_up spec = made_up_default(FORMAT_Q8_0);
        struct model_config config;
        struct error error;
        spec.family = families[i];
        spec.head_dim = 32; /* not width / heads: the explicit size counts */
        spec.window = strncmp(spec.family, "gemma", 5) == 0 ? 24 : 0;
        ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s: %s", families[i],
                      error.message);
        ck_assert_uint_eq(config.head_dim, 32);
    }
}
END_TEST

/* Every layer has a place of its own; layers with a window and those without are never in one
   group, unless the model is one group and kept whole. */
static void check_groups(const struct model_details *details)
{
    static bool taken[KV_GROUPS_MAX][LIMIT_LAYERS];
    static struct kv_place places[LIMIT_LAYERS];
    const struct model_config *config = &details->config;
    struct model_groups model = layer_groups_of(config);
    const struct kv_groups *groups = &model.groups;
    memset(taken, 0, sizeof taken);
    ck_assert_uint_le(groups->count, KV_GROUPS_MAX);
    ck_assert_uint_eq(groups->window[0], 0);
    layer_groups_places(details, places);
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        struct kv_place place = places[layer];
        ck_assert_uint_lt(place.group, groups->count);
        ck_assert_uint_lt(place.layer, model.layers);
        ck_assert(!taken[place.group][place.layer]);
        taken[place.group][place.layer] = true;
        bool local = model_layer_is_local(details, layer);
        if (groups->count > 1)
            ck_assert_uint_eq(groups->window[place.group], local ? config->window : 0);
    }
    /* At most an eighth of the places of layers with a window is not used, none of the others. */
    uint32_t unused = groups->count * model.layers - config->layers;
    ck_assert_uint_le(unused * 8, config->window_layers);
    for (uint32_t g = 0; g < groups->count; g++)
        for (uint32_t l = 0; groups->window[g] == 0 && l < model.layers; l++)
            ck_assert(taken[g][l]);
}

START_TEST(test_groups)
{
    static const struct {
        const char *family;
        uint32_t layers, groups, places;
    } wanted[] = {
        {"gemma3", 18, 6, 3},  /* 270M */
        {"gemma3", 26, 7, 4},  /* 1B: 4 see all, 22 do not; two places unused */
        {"gemma3", 34, 7, 5},  /* 4B: 5 and 29; one unused */
        {"gemma3", 48, 6, 8},  /* 12B */
        {"gemma3", 62, 13, 5}, /* 27B: 10 and 52; three unused */
        {"gemma2", 26, 2, 13}, /* 2B */
        {"gemma2", 42, 2, 21}, /* 9B */
        {"gemma2", 46, 2, 23}, /* 27B */
        {"gemma3", 7, 7, 1},   {"gemma2", 7, 7, 1},
        {"gemma3", 43, 1, 43}, /* 7 and 36: groups of one would be too many */
        {"gemma3", 5, 1, 5},   /* none sees all */
        {"gemma2", 1, 1, 1},   {"llama", 32, 1, 32},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char path[64];
        struct gguf *gguf;
        struct error error;
        struct model_details details;
        struct made_up spec = made_up_default(FORMAT_Q8_0);
        spec.family = wanted[i].family;
        spec.layers = wanted[i].layers;
        spec.window = strcmp(spec.family, "llama") ? 40 : 0;
        made_up_write(&spec, path);
        ck_assert(gguf_open(path, &gguf, &error) == STATUS_OK);
        ck_assert(model_details_read(gguf, &details, &error) == STATUS_OK);
        struct model_groups model = layer_groups_of(&details.config);
        ck_assert_msg(model.groups.count == wanted[i].groups && model.layers == wanted[i].places,
                      "%s with %u layers: %u groups of %u", spec.family, spec.layers,
                      model.groups.count, model.layers);
        check_groups(&details);
        gguf_close(gguf);
        unlink(path);
    }
}
END_TEST

/* CASES B76: numbers that a file may lie about; the error names the key. */
START_TEST(test_numbers)
{
    static const struct {
        const char *key;
        uint32_t value;
    } wrong[] = {
        {"llama.block_count", 0},
        {"llama.block_count", 1000000000},
        {"llama.attention.head_count", 0},
        {"llama.attention.head_count", 5}, /* does not divide 64 */
        {"llama.attention.head_count_kv", 0},
        {"llama.attention.head_count_kv", 8}, /* more than heads */
        {"llama.attention.head_count_kv", 3}, /* does not divide 4 */
        {"llama.embedding_length", 0},
        {"llama.embedding_length", 4000000000u},
        {"llama.feed_forward_length", 0},
        {"llama.feed_forward_length", 4294967295u},
        {"llama.context_length", 0},
        {"llama.rope.dimension_count", 0},
        {"llama.rope.dimension_count", 15},
        {"llama.rope.dimension_count", 32}, /* more than the head has */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct made_up spec = made_up_default(FORMAT_F32);
        spec.key = wrong[i].key;
        spec.value = wrong[i].value;
        refused(&spec, STATUS_INVALID, wrong[i].key);
    }
}
END_TEST

/* CASES B79: which keys must be there. */
START_TEST(test_missing_keys)
{
    static const char *const needed[] = {"llama.block_count", "llama.embedding_length",
                                         "llama.feed_forward_length", "llama.context_length",
                                         "llama.attention.head_count"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        struct made_up spec = made_up_default(FORMAT_F32);
        spec.key = needed[i];
        spec.drop_key = true;
        refused(&spec, STATUS_NOT_FOUND, needed[i]);
    }
    struct made_up spec = made_up_default(FORMAT_F32);
    struct model_config config;
    struct error error;
    spec.key = "llama.attention.head_count_kv"; /* optional: as many as heads */
    spec.drop_key = true;
    spec.kv_heads = 4;
    ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    ck_assert_uint_eq(config.kv_heads, 4);
    spec = made_up_default(FORMAT_F32);
    spec.family = "gemma3"; /* has no window without the key, and must have one */
    refused(&spec, STATUS_NOT_FOUND, "gemma3.attention.sliding_window");
}
END_TEST

START_TEST(test_unknown)
{
    struct made_up spec = made_up_default(FORMAT_F32);
    spec.text_key = "general.architecture";
    spec.text = "mamba9";
    refused(&spec, STATUS_UNSUPPORTED, "mamba9");
    static const char *const kinds[][2] = {{"adapter", "an adapter"},
                                           {"imatrix", "an importance matrix"},
                                           {"mmproj", "a projector"},
                                           {"vocab", "'vocab'"}};
    spec.text_key = "general.type";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        spec.text = kinds[i][0];
        refused(&spec, STATUS_UNSUPPORTED, kinds[i][1]);
    }
    spec.text_key = "adapter.type"; /* before there was general.type */
    spec.text = "lora";
    refused(&spec, STATUS_UNSUPPORTED, "an adapter");
    spec.text_key = "llama.rope.scaling.type";
    spec.text = "spiral";
    refused(&spec, STATUS_UNSUPPORTED, "spiral");
    spec.text = "longrope"; /* known, but its factors are not there */
    refused(&spec, STATUS_INVALID, "rope_factors_short.weight");
    spec = made_up_default(FORMAT_F32);
    spec.key = "llama.expert_count";
    spec.value = 8;
    refused(&spec, STATUS_UNSUPPORTED, "llama.expert_count");
    spec = made_up_default(FORMAT_F32);
    spec.head_dim = 12; /* the kernels want multiples of 8 */
    refused(&spec, STATUS_UNSUPPORTED, "12 key");
    spec = made_up_default(FORMAT_F32);
    spec.key = "llama.attention.layer_norm_rms_epsilon"; /* an integer there is a wrong type */
    spec.value = 1;
    refused(&spec, STATUS_INVALID, "llama.attention.layer_norm_rms_epsilon");
}
END_TEST

START_TEST(test_tensors)
{
    static const char *const names[] = {"token_embd.weight",        "blk.0.attn_norm.weight",
                                        "blk.1.attn_q.weight",      "blk.2.attn_k.weight",
                                        "blk.0.attn_output.weight", "blk.2.ffn_gate.weight",
                                        "blk.1.ffn_down.weight",    "output_norm.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct made_up spec = made_up_default(FORMAT_Q4_1);
        spec.tensor = names[i];
        if (i > 0) /* one embedding row more is one more word */
            refused(&spec, STATUS_INVALID, names[i]);
        spec.drop_tensor = true;
        refused(&spec, STATUS_INVALID, names[i]);
    }
    struct made_up spec = made_up_default(FORMAT_Q4_1);
    spec.separate_output = true;
    spec.tensor = "output.weight";
    refused(&spec, STATUS_INVALID, "output.weight");
}
END_TEST

/* CASES B77: extra tensors are ignored, unless leaving them out would change answers. */
START_TEST(test_extra_tensors)
{
    struct made_up spec = made_up_default(FORMAT_F16);
    struct model_config config;
    struct error error;
    spec.extra_tensor = "blk.0.attn_rot_embd.weight";
    ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    spec.extra_tensor = "rope_freqs.weight"; /* eight pairs of 16 dimensions: applied */
    ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    spec.head_dim = 24;
    refused(&spec, STATUS_INVALID, "rope_freqs.weight"); /* eight factors for twelve pairs */
    spec = made_up_default(FORMAT_F16);
    spec.extra_tensor = "blk.1.ffn_up.bias";
    refused(&spec, STATUS_UNSUPPORTED, "blk.1.ffn_up.bias");
}
END_TEST

/* A window is taken where the family says which layers have it, and refused where nothing does:
   leaving it out would change answers beyond it. */
START_TEST(test_windows)
{
    static const char *const without[] = {"llama", "qwen2", "qwen3"};
    struct model_config config;
    struct error error;
    for (size_t i = 0; i < 3; i++) {
        struct made_up spec = made_up_default(FORMAT_F32);
        spec.family = without[i];
        spec.window = 1023; /* of 1024 */
        refused(&spec, STATUS_UNSUPPORTED, "attention.sliding_window");
        spec.window = 1024;
        ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    }
    static const uint32_t fine[] = {0, 1, 24, 262144}; /* phi3: Phi-4's files say 0 */
    for (size_t i = 0; i < 4; i++) {
        struct made_up spec = made_up_default(FORMAT_F32);
        spec.family = "phi3";
        spec.key = "phi3.attention.sliding_window";
        spec.value = fine[i];
        spec.window = 1;
        ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    }
    struct made_up spec = made_up_default(FORMAT_F32);
    spec.family = "gemma3";
    spec.window = 24;
    spec.key = "gemma3.attention.sliding_window_pattern";
    spec.value = 3;
    ck_assert_msg(describe(&spec, &config, &error) == STATUS_OK, "%s", error.message);
    spec.value = 0;
    refused(&spec, STATUS_INVALID, "gemma3.attention.sliding_window_pattern");
    spec.key = NULL;
    spec.text_key = "gemma3.attention.sliding_window_pattern"; /* of the wrong type */
    spec.text = "LLG";
    refused(&spec, STATUS_INVALID, "gemma3.attention.sliding_window_pattern");
    spec.text_key = "gemma3.attention.causal";
    refused(&spec, STATUS_INVALID, "gemma3.attention.causal");
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("describe");
    tcase_add_test(tcase, test_windows);
    tcase_add_test(tcase, test_right);
    tcase_add_test(tcase, test_families);
    tcase_add_test(tcase, test_groups);
    tcase_add_test(tcase, test_numbers);
    tcase_add_test(tcase, test_missing_keys);
    tcase_add_test(tcase, test_unknown);
    tcase_add_test(tcase, test_tensors);
    tcase_add_test(tcase, test_extra_tensors);
    Suite *suite = suite_create("describe");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
