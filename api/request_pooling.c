/*
 * The fields of /v1/embeddings, /v1/rerank and /v1/score: texts that nothing is generated from.
 *
 * An input is a text, a list of texts, a list of ids or a list of lists of ids. Texts get what the
 * model has around a text ([CLS] and [SEP]) and, as with Hugging Face's tokenizers, texts of control
 * tokens in them become those tokens; ids are taken as they are. A pair is both texts one after the
 * other, the second one of token type 1.
 */
#include "api/request.h"
#include "base/minmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct text_fields {
    bool parse_special, add_special_tokens;
};

static unsigned flags_of(const struct text_fields *fields)
{
    return request_text_flags(fields->parse_special, fields->add_special_tokens);
}

static enum status read_text_fields(const struct cJSON *root, struct text_fields *fields,
                                    struct error *error)
{
    *fields = (struct text_fields){true, true};
    TRY(json_read_bool(root, "parse_special", &fields->parse_special, error));
    return json_read_bool(root, "add_special_tokens", &fields->add_special_tokens, error);
}

static enum status reserve(const struct api_context *context, struct request *out, uint32_t count,
                           const char *param, struct error *error)
{
    if (!(count >= 1 && count <= LIMIT_INPUTS))
        return error_set(error, STATUS_INVALID, param, "%s must hold 1 to %d texts.", param,
                         LIMIT_INPUTS);
    TRY(request_take(context, out, count * sizeof *out->prompts, error));
    out->prompts = calloc(count, sizeof *out->prompts);
    return out->prompts ? STATUS_OK : error_no_memory(error);
}

/* ---- /v1/embeddings ---- */

static enum status read_embedding_fields(const struct api_context *context,
                                         const struct cJSON *root, struct request *out,
                                         struct error *error)
{
    const char *format = "float";
    int64_t dimensions = context->pooled_count;
    TRY(json_read_string(root, "encoding_format", &format, error));
    out->base64 = strcmp(format, "base64") == 0;
    if (!out->base64 && strcmp(format, "float") != 0)
        return error_set(error, STATUS_INVALID, "encoding_format",
                         "encoding_format must be \"float\" or \"base64\".");
    TRY(json_read_integer(root, "dimensions", 1, context->pooled_count, &dimensions, error));
    out->dimensions = (uint32_t)dimensions;
    return STATUS_OK;
}

static enum status refuse_input(struct error *error)
{
    return error_set(error, STATUS_INVALID, "input",
                     "input must be a string, a list of strings, a list of token ids or a list of "
                     "lists of token ids.");
}

static enum status add_ids(const struct api_context *context, const struct cJSON *list,
                           struct request *out, struct error *error)
{
    uint32_t count = json_count(list), vocabulary = tokenizer_vocabulary(context->tokenizer);
    if (count == 0)
        return error_set(error, STATUS_INVALID, "input", "input holds an empty list of token ids.");
    TRY(request_check_length(context, out, count, "input", error));
    TRY(request_take(context, out, count * sizeof(uint32_t), error));
    struct request_prompt *prompt = &out->prompts[out->prompt_count++];
    prompt->tokens = malloc(count * sizeof *prompt->tokens);
    if (!prompt->tokens)
        return error_no_memory(error);
    for (const struct cJSON *entry = json_first(list); entry; entry = json_after(entry)) {
        double number;
        if (!json_number(entry, &number))
            return refuse_input(error);
        if (!json_id(entry, vocabulary, &prompt->tokens[prompt->count]))
            return error_set(error, STATUS_INVALID, "input",
                             "input holds a token id that is not one below %u.", vocabulary);
        prompt->count++;
    }
    return STATUS_OK;
}

static enum status add_input(const struct api_context *context, const struct cJSON *value,
                             const struct text_fields *fields, struct request *out,
                             struct error *error)
{
    if (json_is_array(value))
        return add_ids(context, value, out, error);
    if (!json_is_string(value))
        return refuse_input(error);
    const char *text = json_string(value);
    return request_tokenize(context, out, text, strlen(text), flags_of(fields), 0, "input",
                            &out->prompts[out->prompt_count++], error);
}

