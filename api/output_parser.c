/*
 * The states of a choice's text. Each step looks at what is held, hands over what is certain and
 * says whether there is more to do without more text. See output_parser.h.
 */
#include "api/output_parser.h"

#include "base/json_writer.h"
#include "base/limits.h"
#include "base/minmax.h"

#include <string.h>

void output_parser_init(struct output_parser *parser, const struct output_parser_spec *spec,
                        struct output_sink sink)
{
    *parser = (struct output_parser){.spec = *spec, .sink = sink, .fresh = true};
    parser->state = !spec->reasoning     ? OUTPUT_STATE_CONTENT
                    : spec->in_reasoning ? OUTPUT_STATE_REASONING
                                         : OUTPUT_STATE_START;
    parser->reasoned = spec->reasoning && spec->in_reasoning;
    parser->drop_space = parser->reasoned;
    buffer_init(&parser->held, 0);
    buffer_init(&parser->scratch, 0);
}

void output_parser_deinit(struct output_parser *parser)
{
    buffer_deinit(&parser->held);
    buffer_deinit(&parser->scratch);
}

bool output_parser_is_done(const struct output_parser *parser)
{
    return parser->state == OUTPUT_STATE_DONE;
}

bool output_parser_in_reasoning(const struct output_parser *parser)
{
    return parser->state == OUTPUT_STATE_REASONING;
}

static bool equals(const char *wanted, const char *text, size_t length)
{
    return strlen(wanted) == length && memcmp(wanted, text, length) == 0;
}

bool output_parser_wants(const struct output_parser_spec *spec, const char *text, size_t length)
{
    return (spec->calls && call_format_is_mark(spec->calls, text, length)) ||
           (spec->reasoning && (equals(spec->reasoning->open, text, length) ||
                                equals(spec->reasoning->close, text, length)));
}

/* ---- What is held. ---- */

static const char *text_of(const struct output_parser *p)
{
    return p->held.data ? p->held.data + p->at : "";
}

static size_t length_of(const struct output_parser *p)
{
    return p->held.length - p->at;
}

static void emit(struct output_parser *p, enum output_event_kind kind, const char *text,
                 size_t length)
{
    if (length == 0 && kind != OUTPUT_CALL && kind != OUTPUT_CALL_END)
        return;
    uint32_t call = p->calls > 0 ? p->calls - 1 : 0;
    struct output_event event = {.kind = kind, .call = call, .text = text, .length = length};
    p->sink.take(p->sink.arg, &event);
}

