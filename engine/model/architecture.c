/*
 * The families' table, metadata reading, RoPE frequencies.
 *
 * Refuses: families not in the table, mixtures of experts, RoPE scalings we do not know, head sizes
 * that the kernels do not take, numbers that contradict each other.
 *
 * RoPE: Su et al. 2021. Scalings: linear (Chen et al. 2023, "position interpolation"), YaRN (Peng
 * et al. 2023), Llama 3's and longrope's factors per pair, which the file carries as tensors.
 */
#include "engine/model/architecture.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/minmax.h"
#include "engine/kernels/math.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct architecture architectures[] = {
    {.name = "llama"},
    {.name = "qwen2", .neox = true, .features = FEATURE_QKV_BIAS},
    {.name = "qwen3", .neox = true, .features = FEATURE_QK_NORM},
    {.name = "gemma2",
     .neox = true,
     .features = FEATURE_POST_NORMS,
     .gelu = true,
     .scaled_embedding = true,
     .score_cap = true,
     .final_cap = true,
     .window_period = 2,
     .odd_layers = 46},
    {.name = "gemma3",
     .neox = true,
     .features = FEATURE_QK_NORM | FEATURE_POST_NORMS,
     .gelu = true,
     .scaled_embedding = true,
     .window_period = 6,
     .local_rope_base = 10000.0f,
     .odd_layers = 62},
    {.name = "phi3",
     .neox = true,
     .features = FEATURE_FUSED_QKV | FEATURE_FUSED_GATE_UP,
     .window_period = WINDOW_EVERYWHERE},
    {.name = "bert",
     .features = FEATURE_POST_LAYER_NORM | FEATURE_NO_GATE | FEATURE_QKV_BIAS,
     .encoder = true,
     .learned_positions = true},
    {.name = "nomic-bert",
     .neox = true,
     .features = FEATURE_POST_LAYER_NORM | FEATURE_FUSED_QKV,
     .encoder = true},
};
#define ARCHITECTURE_COUNT (sizeof architectures / sizeof architectures[0])

static const struct architecture *architecture_find(struct gguf_string name)
{
    for (size_t i = 0; i < ARCHITECTURE_COUNT; i++) {
        const char *known = architectures[i].name;
        if (strlen(known) == name.length && memcmp(known, name.text, name.length) == 0)
            return &architectures[i];
    }
    return NULL;
}

static enum status refuse_architecture(struct gguf_string name, struct error *error)
{
    char known[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < ARCHITECTURE_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 architectures[i].name);
    CHECK(used < sizeof known);
    return error_set(error, STATUS_UNSUPPORTED, "general.architecture",
                     "unknown model architecture '%.*s' (known: %s)", (int)min_u64(name.length, 40),
                     name.text, known);
}

/* ---- Keys of the family, "llama.block_count" ---- */

struct key_reader {
    const struct gguf *gguf;
    const char *architecture;
    struct error *error;
    char key[96];
};

static const char *full_key(struct key_reader *reader, const char *key)
{
    snprintf(reader->key, sizeof reader->key, "%s.%s", reader->architecture, key);
    return reader->key;
}

static enum status read_u32(struct key_reader *reader, const char *key, uint32_t least,
                            uint32_t most, uint32_t *out)
{
    const char *name = full_key(reader, key);
    uint32_t value;
    TRY(gguf_get_u32(reader->gguf, name, &value, reader->error));
    if (value < least || value > most)
        return error_set(reader->error, STATUS_INVALID, name, "%s is %u: must be %u … %u", name,
                         value, least, most);
    *out = value;
    return STATUS_OK;
}

/* As read_u32, but an absent key leaves *out as it is. */
static enum status read_u32_optional(struct key_reader *reader, const char *key, uint32_t least,
                                     uint32_t most, uint32_t *out)
{
    if (!gguf_has(reader->gguf, full_key(reader, key)))
        return STATUS_OK;
    return read_u32(reader, key, least, most, out);
}

static enum status read_f32(struct key_reader *reader, const char *key, float least, float most,
                            float *out)
{
    const char *name = full_key(reader, key);
    float value;
    TRY(gguf_get_f32(reader->gguf, name, &value, reader->error));
    if (!(value >= least && value <= most)) /* NaN fails too */
        return error_set(reader->error, STATUS_INVALID, name, "%s is %g: must be %g … %g", name,
                         (double)value, (double)least, (double)most);
    *out = value;
    return STATUS_OK;
}

