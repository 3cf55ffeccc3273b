/*
 * How long users would wait: products and attention of a token, each timed on this machine with
 * the kernels that would serve. What is left out (norms, activations, sampling, HTTP) is a few per
 * cent with large models and more with small ones.
 */
#include "sizing/plan_answer.h"

#include "base/check.h"
#include "base/minmax.h"

#include <math.h>
#include <string.h>

#define SHORT_PROMPT 512u
#define ROWS_PER_THREAD 64u /* of a prompt's step that share one reading of the weights */

unsigned plan_formats(const struct gguf *gguf, const struct model_config *config,
                      struct plan_format *out)
{
    struct plan_format all[FORMAT_LIMIT] = {0};
    const char *head = config->tied_output ? "token_embd.weight" : "output.weight";
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor(gguf, i);
        struct gguf_string name = tensor->name;
        uint64_t values = tensor->dims[0] * tensor->dims[1];
        if (tensor->dim_count != 2 || tensor->format >= FORMAT_LIMIT)
            continue;
        if (name.length > 4 && !memcmp(name.text, "blk.", 4))
            all[tensor->format].layer_values += values;
        else if (name.length == strlen(head) && !memcmp(name.text, head, name.length))
            all[tensor->format].head_values += values;
    }
    unsigned count = 0;
    for (; count < PLAN_FORMATS_MAX; count++) {
        uint64_t most = 0;
        uint32_t best = 0;
        for (uint32_t i = 0; i < FORMAT_LIMIT; i++) {
            uint64_t values = all[i].layer_values + all[i].head_values;
            if (values > most) {
                most = values;
                best = i;
            }
        }
        if (!most)
            break;
        out[count] = all[best];
        out[count].format = (enum tensor_format)best;
        all[best] = (struct plan_format){0};
    }
    return count;
}

/* Keys that a query at `position` sees, summed over layers and KV heads. */
static double keys_seen(const struct model_config *config, double position)
{
    uint32_t full = config->layers - config->window_layers;
    double local = fmin(position, config->window);
    return config->kv_heads * (full * position + config->window_layers * local);
}

/* The sum of keys_seen over positions 0 … tokens - 1. */
static double keys_of_prompt(const struct model_config *config, double tokens)
{
    uint32_t full = config->layers - config->window_layers;
    double window = fmin(config->window, tokens);
    double local = window * window / 2 + (tokens - window) * window;
    return config->kv_heads * (full * tokens * tokens / 2 + config->window_layers * local);
}

/* Seconds per step, of weights: [0] one row, [1] the users', [2] as many as a prompt's step takes
   at once; with and without the output head. */
struct product_times {
    uint32_t rows[3];
    double layers_s[3], head_s[3];
};

static bool time_products(const struct speed_meter *meter, const struct model_config *config,
                          const struct plan_format *formats, unsigned count,
                          struct product_times *out)
{
    for (unsigned i = 0; i < count; i++) {
        double seconds[3];
        speed_products(meter, formats[i].format, config->embedding, out->rows, 3, seconds);
        for (unsigned j = 0; j < 3; j++) {
            if (seconds[j] <= 0)
                return false;
            out->layers_s[j] += seconds[j] * (double)formats[i].layer_values;
            out->head_s[j] += seconds[j] * (double)formats[i].head_values;
        }
    }
    return count > 0;
}

static double prompt_seconds(const struct model_config *config, const struct product_times *times,
                             double key_s, uint32_t tokens)
{
    return tokens * times->layers_s[2] / times->rows[2] + times->head_s[0] +
           keys_of_prompt(config, tokens) / KERNEL_QUERY_TILE * key_s;
}

void plan_times_make(const struct speed_meter *meter, const struct model_config *config,
                     const struct plan_format *formats, unsigned count, struct plan_answer *answer)
{
    CHECK(count <= PLAN_FORMATS_MAX);
    struct plan_times *times = &answer->times;
    uint32_t together = ROWS_PER_THREAD * workers_count(meter->workers);
    uint32_t users = answer->users, group = config->heads / config->kv_heads;
    struct product_times products = {.rows = {1, min_u32(users, together), together}};
    times->read_bytes_s = speed_read(meter);
    enum kv_type type = answer->own.kv.type;
    double key_s = speed_attention(meter, type, config->head_dim, group, 1);
    double tile_key_s = speed_attention(meter, type, config->head_dim, group, KERNEL_QUERY_TILE);
    if (times->read_bytes_s <= 0 || key_s <= 0 || tile_key_s <= 0 ||
        !time_products(meter, config, formats, count, &products))
        return;
    double attention_s = keys_seen(config, answer->tokens / 2.0) * key_s;
    times->token_s = products.layers_s[0] + products.head_s[0] + attention_s;
    times->step_s = (products.layers_s[1] + products.head_s[1]) * users / products.rows[1] +
                    users * attention_s;
    times->short_prompt = min_u32(answer->tokens, SHORT_PROMPT);
    times->short_prompt_s = prompt_seconds(config, &products, tile_key_s, times->short_prompt);
    times->prompt_s = prompt_seconds(config, &products, tile_key_s, answer->tokens);
    times->measured = true;
}
