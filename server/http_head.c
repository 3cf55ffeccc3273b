/*
 * The parser of request heads: see http_head.h.
 *
 * The end of a head is found byte by byte as it arrives, which also refuses line ends and control
 * characters that may not be there, so that a malformed head is answered at once and not when its
 * time is over. The syntax is parsed once the head is complete. Fields are rewritten in place as
 * pairs of strings; what follows a name is never shorter than the two NULs need.
 */
#include "server/http_head.h"

#include <string.h>
#include <strings.h>

#define METHOD_BYTES_MAX 32u

/* RFC 9110, section 5.6.2. */
static bool is_token(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && !(c && strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return length > 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

size_t http_head_find_end(const char *bytes, size_t length, size_t *checked)
{
    for (size_t i = *checked; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        bool after_return = i > 0 && bytes[i - 1] == '\r';
        if (after_return != (c == '\n') || (c < ' ' && !strchr("\t\r\n", c)) || !c || c == 0x7f)
            return SIZE_MAX;
        if (c == '\n' && i >= 3 && bytes[i - 3] == '\r' && bytes[i - 2] == '\n')
            return i + 1;
    }
    *checked = length;
    return 0;
}

static unsigned refuse(struct error *error, unsigned status, const char *code, const char *message)
{
    enum status kind = status == 501 || status == 505 ? STATUS_UNSUPPORTED
                       : status == 413                ? STATUS_TOO_LARGE
                                                      : STATUS_INVALID;
    error_set_code(error, kind, code, NULL, "%s", message);
    return status;
}

static unsigned bad_request(struct error *error, const char *message)
{
    return refuse(error, 400, "bad_request", message);
}

/* "METHOD target HTTP/1.x" with single blanks. The line ends at `end` and is cut into strings. */
static unsigned parse_request_line(char *line, char *end, struct http_head *head,
                                   struct error *error)
{
    static const char message[] = "the request line is malformed";
    *end = '\0';
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version || target - line > METHOD_BYTES_MAX || !is_token(line, (size_t)(target - line)))
        return bad_request(error, message);
    *target++ = *version++ = '\0';
    for (const char *at = target; *at; at++) {
        if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f)
            return bad_request(error, message);
    }
    if (!*target)
        return bad_request(error, message);
    head->method = line;
    head->target = target;
    target[strcspn(target, "?")] = '\0';
    head->http11 = !strcmp(version, "HTTP/1.1");
    if (head->http11 || !strcmp(version, "HTTP/1.0"))
        return 0;
    bool other = strlen(version) == 8 && !strncmp(version, "HTTP/", 5) && is_digit(version[5]) &&
                 version[6] == '.' && is_digit(version[7]);
    if (other)
        return refuse(error, 505, "bad_request", "only HTTP/1.0 and HTTP/1.1 are spoken here");
    return bad_request(error, message);
}

/* One field line, [line, end), to "name NUL value NUL" at `*to`. */
static bool parse_field(const char *line, const char *end, char **to)
{
    const char *colon = memchr(line, ':', (size_t)(end - line));
    if (!colon || !is_token(line, (size_t)(colon - line)))
        return false;
    const char *value = colon + 1;
    while (value < end && is_blank(*value))
        value++;
    while (end > value && is_blank(end[-1]))
        end--;
    memmove(*to, line, (size_t)(colon - line));
    *to += colon - line;
    *(*to)++ = '\0';
    memmove(*to, value, (size_t)(end - value));
    *to += end - value;
    *(*to)++ = '\0';
    return true;
}

/* Is `token` one of a comma-separated list? */
static bool has_token(const char *list, const char *token)
{
    size_t length = strlen(token);
    for (const char *at = list; *at; at += *at != '\0') {
        at += strspn(at, " \t,");
        size_t item = strcspn(at, ",");
        const char *end = at + item;
        while (item && is_blank(at[item - 1]))
            item--;
        if (item == length && !strncasecmp(at, token, length))
            return true;
        at = end;
    }
    return false;
}

static unsigned parse_length(const char *text, uint64_t *out, struct error *error)
{
    size_t digits = strspn(text, "0123456789");
    if (!digits || text[digits])
        return bad_request(error, "Content-Length is malformed");
    uint64_t value = 0;
    for (; *text; text++) {
        value = value * 10 + (uint64_t)(*text - '0');
        if (value > INT64_MAX / 10)
            return refuse(error, 413, "body_too_large", "no body is as large as Content-Length");
    }
    *out = value;
    return 0;
}

/* Which fields frame the message, and are they unambiguous? */
static unsigned parse_framing(struct http_head *head, struct error *error)
{
    const char *length = NULL, *coding = NULL;
    unsigned hosts = 0, lengths = 0, codings = 0;
    const char *at = head->fields;
    for (unsigned i = 0; i < head->field_count; i++) {
        const char *value = at + strlen(at) + 1;
        if (!strcasecmp(at, "Host")) {
            hosts++;
        } else if (!strcasecmp(at, "Content-Length")) {
            lengths++;
            length = value;
        } else if (!strcasecmp(at, "Transfer-Encoding")) {
            codings++;
            coding = value;
        } else if (!strcasecmp(at, "Connection")) {
            head->close |= has_token(value, "close");
            head->keep_alive |= has_token(value, "keep-alive");
        }
        at = value + strlen(value) + 1;
    }
    if (hosts > 1 || (head->http11 && hosts == 0))
        return bad_request(error, "there must be one Host header");
    if (lengths > 1 || codings > 1 || (length && coding))
        return bad_request(error, "the body's length is ambiguous");
    if (coding && !head->http11)
        return bad_request(error, "HTTP/1.0 has no Transfer-Encoding");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return refuse(error, 501, "bad_request", "the only transfer coding is chunked");
    head->chunked = coding != NULL;
    return length ? parse_length(length, &head->content_length, error) : 0;
}

unsigned http_head_parse(char *bytes, size_t length, struct http_head *head, struct error *error)
{
    *head = (struct http_head){.method = "-", .target = "-", .fields = bytes};
    const char *end = bytes + length - 2; /* the empty line */
    char *line_end = memchr(bytes, '\r', length);
    char *line = line_end + 2;
    unsigned bad = parse_request_line(bytes, line_end, head, error);
    if (bad)
        return bad;
    char *to = line;
    head->fields = line;
    while (line < end) {
        char *next = memchr(line, '\r', (size_t)(end - line));
        if (!parse_field(line, next, &to))
            return bad_request(error, "a header is malformed");
        head->field_count++;
        line = next + 2;
    }
    return parse_framing(head, error);
}

const char *http_head_field(const struct http_head *head, const char *name)
{
    const char *at = head->fields;
    for (unsigned i = 0; i < head->field_count; i++) {
        const char *value = at + strlen(at) + 1;
        if (!strcasecmp(at, name))
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}
