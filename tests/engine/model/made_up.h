/*
 * Made-up GGUF models for unit tests, written in C so that the tests need nothing but a compiler:
 * the tensors of a family with random values, small enough for milliseconds. No tokenizer. The same
 * spec gives the same bytes. (tests/reference/make_models.py writes richer ones, for what has
 * Python.)
 */
#ifndef QUIRE_TESTS_ENGINE_MODEL_MADE_UP_H
#define QUIRE_TESTS_ENGINE_MODEL_MADE_UP_H

#include "engine/kernels/format.h"

#include <stdbool.h>
#include <stdint.h>

struct made_up {
    const char *family;                  /* "llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3" */
    enum tensor_format format;           /* of the layers' matrices */
    enum tensor_format embedding_format; /* F32 is 0: the default */
    bool separate_output;
    uint32_t layers, width, heads, kv_heads, head_dim, feed_forward, vocabulary;
    uint32_t window; /* 0: the key is not written */
    /* For files that are wrong: */
    const char *key;      /* this key … */
    bool drop_key;        /* … is left out, or */
    uint32_t value;       /* … has this value instead; a key that the family has not is added */
    const char *text_key; /* a string key to replace or add */
    const char *text;
    const char *tensor;       /* this tensor … */
    bool drop_tensor;         /* … is left out, or has one row (a vector: eight values) more */
    const char *extra_tensor; /* added, eight F32 values */
};

/* A model that is right: llama, 3 layers of 64, 4 heads of 16 over 2, in `format`. */
struct made_up made_up_default(enum tensor_format format);

/* Write to a new temporary file whose path goes to `path`; aborts when it cannot. */
void made_up_write(const struct made_up *spec, char path[static 64]);

#endif