/* Hand over the first `length` bytes of what is held. */
static void emit_held(struct output_parser *p, enum output_event_kind kind, size_t length)
{
    emit(p, kind, text_of(p), length);
    p->at += length;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t count_space(const char *text, size_t length)
{
    size_t count = 0;
    while (count < length && is_space(text[count]))
        count++;
    return count;
}

static bool begins(const char *text, size_t length, const char *wanted)
{
    size_t size = strlen(wanted);
    return length >= size && memcmp(text, wanted, size) == 0;
}

/* Whether `text` is a beginning of `wanted`, not all of it. */
static bool may_begin(const char *text, size_t length, const char *wanted)
{
    return length < strlen(wanted) && memcmp(text, wanted, length) == 0;
}

/* Where `wanted` stands in the text or, *found false, where it may have begun. */
static size_t find(const char *text, size_t length, const char *wanted, bool *found)
{
    const char *at = length ? memmem(text, length, wanted, strlen(wanted)) : NULL;
    *found = at;
    if (at)
        return (size_t)(at - text);
    size_t size = strlen(wanted), from = length >= size ? length - size + 1 : 0;
    while (from < length && !may_begin(text + from, length - from, wanted))
        from++;
    return from;
}

/* ---- Reasoning and content. ---- */

static bool step_start(struct output_parser *p, bool end)
{
    const char *text = text_of(p), *open = p->spec.reasoning->open;
    size_t length = length_of(p), space = count_space(text, length);
    bool near = space <= LIMIT_CALL_HEAD_BYTES;
    if (near && begins(text + space, length - space, open)) {
        p->at += space + strlen(open);
        p->state = OUTPUT_STATE_REASONING;
        p->reasoned = p->drop_space = true;
        return true;
    }
    if (!end && near && may_begin(text + space, length - space, open))
        return false;
    p->state = OUTPUT_STATE_CONTENT;
    return true;
}

#define REASONING_TRIM_BYTES 2 /* of white space in front of its closing mark */

static bool step_reasoning(struct output_parser *p, bool end)
{
    bool found;
    const char *text = text_of(p), *close = p->spec.reasoning->close;
    size_t length = length_of(p);
    if (p->drop_space) { /* in front of it */
        size_t space = count_space(text, length);
        p->at += space;
        text += space;
        length -= space;
        p->drop_space = length == 0;
    }
    size_t at = find(text, length, close, &found), said = end && !found ? length : at;
    size_t most = said;
    while (said > 0 && is_space(text[said - 1]) && most - said < REASONING_TRIM_BYTES)
        said--;
    emit_held(p, OUTPUT_REASONING, said);
    if (found) {
        p->at += at - said + strlen(close);
        p->drop_space = true;
        p->state = OUTPUT_STATE_CONTENT;
    } else if (end) {
        p->at = p->held.length;
    }
    return found;
}

static void say(struct output_parser *p, size_t length)
{
    if (length > 0)
        p->fresh = p->drop_space = false;
    emit_held(p, OUTPUT_CONTENT, length);
}

static void begin_head(struct output_parser *p, size_t lead, unsigned mark)
{
    p->lead = lead;
    p->mark = mark;
    p->state = OUTPUT_STATE_HEAD;
}

/* The first mark in the text; CALL_FORMAT_MARKS: none, and *at where one may have begun. */
static unsigned find_mark(const struct call_format *format, const char *text, size_t length,
                          size_t *at)
{
    unsigned mark = CALL_FORMAT_MARKS;
    size_t begun = length, first = length;
    for (unsigned i = 0; i < CALL_FORMAT_MARKS && format->marks[i].open; i++) {
        bool found;
        size_t place = find(text, length, format->marks[i].open, &found);
        if (found && (mark == CALL_FORMAT_MARKS || place < first)) {
            mark = i;
            first = place;
        }
        if (!found)
            begun = min_size(begun, place);
    }
    *at = mark < CALL_FORMAT_MARKS ? first : begun;
    return mark;
}

static bool step_content(struct output_parser *p, bool end)
{
    const struct call_format *format = p->spec.calls;
    const char *text = text_of(p);
    size_t length = length_of(p), space = p->fresh ? count_space(text, length) : 0;
    if (p->drop_space) {
        p->at += space;
        text += space;
        length -= space;
        space = 0;
    }
    if (length == 0)
        return false;
    if (space == length && format) { /* of the call that comes next, or content */
        if (end && p->calls > 0)
            p->at = p->held.length;
        else if (end || length > LIMIT_CALL_HEAD_BYTES)
            say(p, length);
        return false;
    }
    if (!format) {
        say(p, length);
        return false;
    }
    if (space > LIMIT_CALL_HEAD_BYTES) {
        say(p, space);
        return true;
    }
    if (p->fresh && format->bare && (text[space] == '{' || text[space] == '[')) {
        begin_head(p, space, CALL_FORMAT_MARKS);
        return true;
    }
    size_t at;
    unsigned mark = find_mark(format, text, length, &at);
    if (mark == CALL_FORMAT_MARKS) {
        at = end ? length : at;
        if (at > space || !p->fresh || end)
            say(p, at);
        return false;
    }
    if (at > space || !p->fresh) {
        say(p, at);
        at = 0;
    }
    begin_head(p, at, mark);
    return true;
}

/* ---- Calls. ---- */

static bool is_object(const char *text, size_t length)
{
    struct json_scan scan = {0};
    size_t space = count_space(text, length);
    return space < length && text[space] == '{' &&
           json_scan_text(text, length, false, &scan, NULL) == STATUS_OK;
}

/* The arguments of a call that is there as a whole. False: they are none. */
static bool decode_arguments(struct output_parser *p, const char *text)
{
    const struct call_head *head = &p->head;
    size_t length = head->arguments_end - head->arguments;
    buffer_clear(&p->scratch);
    if (length == 0)
        return buffer_append_text(&p->scratch, "{}");
    if (!head->quoted)
        return buffer_append(&p->scratch, text + head->arguments, length);
    struct json_scan scan = {0};
    if (json_scan_text(text + head->arguments, length, false, &scan, NULL) != STATUS_OK)
        return false;
    json_decode_string((struct json_slice){text + head->arguments, length}, &p->scratch);
    return p->scratch.length > 0 && is_object(p->scratch.data, p->scratch.length);
}

static void begin_call(struct output_parser *p)
{
    p->calls++;
    p->fresh = true;
    p->drop_space = false;
    emit(p, OUTPUT_CALL, p->head.tool->name, strlen(p->head.tool->name));
}

static bool step_head(struct output_parser *p, bool end)
{
    const struct call_format *format = p->spec.calls;
    const char *text = text_of(p) + p->lead, *closer = p->head.closer;
    size_t held = length_of(p) - p->lead, length = min_size(held, LIMIT_CALL_HEAD_BYTES);
    bool next = p->head.tool && p->mark == CALL_FORMAT_MARKS, list = p->head.list;
    struct call_head head;
    enum call_head_result result =
        call_format_read(format, p->mark, p->spec.tools, text, length, &head);
    if (next) { /* in one mark with the call before */
        head.list = list;
        head.closer = closer;
    }
    if (result == CALL_HEAD_MORE && !end && held < LIMIT_CALL_HEAD_BYTES)
        return false;
    if (result == CALL_HEAD_OPEN || result == CALL_HEAD_WHOLE) {
        struct call_head before = p->head;
        p->head = head;
        if (result == CALL_HEAD_WHOLE && !decode_arguments(p, text)) {
            p->head = before;
            result = CALL_HEAD_NONE;
        }
    }
    if (result == CALL_HEAD_MORE || result == CALL_HEAD_NONE) {
        size_t size = p->mark < CALL_FORMAT_MARKS ? strlen(format->marks[p->mark].open) : 1;
        p->head = (struct call_head){0};
        p->state = OUTPUT_STATE_CONTENT;
        say(p, p->lead + min_size(size, length));
        return true;
    }
    begin_call(p);
    if (result == CALL_HEAD_WHOLE) {
        emit(p, OUTPUT_ARGUMENTS, p->scratch.data, p->scratch.length);
        p->at += p->lead + head.end;
        p->state = OUTPUT_STATE_TAIL;
        return true;
    }
    p->at += p->lead + head.arguments;
    p->walk = (struct json_walk){0};
    p->parameters = 0;
    p->state =
        format->arguments == CALL_ARGUMENTS_XML ? OUTPUT_STATE_PARAMETERS : OUTPUT_STATE_ARGUMENTS;
    return true;
}

/* What ends arguments whose brackets do not. */
static const char *breaker(const struct output_parser *p)
{
    return p->spec.calls->fenced ? "<｜tool▁call" : p->head.closer;
}

static bool step_arguments(struct output_parser *p, bool end)
{
    const char *text = text_of(p), *closer = breaker(p);
    size_t length = length_of(p), at = 0;
    bool broken = false;
    while (at < length && !p->walk.done && !broken) {
        if (!p->walk.string && closer[0] && text[at] == closer[0]) {
            broken = begins(text + at, length - at, closer);
            if (!broken && !end && may_begin(text + at, length - at, closer))
                break;
        }
        if (!broken)
            at += json_walk_push(&p->walk, text + at, 1);
    }
    emit_held(p, OUTPUT_ARGUMENTS, at);
    if (!p->walk.done && !broken && !end)
        return false;
    p->head.depth = p->walk.done ? p->head.depth : 0;
    p->state = OUTPUT_STATE_TAIL;
    return true;
}

static void end_call(struct output_parser *p)
{
    emit(p, OUTPUT_CALL_END, "", 0);
    p->state = p->spec.one_call ? OUTPUT_STATE_DONE : OUTPUT_STATE_CONTENT;
    p->fresh = true;
}

static bool step_tail(struct output_parser *p, bool end)
{
    const char *text = text_of(p);
    size_t held = length_of(p), length = min_size(held, LIMIT_CALL_HEAD_BYTES);
    struct call_tail tail = call_format_read_tail(&p->head, text, length);
    if (tail.more && !end && held < LIMIT_CALL_HEAD_BYTES)
        return false;
    size_t lead = tail.next ? tail.length - tail.kept : 0;
    p->at += tail.next ? tail.kept : tail.length;
    end_call(p);
    if (tail.next && p->state != OUTPUT_STATE_DONE)
        begin_head(p, lead, CALL_FORMAT_MARKS);
    else
        p->head = (struct call_head){0};
    return true;
}

/* ---- Parameters in XML, made JSON. ---- */

#define PARAMETER_OPEN "<parameter="
#define PARAMETER_CLOSE "</parameter>"
#define FUNCTION_CLOSE "</function>"

/* Whether the tool's schema says that this parameter is of another type than text. */
static bool is_raw(const struct output_parser *p, const char *name, size_t length)
{
    char key[LIMIT_TOOL_NAME_BYTES + 1];
    struct json_slice type = {0};
    if (length < sizeof key && p->head.tool->parameters.text) {
        memcpy(key, name, length);
        key[length] = '\0';
        struct json_slice schema =
            json_find(json_find(p->head.tool->parameters, "properties"), key);
        if (!schema.text)
            return false;
        type = json_find(schema, "type");
        return !type.text || !json_slice_is(type, "string");
    }
    return false;
}

static void emit_scratch(struct output_parser *p)
{
    emit(p, OUTPUT_ARGUMENTS, p->scratch.data, p->scratch.length);
}

static void end_parameters(struct output_parser *p)
{
    emit(p, OUTPUT_ARGUMENTS, p->parameters ? "}" : "{}", p->parameters ? 1 : 2);
    p->state = OUTPUT_STATE_TAIL;
}

static bool step_parameters(struct output_parser *p, bool end)
{
    const char *text = text_of(p);
    size_t length = length_of(p), space = count_space(text, length);
    const char *from = text + space;
    size_t left = length - space;
    if (begins(from, left, FUNCTION_CLOSE)) {
        p->at += space + strlen(FUNCTION_CLOSE);
        end_parameters(p);
        return true;
    }
    if (p->parameters == 0 && left > 0 && from[0] == '{') { /* Functionary: JSON in the mark */
        p->at += space;
        p->head.closer = FUNCTION_CLOSE;
        p->state = OUTPUT_STATE_ARGUMENTS;
        return true;
    }
    bool opens = begins(from, left, PARAMETER_OPEN);
    const char *name = from + strlen(PARAMETER_OPEN);
    const char *stop = opens ? memchr(name, '>', left - strlen(PARAMETER_OPEN)) : NULL;
    if (stop && stop - text <= LIMIT_CALL_HEAD_BYTES) {
        size_t size = (size_t)(stop - name);
        bool raw = is_raw(p, name, size);
        buffer_clear(&p->scratch);
        buffer_append_text(&p->scratch, p->parameters++ ? ", " : "{");
        json_write_string(&p->scratch, name, size);
        buffer_append_text(&p->scratch, raw ? ": " : ": \"");
        emit_scratch(p);
        p->at += (size_t)(stop + 1 - text);
        p->value_begun = false;
        p->state = raw ? OUTPUT_STATE_RAW_VALUE : OUTPUT_STATE_VALUE;
        return true;
    }
    if (!end && !stop && length <= LIMIT_CALL_HEAD_BYTES &&
        (opens || may_begin(from, left, PARAMETER_OPEN) || may_begin(from, left, FUNCTION_CLOSE)))
        return false;
    if (end && !stop &&
        (opens || may_begin(from, left, PARAMETER_OPEN) ||
         may_begin(from, left, FUNCTION_CLOSE))) { /* cut off */
        p->at += left == 0 ? space : 0;
        p->state = OUTPUT_STATE_TAIL;
        return true;
    }
    end_parameters(p);
    return true;
}

/* The value's text without the line ends around it, as JSON text without its quotes. */
static bool step_value(struct output_parser *p, bool end)
{
    bool found;
    const char *text = text_of(p);
    size_t length = length_of(p);
    if (!p->value_begun && length > 0) {
        p->value_begun = true;
        if (text[0] == '\n') {
            p->at++;
            text++;
            length--;
        }
    }
    size_t at = find(text, length, PARAMETER_CLOSE, &found), said = end && !found ? length : at;
    if (said > 0 && text[said - 1] == '\n' && !(end && !found))
        said--;
    buffer_clear(&p->scratch);
    json_write_escaped(&p->scratch, text, said);
    buffer_append_text(&p->scratch, found ? "\"" : "");
    emit_scratch(p);
    p->at += found ? at + strlen(PARAMETER_CLOSE) : said;
    if (found)
        p->state = OUTPUT_STATE_PARAMETERS;
    else if (end)
        p->state = OUTPUT_STATE_TAIL;
    return found || end;
}

/* A number, a list, …: JSON as it stands, else text. */
static bool step_raw_value(struct output_parser *p, bool end)
{
    bool found;
    const char *text = text_of(p);
    size_t length = length_of(p);
    size_t at = find(text, length, PARAMETER_CLOSE, &found);
    if (!found && !end && at <= LIMIT_CALL_HEAD_BYTES)
        return false;
    if (at > LIMIT_CALL_HEAD_BYTES) { /* too long to wait for */
        p->value_begun = true;
        p->state = OUTPUT_STATE_VALUE;
        emit(p, OUTPUT_ARGUMENTS, "\"", 1);
        return true;
    }
    size_t space = count_space(text, at), size = found ? at : length;
    while (size > space && is_space(text[size - 1]))
        size--;
    struct json_scan scan = {0};
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const char *literal = NULL;
    for (size_t i = 0; i < sizeof python / sizeof *python; i++)
        if (equals(python[i][0], text + space, size - space))
            literal = python[i][1];
    buffer_clear(&p->scratch);
    if (literal)
        buffer_append_text(&p->scratch, literal);
    else if (size > space &&
             json_scan_text(text + space, size - space, false, &scan, NULL) == STATUS_OK)
        buffer_append(&p->scratch, text + space, size - space);
    else
        json_write_string(&p->scratch, text + space, size - space);
    emit_scratch(p);
    p->at += found ? at + strlen(PARAMETER_CLOSE) : length;
    p->state = found ? OUTPUT_STATE_PARAMETERS : OUTPUT_STATE_TAIL;
    return true;
}

/* ---- */

static bool step(struct output_parser *p, bool end)
{
    switch (p->state) {
    case OUTPUT_STATE_START:
        return step_start(p, end);
    case OUTPUT_STATE_REASONING:
        return step_reasoning(p, end);
    case OUTPUT_STATE_CONTENT:
        return step_content(p, end);
    case OUTPUT_STATE_HEAD:
        return step_head(p, end);
    case OUTPUT_STATE_ARGUMENTS:
        return step_arguments(p, end);
    case OUTPUT_STATE_PARAMETERS:
        return step_parameters(p, end);
    case OUTPUT_STATE_VALUE:
        return step_value(p, end);
    case OUTPUT_STATE_RAW_VALUE:
        return step_raw_value(p, end);
    case OUTPUT_STATE_TAIL:
        return step_tail(p, end);
    case OUTPUT_STATE_DONE:
        break;
    }
    p->at = p->held.length;
    return false;
}

static bool run(struct output_parser *p, bool end)
{
    bool failed = p->held.failed || p->scratch.failed;
    while (!failed && step(p, end))
        failed = p->scratch.failed;
    buffer_consume(&p->held, p->at);
    p->at = 0;
    p->held.failed |= failed || p->scratch.failed;
    return !p->held.failed;
}

bool output_parser_push(struct output_parser *parser, const char *text, size_t length)
{
    buffer_append(&parser->held, text, length);
    return run(parser, false);
}

bool output_parser_end(struct output_parser *parser)
{
    return run(parser, true);
}
