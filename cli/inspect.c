/*
 * `quire inspect`: see inspect.h. The JSON is written by hand, since it is one flat description;
 * strings of the file go through json_write_printable, and names through print_name.
 */
#include "cli/inspect.h"

#include "base/bytes.h"
#include "base/json_writer.h"
#include "base/print.h"
#include "engine/model/gguf.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_TOKENS 16u     /* the default --page-size */
#define VALUE_LIMIT 160     /* characters of a value in the text form */
#define ARRAY_VALUES_MAX 64 /* longer arrays are counted in JSON, not printed */

/* All that is shown; made once, then written in one of the two forms. */
struct inspection {
    const char *path;
    struct gguf *gguf;
    struct model_config config;
    bool served; /* model_describe accepted it */
    struct error refusal;
    struct tokenizer *tokenizer; /* NULL: see tokenizer_refusal */
    struct error tokenizer_refusal;
};

struct format_total {
    uint64_t tensors, values, bytes;
};

/* Keys and values. */
struct kv_cost {
    uint64_t growing; /* of one token, in layers that see all: every token adds it */
    uint64_t window;  /* and in those with a window: only the last tokens have it */
    uint64_t page;    /* of PAGE_TOKENS tokens, in the layers of one group */
    uint64_t context; /* of the longest sequence, in whole pages */
};

static struct kv_cost kv_cost_of(const struct model_config *config, enum kv_type type)
{
    uint64_t layer = kv_page_bytes(type, 1, config->kv_heads, config->head_dim, 1);
    struct model_groups model =
        model_groups_of(config->layers, config->window_layers, config->window);
    struct kv_cost cost = {
        .growing = (config->layers - config->window_layers) * layer,
        .window = config->window_layers * layer,
        .page = PAGE_TOKENS * model.layers * layer,
    };
    cost.context = kv_groups_need(&model.groups, PAGE_TOKENS, 1, config->context) * cost.page;
    return cost;
}

static uint64_t tensor_values(const struct gguf_tensor *tensor)
{
    return tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
}

static uint32_t control_count(const struct tokenizer *tokenizer)
{
    uint32_t count = 0;
    while (tokenizer_control_token(tokenizer, count) != UINT32_MAX)
        ++count;
    return count;
}

static void sum_formats(const struct gguf *gguf, struct format_total totals[FORMAT_LIMIT],
                        struct format_total *all)
{
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); ++i) {
        const struct gguf_tensor *tensor = gguf_tensor(gguf, i);
        struct format_total *total = &totals[tensor->format];
        total->tensors++;
        total->values += tensor_values(tensor);
        total->bytes += tensor->bytes;
        all->tensors++;
        all->values += tensor_values(tensor);
        all->bytes += tensor->bytes;
    }
}

/* ---- Text. ---- */

static void write_bytes_line(struct buffer *out, const char *label, uint64_t bytes)
{
    char text[24];
    buffer_appendf(out, "  %-34s %12s\n", label, bytes_format(bytes, text));
}