static enum status read_f32_optional(struct key_reader *reader, const char *key, float least,
                                     float most, float *out)
{
    if (!gguf_has(reader->gguf, full_key(reader, key)))
        return STATUS_OK;
    return read_f32(reader, key, least, most, out);
}

/* ---- Sizes ---- */

static enum status read_sizes(struct key_reader *reader, const struct architecture *architecture,
                              struct model_config *config)
{
    const char *eps = architecture->features & FEATURE_POST_LAYER_NORM
                          ? "attention.layer_norm_epsilon"
                          : "attention.layer_norm_rms_epsilon";
    TRY(read_u32(reader, "block_count", 1, LIMIT_LAYERS, &config->layers));
    TRY(read_u32(reader, "embedding_length", 8, 1u << 16, &config->embedding));
    TRY(read_u32(reader, "feed_forward_length", 8, 1u << 20, &config->feed_forward));
    TRY(read_u32(reader, "attention.head_count", 1, 4096, &config->heads));
    TRY(read_u32(reader, "context_length", 1, 1u << 26, &config->context));
    TRY(read_f32(reader, eps, 0.0f, 1.0f, &config->norm_eps));
    config->kv_heads = config->heads;
    config->rope_base = 10000.0f;
    uint32_t experts = 0;
    TRY(read_u32_optional(reader, "attention.head_count_kv", 1, config->heads, &config->kv_heads));
    TRY(read_f32_optional(reader, "rope.freq_base", 1.0f, 1e12f, &config->rope_base));
    TRY(read_u32_optional(reader, "expert_count", 0, UINT32_MAX, &experts));
    if (config->heads % config->kv_heads != 0)
        return error_set(reader->error, STATUS_INVALID, full_key(reader, "attention.head_count_kv"),
                         "%s is %u: must divide the %u heads", reader->key, config->kv_heads,
                         config->heads);
    if (experts > 0)
        return error_set(reader->error, STATUS_UNSUPPORTED, full_key(reader, "expert_count"),
                         "%s is %u: mixtures of experts are not supported", reader->key, experts);
    return STATUS_OK;
}

static enum status read_head_size(struct key_reader *reader, struct model_config *config)
{
    enum status status;
    if (gguf_has(reader->gguf, full_key(reader, "attention.key_length"))) {
        status = read_u32(reader, "attention.key_length", 1, 1u << 16, &config->head_dim);
    } else if (config->embedding % config->heads != 0) {
        return error_set(reader->error, STATUS_INVALID, full_key(reader, "attention.head_count"),
                         "%s is %u: must divide the embedding length %u", reader->key,
                         config->heads, config->embedding);
    } else {
        config->head_dim = config->embedding / config->heads;
        status = STATUS_OK;
    }
    if (status != STATUS_OK)
        return status;
    uint32_t value_dim = config->head_dim;
    TRY(read_u32_optional(reader, "attention.value_length", 1, 1u << 16, &value_dim));
    if (config->head_dim % 8 != 0 || config->head_dim > MODEL_HEAD_DIM_MAX ||
        value_dim != config->head_dim)
        return error_set(reader->error, STATUS_UNSUPPORTED, full_key(reader, "attention"),
                         "heads of %u key and %u value dimensions are not supported (equal, a "
                         "multiple of 8, at most %u)",
                         config->head_dim, value_dim, MODEL_HEAD_DIM_MAX);
    config->rotary = config->head_dim;
    status =
        read_u32_optional(reader, "rope.dimension_count", 2, config->head_dim, &config->rotary);
    if (status == STATUS_OK && config->rotary % 2 != 0)
        return error_set(reader->error, STATUS_INVALID, full_key(reader, "rope.dimension_count"),
                         "%s is %u: must be even", reader->key, config->rotary);
    return status;
}

/* ---- What only some families have ---- */

/* Without the key: Phi-3's files only have the factors, and old files only the factor of linear
   scaling. */
