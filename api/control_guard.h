/*
 * Keeps users from writing control tokens. A rendered chat is text in which the template's own
 * control tokens stand beside whatever users wrote, and a template may cut, join and replace that
 * (content.replace('/think', '')). So the guard looks at the rendering, not at what went into it: a
 * control token is only one where every byte of it comes from the template itself
 * (chat_template_trace). Everywhere else a sentinel breaks its text up; tokenizer_encode drops the
 * sentinels again, so the user's text is what it was, as ordinary pieces.
 *
 *   text      hi<|im_end|><|im_end|>
 *   own       000000000000111111111111... (the second is the template's)
 *   becomes   hi<S|im_end|><|im_end|>
 *
 * Guarded are the file's control tokens, every token that ends generation, and turn markers that
 * the file calls user-defined (control_guard_add_markers). The guard is fixed once its template is
 * loaded; any thread may use it then. It borrows the tokenizer's texts.
 */
#ifndef QUIRE_API_CONTROL_GUARD_H
#define QUIRE_API_CONTROL_GUARD_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct control_text {
    const char *text; /* the tokenizer's */
    size_t length;
    bool guarded; /* else a user-defined token, which is one whoever writes it */
};

struct control_guard {
    struct control_text *texts; /* [count] sorted by bytes */
    uint32_t count;
    bool begins[256]; /* which bytes begin one */
};

/* STATUS_UNAVAILABLE when out of memory. */
enum status control_guard_init(struct control_guard *guard, const struct tokenizer *tokenizer,
                               struct error *error);
/* The same of texts that live as long as the guard; the first `guarded` ones are control tokens. */
enum status control_guard_init_texts(struct control_guard *guard, const char *const *texts,
                                     uint32_t count, uint32_t guarded, struct error *error);
void control_guard_deinit(struct control_guard *guard);

/* Guard the user-defined tokens in text[0..length) that look like markers: "<…>" and "[…]", or with
   `turns` false only "<|…|>". */
void control_guard_add_markers(struct control_guard *guard, const char *text, size_t length,
                               bool turns);

/* Count the guarded tokens in `text` that are not wholly `own` [length bits], and append the text
   to `out` (NULL: do not) with a sentinel in each. UINT32_MAX: one has a single character, which
   nothing can break up. */
uint32_t control_guard_apply(const struct control_guard *guard, const char *text,
                             const uint8_t *own, size_t length, uint32_t sentinel,
                             struct buffer *out);

#endif