static void write_model(const struct inspection *inspection, struct buffer *out)
{
    const struct model_config *config = &inspection->config;
    if (!inspection->served) {
        buffer_append_text(out, "\nThis server cannot serve it: ");
        print_name(out, inspection->refusal.message, strlen(inspection->refusal.message));
        buffer_append_text(out, "\n");
        return;
    }
    buffer_append_text(out, "\nModel: ");
    print_name(out, config->name, strlen(config->name));
    buffer_append_text(out, " (");
    print_name(out, config->architecture, strlen(config->architecture));
    buffer_appendf(
        out,
        ")\n  parameters %.1f million, layers %" PRIu32 ", width %" PRIu32 ", feed-forward %" PRIu32
        "\n  heads %" PRIu32 ", key/value heads %" PRIu32 ", head width %" PRIu32
        ", vocabulary %" PRIu32 "%s\n  context %" PRIu32 " tokens\n",
        (double)config->parameter_count / 1e6, config->layers, config->embedding,
        config->feed_forward, config->heads, config->kv_heads, config->head_dim, config->vocabulary,
        config->tied_output ? " (output tied to the embedding)" : "", config->context);
    struct kv_cost cost = kv_cost_of(config, KV_F16);
    buffer_append_text(out, "\nMemory\n");
    write_bytes_line(out, "weights, as in the file", config->tensor_bytes);
    write_bytes_line(out, "keys and values of one token (f16)", cost.growing + cost.window);
    char label[64];
    if (config->window_layers > 0) {
        snprintf(label, sizeof label, "  in %" PRIu32 " layers, for every token",
                 config->layers - config->window_layers);
        write_bytes_line(out, label, cost.growing);
        snprintf(label, sizeof label, "  in %" PRIu32 " layers, for the last %" PRIu32,
                 config->window_layers, config->window);
        write_bytes_line(out, label, cost.window);
    }
    snprintf(label, sizeof label, "  of a page of %u tokens", PAGE_TOKENS);
    write_bytes_line(out, label, cost.page);
    snprintf(label, sizeof label, "  of a sequence of %" PRIu32 " tokens", config->context);
    write_bytes_line(out, label, cost.context);
    for (unsigned type = 0; type < KV_TYPES; ++type) {
        if (type == KV_F16 || config->head_dim % kv_type_block((enum kv_type)type) != 0)
            continue;
        cost = kv_cost_of(config, (enum kv_type)type);
        snprintf(label, sizeof label, "of one token, --kv-type %s",
                 kv_type_name((enum kv_type)type));
        write_bytes_line(out, label, cost.growing + cost.window);
    }
}

static void write_tokenizer(const struct inspection *inspection, struct buffer *out)
{
    const struct tokenizer *tokenizer = inspection->tokenizer;
    if (tokenizer == NULL) {
        buffer_append_text(out, "\nTokenizer: ");
        print_name(out, inspection->tokenizer_refusal.message,
                   strlen(inspection->tokenizer_refusal.message));
        buffer_append_text(out, "\n");
        return;
    }
    buffer_appendf(out, "\nTokenizer: %" PRIu32 " tokens, %" PRIu32 " of them control tokens\n",
                   tokenizer_vocabulary(tokenizer), control_count(tokenizer));
    for (uint32_t i = 0, id; (id = tokenizer_control_token(tokenizer, i)) != UINT32_MAX; ++i) {
        bool bos = id == tokenizer_bos(tokenizer), end = tokenizer_is_end(tokenizer, id);
        if (!bos && !end)
            continue;
        size_t length;
        const char *text = tokenizer_text(tokenizer, id, &length);
        buffer_appendf(out, "  %" PRIu32 " ", id);
        print_name(out, text, length);
        buffer_appendf(out, "%s%s%s\n", bos ? " begins texts" : "",
                       bos && !tokenizer_adds_bos(tokenizer) ? " (not added)" : "",
                       end ? " ends answers" : "");
    }
    write_bytes_line(out, "memory", tokenizer_memory_bytes(tokenizer));
}

static void write_metadata(const struct gguf *gguf, struct buffer *out)
{
    buffer_appendf(out, "\nMetadata: %" PRIu32 " keys\n", gguf_key_count(gguf));
    for (uint32_t i = 0; i < gguf_key_count(gguf); ++i) {
        struct gguf_string key = gguf_key(gguf, i);
        char value[VALUE_LIMIT];
        gguf_format_value(gguf, i, value, sizeof value);
        buffer_append_text(out, "  ");
        print_name(out, key.text, key.length);
        buffer_appendf(out, " = %s\n", value);
    }
}

