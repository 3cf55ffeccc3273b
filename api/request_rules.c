/*
 * The fields that speak of single tokens: which end an answer, and which it must not or may only
 * contain. Read into struct token_rules, whose arrays lie in one allocation that is entered in the
 * budget.
 */
#include "api/request.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#define NO_TOKEN UINT32_MAX

/* An id below the vocabulary's size, or NO_TOKEN. */
static uint32_t id_of(const struct cJSON *value, uint32_t vocabulary)
{
    double number;
    if (!json_number(value, &number) || !(number >= 0 && number < vocabulary) ||
        number != (double)(uint32_t)number)
        return NO_TOKEN;
    return (uint32_t)number;
}

/* Ids of a list field; absent: none. */
static enum status check_ids(const struct api_context *context, const struct cJSON *root,
                             const char *name, uint32_t most, uint32_t *count, struct error *error)
{
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer);
    const struct cJSON *list = json_get(root, name);
    *count = 0;
    if (!list)
        return STATUS_OK;
    if (!json_is_array(list) || json_count(list) > most)
        return error_set(error, STATUS_INVALID, name, "%s must be a list of at most %u token ids.",
                         name, most);
    for (const struct cJSON *entry = json_first(list); entry; entry = json_after(entry), ++*count)
        if (id_of(entry, vocabulary) == NO_TOKEN)
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

/* Append the tokens of `text`. */
static enum status add_bad_word(const struct api_context *context, const char *text,
                                uint32_t *tokens, uint32_t *ends, struct token_rules *rules,
                                struct error *error)
{
    uint32_t *ids = NULL, first = rules->bad_count ? ends[rules->bad_count - 1] : 0;
    size_t count = 0;
    enum status status = tokenizer_encode(context->tokenizer, text, strlen(text), 0, 0,
                                          LIMIT_BAD_WORD_TOKENS, &ids, &count, NULL);
    if (status == STATUS_TOO_LARGE)
        return error_set(error, STATUS_INVALID, "bad_words",
                         "bad_words holds a string of more than %d tokens.", LIMIT_BAD_WORD_TOKENS);
    if (status != STATUS_OK)
        return error_no_memory(error);
    if (count > 0) {
        memcpy(tokens + first, ids, count * sizeof *ids);
        ends[rules->bad_count++] = first + (uint32_t)count;
    }
    free(ids);
    return STATUS_OK;
}

/* Each word as it is and with a blank in front, as it stands within a sentence. */
static enum status add_bad_words(const struct api_context *context, const struct cJSON *root,
                                 uint32_t *tokens, uint32_t *ends, struct token_rules *rules,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct cJSON *entry = json_first(json_get(root, "bad_words"));
         entry && status == STATUS_OK; entry = json_after(entry)) {
        const char *word = json_string(entry);
        struct buffer spaced;
        buffer_init(&spaced, 0);
        buffer_append_text(&spaced, " ");
        buffer_append_text(&spaced, word);
        status = add_bad_word(context, word, tokens, ends, rules, error);
        if (status == STATUS_OK && spaced.failed)
            status = error_no_memory(error);
        if (status == STATUS_OK && word[0] != ' ')
            status = add_bad_word(context, spaced.data, tokens, ends, rules, error);
        buffer_deinit(&spaced);
    }
    return status;
}

enum status request_read_rules(const struct api_context *context, const struct cJSON *root,
                               struct request *out, struct error *error)
{
    struct token_rules *rules = &out->rules;
    uint32_t vocabulary = tokenizer_vocabulary(context->tokenizer), words, allowed;
    enum status status =
        check_ids(context, root, "stop_token_ids", LIMIT_STOPS, &rules->stop_count, error);
    if (status == STATUS_OK)
        status = check_ids(context, root, "allowed_token_ids", vocabulary, &allowed, error);
    if (status == STATUS_OK)
        status = check_bad_words(root, &words, error);
    if (status != STATUS_OK)
        return status;
    if (json_get(root, "allowed_token_ids") && allowed == 0)
        return error_set(error, STATUS_INVALID, "allowed_token_ids",
                         "allowed_token_ids must hold a token id at least.");
    if (rules->stop_count + words + allowed == 0)
        return STATUS_OK;
    uint32_t sequences = 2 * words, mask_words = allowed ? (vocabulary + 31) / 32 : 0;
    uint32_t counts[] = {rules->stop_count, sequences * LIMIT_BAD_WORD_TOKENS, sequences,
                         mask_words};
    uint64_t total = (uint64_t)counts[0] + counts[1] + counts[2] + counts[3];
    status = request_take(context, out, total * sizeof(uint32_t), error);
    if (status != STATUS_OK)
        return status;
    uint32_t *memory = calloc(total, sizeof *memory);
    if (!memory)
        return error_no_memory(error);
    out->rules_memory = memory;
    uint32_t *stops = memory, *tokens = stops + counts[0], *ends = tokens + counts[1],
             *mask = ends + counts[2], i = 0;
    rules->stop_tokens = stops;
    rules->bad_tokens = tokens;
    rules->bad_ends = ends;
    rules->allowed = allowed ? mask : NULL;
    rules->allowed_words = mask_words;
    for (const struct cJSON *entry = json_first(json_get(root, "stop_token_ids")); entry;
         entry = json_after(entry))
        stops[i++] = id_of(entry, vocabulary);
    for (const struct cJSON *entry = json_first(json_get(root, "allowed_token_ids")); entry;
         entry = json_after(entry)) {
        uint32_t id = id_of(entry, vocabulary);
        mask[id / 32] |= 1u << id % 32;
    }
    return add_bad_words(context, root, tokens, ends, rules, error);
}
