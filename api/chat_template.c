/*
 * Runs a model's template: see chat_template.h. The limits: source, fuel and output; and what the
 * template engine says becomes an error a client can read. Fuel: one per instruction and one per 64
 * bytes made, real templates need some hundreds; 390,000 is 25 MB of text. What a template may have
 * allocated when its fuel ends was measured over hostile ones
 * (tests/api/test_chat_template_memory.c): copies are made before they are charged, and vectors
 * grow by doubling.
 */
#include "api/chat_template.h"

#include "api/call_format.h"
#include "api/chat_shape.h"
#include "api/control_guard.h"
#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "textshim.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define FUEL_MAX 390000u
#define FUEL_BYTES 128u  /* that a rendering may hold for each fuel it was given */
#define VALUE_BYTES 288u /* of a JSON value in the engine: a map with one short key */
/* Addresses, not memory, for allocations that the system refuses: blocks are rounded up to powers of
   two, and what grows is there twice for a moment; a context has at most 131,072 values. */
#define RESERVE_FACTOR 4
#define RESERVE_CONTEXT_BYTES (64 * MIB)
#define RAISED_CHARACTERS_MAX 200      /* of a template's own message */
#define STACK_BYTES ((size_t)64 << 20) /* as the preprocessing thread has: see textshim.h */
#define WAYS 3u                        /* in which its own control tokens are found */