static enum status read_scaling_type(struct key_reader *reader, struct model_details *details)
{
    static const char *const known[] = {[ROPE_NONE] = "none",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_LONG] = "longrope"};
    const char *name = full_key(reader, "rope.scaling.type");
    if (!gguf_has(reader->gguf, name)) {
        bool has_factors = gguf_find_tensor(reader->gguf, "rope_factors_short.weight") != NULL ||
                           gguf_find_tensor(reader->gguf, "rope_factors_long.weight") != NULL;
        details->rope_scaling = has_factors                    ? ROPE_LONG
                                : details->rope_factor != 1.0f ? ROPE_LINEAR
                                                               : ROPE_NONE;
        return STATUS_OK;
    }
    struct gguf_string text;
    TRY(gguf_get_string(reader->gguf, name, &text, reader->error));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i]) != text.length || memcmp(known[i], text.text, text.length) != 0)
            continue;
        details->rope_scaling = (enum rope_scaling)i;
        return STATUS_OK;
    }
    return error_set(reader->error, STATUS_UNSUPPORTED, name,
                     "unknown RoPE scaling '%.*s' in %s (known: none, linear, yarn, longrope)",
                     (int)min_u64(text.length, 40), text.text, name);
}

static enum status read_yarn(struct key_reader *reader, struct model_details *details)
{
    float extrapolation = 1.0f;
    details->yarn_beta_fast = 32.0f;
    details->yarn_beta_slow = 1.0f;
    TRY(read_f32_optional(reader, "rope.scaling.yarn_beta_fast", 1e-3f, 1e6f,
                          &details->yarn_beta_fast));
    TRY(read_f32_optional(reader, "rope.scaling.yarn_beta_slow", 1e-3f, 1e6f,
                          &details->yarn_beta_slow));
    TRY(read_f32_optional(reader, "rope.scaling.yarn_attn_factor", 1e-6f, 1e6f,
                          &details->yarn_attn_factor));
    TRY(read_f32_optional(reader, "rope.scaling.yarn_ext_factor", -1e6f, 1e6f, &extrapolation));
    const char *name = full_key(reader, "rope.scaling.yarn_ext_factor");
    if (extrapolation != 1.0f)
        return error_set(reader->error, STATUS_UNSUPPORTED, name, "%s is %g: only 1 is supported",
                         name, (double)extrapolation);
    return STATUS_OK;
}

static enum status read_rope_scaling(struct key_reader *reader, struct model_details *details)
{
    details->rope_factor = 1.0f;
    details->rope_attn_factor = 1.0f;
    details->rope_original = details->config.context;
    enum status status;
    if ((status =
             read_f32_optional(reader, "rope.scale_linear", 1e-6f, 1e6f, &details->rope_factor)) ||
        (status = read_f32_optional(reader, "rope.scaling.factor", 1e-6f, 1e6f,
                                    &details->rope_factor)) ||
        (status = read_scaling_type(reader, details)) ||
        (status = read_f32_optional(reader, "rope.scaling.attn_factor", 1e-6f, 1e6f,
                                    &details->rope_attn_factor)) ||
        (status = read_u32_optional(reader, "rope.scaling.original_context_length", 1, 1u << 26,
                                    &details->rope_original)))
        return status;
    return details->rope_scaling == ROPE_YARN ? read_yarn(reader, details) : STATUS_OK;
}

/* Which layers have the window: the family's period, unless the file has a period of its own, or
   says it of every layer. */
static enum status read_window_layers(struct key_reader *reader, struct model_details *details)
{
    uint32_t layers = details->config.layers, period = details->architecture->window_period;
    const char *name = full_key(reader, "attention.sliding_window_pattern");
    int32_t of_layers[LIMIT_LAYERS];
    enum gguf_type type;
    uint64_t count;
    enum status status;
    if (!gguf_has(reader->gguf, name)) {
        for (uint32_t layer = 0; layer < layers; layer++)
            details->local[layer] = period == WINDOW_EVERYWHERE || (layer + 1) % period != 0;
        return STATUS_OK;
    }
    if (gguf_array_count(reader->gguf, name, &type, &count, NULL) != STATUS_OK) {
        status = read_u32(reader, "attention.sliding_window_pattern", 1, LIMIT_LAYERS, &period);
        for (uint32_t layer = 0; layer < layers && status == STATUS_OK; layer++)
            details->local[layer] = (layer + 1) % period != 0;
        return status;
    }
    if (count < layers)
        return error_set(reader->error, STATUS_INVALID, name, "%s has %llu elements for %u layers",
                         name, (unsigned long long)count, layers);
    status = gguf_array_get_i32(reader->gguf, name, of_layers, layers, reader->error);
    for (uint32_t layer = 0; layer < layers && status == STATUS_OK; layer++)
        details->local[layer] = of_layers[layer] != 0;
    return status;
}

