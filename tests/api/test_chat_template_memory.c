/*
 * What chat templates allocate: hostile ones stay within the limit they are given, whatever they
 * do; a context's values within what is counted for them; and all of it is given back. The text
 * shim's own allocator counts.
 */
#include "api/chat_template.h"
#include "base/bytes.h"
#include "textshim.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lists that repeat themselves cost nothing to make, and values that hold one another twice are as
   long as 2^depth when they are written. */
#define LIST "[[1] * 100000] * 100000"
#define TWICE                                                                                      \
    "{% set ns = namespace(l=1) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}"          \
    "{% endfor %}"
#define DEEP                                                                                       \
    "{% set ns = namespace(l=[1] * 50) %}{% for i in range(100) %}{% set ns.l = [ns.l] %}"         \
    "{% endfor %}"

#define DOUBLED(how)                                                                               \
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = " how " %}{% endfor %}"
#define DOUBLED_Y(how)                                                                             \
    "{% set nt = namespace(y=[1]) %}{% for i in range(60) %}{% set nt.y = " how " %}{% endfor %}"

static const char *const hostile[] = {
    /* growing */
    "{% set ns = namespace(l='x') %}{% for i in range(100000) %}{% set ns.l = ns.l ~ ns.l %}"
    "{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l, i] %}"
    "{% endfor %}",
    "{% set ns = namespace(l=none) %}{% for i in range(100000) %}"
    "{% set ns.l = {'a': ns.l, 'b': i, 'c': [], 'd': {}} %}{% endfor %}",
    "{% set x = 'x' * 100000000 %}",
    "{% set x = 'x' * 300000 %}{{ x|length }}",
    "{% set x %}{% for i in range(100000) %}0123456789012345678901234567890123456789{% endfor %}"
    "{% endset %}",
    "{% set x = range(100000)|map('string')|list %}",
    "{% macro f(n) %}{{ 'x' * 10000 }}{{ f(n + 1) }}{% endmacro %}{{ f(1)|length }}",
    /* written out */
    "{{ " LIST " }}",
    "{% set x = (" LIST ")|string %}",
    "{% set x = (" LIST ")|tojson %}",
    "{% set x = '%s' % (" LIST ") %}",
    "{% set x = '%r' % (" LIST ") %}",
    "{% set x = '%(a)s' % {'a': " LIST "} %}",
    "{{ raise_exception(" LIST ") }}",
    "{% set x = (" LIST ")|trim %}",
    "{% set x = (" LIST ")|center(9) %}",
    "{% set x = (" LIST ")|indent %}",
    "{% set x = (" LIST ")|pprint %}",
    "{% set x = (" LIST ")|upper %}",
    "{% set x = (" LIST ")|escape %}",
    "{% set x = (" LIST ")|replace('1', '2') %}",
    "{% set x = (" LIST ")|join(',') %}",
    "{% set x = 'a' ~ (" LIST ") %}",
    "{% set x = '{}'.format(" LIST ") %}",
    "{% set x = ','.join(" LIST ") %}",
    "{% set x = namespace(a=" LIST ") %}{{ x }}",
    TWICE "{{ ns.l }}",
    TWICE "{{ ns.l|tojson }}",
    TWICE "{{ ns.l ~ '' }}",
    TWICE "{{ '{}'.format(ns.l) }}",
    TWICE "{{ ns.l|upper }}",
    TWICE "{{ ns.l|pprint }}",
    DEEP "{{ ([ns.l] * 20000)|tojson(indent=64) }}",
    DEEP "{{ ([ns.l] * 20000)|pprint }}",
    /* cut into pieces, or grown by a factor */
    "{% set x = ('a' * 500000).split('a') %}",
    "{% set x = ('a ' * 500000).split() %}",
    "{% set x = ('a\\n' * 500000).splitlines() %}",
    "{% set x = ('a' * 500000).rsplit('a') %}",
    "{% for c in 'a' * 500000 %}{% endfor %}",
    "{% set x = ('a' * 500000)|list %}",
    "{% set x = ('<>' * 200000)|e %}",
    "{% set x = ('a' * 500000)|replace('', 'bbbbbbbbbb') %}",
    "{% set x = ('a' * 100000).replace('a', 'b' * 100000) %}",
    "{% set x = ('b' * 100000).join(['a'] * 100000) %}",
    "{% set x = (['a'] * 100000)|join('b' * 100000) %}",
    "{% set x = ('%s' * 100)|format(*(['a' * 100000] * 100)) %}",
    "{% set x = ('a\\n' * 100000)|indent(100000) %}",
    "{% set x = ('\\n' * 300000)|tojson %}",
    "{% set x = ('a\\t' * 10000).expandtabs(100000) %}",
    "{{ ([[1, 2]] * 1000000)|sum(start=[])|length }}",
    "{{ ([[1, 2]] * 3000)|sum(start=[])|length }}",
    "{{ range(99999)|batch(1)|list|length }}",
    /* doubled: as long as 2 to the number of operations, which themselves cost nothing */
    DOUBLED("ns.x + ns.x") "{{ ns.x|length }}",
    DOUBLED("(ns.x + ns.x)[0:]") "{{ ns.x|first }}",
    DOUBLED("ns.x|list + ns.x") "{{ ns.x[-1] }}",
    DOUBLED("ns.x|chain(ns.x)") "{{ ns.x|length }}",
    "{% macro f(x, n) %}{% if n > 0 %}{{ f(x + x, n - 1) }}{% endif %}{% endmacro %}{{ f([1], 40) "
    "}}",
    "{% set ns = namespace(x=[1] * 10) %}{% for i in range(40000) %}{% set ns.x = ns.x[0:] %}"
    "{% endfor %}{{ ns.x|list }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = ns.x + [i] %}{% endfor "
    "%}",
    /* compared: values that hold one another twice are equal after 2^depth looks */
    DOUBLED("[ns.x, ns.x]") DOUBLED_Y("[nt.y, nt.y]") "{{ ns.x == nt.y }}",
    DOUBLED("(ns.x, ns.x)") DOUBLED_Y("nt.y, nt.y") "{{ ns.x in [nt.y] }}",
    DOUBLED("{'a': ns.x, 'b': ns.x}") "{{ [ns.x, ns.x]|unique|list|length }}",
    DOUBLED("dict(a=ns.x, b=ns.x)") "{{ [ns.x, ns.x]|sort|length }}",
    "{% set x = 'a' * 100000 %}{% for i in range(90000) %}{% set y = x is lower %}{% endfor %}",
    /* formatted */
    "{% set x = '{:>1000000000}'.format(1) %}",
    "{% set x = '{:.1000000000f}'.format(1.5) %}",
    "{% set x = ('{:999}' * 80000).format(*range(80000)) %}",
    "{% set x = ('{0}' * 100000).format('x' * 10000) %}",
    "{% set x = ('{a.b}' * 100000).format(a={'b': 'x' * 10000}) %}",
    "{% set x = ('%999d' * 20000)|format(*([1] * 20000)) %}",
    "{% set x = '%*d' % (1000000000, 1) %}",
    "{% set x = ('%(a)999s' * 80000)|format(a=1) %}",
    "{% set x = ('%(a)f' * 200000)|format(a=1e300) %}",
    "{% set x = ('{0:,f}' * 200000).format(1e300) %}",
    "{% set x = '%d' % (" LIST ",) %}",
    "{% set x = '%ls' % (" LIST ",) %}",
};

