/*
 * The drawing of `quire plan --svg`: one bar that is the budget (or what would be needed, when that
 * is more), cut as the plan cuts it; the legend; and how many users fit with each type of keys and
 * values. Plain SVG 1.1, no script, no font of its own.
 */
#include "sizing/plan_answer.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/print.h"

#include <stdio.h>
#include <string.h>

#define WIDTH 900.0
#define MARGIN 24.0
#define BAR_WIDTH (WIDTH - 2 * MARGIN)
#define BAR_HEIGHT 64.0
#define LINE 20.0
#define COLUMNS 122u    /* characters of the sentence on a line */
#define LABEL_WIDTH 7.5 /* of a character, roughly */
#define TICKS_MOST 128u /* users that are drawn one by one */
#define SEGMENTS_MAX (BUDGET_ACCOUNTS + 2)

struct segment {
    const char *name;
    const char *colour;
    bool dark; /* its label is white */
    uint64_t bytes;
};

static void open_drawing(const struct plan_words *words, double height, struct buffer *out)
{
    buffer_appendf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#1a1a1a\">\n"
        "<title>Memory plan: ",
        WIDTH, height);
    print_xml(out, words->name, strlen(words->name));
    buffer_appendf(out, "</title>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#ffffff\"/>\n",
                   WIDTH, height);
}

static void draw_text(struct buffer *out, double x, double y, const char *attributes,
                      const char *text, size_t length)
{
    buffer_appendf(out, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, attributes);
    print_xml(out, text, length);
    buffer_append_text(out, "</text>\n");
}

/* Lines of the sentence; draws them when `out` is not NULL. */
static unsigned draw_sentence(const char *text, double y, struct buffer *out)
{
    unsigned lines = 0;
    for (size_t length; *text; text += length, lines++) {
        length = strlen(text);
        if (length > COLUMNS) {
            for (length = COLUMNS; length > 1 && text[length] != ' '; length--)
                ;
        }
        if (out)
            draw_text(out, MARGIN, y + lines * LINE, "", text, length);
        text += text[length] == ' ';
    }
    return lines;
}

static unsigned cut(const struct plan_answer *answer, struct segment *segments)
{
    static const char *const colours[BUDGET_ACCOUNTS] = {
        [BUDGET_PROGRAM] = "#8d99ae",   [BUDGET_WEIGHTS] = "#2b4a6f",
        [BUDGET_TOKENIZER] = "#b56576", [BUDGET_TEMPLATE] = "#7f9c6b",
        [BUDGET_GRAMMAR] = "#a26769",   [BUDGET_SCRATCH] = "#e09f3e",
        [BUDGET_HTTP] = "#6d597a",      [BUDGET_REQUESTS] = "#9e7bb5",
    };
    const struct plan *plan = &answer->plan;
    unsigned count = 0;
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++) {
        if (i != BUDGET_KV)
            segments[count++] = (struct segment){
                budget_account_name((enum budget_account)i), colours[i] ? colours[i] : "#777777",
                i == BUDGET_WEIGHTS || i == BUDGET_HTTP, plan->account_bytes[i]};
    }
    segments[count++] =
        (struct segment){"KV pages of the users", "#2a9d8f", true, answer->need_bytes};
    segments[count++] = (struct segment){"left", "#e4e7ea", false, answer->left_bytes};
    return count;
}

/* Lines between users inside their segment. */
static void draw_users(const struct plan_answer *answer, double x, double y, double width,
                       struct buffer *out)
{
    if (answer->users > TICKS_MOST || width / answer->users < 3)
        return;
    for (uint32_t i = 1; i < answer->users; i++) {
        double at = x + width * i / answer->users;
        buffer_appendf(out,
                       "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"#ffffff\" "
                       "stroke-width=\"0.7\"/>\n",
                       at, y, at, y + BAR_HEIGHT);
    }
}

