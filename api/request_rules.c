/*
 * The fields that speak of single tokens: which end an answer, and which it must not or may only
 * contain. Read into struct token_rules, whose arrays lie in one allocation that is entered in the
 * budget.
 */
#include "api/request.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* Ids of a list field; absent: none. */
static enum status check_ids(const struct api_context *context, const struct cJSON *root,
                             const char *name, uint32_t most, uint32_t *count, struct error *error)
{
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer), id;
    const struct cJSON *list = json_get(root, name);
    *count = 0;
    if (!list)
        return STATUS_OK;
    if (!json_is_array(list) || json_count(list) > most)
        return error_set(error, STATUS_INVALID, name, "%s must be a list of at most %u token ids.",
                         name, most);
    for (const struct cJSON *entry = json_first(list); entry; entry = json_after(entry), ++*count)
        if (!json_id(entry, vocabulary, &id))
            return error_set(error, STATUS_INVALID, name, "%s must hold token ids below %u.", name,
                             vocabulary);
    return STATUS_OK;
}

static enum status check_bad_words(const struct cJSON *root, uint32_t *count, struct error *error)
{
    const struct cJSON *list = json_get(root, "bad_words");
    *count = 0;
    if (!list)
        return STATUS_OK;
    bool good = json_is_array(list) && json_count(list) <= LIMIT_BAD_WORDS;
    for (const struct cJSON *entry = good ? json_first(list) : NULL; entry;
         entry = json_after(entry), ++*count)
        good = good && json_is_string(entry) && json_string(entry)[0] != '\0';
    return good ? STATUS_OK
                : error_set(error, STATUS_INVALID, "bad_words",
                            "bad_words must be a list of at most %d strings that are not empty.",
                            LIMIT_BAD_WORDS);
}

/* The arrays, writable while the request is read. */
struct arrays {
    uint32_t *stops, *bad_tokens, *bad_ends, *allowed;
};

static struct arrays arrays_of(const struct token_rules *rules)
{
    return (struct arrays){
        (uint32_t *)(uintptr_t)rules->stop_tokens, (uint32_t *)(uintptr_t)rules->bad_tokens,
        (uint32_t *)(uintptr_t)rules->bad_ends, (uint32_t *)(uintptr_t)rules->allowed};
}

/* Append the tokens of `text`. */
static enum status add_bad_word(const struct api_context *context, const char *text,
                                struct token_rules *rules, struct error *error)
{
    struct arrays arrays = arrays_of(rules);
    uint32_t *ids = NULL, first = rules->bad_count ? arrays.bad_ends[rules->bad_count - 1] : 0;
    size_t count = 0;
    enum status status = tokenizer_encode(context->tokenizer, text, strlen(text), 0, 0,
                                          LIMIT_BAD_WORD_TOKENS, &ids, &count, NULL);
    if (status == STATUS_TOO_LARGE)
        return error_set(error, STATUS_INVALID, "bad_words",
                         "bad_words holds a string of more than %d tokens.", LIMIT_BAD_WORD_TOKENS);
    if (status != STATUS_OK)
        return error_no_memory(error);
    if (count > 0) {
        memcpy(arrays.bad_tokens + first, ids, count * sizeof *ids);
        arrays.bad_ends[rules->bad_count++] = first + (uint32_t)count;
    }
    free(ids);
    return STATUS_OK;
}

/* Each word as it is and with a blank in front, as it stands within a sentence. */
static enum status add_bad_words(const struct api_context *context, const struct cJSON *root,
                                 struct token_rules *rules, struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct cJSON *entry = json_first(json_get(root, "bad_words"));
         entry && status == STATUS_OK; entry = json_after(entry)) {
        const char *word = json_string(entry);
        struct buffer spaced;
        buffer_init(&spaced, 0);
        buffer_append_text(&spaced, " ");
        buffer_append_text(&spaced, word);
        status = add_bad_word(context, word, rules, error);
        if (status == STATUS_OK && spaced.failed)
            status = error_no_memory(error);
        if (status == STATUS_OK && word[0] != ' ')
            status = add_bad_word(context, spaced.data, rules, error);
        buffer_deinit(&spaced);
    }
    return status;
}

enum status request_read_rules(const struct api_context *context, const struct cJSON *root,
                               struct request *out, struct error *error)
{
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer), words, allowed, id = 0, i = 0;
    struct token_rules sizes = out->rules;
    TRY(check_ids(context, root, "stop_token_ids", LIMIT_STOPS, &sizes.stop_count, error));
    TRY(check_ids(context, root, "allowed_token_ids", vocabulary, &allowed, error));
    TRY(check_bad_words(root, &words, error));
    if (json_get(root, "allowed_token_ids") && allowed == 0)
        return error_set(error, STATUS_INVALID, "allowed_token_ids",
                         "allowed_token_ids must hold a token id at least.");
    if (sizes.stop_count + words + allowed == 0)
        return STATUS_OK;
    sizes.bad_count = 2 * words;
    sizes.allowed_words = allowed ? (vocabulary + 31) / 32 : 0;
    uint32_t bad_tokens = sizes.bad_count * LIMIT_BAD_WORD_TOKENS;
    struct arena arena = {0};
    token_rules_take(&arena, &sizes, bad_tokens);
    TRY(request_take(context, out, arena.used_bytes, error));
    out->rules_memory = calloc(1, arena.used_bytes);
    if (!out->rules_memory)
        return error_no_memory(error);
    arena = (struct arena){.memory = out->rules_memory};
    out->rules = token_rules_take(&arena, &sizes, bad_tokens);
    out->rules.bad_count = 0; /* counted as they are added */
    struct arrays arrays = arrays_of(&out->rules);
    for (const struct cJSON *entry = json_first(json_get(root, "stop_token_ids")); entry;
         entry = json_after(entry))
        json_id(entry, vocabulary, &arrays.stops[i++]);
    for (const struct cJSON *entry = json_first(json_get(root, "allowed_token_ids")); entry;
         entry = json_after(entry)) {
        json_id(entry, vocabulary, &id);
        arrays.allowed[id / 32] |= 1u << id % 32;
    }
    return add_bad_words(context, root, &out->rules, error);
}