static enum status read_inputs(const struct api_context *context, const struct cJSON *root,
                               const struct text_fields *fields, struct request *out,
                               struct error *error)
{
    const struct cJSON *input = json_get(root, "input");
    double number;
    if (!input)
        return error_set(error, STATUS_INVALID, "input", "input is missing.");
    bool one = !json_is_array(input) || json_number(json_first(input), &number);
    TRY(reserve(context, out, one ? 1 : json_count(input), "input", error));
    if (one)
        return add_input(context, input, fields, out, error);
    for (const struct cJSON *entry = json_first(input); entry; entry = json_after(entry))
        TRY(add_input(context, entry, fields, out, error));
    return STATUS_OK;
}

/* ---- Pairs ---- */

/* The ids of the first text are kept for the pairs that follow. */
struct pairing {
    const struct api_context *context;
    const struct text_fields *fields;
    struct request *request;
    const char *first_param, *second_param;
};

static enum status text_of(const struct cJSON *value, const char *param, const char **out,
                           struct error *error)
{
    const struct cJSON *text = json_is_object(value) ? json_get(value, "text") : value;
    if (!json_is_string(text))
        return error_set(error, STATUS_INVALID, param, "%s must be a text, or texts.", param);
    *out = json_string(text);
    return STATUS_OK;
}

static enum status add_pair(const struct pairing *pairing, const struct cJSON *left,
                            const struct cJSON *right, struct error *error)
{
    const struct api_context *context = pairing->context;
    struct request *out = pairing->request;
    struct request_prompt *prompt = &out->prompts[out->prompt_count++], second = {0};
    const char *first_text = NULL, *second_text = NULL;
    unsigned flags = flags_of(pairing->fields);
    TRY(text_of(left, pairing->first_param, &first_text, error));
    TRY(text_of(right, pairing->second_param, &second_text, error));
    TRY(request_tokenize(context, out, first_text, strlen(first_text), flags, 0,
                         pairing->first_param, prompt, error));
    enum status status = request_tokenize(context, out, second_text, strlen(second_text),
                                          flags & ~(unsigned)TOKENIZER_ADD_BOS, 0,
                                          pairing->second_param, &second, error);
    size_t count = prompt->count + second.count;
    if (status == STATUS_OK)
        status = request_check_length(context, out, count, pairing->second_param, error);
    uint32_t *tokens = NULL;
    if (status == STATUS_OK) {
        tokens = realloc(prompt->tokens, count * sizeof *tokens);
        status = tokens ? STATUS_OK : error_no_memory(error);
    }
    if (tokens) {
        memcpy(tokens + prompt->count, second.tokens, second.count * sizeof *tokens);
        prompt->tokens = tokens;
        prompt->second_segment = (uint32_t)prompt->count;
        prompt->count = count;
    }
    free(second.tokens); /* its bytes, entered, are those of the pair now */
    if (status != STATUS_OK || !out->shows_texts)
        return status;
    prompt->echo_length = strlen(second_text);
    TRY(request_take(context, out, prompt->echo_length, error));
    prompt->echo = strdup(second_text);
    return prompt->echo ? STATUS_OK : error_no_memory(error);
}

/* One text with each of a list, or two lists of equally many, one by one. */
static enum status add_pairs(const struct pairing *pairing, const struct cJSON *left,
                             const struct cJSON *right, struct error *error)
{
    uint32_t lefts = json_is_array(left) ? json_count(left) : 1;
    uint32_t rights = json_is_array(right) ? json_count(right) : 1;
    if (!left || !right) {
        const char *param = left ? pairing->second_param : pairing->first_param;
        return error_set(error, STATUS_INVALID, param, "%s is missing.", param);
    }
    TRY(reserve(pairing->context, pairing->request, rights, pairing->second_param, error));
    if (lefts != 1 && lefts != rights)
        return error_set(error, STATUS_INVALID, pairing->first_param,
                         "%s must be one text, or as many as %s.", pairing->first_param,
                         pairing->second_param);
    const struct cJSON *a = json_is_array(left) ? json_first(left) : left;
    const struct cJSON *b = json_is_array(right) ? json_first(right) : right;
    for (uint32_t i = 0; i < rights; i++) {
        TRY(add_pair(pairing, a, b, error));
        a = lefts > 1 ? json_after(a) : a;
        b = json_is_array(right) ? json_after(b) : b;
    }
    return STATUS_OK;
}