static enum status read_window(struct key_reader *reader, struct model_details *details)
{
    const struct architecture *architecture = details->architecture;
    struct model_config *config = &details->config;
    const char *name = full_key(reader, "attention.sliding_window");
    uint32_t period = architecture->window_period, window = 0;
    bool needed = period != 0 && period != WINDOW_EVERYWHERE;
    enum status status =
        needed ? read_u32(reader, "attention.sliding_window", 1, 1u << 26, &window)
               : read_u32_optional(reader, "attention.sliding_window", 0, UINT32_MAX, &window);
    if (status != STATUS_OK || (!needed && (window == 0 || window >= config->context)))
        return status; /* a window that reaches over everything changes nothing */
    if (period == 0)
        return error_set(reader->error, STATUS_UNSUPPORTED, name,
                         "%s is %u: which layers of the family %s have it is not known", name,
                         window, architecture->name);
    details->local_rope_base = architecture->local_rope_base;
    TRY(read_f32_optional(reader, "rope.freq_base_swa", 1.0f, 1e12f, &details->local_rope_base));
    TRY(read_window_layers(reader, details));
    for (uint32_t layer = 0; layer < config->layers; layer++)
        config->window_layers += details->local[layer];
    config->window = config->window_layers > 0 ? window : 0;
    return STATUS_OK;
}

/* A key that must be there, or may be. */
static enum status read_cap(struct key_reader *reader, const char *key, bool needed, float *out)
{
    return needed ? read_f32(reader, key, 1e-3f, 1e6f, out)
                  : read_f32_optional(reader, key, 1e-3f, 1e6f, out);
}

static enum status read_family(struct key_reader *reader, struct model_details *details)
{
    const struct architecture *architecture = details->architecture;
    struct model_config *config = &details->config;
    const char *name = full_key(reader, "attention.causal");
    bool is_causal = true;
    enum status status = STATUS_OK;
    if (gguf_has(reader->gguf, name))
        status = gguf_get_bool(reader->gguf, name, &is_causal, reader->error);
    if (status == STATUS_OK && is_causal == architecture->encoder && architecture->encoder &&
        gguf_has(reader->gguf, name))
        status = error_set(reader->error, STATUS_UNSUPPORTED, name,
                           "%s is true: a causal %s is not supported", name, architecture->name);
    if (status == STATUS_OK && !is_causal && !architecture->encoder)
        status = error_set(reader->error, STATUS_UNSUPPORTED, name,
                           "%s is false: models that see what follows are not supported", name);
    if (status != STATUS_OK || (status = read_window(reader, details)) ||
        (status = read_cap(reader, "attn_logit_softcapping", architecture->score_cap,
                           &details->score_cap)) ||
        (status = read_cap(reader, "final_logit_softcapping", architecture->final_cap,
                           &details->final_cap)))
        return status;
    details->embedding_scale =
        architecture->scaled_embedding ? sqrtf((float)config->embedding) : 1.0f;
    uint32_t scaled_dim =
        architecture->odd_layers != 0 && config->layers == architecture->odd_layers
            ? config->embedding / config->heads
            : config->head_dim;
    details->attention_scale = 1.0f / sqrtf((float)scaled_dim);
    return STATUS_OK;
}

/* Rows of a tensor that need not be there, 1 … most; 0: it is not. */
static enum status read_rows(const struct key_reader *reader, const char *name, uint32_t most,
                             uint32_t *out)
{
    const struct gguf_tensor *tensor = gguf_find_tensor(reader->gguf, name);
    *out = 0;
    if (!tensor)
        return STATUS_OK;
    if (tensor->dims[1] < 1 || tensor->dims[1] > most)
        return error_set(reader->error, STATUS_INVALID, name,
                         "tensor '%s' has %llu rows: must be 1 … %u", name,
                         (unsigned long long)tensor->dims[1], most);
    *out = (uint32_t)tensor->dims[1];
    return STATUS_OK;
}

