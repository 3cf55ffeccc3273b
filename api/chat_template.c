/*
 * See chat_template.h. The limits: source, fuel and output; and what the template engine says
 * becomes an error a client can read. Fuel: one per instruction and one per 64 bytes made, real
 * templates need some hundreds; 390,000 is 25 MB of text. What a template may have allocated when
 * its fuel ends was measured over hostile ones (tests/api/test_chat_template_memory.c): copies are
 * made before they are charged, and vectors grow by doubling.
 */
#include "api/chat_template.h"

#include "api/chat_shape.h"
#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "textshim.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FUEL_MAX 390000u
#define FUEL_BYTES 256u           /* that a rendering may hold for each fuel it was given */
#define VALUE_BYTES 288u          /* of a JSON value in the engine: a map with one short key */
#define RAISED_CHARACTERS_MAX 200 /* of a template's own message */

struct chat_template {
    struct textshim_template *shim;
    uint64_t memory_bytes;
    struct chat_shape shape;
};

/* Python's strftime of a time without a zone: %f is microseconds, %z, %:z and %Z are nothing, the
   rest is C's. */
static bool python_format(const char *format, long microseconds, struct buffer *out)
{
    for (const char *from = format; *from; from++) {
        if (*from != '%' || from[1] == '\0') {
            buffer_append(out, from, 1);
            continue;
        }
        from++;
        if (*from == 'f')
            buffer_appendf(out, "%06ld", microseconds);
        else if (*from == ':' && from[1] == 'z')
            from++;
        else if (*from != 'z' && *from != 'Z')
            buffer_append(out, from - 1, 2);
    }
    return buffer_append(out, "", 1);
}

static size_t clock_format(const char *format, char *out, size_t capacity)
{
    struct timespec now;
    struct tm local;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0 || !localtime_r(&now.tv_sec, &local))
        return 0;
    struct buffer rewritten;
    buffer_init(&rewritten, 4096);
    size_t length = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (python_format(format, now.tv_nsec / 1000, &rewritten))
        length = strftime(out, capacity, rewritten.data, &local);
#pragma GCC diagnostic pop
    buffer_deinit(&rewritten);
    return length;
}

/* For chat_shape_find: refusals are of no interest. */
static bool render_for_shape(const void *chat_template, const char *context_json, size_t length,
                             struct buffer *out)
{
    return chat_template_render(chat_template, context_json, length, out, NULL) == STATUS_OK;
}

enum status chat_template_create(const char *source, size_t length, const char *bos_text,
                                 const char *eos_text, uint64_t memory_bytes,
                                 struct chat_template **out, struct error *error)
{
    *out = NULL;
    if (length > LIMIT_TEMPLATE_BYTES)
        return error_set(error, STATUS_INVALID, "chat_template",
                         "the chat template has %zu bytes, more than the %u that are run", length,
                         LIMIT_TEMPLATE_BYTES);
    struct chat_template *chat_template = calloc(1, sizeof *chat_template);
    if (!chat_template)
        return error_set(error, STATUS_IO, NULL, "out of memory");
    chat_template->memory_bytes = memory_bytes;
    char message[300] = "";
    int result = textshim_template_new(source, length, bos_text, strlen(bos_text), eos_text,
                                       strlen(eos_text), clock_format, &chat_template->shim,
                                       message, sizeof message);
    if (result == TEXTSHIM_OK) {
        textshim_memory_reset_peaks(); /* compiling is over, before there are weights */
        enum status status =
            chat_shape_find(render_for_shape, chat_template, &chat_template->shape, error);
        if (status == STATUS_OK)
            *out = chat_template;
        else
            chat_template_destroy(chat_template);
        return status;
    }
    free(chat_template);
    return error_set(error, result == TEXTSHIM_PANIC ? STATUS_INTERNAL : STATUS_INVALID,
                     "chat_template", "the chat template cannot be run: %s", message);
}

void chat_template_destroy(struct chat_template *chat_template)
{
    if (!chat_template)
        return;
    textshim_template_free(chat_template->shim);
    free(chat_template);
}

const struct chat_shape *chat_template_shape(const struct chat_template *chat_template)
{
    return &chat_template->shape;
}

bool chat_template_wants_parts(const struct chat_template *chat_template)
{
    return chat_template->shape.parts;
}

uint64_t chat_template_context_bytes(uint64_t values)
{
    return values * VALUE_BYTES;
}

uint64_t chat_template_memory_used(void)
{
    struct textshim_memory memory;
    textshim_memory_read(&memory);
    return memory.templates_used;
}

uint64_t chat_template_memory_peak(void)
{
    struct textshim_memory memory;
    textshim_memory_read(&memory);
    return memory.templates_peak;
}

/* As much as its memory can stand. */
static uint64_t fuel_for(const struct chat_template *chat_template)
{
    uint64_t used = chat_template_memory_used(), limit = chat_template->memory_bytes;
    uint64_t fuel = limit > used ? (limit - used) / FUEL_BYTES : 0;
    return min_u64(fuel, FUEL_MAX);
}

static void collect(void *arg, const char *bytes, size_t length)
{
    buffer_append(arg, bytes, length);
}

/* Cut after `count` characters. */
static void cut(char *text, size_t count)
{
    for (; *text; text++) {
        if (((unsigned char)*text & 0xc0) == 0x80)
            continue;
        if (count-- == 0) {
            *text = '\0';
            return;
        }
    }
}

enum status chat_template_render(const struct chat_template *chat_template,
                                 const char *context_json, size_t context_length,
                                 struct buffer *out, struct error *error)
{
    char message[900] = "", kept[24];
    size_t limit = 4 * context_length + (64u << 10);
    int result =
        textshim_template_render(chat_template->shim, context_json, context_length, limit,
                                 fuel_for(chat_template), collect, out, message, sizeof message);
    cut(message, RAISED_CHARACTERS_MAX);
    switch (result) {
    case TEXTSHIM_OK:
        return out->failed ? error_no_memory(error) : STATUS_OK;
    case TEXTSHIM_RAISED:
        return error_set_code(error, STATUS_INVALID, "chat_template", "messages",
                              "The model's chat template refuses these messages: %s", message);
    case TEXTSHIM_INVALID:
        return error_set_code(error, STATUS_INVALID, "chat_template", "messages",
                              "The model's chat template cannot render these messages: %s",
                              message);
    case TEXTSHIM_LIMIT:
        return error_set_code(error, STATUS_TOO_LARGE, "chat_template", "messages",
                              "The model's chat template takes too long over these messages, or "
                              "more than the %s that --memory leaves for it: %s",
                              bytes_format(chat_template->memory_bytes, kept), message);
    default:
        log_error("chat_template_failed", "%s", message);
        return error_set(error, STATUS_INTERNAL, NULL, "The chat template engine failed.");
    }
}