static void write_tensors(const struct gguf *gguf, struct buffer *out)
{
    struct format_total totals[FORMAT_LIMIT] = {0}, all = {0};
    sum_formats(gguf, totals, &all);
    buffer_appendf(out, "\nTensors: %" PRIu64 "\n", all.tensors);
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); ++i) {
        const struct gguf_tensor *tensor = gguf_tensor(gguf, i);
        size_t before = out->length;
        buffer_append_text(out, "  ");
        print_name(out, tensor->name.text, tensor->name.length);
        size_t width = out->length - before;
        char bytes[24];
        buffer_appendf(out, "%*s %-8s %12s  [", (int)(width < 36 ? 36 - width : 0), "",
                       format_info(tensor->format)->name, bytes_format(tensor->bytes, bytes));
        for (uint32_t d = 0; d < tensor->dim_count; ++d)
            buffer_appendf(out, d > 0 ? " × %" PRIu64 : "%" PRIu64, tensor->dims[d]);
        buffer_append_text(out, "]\n");
    }
    buffer_append_text(out, "\nTypes\n");
    for (uint32_t format = 0; format < FORMAT_LIMIT; ++format) {
        if (totals[format].tensors == 0)
            continue;
        char bytes[24];
        buffer_appendf(out, "  %-8s %6" PRIu64 " tensors %14" PRIu64 " values %12s\n",
                       format_info(format)->name, totals[format].tensors, totals[format].values,
                       bytes_format(totals[format].bytes, bytes));
    }
    char bytes[24];
    buffer_appendf(out, "  %-8s %6" PRIu64 " tensors %14" PRIu64 " values %12s\n", "all",
                   all.tensors, all.values, bytes_format(all.bytes, bytes));
}

static void write_text(const struct inspection *inspection, struct buffer *out)
{
    char bytes[24];
    print_name(out, inspection->path, strlen(inspection->path));
    buffer_appendf(out, ": GGUF version %" PRIu32 ", %s\n", gguf_version(inspection->gguf),
                   bytes_format(gguf_file_bytes(inspection->gguf), bytes));
    write_model(inspection, out);
    write_tokenizer(inspection, out);
    write_metadata(inspection->gguf, out);
    write_tensors(inspection->gguf, out);
}

/* ---- JSON. ---- */

static void write_json_model(const struct inspection *inspection, struct buffer *out)
{
    const struct model_config *config = &inspection->config;
    if (!inspection->served) {
        buffer_append_text(out, ",\"model\":null,\"refused\":");
        json_write_printable_text(out, inspection->refusal.message);
        return;
    }
    buffer_append_text(out, ",\"model\":{\"name\":");
    json_write_printable_text(out, config->name);
    buffer_append_text(out, ",\"architecture\":");
    json_write_printable_text(out, config->architecture);
    buffer_appendf(out,
                   ",\"parameters\":%" PRIu64 ",\"layers\":%" PRIu32 ",\"embedding\":%" PRIu32
                   ",\"feed_forward\":%" PRIu32 ",\"heads\":%" PRIu32 ",\"kv_heads\":%" PRIu32
                   ",\"head_dim\":%" PRIu32 ",\"vocabulary\":%" PRIu32 ",\"context\":%" PRIu32
                   ",\"tied_output\":%s}",
                   config->parameter_count, config->layers, config->embedding, config->feed_forward,
                   config->heads, config->kv_heads, config->head_dim, config->vocabulary,
                   config->context, config->tied_output ? "true" : "false");
    struct kv_cost cost = kv_cost_of(config, KV_F16);
    buffer_appendf(
        out,
        ",\"memory\":{\"weights_bytes\":%" PRIu64 ",\"kv_token_bytes\":%" PRIu64
        ",\"kv_growing_token_bytes\":%" PRIu64 ",\"kv_window_token_bytes\":%" PRIu64
        ",\"kv_window_tokens\":%" PRIu32 ",\"kv_page_tokens\":%u"
        ",\"kv_page_bytes\":%" PRIu64 ",\"kv_context_bytes\":%" PRIu64 ",\"kv_token_bytes_of\":{",
        config->tensor_bytes, cost.growing + cost.window, cost.growing, cost.window,
        config->window_layers > 0 ? config->window : 0, PAGE_TOKENS, cost.page, cost.context);
    for (unsigned type = 0; type < KV_TYPES; ++type) {
        if (config->head_dim % kv_type_block((enum kv_type)type) != 0)
            continue;
        cost = kv_cost_of(config, (enum kv_type)type);
        buffer_appendf(out, "%s\"%s\":%" PRIu64, type > 0 ? "," : "",
                       kv_type_name((enum kv_type)type), cost.growing + cost.window);
    }
    buffer_append_text(out, "}}");
}