/* How hidden states become an embedding, and what encoders have beside their layers. */
static enum status read_encoder(struct key_reader *reader, struct model_config *config)
{
    uint32_t pooling = POOLING_NONE;
    TRY(read_u32_optional(reader, "pooling_type", 0, POOLING_RANK, &pooling));
    config->pooling = (enum pooling)pooling;
    if (!config->bidirectional)
        return STATUS_OK;
    TRY(read_rows(reader, "token_types.weight", LIMIT_TOKEN_TYPES, &config->token_types));
    TRY(read_rows(reader, "cls.output.weight", LIMIT_LABELS, &config->labels));
    const char *name = full_key(reader, "pooling_type");
    if (config->pooling == POOLING_RANK && config->labels == 0)
        return error_set(reader->error, STATUS_INVALID, name,
                         "%s says that a classification head follows, and tensor "
                         "'cls.output.weight' is missing",
                         name);
    if (config->labels > 0)
        config->pooling = POOLING_RANK;
    return STATUS_OK;
}

static void read_name(const struct gguf *gguf, struct model_config *config)
{
    struct gguf_string name;
    const char *text = config->architecture;
    size_t length = strlen(text);
    if (gguf_has(gguf, "general.name") &&
        gguf_get_string(gguf, "general.name", &name, NULL) == STATUS_OK && name.length > 0) {
        text = name.text;
        length = name.length;
    }
    if (length >= sizeof config->name)
        length = sizeof config->name - 1;
    memcpy(config->name, text, length);
    config->name[length] = '\0';
}

/* Files that go with a model are GGUF files too; older ones have a key of their kind instead of
   general.type. */
static enum status check_kind(const struct gguf *gguf, struct error *error)
{
    static const struct {
        const char *type, *key, *what;
    } kinds[] = {
        {"adapter", "adapter.type", "an adapter (LoRA) for a model; adapters are not supported"},
        {"imatrix", "imatrix.datasets", "an importance matrix, which quantizing a model needs"},
        {"mmproj", "clip.projector_type", "a projector of images or sound (mmproj)"},
    };
    struct gguf_string type = {"model", 5};
    if (gguf_has(gguf, "general.type"))
        TRY(gguf_get_string(gguf, "general.type", &type, error));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((strlen(kinds[i].type) == type.length &&
             memcmp(kinds[i].type, type.text, type.length) == 0) ||
            gguf_has(gguf, kinds[i].key))
            return error_set(error, STATUS_UNSUPPORTED, "general.type",
                             "this file is not a model, but %s", kinds[i].what);
    if (type.length != 5 || memcmp(type.text, "model", 5) != 0)
        return error_set(error, STATUS_UNSUPPORTED, "general.type",
                         "this file is not a model: key 'general.type' is '%.*s'",
                         (int)min_u64(type.length, 40), type.text);
    return STATUS_OK;
}

enum status model_details_read(const struct gguf *gguf, struct model_details *out,
                               struct error *error)
{
    struct model_details details = {0};
    struct gguf_string name;
    TRY(check_kind(gguf, error));
    TRY(gguf_get_string(gguf, "general.architecture", &name, error));
    details.architecture = architecture_find(name);
    if (!details.architecture)
        return refuse_architecture(name, error);
    if (gguf_tensor_count(gguf) == 0)
        return error_set(error, STATUS_UNSUPPORTED, "general.type",
                         gguf_has(gguf, "tokenizer.ggml.tokens")
                             ? "this file is not a model, but a vocabulary: it has no tensors"
                             : "this file is not a model: it has no tensors");
    snprintf(details.config.architecture, sizeof details.config.architecture, "%s",
             details.architecture->name);
    details.config.bidirectional = details.architecture->encoder;
    read_name(gguf, &details.config);
    struct key_reader reader = {gguf, details.architecture->name, error, ""};
    TRY(read_sizes(&reader, details.architecture, &details.config));
    TRY(read_head_size(&reader, &details.config));
    if (details.architecture->learned_positions)
        details.config.rotary = 0;
    TRY(read_encoder(&reader, &details.config));
    TRY(read_rope_scaling(&reader, &details));
    TRY(read_family(&reader, &details));
    *out = details;
    return STATUS_OK;
}

