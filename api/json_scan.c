/*
 * The scan: what is JSON for us, see json.h. A loop with an explicit stack of one byte per level,
 * no allocation, every byte looked at once. Grammar: RFC 8259. It also walks the members of text
 * that passed it before, so that callers can read a value's own spelling.
 */
#include "api/json_scan.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct cursor {
    const char *text;
    size_t length;
    size_t at;
    struct json_scan *scan; /* NULL when walking text that passed */
    struct error *error;
};

static bool fault(struct cursor *cursor, const char *what)
{
    error_set_code(cursor->error, STATUS_INVALID, "invalid_json", NULL,
                   "The request body is not valid JSON: %s at byte %zu.", what, cursor->at);
    return false;
}

static void skip_space(struct cursor *cursor)
{
    while (cursor->at < cursor->length) {
        char c = cursor->text[cursor->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return;
        cursor->at++;
    }
}

/* The byte at the cursor, or 0 at the end (a NUL byte is no JSON outside strings either). */
static char peek(const struct cursor *cursor)
{
    return cursor->at < cursor->length ? cursor->text[cursor->at] : '\0';
}

uint32_t json_noncharacter(unsigned index)
{
    CHECK(index < JSON_NONCHARACTERS);
    if (index < 32)
        return 0xfdd0 + index;
    index -= 32;
    return (index / 2) * 0x10000 + 0xfffe + index % 2;
}

static void note_noncharacter(struct json_scan *scan, uint32_t code_point)
{
    if (code_point >= 0xfdd0 && code_point <= 0xfdef)
        scan->noncharacter[code_point - 0xfdd0] = true;
    else if ((code_point & 0xfffe) == 0xfffe)
        scan->noncharacter[32 + (code_point >> 16) * 2 + (code_point & 1)] = true;
}

/* Four hexadecimal digits at text[at..]; -1 if they are not there. */
static int32_t read_hex4(const char *text, size_t length, size_t at)
{
    if (at > length || length - at < 4)
        return -1;
    int32_t value = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Behind "\u": the code point of one escape or of a surrogate pair. */
static bool scan_unicode_escape(struct cursor *cursor, uint32_t *code_point)
{
    int32_t unit = read_hex4(cursor->text, cursor->length, cursor->at);
    if (unit < 0)
        return fault(cursor, "bad \\u escape");
    cursor->at += 4;
    if (unit == 0)
        return fault(cursor, "the character NUL (\\u0000) is not allowed");
    if (unit >= 0xdc00 && unit <= 0xdfff)
        return fault(cursor, "lone surrogate");
    if (unit < 0xd800 || unit > 0xdbff) {
        *code_point = (uint32_t)unit;
        return true;
    }
    size_t at = cursor->at;
    if (cursor->length - at < 6 || cursor->text[at] != '\\' || cursor->text[at + 1] != 'u')
        return fault(cursor, "lone surrogate");
    int32_t low = read_hex4(cursor->text, cursor->length, at + 2);
    if (low < 0xdc00 || low > 0xdfff)
        return fault(cursor, "lone surrogate");
    cursor->at += 6;
    *code_point = 0x10000 + (((uint32_t)unit & 0x3ff) << 10) + ((uint32_t)low & 0x3ff);
    return true;
}

static bool scan_string(struct cursor *cursor)
{
    cursor->at++; /* the opening quote */
    while (cursor->at < cursor->length) {
        unsigned char c = (unsigned char)cursor->text[cursor->at];
        uint32_t code_point;
        if (c == '"') {
            cursor->at++;
            return true;
        }
        if (c < 0x20)
            return fault(cursor, "control character in a string");
        if (c == '\\') {
            cursor->at++;
            char escape = peek(cursor);
            if (escape == '\0' || !strchr("\"\\/bfnrtu", escape))
                return fault(cursor, "bad escape");
            cursor->at++;
            if (escape == 'u') {
                if (!scan_unicode_escape(cursor, &code_point))
                    return false;
                note_noncharacter(cursor->scan, code_point);
            }
            continue;
        }
        if (c < 0x80) {
            cursor->at++;
            continue;
        }
        int size = utf8_decode(cursor->text + cursor->at, cursor->length - cursor->at, &code_point);
        if (size <= 0)
            return fault(cursor, "invalid UTF-8");
        note_noncharacter(cursor->scan, code_point);
        cursor->at += (size_t)size;
    }
    return fault(cursor, "unterminated string");
}

static size_t skip_digits(struct cursor *cursor)
{
    size_t start = cursor->at;
    while (peek(cursor) >= '0' && peek(cursor) <= '9')
        cursor->at++;
    return cursor->at - start;
}

static bool scan_number(struct cursor *cursor)
{
    size_t start = cursor->at;
    if (peek(cursor) == '-')
        cursor->at++;
    if (peek(cursor) == '0')
        cursor->at++;
    else if (skip_digits(cursor) == 0)
        return fault(cursor, "unexpected character");
    if (peek(cursor) == '.') {
        cursor->at++;
        if (skip_digits(cursor) == 0)
            return fault(cursor, "bad number");
    }
    if (peek(cursor) == 'e' || peek(cursor) == 'E') {
        cursor->at++;
        if (peek(cursor) == '+' || peek(cursor) == '-')
            cursor->at++;
        if (skip_digits(cursor) == 0)
            return fault(cursor, "bad number");
    }
    if (cursor->at - start > JSON_NUMBER_BYTES_MAX) {
        cursor->at = start;
        return fault(cursor, "number with too many digits");
    }
    return true;
}

static bool scan_word(struct cursor *cursor, const char *word)
{
    size_t length = strlen(word);
    if (cursor->length - cursor->at < length ||
        memcmp(cursor->text + cursor->at, word, length) != 0)
        return fault(cursor, "unexpected character");
    cursor->at += length;
    return true;
}

/* A value that is no container. */
static bool scan_scalar(struct cursor *cursor)
{
    switch (peek(cursor)) {
    case '"':
        return scan_string(cursor);
    case 't':
        return scan_word(cursor, "true");
    case 'f':
        return scan_word(cursor, "false");
    case 'n':
        return scan_word(cursor, "null");
    default:
        if (cursor->at == cursor->length)
            return fault(cursor, "unexpected end");
        return scan_number(cursor);
    }
}

/* Moves behind the digits at *at and appends them to *value, until one does not fit. */
static bool add_digits(struct json_slice number, size_t *at, uint64_t *value, unsigned *count)
{
    for (; *at < number.length && number.text[*at] >= '0' && number.text[*at] <= '9'; ++*at) {
        if (__builtin_mul_overflow(*value, 10u, value) ||
            __builtin_add_overflow(*value, (uint64_t)(number.text[*at] - '0'), value))
            return false;
        ++*count;
    }
    return true;
}

bool json_integer(struct json_slice number, bool *negative, uint64_t *value)
{
    size_t at = 0, end = number.length;
    unsigned whole = 0, fraction = 0;
    int64_t exponent = 0;
    *value = 0;
    *negative = end > 0 && number.text[0] == '-';
    at += *negative;
    const char *point = memchr(number.text, '.', end), *e = memchr(number.text, 'e', end);
    e = e ? e : memchr(number.text, 'E', end);
    if (e) {
        exponent = strtol(e + 1, NULL, 10);
        exponent = exponent < -1000 ? -1000 : exponent > 1000 ? 1000 : exponent;
        end = (size_t)(e - number.text);
    }
    for (; end >= 2 && number.text[end - 1] == '0' && number.text[end - 2] != '-'; end--)
        exponent += !point; /* zeros at the end: of a fraction they count for nothing */
    number.length = end;
    if (!add_digits(number, &at, value, &whole) || whole == 0)
        return false;
    if (point && (at++, !add_digits(number, &at, value, &fraction)))
        return false;
    exponent -= fraction;
    for (; exponent < 0 && *value; exponent++, *value /= 10)
        if (*value % 10)
            return false;
    for (; exponent > 0 && *value; exponent--)
        if (__builtin_mul_overflow(*value, 10u, value))
            return false;
    return at == number.length;
}

/* Part of a number that is not plain digits? */
static bool spells_on(char c)
{
    return c == '.' || c == 'e' || c == 'E' || (c >= '0' && c <= '9');
}

/* The integer at the cursor. Plain digits, which a body has millions of, take the short way. */
static bool scan_id(struct cursor *cursor)
{
    uint64_t plain = 0;
    size_t start = cursor->at, at = start;
    for (; at < cursor->length && at - start < 10; at++) {
        char c = cursor->text[at];
        if (c < '0' || c > '9')
            break;
        plain = plain * 10 + (uint64_t)(c - '0');
    }
    bool leading_zero = at - start > 1 && cursor->text[start] == '0';
    if (at > start && at < cursor->length && !leading_zero && !spells_on(cursor->text[at])) {
        cursor->at = at;
        return plain <= UINT32_MAX;
    }
    struct error ignored;
    struct cursor copy = *cursor;
    bool negative;
    uint64_t value;
    copy.error = &ignored;
    if (!scan_number(&copy))
        return false;
    struct json_slice number = {cursor->text + cursor->at, copy.at - cursor->at};
    cursor->at = copy.at;
    return json_integer(number, &negative, &value) && value <= UINT32_MAX && !(negative && value);
}

/* One flat list of ids, non-empty, at the cursor: counts them. false: it is something else. */
static bool skip_id_list(struct cursor *cursor, uint32_t *count)
{
    cursor->at++;
    do {
        skip_space(cursor);
        if (!scan_id(cursor))
            return false;
        skip_space(cursor);
        ++*count;
    } while (peek(cursor) == ',' && ++cursor->at);
    if (peek(cursor) != ']')
        return false;
    cursor->at++;
    return true;
}

/* The value of "prompt" at the cursor, if it is a list of ids or of lists of ids: moves behind it
   and notes it. Otherwise nothing changes and the ordinary scan goes on. */
static void scan_id_prompt(struct cursor *cursor)
{
    struct cursor copy = *cursor;
    uint32_t count = 0, lists = 0;
    if (peek(&copy) != '[' || cursor->scan->id_prompt.text)
        return;
    copy.at++;
    skip_space(&copy);
    if (peek(&copy) == '[') {
        do {
            skip_space(&copy);
            if (peek(&copy) != '[' || !skip_id_list(&copy, &count))
                return;
            lists++;
            skip_space(&copy);
        } while (peek(&copy) == ',' && ++copy.at);
        if (peek(&copy) != ']')
            return;
        copy.at++;
    } else {
        copy.at = cursor->at;
        if (!skip_id_list(&copy, &count))
            return;
    }
    cursor->scan->id_prompt = (struct json_slice){cursor->text + cursor->at, copy.at - cursor->at};
    cursor->scan->id_count = count;
    cursor->scan->id_list_count = lists;
    cursor->at = copy.at;
}

/* At a member of an object: its key and colon. */
static bool scan_key(struct cursor *cursor, struct json_slice *key)
{
    skip_space(cursor);
    if (peek(cursor) != '"')
        return fault(cursor, "expected a key");
    size_t start = cursor->at;
    if (!scan_string(cursor))
        return false;
    *key = (struct json_slice){cursor->text + start, cursor->at - start};
    skip_space(cursor);
    if (peek(cursor) != ':')
        return fault(cursor, "expected ':'");
    cursor->at++;
    return true;
}

/* The value at the cursor, with everything in it. */
static bool scan_value(struct cursor *cursor, bool want_prompt)
{
    char open[LIMIT_JSON_DEPTH];
    unsigned depth = 0;
    struct json_slice key = {0};
    for (;;) {
        skip_space(cursor);
        if (++cursor->scan->nodes > JSON_NODES_MAX)
            return fault(cursor, "too many values");
        size_t start = cursor->at;
        if (want_prompt && depth == 1 && open[0] == '{' && json_slice_is(key, "prompt"))
            scan_id_prompt(cursor);
        char c = peek(cursor);
        if (cursor->at > start) {
            /* an id prompt was read */
        } else if (c == '{' || c == '[') {
            if (depth == LIMIT_JSON_DEPTH)
                return fault(cursor, "nested too deeply");
            open[depth++] = c;
            cursor->at++;
            skip_space(cursor);
            if (peek(cursor) != (c == '{' ? '}' : ']')) {
                if (c == '{' && !scan_key(cursor, &key))
                    return false;
                continue;
            }
        } else if (!scan_scalar(cursor)) {
            return false;
        }
        /* Behind a value or at the bracket of an empty container: close what closes here. */
        for (;;) {
            if (depth == 0)
                return true;
            skip_space(cursor);
            char close = open[depth - 1] == '{' ? '}' : ']';
            if (peek(cursor) != close)
                break;
            cursor->at++;
            depth--;
        }
        if (peek(cursor) != ',')
            return fault(cursor, cursor->at == cursor->length ? "unexpected end"
                                                              : "expected ',' or a bracket");
        cursor->at++;
        if (open[depth - 1] == '{' && !scan_key(cursor, &key))
            return false;
    }
}

enum status json_scan_text(const char *text, size_t length, bool want_prompt,
                           struct json_scan *scan, struct error *error)
{
    struct cursor cursor = {text, length, 0, scan, error};
    struct error ignored;
    if (!error)
        cursor.error = &ignored;
    bool good = true;
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        good = fault(&cursor, "a byte order mark");
    skip_space(&cursor);
    if (good && cursor.at == length)
        good = fault(&cursor, "it is empty");
    good = good && scan_value(&cursor, want_prompt);
    skip_space(&cursor);
    if (good && cursor.at != length)
        good = fault(&cursor, "text after the end");
    return good ? STATUS_OK : STATUS_INVALID;
}

/* Text that passed the scan: end of the string that starts at `at`. A quote ends it unless an odd
   number of backslashes stands before it. */
static size_t string_end(struct json_slice slice, size_t at)
{
    for (size_t from = at + 1;; from++) {
        const char *quote = memchr(slice.text + from, '"', slice.length - from);
        CHECK(quote != NULL);
        size_t end = (size_t)(quote - slice.text), backslashes = 0;
        while (end - backslashes > from && slice.text[end - backslashes - 1] == '\\')
            backslashes++;
        if (backslashes % 2 == 0)
            return end + 1;
        from = end;
    }
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Text that passed the scan: end of the value that starts at `at`. */
static size_t value_end(struct json_slice slice, size_t at)
{
    if (slice.text[at] == '"')
        return string_end(slice, at);
    unsigned depth = 0;
    while (at < slice.length) {
        char c = slice.text[at];
        if (c == '"') {
            at = string_end(slice, at);
            continue;
        }
        if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0)
                return at;
            if (--depth == 0)
                return at + 1;
        } else if (depth == 0 && (c == ',' || is_space(c))) {
            return at;
        }
        at++;
    }
    return at;
}

static size_t space_end(struct json_slice slice, size_t at)
{
    while (at < slice.length && is_space(slice.text[at]))
        at++;
    return at;
}

bool json_next(struct json_slice container, size_t *at, struct json_slice *key,
               struct json_slice *value)
{
    if (container.length < 2 || (container.text[0] != '{' && container.text[0] != '['))
        return false;
    size_t here = space_end(container, *at == 0 ? 1 : *at);
    if (here < container.length && container.text[here] == ',')
        here = space_end(container, here + 1);
    if (here + 1 >= container.length)
        return false; /* at the closing bracket */
    if (container.text[0] == '{') {
        size_t end = string_end(container, here);
        if (key)
            *key = (struct json_slice){container.text + here, end - here};
        here = space_end(container, space_end(container, end) + 1);
    }
    size_t end = value_end(container, here);
    *value = (struct json_slice){container.text + here, end - here};
    *at = end;
    return true;
}

void json_decode_string(struct json_slice string, struct buffer *out)
{
    CHECK(string.length >= 2 && string.text[0] == '"');
    size_t at = 1, end = string.length - 1;
    while (at < end) {
        const char *escape = memchr(string.text + at, '\\', end - at);
        size_t plain = escape ? (size_t)(escape - string.text) : end;
        buffer_append(out, string.text + at, plain - at);
        at = plain;
        if (at >= end)
            break;
        char c = string.text[at + 1];
        if (c == 'u') {
            uint32_t code_point;
            struct error ignored;
            struct cursor cursor = {string.text, end, at + 2, NULL, &ignored};
            CHECK(scan_unicode_escape(&cursor, &code_point));
            char bytes[4];
            buffer_append(out, bytes, (size_t)utf8_encode(code_point, bytes));
            at = cursor.at;
            continue;
        }
        static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
        const char *name = strchr(names, c);
        buffer_append(out, name ? &values[name - names] : &c, 1);
        at += 2;
    }
}

bool json_slice_is(struct json_slice string, const char *text)
{
    size_t length = strlen(text);
    if (string.length < 2 || string.text[0] != '"')
        return false;
    if (!memchr(string.text, '\\', string.length))
        return string.length - 2 == length && memcmp(string.text + 1, text, length) == 0;
    if (string.length > 6 * length + 2) /* longer than with every character escaped */
        return false;
    struct buffer decoded;
    buffer_init(&decoded, 0);
    json_decode_string(string, &decoded);
    bool same = decoded.length == length && memcmp(decoded.data, text, length) == 0;
    buffer_deinit(&decoded);
    return same;
}

struct json_slice json_find(struct json_slice object, const char *key)
{
    struct json_slice name, value;
    size_t at = 0;
    if (object.length > 0 && object.text[0] == '{')
        while (json_next(object, &at, &name, &value))
            if (json_slice_is(name, key))
                return value;
    return (struct json_slice){0};
}