/* Widths where a reader that takes a brace or a key for something else does not see them; with what
   the answer says. */
#define TOO_WIDE "a width of more than 999"
#define NO_MAPPING "format requires a mapping"
static const struct {
    const char *source, *sentence;
} hidden[] = {
    {"{% set x = '{:}>1000000000}'.format(1) %}", TOO_WIDE},
    {"{% set x = '{:{>1000000000}'.format(1) %}", TOO_WIDE},
    {"{% set x = '{0[}]:>1000000000}'.format({'}': 1}) %}", TOO_WIDE},
    {"{% set x = '{0[{]:>1000000000}'.format({'{': 1}) %}", TOO_WIDE},
    {"{% set x = '{0[a:]:}>1000000000}'.format({'a:': 1}) %}", TOO_WIDE},
    {"{% set x = '{{{:>1000000000}'.format(1) %}", TOO_WIDE},
    {"{% set x = '{:\u20ac>1000000000}'.format(1) %}", TOO_WIDE},
    {"{% set x = '%(x)1000000000s'|format({'x': 1}) %}", NO_MAPPING},
    {"{% set x = '%(x)1000000000s' % ({'x': 1},) %}", NO_MAPPING},
    {"{% set x = '%(x)1000000000s' % {'x': 1} %}", TOO_WIDE},
    {"{% set x = '%(x)(y)1000000000s' % {'x': {'y': 1}} %}", "unsupported format character '('"},
    {"{% set x = '%1(y)1000000000s' % {'y': 1} %}", "unsupported format character '('"},
};

static struct textshim_memory memory_now(void)
{
    struct textshim_memory memory;
    textshim_memory_read(&memory);
    return memory;
}