bool model_layer_is_local(const struct model_details *details, uint32_t layer)
{
    return details->local[layer];
}

/* ---- RoPE ---- */

/* Divide by the factor per pair that a tensor holds. */
static enum status divide_by_tensor(const struct gguf *gguf, const char *name, uint32_t half,
                                    double *frequencies, struct error *error)
{
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
    float factors[MODEL_HEAD_DIM_MAX / 2];
    if (!tensor)
        return error_set(error, STATUS_INVALID, name, "tensor '%s' is missing", name);
    if (tensor->format != FORMAT_F32 || tensor->dim_count != 1 || tensor->dims[0] != half)
        return error_set(error, STATUS_INVALID, name, "tensor '%s' must be %u F32 values", name,
                         half);
    TRY(gguf_read(gguf, tensor, 0, factors, half * sizeof factors[0], error));
    for (uint32_t i = 0; i < half; i++) {
        if (!(factors[i] > 0.0f && factors[i] < 1e9f))
            return error_set(error, STATUS_INVALID, name, "tensor '%s' holds %g: must be above 0",
                             name, (double)factors[i]);
        frequencies[i] /= (double)factors[i];
    }
    return STATUS_OK;
}

/* The pair that makes `turns` turns over the original context (YaRN, equation 16's inverse). */
static double yarn_pair(const struct model_details *details, double base, double turns)
{
    const double two_pi = 6.283185307179586;
    return details->config.rotary * math_log_double(details->rope_original / (turns * two_pi)) /
           (2.0 * math_log_double(base));
}

static void scale_yarn(const struct model_details *details, double base, double *frequencies)
{
    uint32_t half = details->config.rotary / 2;
    double low = floor(yarn_pair(details, base, (double)details->yarn_beta_fast));
    double high = ceil(yarn_pair(details, base, (double)details->yarn_beta_slow));
    if (low < 0.0)
        low = 0.0;
    if (high > details->config.rotary - 1.0)
        high = details->config.rotary - 1.0;
    double width = fmax(high - low, 0.001);
    for (uint32_t i = 0; i < half; i++) {
        double ramp = (i - low) / width;
        ramp = fmin(fmax(ramp, 0.0), 1.0);
        frequencies[i] =
            frequencies[i] * (1.0 - ramp) + frequencies[i] / (double)details->rope_factor * ramp;
    }
}

/* Attention gets sharper with the stretch (YaRN, section 3.4). */
static float yarn_magnitude(const struct model_details *details)
{
    double own = (double)details->yarn_attn_factor;
    if (own == 0.0)
        own = details->rope_factor > 1.0f
                  ? 1.0 + 0.1 * math_log_double((double)details->rope_factor)
                  : 1.0;
    return (float)((double)details->rope_attn_factor * own);
}

enum status model_rope_frequencies(const struct gguf *gguf, const struct model_details *details,
                                   bool local, uint32_t context, double *frequencies,
                                   float *magnitude, struct error *error)
{
    uint32_t rotary = details->config.rotary;
    bool own_base = local && details->local_rope_base > 0.0f;
    double base = own_base ? (double)details->local_rope_base : (double)details->config.rope_base;
    for (uint32_t i = 0; i < rotary / 2; i++)
        frequencies[i] = math_pow(base, -2.0 * i / rotary);
    *magnitude = 1.0f;
    if (own_base)
        return STATUS_OK;
    *magnitude = details->rope_attn_factor;
    enum status status = STATUS_OK;
    switch (details->rope_scaling) {
    case ROPE_NONE:
        break;
    case ROPE_LINEAR:
        for (uint32_t i = 0; i < rotary / 2; i++)
            frequencies[i] /= (double)details->rope_factor;
        break;
    case ROPE_YARN:
        scale_yarn(details, base, frequencies);
        *magnitude = yarn_magnitude(details);
        break;
    case ROPE_LONG:
        status = divide_by_tensor(gguf,
                                  context > details->rope_original ? "rope_factors_long.weight"
                                                                   : "rope_factors_short.weight",
                                  rotary / 2, frequencies, error);
        break;
    }
    if (status == STATUS_OK && gguf_find_tensor(gguf, "rope_freqs.weight") != NULL)
        status = divide_by_tensor(gguf, "rope_freqs.weight", rotary / 2, frequencies, error);
    return status;
}
