/*
 * cJSON behind the scan, and look-ups with their errors: see json.h. A 400 names the field and
 * never repeats a value. Range checks are written so that a NaN fails them.
 */
#include "api/json.h"

#include "base/check.h"
#include "base/limits.h"

#include <cjson/cJSON.h>

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cJSON says no more than "it did not work". The scan has passed what it gets, so that only memory
   can be why; these tell. One thread per document. */
static _Thread_local bool allocation_failed;

static void *noticed_malloc(size_t size)
{
    void *block = malloc(size);
    allocation_failed |= !block;
    return block;
}

static void set_hooks(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){noticed_malloc, free});
}

/* Fill ids and list_ends from the id prompt, which the scan has checked. */
static void read_ids(struct json_document *document)
{
    struct json_slice slice = document->scan.id_prompt;
    uint32_t count = 0, list = 0;
    for (size_t i = 1; i < slice.length; i++) {
        char c = slice.text[i];
        if (c == ']' && list < document->scan.id_list_count)
            document->list_ends[list++] = count;
        if (c != '-' && (c < '0' || c > '9'))
            continue;
        size_t length = strspn(slice.text + i, "+-.0123456789eE");
        uint64_t value = 0;
        for (size_t k = i; k < i + length && value != UINT64_MAX; k++) {
            c = slice.text[k];
            value = c >= '0' && c <= '9' ? value * 10 + (uint64_t)(c - '0') : UINT64_MAX;
        }
        bool negative, spelled = value == UINT64_MAX; /* not plain digits */
        if (spelled)
            CHECK(json_integer((struct json_slice){slice.text + i, length}, &negative, &value));
        CHECK(count < document->scan.id_count);
        document->ids[count++] = (uint32_t)value;
        i += length - 1;
    }
    if (document->scan.id_list_count == 0)
        document->list_ends[0] = count;
    CHECK(count == document->scan.id_count);
}