/* What is answered must have `sentence` in it. */
static void try_hostile(const char *source, uint64_t limit, const char *sentence)
{
    struct chat_template *chat_template;
    struct error error = {0};
    enum status status =
        chat_template_create(source, strlen(source), "", "", NULL, limit, &chat_template, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", source, error.message);
    struct buffer out;
    buffer_init(&out, 0);
    chat_template_render(chat_template, "{}", 2, &out, &error);
    ck_assert_msg(strstr(error.message, sentence), "%s: %s", source, error.message);
    ck_assert_msg(chat_template_memory_peak() <= limit, "%s: %llu of %llu bytes", source,
                  (unsigned long long)chat_template_memory_peak(), (unsigned long long)limit);
    buffer_deinit(&out);
    chat_template_destroy(chat_template);
}

START_TEST(hostile_templates_stay_within_their_limit)
{
    static const uint64_t limits[] = {MIB, 8 * MIB};
    try_hostile("", MIB, ""); /* what the engine makes once, and keeps */
    uint64_t before = chat_template_memory_used();
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        try_hostile(hostile[i], limits[_i], "");
        ck_assert_uint_eq(chat_template_memory_used(), before);
    }
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        try_hostile(hidden[i].source, limits[_i], hidden[i].sentence);
        ck_assert_uint_eq(chat_template_memory_used(), before);
    }
}
END_TEST

/* `piece` as often as fits 300 KB, in a list. */
static void write_list(struct buffer *out, const char *piece)
{
    buffer_append_text(out, "{\"a\":[");
    while (out->length < 300000)
        buffer_append_text(out, piece);
    buffer_append_text(out, "0]}");
}

START_TEST(contexts_are_counted)
{
    /* with the number of values in it */
    static const struct {
        const char *piece;
        unsigned values;
    } pieces[] = {{"[],", 1},
                  {"{},", 1},
                  {"1,", 1},
                  {"\"\",", 1},
                  {"null,", 1},
                  {"[[]],", 2},
                  {"{\"a\":1},", 2},
                  {"{\"a\":[]},", 2},
                  {"{\"a\":{\"b\":{}}},", 3},
                  {"\"0123456789012345678901234567890123456789\",", 1},
                  {"{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5},", 6},
                  {"{\"a long name of a member, to be held\":1},", 2}};
    static const char source[] = "{{ a|length }}{% for x in a %}{% set y = x %}{% endfor %}";
    struct chat_template *chat_template;
    struct error error = {0};
    ck_assert(chat_template_create(source, strlen(source), "", "", NULL, 4 * MIB, &chat_template,
                                   &error) == STATUS_OK);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        struct buffer json, out;
        buffer_init(&json, 0);
        buffer_init(&out, 0);
        write_list(&json, pieces[i].piece);
        uint64_t values = json.length / strlen(pieces[i].piece) * pieces[i].values + 3;
        textshim_memory_reset_peaks();
        chat_template_render(chat_template, json.data, json.length, &out, &error);
        struct textshim_memory memory = memory_now();
        /* The text of strings is counted with the request's own. */
        ck_assert_msg(memory.contexts_peak <= chat_template_context_bytes(values) + 2 * json.length,
                      "%s: %zu bytes", pieces[i].piece, memory.contexts_peak);
        ck_assert_uint_gt(memory.contexts_peak, json.length / 4);
        ck_assert_uint_eq(memory.contexts_used, 0);
        buffer_deinit(&json);
        buffer_deinit(&out);
    }
    chat_template_destroy(chat_template);
}
END_TEST

/* Usual templates render a long conversation with a small limit, also one that gathers a list. */
START_TEST(usual_templates_have_enough)
{
    static const char *const sources[] = {
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor "
        "%}"
        "{% for m in ns.l %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    };
    const char *source = sources[_i];
    struct chat_template *chat_template;
    struct error error = {0};
    ck_assert(chat_template_create(source, strlen(source), "", "", NULL, 4 * MIB, &chat_template,
                                   &error) == STATUS_OK);
    struct buffer json, out;
    buffer_init(&json, 0);
    buffer_init(&out, 0);
    buffer_append_text(&json, "{\"add_generation_prompt\":true,\"messages\":[");
    for (int i = 0; i < (_i == 0 ? 1000 : 700); i++)
        buffer_appendf(&json,
                       "%s{\"role\":\"user\",\"content\":\"message %d, as people write them\"}",
                       i ? "," : "", i);
    buffer_append_text(&json, "]}");
    ck_assert_msg(chat_template_render(chat_template, json.data, json.length, &out, &error) ==
                      STATUS_OK,
                  "%s", error.message);
    ck_assert_uint_gt(out.length, 700 * 50);
    buffer_deinit(&json);
    buffer_deinit(&out);
    chat_template_destroy(chat_template);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("chat_template_memory");
    TCase *tests = tcase_create("chat_template_memory");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, hostile_templates_stay_within_their_limit, 0, 2);
    tcase_add_test(tests, contexts_are_counted);
    tcase_add_loop_test(tests, usual_templates_have_enough, 0, 2);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