static void write_json_id(struct buffer *out, const char *name, uint32_t id)
{
    if (id == UINT32_MAX)
        buffer_appendf(out, ",\"%s\":null", name);
    else
        buffer_appendf(out, ",\"%s\":%" PRIu32, name, id);
}

static void write_json_tokenizer(const struct inspection *inspection, struct buffer *out)
{
    const struct tokenizer *tokenizer = inspection->tokenizer;
    if (tokenizer == NULL) {
        buffer_append_text(out, ",\"tokenizer\":null,\"tokenizer_refused\":");
        json_write_printable_text(out, inspection->tokenizer_refusal.message);
        return;
    }
    buffer_appendf(out, ",\"tokenizer\":{\"tokens\":%" PRIu32 ",\"control_tokens\":%" PRIu32,
                   tokenizer_vocabulary(tokenizer), control_count(tokenizer));
    write_json_id(out, "bos", tokenizer_bos(tokenizer));
    write_json_id(out, "eos", tokenizer_eos(tokenizer));
    buffer_appendf(out, ",\"adds_bos\":%s,\"memory_bytes\":%" PRIu64 "}",
                   tokenizer_adds_bos(tokenizer) ? "true" : "false",
                   tokenizer_memory_bytes(tokenizer));
}

/* Elements of an array of at most ARRAY_VALUES_MAX. */
static void write_json_elements(const struct gguf *gguf, const char *key, enum gguf_type element,
                                uint64_t count, struct buffer *out)
{
    int32_t integers[ARRAY_VALUES_MAX];
    float floats[ARRAY_VALUES_MAX];
    struct error error;
    error_clear(&error);
    uint64_t cursor = 0;
    struct gguf_string text;
    bool are_integers = gguf_array_get_i32(gguf, key, integers, count, &error) == STATUS_OK;
    bool are_floats = gguf_array_get_f32(gguf, key, floats, count, &error) == STATUS_OK;
    if (element != GGUF_STRING && !are_integers && !are_floats)
        return;
    buffer_append_text(out, ",\"values\":[");
    for (uint64_t i = 0; i < count; ++i) {
        if (i > 0)
            buffer_append_text(out, ",");
        if (element == GGUF_STRING && gguf_array_next_string(gguf, key, &cursor, &text))
            json_write_printable(out, text.text, text.length);
        else if (are_integers)
            buffer_appendf(out, "%" PRId32, integers[i]);
        else if (floats[i] - floats[i] == 0)
            buffer_appendf(out, "%.9g", (double)floats[i]);
        else
            buffer_append_text(out, "null");
    }
    buffer_append_text(out, "]");
}

static void write_json_value(const struct gguf *gguf, uint32_t index, const char *key,
                             struct buffer *out)
{
    struct error error;
    error_clear(&error);
    struct gguf_string text;
    enum gguf_type type = gguf_key_type(gguf, index), element;
    uint64_t count;
    char value[64];
    if (type == GGUF_STRING && gguf_get_string(gguf, key, &text, &error) == STATUS_OK) {
        json_write_printable(out, text.text, text.length);
    } else if (type == GGUF_ARRAY &&
               gguf_array_count(gguf, key, &element, &count, &error) == STATUS_OK) {
        buffer_appendf(out, "{\"count\":%" PRIu64, count);
        if (count <= ARRAY_VALUES_MAX)
            write_json_elements(gguf, key, element, count, out);
        buffer_append_text(out, "}");
    } else {
        gguf_format_value(gguf, index, value, sizeof value);
        /* inf and nan are no JSON */
        bool number = value[0] == '-' ? value[1] <= '9' : value[0] <= '9';
        bool boolean = type == GGUF_BOOL;
        buffer_append_text(out, number || boolean ? value : "null");
    }
}