static enum status read_rerank(const struct pairing *pairing, const struct cJSON *root,
                               struct error *error)
{
    struct request *out = pairing->request;
    const struct cJSON *documents = json_get(root, "documents");
    int64_t top_n = LIMIT_INPUTS;
    TRY(json_read_integer(root, "top_n", 1, INFINITY, &top_n, error));
    TRY(json_read_bool(root, "return_documents", &out->shows_texts, error));
    if (documents && !json_is_array(documents))
        return error_set(error, STATUS_INVALID, "documents", "documents must be a list of texts.");
    if (json_is_array(json_get(root, "query")))
        return error_set(error, STATUS_INVALID, "query", "query must be a text.");
    TRY(add_pairs(pairing, json_get(root, "query"), documents, error));
    out->top_n = (uint32_t)min_u64((uint64_t)top_n, out->prompt_count);
    return STATUS_OK;
}

/* ---- All of them ---- */

static enum status check_model(const struct api_context *context, const struct request *request,
                               struct error *error)
{
    const char *name = context->model_names[0];
    bool ranks = context->pooling == POOLING_RANK;
    if (request->kind == ANSWER_EMBEDDING && ranks)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_model", "model",
                              "The model \"%.100s\" scores pairs of texts and makes no "
                              "embeddings: POST /v1/rerank or /v1/score.",
                              name);
    if (request->kind == ANSWER_EMBEDDING && context->pooling == POOLING_NONE)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_model", "model",
                              "The model \"%.100s\" makes no embeddings here: %s.", name,
                              context->pooling_why);
    if (request->kind != ANSWER_EMBEDDING && !ranks)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_model", "model",
                              "The model \"%.100s\" has no classification head: it scores no "
                              "pairs of texts.",
                              name);
    if (request->kind != ANSWER_EMBEDDING && context->pooled_count != 1)
        return error_set_code(error, STATUS_UNSUPPORTED, "unsupported_model", "model",
                              "The model \"%.100s\" classifies texts into %u labels: it has no one "
                              "score of a pair.",
                              name, context->pooled_count);
    return STATUS_OK;
}

enum status request_read_pooling(const struct api_context *context,
                                 const struct json_document *document,
                                 const struct answer_caller *caller, struct request *out,
                                 struct error *error)
{
    const struct cJSON *root = document->root;
    struct text_fields fields;
    bool activated = true;
    out->choice_count = out->shown_count = 1; /* of each text */
    TRY(request_read_common(context, root, caller, out, error));
    TRY(check_model(context, out, error));
    /* A mean needs the hidden states of all tokens: none may come from the cache. */
    out->use_prefix_cache = out->use_prefix_cache && context->pooling == POOLING_LAST;
    TRY(read_text_fields(root, &fields, error));
    if (out->kind == ANSWER_EMBEDDING) {
        TRY(read_embedding_fields(context, root, out, error));
        return read_inputs(context, root, &fields, out, error);
    }
    TRY(json_read_bool(root, "use_activation", &activated, error));
    out->raw_scores = !activated;
    struct pairing pairing = {context, &fields, out, "query", "documents"};
    if (out->kind == ANSWER_RERANK)
        return read_rerank(&pairing, root, error);
    pairing.first_param = "text_1";
    pairing.second_param = "text_2";
    return add_pairs(&pairing, json_get(root, "text_1"), json_get(root, "text_2"), error);
}