/* The body with the id prompt replaced by null, so that cJSON makes no node per id. */
static char *body_without_ids(const struct json_document *document, size_t *length)
{
    struct json_slice body = document->text, ids = document->scan.id_prompt;
    size_t before = (size_t)(ids.text - body.text);
    size_t after = body.length - before - ids.length;
    char *copy = malloc(before + 4 + after);
    if (!copy)
        return NULL;
    memcpy(copy, body.text, before);
    memcpy(copy + before, "null", 4);
    memcpy(copy + before + 4, ids.text + ids.length, after);
    *length = before + 4 + after;
    return copy;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status duplicate_error(const char *key, struct error *error)
{
    return error_set_code(error, STATUS_INVALID, "duplicate_key", NULL,
                          "The key \"%.60s\" is there twice in one object.", key);
}

/* No object below `value` has a key twice. Recursion is bounded by LIMIT_JSON_DEPTH. */
static enum status check_keys(const cJSON *value, struct error *error)
{
    uint32_t count = 0;
    for (const cJSON *child = value->child; child; child = child->next, count++) {
        enum status status = check_keys(child, error);
        if (status != STATUS_OK)
            return status;
    }
    if (!cJSON_IsObject(value) || count < 2)
        return STATUS_OK;
    const char *few[16];
    const char **keys = count <= 16 ? few : malloc(count * sizeof *keys);
    if (!keys)
        return error_no_memory(error);
    uint32_t i = 0;
    for (const cJSON *child = value->child; child; child = child->next)
        keys[i++] = child->string;
    qsort(keys, count, sizeof *keys, compare_keys);
    enum status status = STATUS_OK;
    for (i = 1; i < count && status == STATUS_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status = duplicate_error(keys[i], error);
    if (keys != few)
        free(keys);
    return status;
}

static enum status parse(struct json_document *document, struct error *error)
{
    const char *text = document->text.text;
    size_t length = document->text.length;
    char *copy = NULL;
    if (document->scan.id_prompt.text) {
        uint32_t lists = document->scan.id_list_count;
        document->ids = malloc(document->scan.id_count * sizeof *document->ids);
        document->list_ends = malloc((lists ? lists : 1) * sizeof *document->list_ends);
        copy = body_without_ids(document, &length);
        if (!document->ids || !document->list_ends || !copy) {
            free(copy);
            return error_no_memory(error);
        }
        read_ids(document);
        text = copy;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_hooks);
    allocation_failed = false;
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    bool whole = root && end;
    while (whole && end < text + length)
        whole = strchr(" \t\r\n", *end++) != NULL;
    document->root = root;
    free(copy);
    if (!root && allocation_failed)
        return error_no_memory(error);
    if (!whole)
        return error_set_code(error, STATUS_INVALID, "invalid_json", NULL,
                              "The request body is not valid JSON.");
    return check_keys(root, error);
}

enum status json_open(const char *body, size_t length, struct budget *budget,
                      struct json_document *out, struct error *error)
{
    memset(out, 0, sizeof *out);
    out->text = (struct json_slice){body, length};
    out->budget = budget;
    enum status status = json_scan_text(body, length, true, &out->scan, error);
    if (status != STATUS_OK)
        return status;
    size_t start = 0, whole_length = length;
    while (strchr(" \t\r\n", body[start]))
        start++;
    if (body[start] != '{')
        return error_set_code(error, STATUS_INVALID, "invalid_json", NULL,
                              "The request body must be a JSON object.");
    while (strchr(" \t\r\n", body[length - 1]))
        length--;
    out->text = (struct json_slice){body + start, length - start};
    /* Strings are at most as long as the text; ids are counted and then held. */
    uint64_t bytes = (uint64_t)out->scan.nodes * JSON_NODE_BYTES + length +
                     (uint64_t)out->scan.id_count * sizeof(uint32_t) +
                     (uint64_t)out->scan.id_list_count * sizeof(uint32_t);
    if (budget)
        status = budget_take_request(budget, whole_length, bytes, NULL, error);
    if (status != STATUS_OK)
        return status;
    out->taken_bytes = budget ? bytes : 0;
    return parse(out, error);
}

void json_close(struct json_document *document)
{
    cJSON_Delete((cJSON *)document->root);
    free(document->ids);
    free(document->list_ends);
    if (document->budget)
        budget_give(document->budget, BUDGET_REQUESTS, document->taken_bytes);
    memset(document, 0, sizeof *document);
}

const struct cJSON *json_get(const struct cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return value && !cJSON_IsNull(value) ? value : NULL;
}

bool json_is_string(const struct cJSON *value)
{
    return cJSON_IsString(value);
}

bool json_is_array(const struct cJSON *value)
{
    return cJSON_IsArray(value);
}

bool json_is_object(const struct cJSON *value)
{
    return cJSON_IsObject(value);
}

bool json_is_null(const struct cJSON *value)
{
    return cJSON_IsNull(value);
}

bool json_is_bool(const struct cJSON *value, bool *out)
{
    if (!cJSON_IsBool(value))
        return false;
    *out = cJSON_IsTrue(value);
    return true;
}

const char *json_string(const struct cJSON *value)
{
    CHECK(cJSON_IsString(value) && value->valuestring);
    return value->valuestring;
}

uint32_t json_count(const struct cJSON *container)
{
    uint32_t count = 0;
    for (const cJSON *child = json_first(container); child; child = child->next)
        count++;
    return count;
}

const struct cJSON *json_first(const struct cJSON *container)
{
    return cJSON_IsArray(container) || cJSON_IsObject(container) ? container->child : NULL;
}

const struct cJSON *json_after(const struct cJSON *value)
{
    return value->next;
}

const char *json_key(const struct cJSON *value)
{
    return value->string ? value->string : "";
}

bool json_number(const struct cJSON *value, double *out)
{
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        return false;
    *out = value->valuedouble;
    return true;
}

bool json_id(const struct cJSON *value, uint32_t end, uint32_t *out)
{
    double number;
    if (!json_number(value, &number) || !(number >= 0 && number < end) || number != floor(number))
        return false;
    *out = (uint32_t)number;
    return true;
}

enum status json_read_float(const struct cJSON *object, const char *name, double low, double high,
                            float *out, struct error *error)
{
    const cJSON *value = json_get(object, name);
    double number;
    if (!value)
        return STATUS_OK;
    if (!json_number(value, &number) || !(number >= low && number <= high)) {
        if (isinf(low))
            return error_set(error, STATUS_INVALID, name, "%s must be a finite number.", name);
        if (isinf(high))
            return error_set(error, STATUS_INVALID, name, "%s must be a finite number from %g on.",
                             name, low);
        return error_set(error, STATUS_INVALID, name, "%s must be a number from %g to %g.", name,
                         low, high);
    }
    *out = (float)fmin(fmax(number, (double)-FLT_MAX), (double)FLT_MAX);
    return STATUS_OK;
}

enum status json_read_integer(const struct cJSON *object, const char *name, double low, double high,
                              int64_t *out, struct error *error)
{
    const cJSON *value = json_get(object, name);
    double number;
    if (!value)
        return STATUS_OK;
    if (!json_number(value, &number) || !(number >= low && number <= high) ||
        number != floor(number)) {
        if (high > JSON_INTEGER_MAX)
            return error_set(error, STATUS_INVALID, name, "%s must be an integer from %.0f on.",
                             name, low);
        return error_set(error, STATUS_INVALID, name, "%s must be an integer from %.0f to %.0f.",
                         name, low, high);
    }
    *out = (int64_t)(number <= JSON_INTEGER_MAX ? number : JSON_INTEGER_MAX);
    return STATUS_OK;
}

enum status json_read_bool(const struct cJSON *object, const char *name, bool *out,
                           struct error *error)
{
    const cJSON *value = json_get(object, name);
    if (value && !json_is_bool(value, out))
        return error_set(error, STATUS_INVALID, name, "%s must be true or false.", name);
    return STATUS_OK;
}

enum status json_read_string(const struct cJSON *object, const char *name, const char **out,
                             struct error *error)
{
    const cJSON *value = json_get(object, name);
    if (value && !json_is_string(value))
        return error_set(error, STATUS_INVALID, name, "%s must be a string.", name);
    if (value)
        *out = json_string(value);
    return STATUS_OK;
}