static void write_json_metadata(const struct gguf *gguf, struct buffer *out)
{
    buffer_append_text(out, ",\"metadata\":{");
    for (uint32_t i = 0; i < gguf_key_count(gguf); ++i) {
        struct gguf_string name = gguf_key(gguf, i);
        char *key = malloc(name.length + 1);
        if (key == NULL) {
            out->failed = true;
            return;
        }
        memcpy(key, name.text, name.length);
        key[name.length] = '\0';
        if (i > 0)
            buffer_append_text(out, ",");
        json_write_printable(out, key, name.length);
        buffer_append_text(out, ":");
        write_json_value(gguf, i, key, out);
        free(key);
    }
    buffer_append_text(out, "}");
}

static void write_json_tensors(const struct gguf *gguf, struct buffer *out)
{
    struct format_total totals[FORMAT_LIMIT] = {0}, all = {0};
    sum_formats(gguf, totals, &all);
    buffer_append_text(out, ",\"tensors\":[");
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); ++i) {
        const struct gguf_tensor *tensor = gguf_tensor(gguf, i);
        buffer_append_text(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        json_write_printable(out, tensor->name.text, tensor->name.length);
        buffer_appendf(out, ",\"type\":\"%s\",\"shape\":[", format_info(tensor->format)->name);
        for (uint32_t d = 0; d < tensor->dim_count; ++d)
            buffer_appendf(out, d > 0 ? ",%" PRIu64 : "%" PRIu64, tensor->dims[d]);
        buffer_appendf(out, "],\"bytes\":%" PRIu64 "}", tensor->bytes);
    }
    buffer_append_text(out, "],\"types\":{");
    bool first = true;
    for (uint32_t format = 0; format < FORMAT_LIMIT; ++format) {
        if (totals[format].tensors == 0)
            continue;
        buffer_appendf(
            out, "%s\"%s\":{\"tensors\":%" PRIu64 ",\"values\":%" PRIu64 ",\"bytes\":%" PRIu64 "}",
            first ? "" : ",", format_info(format)->name, totals[format].tensors,
            totals[format].values, totals[format].bytes);
        first = false;
    }
    buffer_appendf(
        out, "},\"total\":{\"tensors\":%" PRIu64 ",\"values\":%" PRIu64 ",\"bytes\":%" PRIu64 "}",
        all.tensors, all.values, all.bytes);
}

static void write_json(const struct inspection *inspection, struct buffer *out)
{
    buffer_append_text(out, "{\"file\":");
    json_write_printable_text(out, inspection->path);
    buffer_appendf(out, ",\"gguf_version\":%" PRIu32 ",\"file_bytes\":%" PRIu64,
                   gguf_version(inspection->gguf), gguf_file_bytes(inspection->gguf));
    write_json_model(inspection, out);
    write_json_tokenizer(inspection, out);
    write_json_metadata(inspection->gguf, out);
    write_json_tensors(inspection->gguf, out);
    buffer_append_text(out, "}\n");
}

enum status inspect_write(const char *path, bool json, struct buffer *out, struct error *error)
{
    struct inspection inspection = {.path = path};
    enum status status = gguf_open(path, &inspection.gguf, error);
    if (status != STATUS_OK)
        return status;
    error_clear(&inspection.refusal);
    error_clear(&inspection.tokenizer_refusal);
    inspection.served =
        model_describe(inspection.gguf, &inspection.config, &inspection.refusal) == STATUS_OK;
    if (tokenizer_create(inspection.gguf, &inspection.tokenizer, &inspection.tokenizer_refusal) !=
        STATUS_OK)
        inspection.tokenizer = NULL;
    if (json)
        write_json(&inspection, out);
    else
        write_text(&inspection, out);
    tokenizer_destroy(inspection.tokenizer);
    gguf_close(inspection.gguf);
    if (out->failed)
        return error_set(error, STATUS_IO, NULL, "no memory for the description");
    return STATUS_OK;
}

int inspect_model(const struct options *options)
{
    struct buffer out;
    struct error error;
    error_clear(&error);
    buffer_init(&out, 0);
    enum status status = inspect_write(options->settings.model_path, options->json, &out, &error);
    if (status != STATUS_OK)
        fprintf(stderr, "quire: %s\n", error.message);
    else
        fwrite(out.data, 1, out.length, stdout);
    buffer_deinit(&out);
    return status == STATUS_OK ? 0 : 1;
}