struct chat_template {
    struct textshim_template *shim;
    uint64_t memory_bytes;
    struct chat_shape shape;
    const struct call_format *call_format;
    const struct reasoning_marks *reasoning; /* NULL: none */
    struct control_guard guard;
    uint32_t ways;  /* a bit for each that there is */
    uint32_t first; /* the one that finds all of its own tokens */
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

/* One time for a rendering and the tracing of it, which must print the same. */
static _Thread_local struct timespec now;
static _Thread_local bool now_is_known;

static size_t clock_format(const char *format, char *out, size_t capacity)
{
    struct tm local;
    if (!now_is_known && clock_gettime(CLOCK_REALTIME, &now) != 0)
        return 0;
    now_is_known = true;
    if (!localtime_r(&now.tv_sec, &local))
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

void chat_template_destroy(struct chat_template *chat_template)
{
    if (!chat_template)
        return;
    textshim_template_free(chat_template->shim);
    control_guard_deinit(&chat_template->guard);
    free(chat_template);
}

const struct chat_shape *chat_template_shape(const struct chat_template *chat_template)
{
    return &chat_template->shape;
}

const struct call_format *chat_template_call_format(const struct chat_template *chat_template)
{
    return chat_template->call_format;
}

const struct reasoning_marks *chat_template_reasoning(const struct chat_template *chat_template)
{
    return chat_template->reasoning;
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

static _Thread_local uint64_t lent_bytes;

void chat_template_lend(uint64_t bytes)
{
    lent_bytes = bytes;
}

/* As much as its memory can stand. */
static uint64_t fuel_for(const struct chat_template *chat_template)
{
    uint64_t used = chat_template_memory_used();
    uint64_t limit = chat_template->memory_bytes + lent_bytes;
    uint64_t fuel = limit > used ? (limit - used) / FUEL_BYTES : 0;
    return min_u64(fuel, FUEL_MAX);
}

/* Rust cannot go on when an allocation fails. The reserve (see textshim.h) is for that; but where the
   system has no memory a request is refused before: what a usual rendering of this context takes is
   asked of it, and given back untouched. */
static bool system_has_memory(size_t context_length)
{
    size_t bytes = MIB + 16 * context_length;
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block != MAP_FAILED && munmap(block, bytes) == 0;
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

static enum status refuse_limit(const struct chat_template *chat_template, const char *message,
                                struct error *error)
{
    char kept[24];
    return error_set_code(error, STATUS_TOO_LARGE, "chat_template", "messages",
                          "The model's chat template takes too long over these messages, or more "
                          "than the %s that --memory leaves for it: %s",
                          bytes_format(chat_template->memory_bytes + lent_bytes, kept), message);
}

enum status chat_template_render(const struct chat_template *chat_template,
                                 const char *context_json, size_t context_length,
                                 struct buffer *out, struct error *error)
{
    char message[900] = "";
    now_is_known = false;
    if (!system_has_memory(context_length))
        return error_no_memory(error);
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
        return refuse_limit(chat_template, message, error);
    default:
        log_error("chat_template_failed", "%s", message);
        return error_set(error, STATUS_INTERNAL, NULL, "The chat template engine failed.");
    }
}

/* ---- Whose control tokens. ---- */

size_t chat_template_own_bytes(const struct buffer *text)
{
    return text->length / 8 + 1;
}

enum traced { TRACED_SAME, TRACED_OTHER, TRACED_LIMIT };

/* Whether in this way the template prints the same text; then what it found is added to `own`.
   `found` is scratch of the same size. TRACED_LIMIT: the fuel ended before that was known. */
static enum traced trace_one(const struct chat_template *chat_template, uint32_t way,
                             const char *context, size_t context_length, const struct buffer *text,
                             uint8_t *own, uint8_t *found)
{
    size_t count = chat_template_own_bytes(text);
    char message[300] = "";
    bool same = false;
    memset(found, 0, count);
    int result = textshim_template_trace(chat_template->shim, way, context, context_length,
                                         fuel_for(chat_template), text->data, text->length, found,
                                         &same, message, sizeof message);
    for (size_t i = 0; i < count && same; i++)
        own[i] |= found[i];
    if (result == TEXTSHIM_LIMIT)
        return TRACED_LIMIT;
    return same ? TRACED_SAME : TRACED_OTHER;
}

static uint32_t count_forged(const struct chat_template *chat_template, const struct buffer *text,
                             const uint8_t *own)
{
    return text->length
               ? control_guard_apply(&chat_template->guard, text->data, own, text->length, 0, NULL)
               : 0;
}

enum status chat_template_trace(const struct chat_template *chat_template, const char *context_json,
                                size_t context_length, const struct buffer *text, uint8_t *own,
                                struct error *error)
{
    uint8_t *found = malloc(chat_template_own_bytes(text));
    if (!found)
        return error_no_memory(error);
    bool known = true, clean = false, limited = false;
    for (uint32_t i = 0; i < WAYS && !clean; i++) {
        uint32_t way = (chat_template->first + i) % WAYS;
        if (!(chat_template->ways >> way & 1))
            continue;
        enum traced traced =
            trace_one(chat_template, way, context_json, context_length, text, own, found);
        known &= traced == TRACED_SAME || i > 0;
        limited |= traced == TRACED_LIMIT;
        clean = traced == TRACED_SAME && count_forged(chat_template, text, own) == 0;
    }
    free(found);
    if (clean || (known && !limited) || count_forged(chat_template, text, own) == 0)
        return STATUS_OK;
    if (limited)
        return refuse_limit(chat_template, "their control tokens are not known", error);
    return error_set_code(error, STATUS_INVALID, "chat_template", "messages",
                          "The model's chat template treats these messages in a way in which its "
                          "own control tokens cannot be told from theirs. Leave the texts of "
                          "control tokens out of the messages.");
}

enum status chat_template_guard(const struct chat_template *chat_template, struct buffer *text,
                                const uint8_t *own, uint32_t sentinel, struct error *error)
{
    uint32_t forged = count_forged(chat_template, text, own);
    if (forged == UINT32_MAX)
        return error_set(error, STATUS_INVALID, "messages",
                         "A message holds a character that is a control token of the model.");
    if (forged == 0)
        return STATUS_OK;
    struct buffer broken;
    buffer_init(&broken, 0);
    control_guard_apply(&chat_template->guard, text->data, own, text->length, sentinel, &broken);
    buffer_append(&broken, "", 1); /* terminated, and the terminator not counted */
    broken.length--;
    bool failed = broken.failed;
    buffer_deinit(text);
    *text = broken;
    return failed ? error_no_memory(error) : STATUS_OK;
}

/* ---- Loading. ---- */

struct load {
    struct chat_template *chat_template;
    const char *source;
    size_t length;
    const char *bos, *eos;
    struct buffer printed; /* all small conversations, one behind the other */
    enum status status;
    struct error error;
};

static bool render_probe(void *arg, const struct buffer *json, struct buffer *out)
{
    return chat_template_render(arg, json->data, json->length, out, NULL) == STATUS_OK;
}

/* What a call looks like when the template prints it, or what its text says. */
static void find_call_format(struct load *load)
{
    struct chat_template *chat_template = load->chat_template;
    struct buffer json, text;
    buffer_init(&json, 0);
    buffer_init(&text, 0);
    chat_shape_write_call(chat_template->shape, &json);
    if (chat_template->shape.calls && !json.failed)
        render_probe(chat_template, &json, &text);
    chat_template->call_format =
        call_format_detect(text.data, text.length, load->source, load->length);
    if (!chat_template->call_format)
        chat_template->call_format = call_format_find("json");
    chat_template->reasoning = reasoning_marks_detect(load->source, load->length);
    buffer_deinit(&json);
    buffer_deinit(&text);
}

/* Which user-defined tokens are turn markers: those that plain turns are made of, and what looks
   like one wherever the template writes it. */
static void find_markers(struct load *load)
{
    struct chat_template *chat_template = load->chat_template;
    struct buffer json;
    for (unsigned i = 0; chat_shape_probe(chat_template->shape, i, &json); i++) {
        struct buffer text;
        buffer_init(&text, 0);
        if (!json.failed && render_probe(chat_template, &json, &text) && text.length) {
            if (i < CHAT_SHAPE_TURNS)
                control_guard_add_markers(&chat_template->guard, text.data, text.length, true);
            buffer_append(&load->printed, text.data, text.length);
        }
        buffer_deinit(&json);
        buffer_deinit(&text);
    }
    control_guard_add_markers(&chat_template->guard, load->source, load->length, false);
}

/* Whether a template has to do with a token: it writes it, prints it, or may make it of a role.
   Vocabularies have thousands that it has not. */
static bool may_write(const struct load *load, const struct control_text *token)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (memmem(token->text, token->length, roles[i], strlen(roles[i])))
            return true;
    const struct buffer *printed = &load->printed;
    size_t length = token->length;
    return memmem(load->source, load->length, token->text, length) ||
           (printed->length && memmem(printed->data, printed->length, token->text, length)) ||
           (strlen(load->bos) == length && memcmp(load->bos, token->text, length) == 0) ||
           (strlen(load->eos) == length && memcmp(load->eos, token->text, length) == 0);
}

static enum status compile_ways(struct load *load)
{
    struct chat_template *chat_template = load->chat_template;
    const struct control_guard *guard = &chat_template->guard;
    struct textshim_text *tokens = calloc(guard->count + 1, sizeof *tokens);
    uint32_t count = 0;
    char message[300] = "";
    if (!tokens)
        return error_out_of_memory(&load->error);
    for (uint32_t i = 0; i < guard->count; i++)
        if (guard->texts[i].guarded && may_write(load, &guard->texts[i]))
            tokens[count++] = (struct textshim_text){guard->texts[i].text, guard->texts[i].length};
    int result = textshim_template_mark(chat_template->shim, tokens, count, load->bos,
                                        strlen(load->bos), load->eos, strlen(load->eos),
                                        &chat_template->ways, message, sizeof message);
    free(tokens);
    return result == TEXTSHIM_OK ? STATUS_OK
                                 : error_set(&load->error, STATUS_INVALID, "chat_template",
                                             "the chat template cannot be guarded: %s", message);
}

/* The first way that finds all control tokens of one small conversation; WAYS: none does. */
static uint32_t find_way(const struct chat_template *chat_template, const struct buffer *json)
{
    struct buffer text;
    uint32_t way = 0;
    buffer_init(&text, 0);
    if (json->failed || !render_probe((void *)(uintptr_t)chat_template, json, &text) ||
        text.length == 0) {
        buffer_deinit(&text);
        return 0;
    }
    size_t size = chat_template_own_bytes(&text);
    uint8_t *own = calloc(2, size), *found = own + size;
    while (own && way < WAYS && count_forged(chat_template, &text, own) != 0) {
        bool there = chat_template->ways >> way & 1;
        memset(own, 0, size);
        if (there &&
            trace_one(chat_template, way, json->data, json->length, &text, own, found) ==
                TRACED_SAME &&
            count_forged(chat_template, &text, own) == 0)
            break;
        way++;
    }
    free(own);
    buffer_deinit(&text);
    return way;
}

static enum status choose_way(struct load *load)
{
    struct chat_template *chat_template = load->chat_template;
    struct buffer json;
    for (unsigned i = 0; chat_shape_probe(chat_template->shape, i, &json); i++) {
        uint32_t way = find_way(chat_template, &json);
        buffer_deinit(&json);
        if (way == WAYS)
            return error_set(&load->error, STATUS_INVALID, "chat_template",
                             "the chat template cannot be guarded: it makes control tokens in a "
                             "way that cannot be told from users' text");
        if (way > chat_template->first)
            chat_template->first = way;
    }
    return STATUS_OK;
}

static void *load_on_stack(void *arg)
{
    struct load *load = arg;
    struct chat_template *chat_template = load->chat_template;
    chat_template->shape = chat_shape_find(render_probe, chat_template);
    find_call_format(load);
    if (chat_template->guard.count == 0)
        return NULL;
    buffer_init(&load->printed, 0);
    find_markers(load);
    load->status = load->printed.failed ? error_no_memory(&load->error) : compile_ways(load);
    buffer_deinit(&load->printed);
    if (load->status == STATUS_OK)
        load->status = choose_way(load);
    return NULL;
}

static enum status load_templates(struct load *load, struct error *error)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int failed = pthread_create(&thread, &attributes, load_on_stack, load);
    pthread_attr_destroy(&attributes);
    if (failed)
        return error_set(error, STATUS_IO, NULL, "cannot start a thread for the chat template: %s",
                         strerror(failed));
    pthread_join(thread, NULL);
    if (load->status != STATUS_OK && error)
        *error = load->error;
    return load->status;
}

/* Once in a process, for the first template. */
static void set_reserve_aside(uint64_t memory_bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool done;
    size_t bytes = RESERVE_FACTOR * memory_bytes + RESERVE_CONTEXT_BYTES;
    pthread_mutex_lock(&lock);
    if (!done) {
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        done = base != MAP_FAILED;
        if (done)
            textshim_reserve(base, bytes);
        else
            log_warn("chat_template", "no addresses are left for what the system may refuse later");
    }
    pthread_mutex_unlock(&lock);
}

enum status chat_template_create(const char *source, size_t length, const char *bos_text,
                                 const char *eos_text, struct control_guard *guard,
                                 uint64_t memory_bytes, struct chat_template **out,
                                 struct error *error)
{
    *out = NULL;
    char message[300] = "";
    struct load load = {.source = source, .length = length, .bos = bos_text, .eos = eos_text};
    struct chat_template *chat_template = calloc(1, sizeof *chat_template);
    if (!chat_template) {
        if (guard)
            control_guard_deinit(guard);
        return error_out_of_memory(error);
    }
    load.chat_template = chat_template;
    chat_template->memory_bytes = memory_bytes;
    if (guard) {
        chat_template->guard = *guard;
        *guard = (struct control_guard){0};
    }
    set_reserve_aside(memory_bytes);
    enum status status = STATUS_OK;
    int result = TEXTSHIM_OK;
    if (length > LIMIT_TEMPLATE_BYTES)
        status = error_set(error, STATUS_INVALID, "chat_template",
                           "the chat template has %zu bytes, more than the %u that are run", length,
                           LIMIT_TEMPLATE_BYTES);
    else
        result = textshim_template_new(source, length, bos_text, strlen(bos_text), eos_text,
                                       strlen(eos_text), clock_format, &chat_template->shim,
                                       message, sizeof message);
    if (result != TEXTSHIM_OK)
        status = error_set(error, result == TEXTSHIM_PANIC ? STATUS_INTERNAL : STATUS_INVALID,
                           "chat_template", "the chat template cannot be run: %s", message);
    if (status == STATUS_OK)
        status = load_templates(&load, error);
    textshim_memory_reset_peaks(); /* compiling is over, before there are weights */
    if (status == STATUS_OK)
        *out = chat_template;
    else
        chat_template_destroy(chat_template);
    return status;
}
