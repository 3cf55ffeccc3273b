/*
 * The table of formats and their readers. See call_format.h.
 *
 * Most are JSON objects with a name and arguments behind a mark, alone or in a list; one reader
 * reads them all. What a reader does not know is no call: its text stays content.
 */
#include "api/call_format.h"

#include "base/minmax.h"

#include <string.h>

static const struct call_format formats[] = {
    {
        .name = "hermes", /* Hermes, Qwen 2.5 and 3, SmolLM; Qwen2.5-Coder leaves the marks out */
        .marks = {{"<tool_call>", "</tool_call>"}, {"```json", "```"}},
        .bare = true,
        .signs = {"<tool_call>"},
    },
    {
        .name = "llama3",
        .marks = {{"<|python_tag|>", ""}},
        .bare = true,
        .signs = {"<|python_tag|>", "\"quire_call\", \"parameters\""},
    },
    {
        .name = "mistral",
        .marks = {{"[TOOL_CALLS]", ""}},
        .named = true,
        .signs = {"[TOOL_CALLS]"},
    },
    {
        .name = "qwen3-coder",
        .marks = {{"<tool_call>", "</tool_call>"}, {"<function=", ""}},
        .arguments = CALL_ARGUMENTS_XML,
        .signs = {"<function=quire_call>", "<function="},
    },
    {
        .name = "gemma",
        .marks = {{"```tool_code", "```"}, {"```tool_call", "```"}, {"```json", "```"}},
        .bare = true,
        .signs = {"```tool_code", "```tool_call"},
    },
    {
        .name = "deepseek",
        .marks = {{"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}},
        .fenced = true,
        .signs = {"<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>"},
    },
    {
        .name = "granite",
        .marks = {{"<|tool_call|>", ""}, {"<tool_call>", "</tool_call>"}},
        .signs = {"<|tool_call|>"},
    },
    {
        .name = "json", /* without a mark, or with those that models invent */
        .marks = {{"<tool_call>", "</tool_call>"},
                  {"```json", "```"},
                  {"```tool_call", "```"},
                  {"<TOOLCALL>", "</TOOLCALL>"}},
        .bare = true,
    },
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Signs of the more particular formats are looked for first. */
static const char *const detect_order[] = {"qwen3-coder", "deepseek", "mistral", "granite",
                                           "hermes",      "gemma",    "llama3"};

const struct call_format *call_format_at(unsigned index)
{
    return index < COUNT(formats) ? &formats[index] : NULL;
}

const struct call_format *call_format_find(const char *name)
{
    for (size_t i = 0; i < COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

static bool holds(const char *text, size_t length, const char *wanted)
{
    return length > 0 && memmem(text, length, wanted, strlen(wanted));
}

const struct call_format *call_format_detect(const char *printed, size_t printed_length,
                                             const char *source, size_t source_length)
{
    if (holds(source, source_length, "<arg_key>")) /* GLM's, in the marks of Hermes */
        return NULL;
    for (int pass = 0; pass < 2; pass++) {
        const char *text = pass == 0 ? printed : source;
        size_t length = pass == 0 ? printed_length : source_length;
        for (size_t i = 0; i < COUNT(detect_order); i++) {
            const struct call_format *format = call_format_find(detect_order[i]);
            for (size_t s = 0; s < COUNT(format->signs) && format->signs[s]; s++)
                if (holds(text, length, format->signs[s]))
                    return format;
        }
    }
    return NULL;
}

const struct reasoning_marks *reasoning_marks_detect(const char *source, size_t length)
{
    static const struct reasoning_marks marks[] = {
        {"<think>", "</think>"},
        {"<seed:think>", "</seed:think>"},
        {"[THINK]", "[/THINK]"},
    };
    for (size_t i = 0; i < COUNT(marks); i++)
        if (holds(source, length, marks[i].close))
            return &marks[i];
    return NULL;
}

bool call_format_is_mark(const struct call_format *format, const char *text, size_t length)
{
    static const char *const inner[] = {"[ARGS]", "[CALL_ID]", "<｜tool▁call▁begin｜>",
                                        "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"};
    for (size_t i = 0; i < CALL_FORMAT_MARKS && format->marks[i].open; i++) {
        const char *const texts[] = {format->marks[i].open, format->marks[i].close};
        for (size_t t = 0; t < 2; t++)
            if (strlen(texts[t]) == length && length > 0 && memcmp(texts[t], text, length) == 0)
                return true;
    }
    for (size_t i = 0; i < COUNT(inner) && (format->named || format->fenced); i++)
        if (strlen(inner[i]) == length && memcmp(inner[i], text, length) == 0)
            return true;
    return false;
}

const struct output_tool *output_tools_find(const struct output_tools *tools, const char *name,
                                            size_t length)
{
    for (uint32_t i = 0; i < tools->count; i++)
        if (strlen(tools->tools[i].name) == length &&
            memcmp(tools->tools[i].name, name, length) == 0)
            return &tools->tools[i];
    return NULL;
}

/* ---- Text that may go on. ---- */

size_t json_walk_push(struct json_walk *walk, const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && !walk->done) {
        char c = text[at++];
        if (walk->string) {
            if (walk->escape)
                walk->escape = false;
            else if (c == '\\')
                walk->escape = true;
            else if (c == '"')
                walk->string = false;
            walk->done = !walk->string && walk->depth == 0;
        } else if (c == '"') {
            walk->string = true;
        } else if (c == '{' || c == '[') {
            walk->depth++;
        } else if (c == '}' || c == ']') {
            walk->depth -= walk->depth > 0;
            walk->done = walk->depth == 0;
        }
    }
    return at;
}

/* A place in a text whose end is not there yet. */
struct reading {
    const char *text;
    size_t length, at;
    bool more; /* the text ended where it mattered */
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_space(struct reading *r)
{
    while (r->at < r->length && is_space(r->text[r->at]))
        r->at++;
}

/* Past `wanted`; false if it is not there, `more` if it may be. */
static bool take(struct reading *r, const char *wanted)
{
    size_t size = strlen(wanted), left = r->length - r->at;
    size_t common = min_size(size, left);
    if (memcmp(r->text + r->at, wanted, common) != 0)
        return false;
    if (common < size) {
        r->more = true;
        return false;
    }
    r->at += size;
    return true;
}

/* The next character; '\0' when there is none yet. */
static char peek(struct reading *r)
{
    if (r->at < r->length)
        return r->text[r->at];
    r->more = true;
    return '\0';
}

/* Past a JSON value, loosely; its text. */
static bool take_value(struct reading *r, struct json_slice *out)
{
    char c = peek(r);
    size_t begin = r->at;
    if (c == '{' || c == '[' || c == '"') {
        struct json_walk walk = {0};
        r->at += json_walk_push(&walk, r->text + r->at, r->length - r->at);
        r->more |= !walk.done;
        *out = (struct json_slice){r->text + begin, r->at - begin};
        return walk.done;
    }
    while (r->at < r->length && !strchr(",}] \n\t\r", r->text[r->at]) && r->at - begin < 64)
        r->at++;
    r->more |= r->at == r->length;
    *out = (struct json_slice){r->text + begin, r->at - begin};
    return !r->more && r->at > begin && r->at - begin < 64;
}

/* The text of a string slice, without its quotes. */
static struct json_slice unquote(struct json_slice string)
{
    return (struct json_slice){string.text + 1, string.length - 2};
}

static bool is_key(struct json_slice key, const char *name)
{
    struct json_slice text = unquote(key);
    return text.length == strlen(name) && memcmp(text.text, name, text.length) == 0;
}

/* ---- Calls as JSON objects. ---- */

/* Members of a call that say nothing which its event does not; any other makes it no call. */
static bool is_known_key(struct json_slice key)
{
    static const char *const keys[] = {"type", "id", "call_id", "tool_call_id", "index"};
    for (size_t i = 0; i < COUNT(keys); i++)
        if (is_key(key, keys[i]))
            return true;
    return false;
}

static enum call_head_result unless_more(const struct reading *r)
{
    return r->more ? CALL_HEAD_MORE : CALL_HEAD_NONE;
}

/* `marked`: the text says that it is a call, so that one without arguments is one too. */
static enum call_head_result read_object(struct reading *r, bool marked,
                                         const struct output_tools *tools, struct call_head *out)
{
    struct json_slice key, value, arguments = {0};
    if (!take(r, "{"))
        return unless_more(r);
    out->depth++;
    for (bool first = true;; first = false) {
        skip_space(r);
        if (!first || peek(r) == '}') {
            if (take(r, "}"))
                break;
            if (!take(r, ","))
                return unless_more(r);
            skip_space(r);
        }
        if (peek(r) != '"' || !take_value(r, &key))
            return unless_more(r);
        skip_space(r);
        if (!take(r, ":"))
            return unless_more(r);
        skip_space(r);
        char c = peek(r);
        bool is_arguments = is_key(key, "arguments") || is_key(key, "parameters");
        if (is_arguments && out->tool && c == '{' && !arguments.text) {
            out->arguments = r->at;
            return CALL_HEAD_OPEN;
        }
        if (is_key(key, "function") && c == '{' && !out->tool && out->depth == 1) {
            enum call_head_result result = read_object(r, marked, tools, out);
            if (result != CALL_HEAD_WHOLE)
                return result;
            continue;
        }
        if (!take_value(r, &value))
            return unless_more(r);
        if (is_key(key, "name")) {
            if (value.text[0] != '"')
                return CALL_HEAD_NONE;
            if (out->tool)
                return CALL_HEAD_NONE;
            out->tool = output_tools_find(tools, value.text + 1, value.length - 2);
            if (!out->tool)
                return CALL_HEAD_NONE;
        } else if (!is_arguments) {
            if (!is_known_key(key))
                return CALL_HEAD_NONE;
        } else {
            if (arguments.text)
                return CALL_HEAD_NONE;
            bool null = value.length == 4 && memcmp(value.text, "null", 4) == 0;
            if (value.text[0] != '{' && value.text[0] != '"' && !null)
                return CALL_HEAD_NONE;
            arguments = value;
        }
    }
    out->depth--;
    if (arguments.text && arguments.text[0] != 'n') {
        out->arguments = (size_t)(arguments.text - r->text);
        out->arguments_end = out->arguments + arguments.length;
        out->quoted = arguments.text[0] == '"';
    }
    out->end = r->at;
    return out->tool && (arguments.text || out->arguments_end || marked) ? CALL_HEAD_WHOLE
                                                                         : CALL_HEAD_NONE;
}

/* Past a name, which ends in front of one of `ends`. */
static bool take_name(struct reading *r, const char *ends, const struct output_tools *tools,
                      struct call_head *out)
{
    size_t begin = r->at;
    while (r->at < r->length && !strchr(ends, r->text[r->at]))
        r->at++;
    if (r->at == r->length) {
        r->more = true;
        return false;
    }
    out->tool = output_tools_find(tools, r->text + begin, r->at - begin);
    return out->tool;
}

/* Mistral: name[ARGS]{…}, name{…}, name[CALL_ID]id[ARGS]{…} */
static enum call_head_result read_named(struct reading *r, const struct output_tools *tools,
                                        struct call_head *out)
{
    if (!take_name(r, "[{ \n", tools, out))
        return unless_more(r);
    if (take(r, "[CALL_ID]")) {
        while (r->at < r->length && r->text[r->at] != '[')
            r->at++;
        peek(r);
    }
    take(r, "[ARGS]");
    skip_space(r);
    if (peek(r) != '{')
        return unless_more(r);
    out->arguments = r->at;
    return CALL_HEAD_OPEN;
}

/* DeepSeek: <begin>function<sep>name\n```json\n{…}\n```<end>, or <begin>name<sep>{…}<end> */
static enum call_head_result read_fenced(struct reading *r, const struct output_tools *tools,
                                         struct call_head *out)
{
    skip_space(r);
    if (!take(r, "<｜tool▁call▁begin｜>"))
        return unless_more(r);
    r->more = false;
    if (take(r, "function<｜tool▁sep｜>")) {
        if (!take_name(r, "\n", tools, out))
            return unless_more(r);
        skip_space(r);
        if (!take(r, "```json"))
            return unless_more(r);
    } else {
        if (r->more)
            return CALL_HEAD_MORE;
        if (!take_name(r, "<", tools, out) || !take(r, "<｜tool▁sep｜>"))
            return unless_more(r);
    }
    skip_space(r);
    if (peek(r) != '{')
        return unless_more(r);
    out->arguments = r->at;
    return CALL_HEAD_OPEN;
}

/* Qwen3-Coder: <function=name>, then parameters. */
static enum call_head_result read_function(struct reading *r, const struct output_tools *tools,
                                           struct call_head *out)
{
    if (!take(r, "<function=") || !take_name(r, ">\n<", tools, out) || !take(r, ">"))
        return unless_more(r);
    out->arguments = r->at;
    return CALL_HEAD_OPEN;
}

enum call_head_result call_format_read(const struct call_format *format, unsigned mark,
                                       const struct output_tools *tools, const char *text,
                                       size_t length, struct call_head *out)
{
    struct reading r = {.text = text, .length = length};
    bool marked = mark < CALL_FORMAT_MARKS;
    *out = (struct call_head){.closer = marked ? format->marks[mark].close : ""};
    if (format->arguments == CALL_ARGUMENTS_XML) {
        if (mark == 0 && take(&r, format->marks[0].open))
            skip_space(&r);
        return r.more ? CALL_HEAD_MORE : read_function(&r, tools, out);
    }
    if (marked && !take(&r, format->marks[mark].open))
        return unless_more(&r);
    skip_space(&r);
    if (format->fenced)
        return read_fenced(&r, tools, out);
    char c = peek(&r);
    if (format->named && c != '[' && c != '{')
        return c ? read_named(&r, tools, out) : CALL_HEAD_MORE;
    if (c == '[') {
        r.at++;
        out->list = true;
        skip_space(&r);
    }
    return read_object(&r, marked && format->marks[mark].open[0] != '`', tools, out);
}

/* ---- The end of a call. ---- */

/* The rest of the call's object: more members, its bracket. False: it ends otherwise. */
static bool take_members(struct reading *r)
{
    struct json_slice value;
    for (;;) {
        skip_space(r);
        if (take(r, "}"))
            return true;
        if (!take(r, ","))
            return false;
        skip_space(r);
        if (peek(r) != '"' || !take_value(r, &value) || !is_known_key(value))
            return false;
        skip_space(r);
        if (!take(r, ":"))
            return false;
        skip_space(r);
        if (!take_value(r, &value))
            return false;
    }
}

/* Past `wanted` and the white space in front of it, or nothing. */
static bool take_after_space(struct reading *r, const char *wanted)
{
    size_t begin = r->at;
    skip_space(r);
    if (r->at == r->length)
        r->more = true;
    if (take(r, wanted))
        return true;
    r->at = begin;
    return false;
}

static bool begins_object(struct reading *r)
{
    size_t begin = r->at;
    skip_space(r);
    bool found = peek(r) == '{';
    if (!found)
        r->at = begin;
    return found;
}

struct call_tail call_format_read_tail(const struct call_head *head, const char *text,
                                       size_t length)
{
    struct reading r = {.text = text, .length = length};
    struct call_tail tail = {0};
    for (uint32_t i = 0; i < head->depth; i++) {
        size_t begin = r.at;
        if (!take_members(&r)) {
            r.at = begin;
            break;
        }
    }
    tail.kept = r.at;
    if (!r.more && strcmp(head->closer, "<｜tool▁calls▁end｜>") == 0) {
        take_after_space(&r, "```");
        take_after_space(&r, "<｜tool▁call▁end｜>");
        tail.kept = r.at;
        skip_space(&r);
        size_t next = r.at;
        tail.next = !r.more && take(&r, "<｜tool▁call▁begin｜>");
        r.at = tail.next ? next : tail.kept;
    } else if (!r.more && take_after_space(&r, head->list ? "," : ";")) {
        tail.next = begins_object(&r);
    }
    if (!r.more && !tail.next) {
        r.at = tail.kept; /* what separates nothing is text */
        if (head->list)
            take_after_space(&r, "]");
        if (head->closer[0])
            take_after_space(&r, head->closer);
    }
    tail.length = r.at;
    tail.more = r.more;
    return tail;
}