static void draw_bar(const struct plan_answer *answer, const struct segment *segments,
                     unsigned count, double whole, double y, struct buffer *out)
{
    double x = MARGIN;
    char total[24];
    for (unsigned i = 0; i < count; i++) {
        const struct segment *segment = &segments[i];
        double width = BAR_WIDTH * (double)segment->bytes / whole;
        size_t length = strlen(segment->name);
        if (!segment->bytes)
            continue;
        buffer_appendf(out,
                       "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\"/>\n",
                       x, y, width, BAR_HEIGHT, segment->colour);
        if (i == count - 2)
            draw_users(answer, x, y, width, out);
        if (width > (double)length * LABEL_WIDTH)
            draw_text(out, x + 6, y + BAR_HEIGHT / 2 + 4, segment->dark ? " fill=\"#ffffff\"" : "",
                      segment->name, length);
        x += width;
    }
    double end = MARGIN + BAR_WIDTH * (double)answer->plan.total_bytes / whole;
    buffer_appendf(out,
                   "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"#c1121f\" "
                   "stroke-width=\"2\" stroke-dasharray=\"5 3\"/>\n",
                   end, y - 16, end, y + BAR_HEIGHT + 6);
    char label[64];
    snprintf(label, sizeof label, "budget %s", bytes_format(answer->plan.total_bytes, total));
    draw_text(out, end - 6, y - 6, " text-anchor=\"end\"", label, strlen(label));
}

static double draw_legend(const struct segment *segments, unsigned count, uint64_t total, double y,
                          struct buffer *out)
{
    unsigned half = (count + 1) / 2;
    for (unsigned i = 0; i < count; i++) {
        double x = MARGIN + (i / half) * BAR_WIDTH / 2, at = y + (i % half) * LINE;
        char bytes[24], text[64];
        buffer_appendf(out,
                       "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                       at - 11, segments[i].colour);
        draw_text(out, x + 20, at, "", segments[i].name, strlen(segments[i].name));
        snprintf(text, sizeof text, "%s (%.1f %%)", bytes_format(segments[i].bytes, bytes),
                 100 * (double)segments[i].bytes / (double)total);
        draw_text(out, x + BAR_WIDTH / 2 - 40, at, " text-anchor=\"end\"", text, strlen(text));
    }
    return y + half * LINE;
}

static void draw_types(const struct plan_answer *answer, double y, struct buffer *out)
{
    char text[96], tokens[32];
    uint64_t most = 1;
    for (unsigned i = 0; i < answer->type_count; i++)
        most = max_u64(answer->types[i].users, most);
    snprintf(text, sizeof text, "Users of %s tokens that fit, by type of keys and values",
             print_count(answer->tokens, tokens));
    draw_text(out, MARGIN, y, " font-weight=\"bold\"", text, strlen(text));
    for (unsigned i = 0; i < answer->type_count; i++) {
        const struct plan_row *row = &answer->types[i];
        double at = y + (i + 1) * LINE + 4, width = 640 * (double)row->users / (double)most;
        draw_text(out, MARGIN, at, row->own ? " font-weight=\"bold\"" : "", row->name,
                  strlen(row->name));
        buffer_appendf(out,
                       "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"12\" fill=\"%s\"/>\n",
                       MARGIN + 60, at - 11, width, row->own ? "#2a9d8f" : "#a9d5cf");
        print_count(row->users, tokens);
        if (!row->token_bytes)
            snprintf(tokens, sizeof tokens, "not with these heads");
        draw_text(out, MARGIN + 66 + width, at, "", tokens, strlen(tokens));
    }
}

void plan_write_svg(const struct plan_words *words, const struct plan_answer *answer,
                    struct buffer *out)
{
    struct segment segments[SEGMENTS_MAX];
    unsigned count = cut(answer, segments);
    unsigned lines = draw_sentence(answer->sentence, 0, NULL);
    double whole = (double)answer->plan.total_bytes + (double)answer->missing_bytes;
    double bar = 34 + (lines + 1) * LINE + 20;
    double legend = bar + BAR_HEIGHT + 34, types = legend + (count + 1) / 2 * LINE + 22;
    const struct plan_kv *kv = &answer->plan.kv;
    char title[256];
    snprintf(title, sizeof title, "%s: %u layers, %u heads over %u key/value heads of %u",
             words->name, kv->layers, words->model->config->heads, kv->kv_heads, kv->head_dim);
    open_drawing(words, types + (answer->type_count + 1) * LINE + 8, out);
    draw_text(out, MARGIN, 34, " font-size=\"16\" font-weight=\"bold\"", title, strlen(title));
    draw_sentence(answer->sentence, 34 + LINE + 4, out);
    draw_bar(answer, segments, count, whole, bar, out);
    draw_legend(segments, count, answer->plan.total_bytes, legend, out);
    draw_types(answer, types, out);
    buffer_append_text(out, "</svg>\n");
}
