/* UTF-8 as Unicode 15 table 3-7 has it: no surrogates, no overlong forms, at most U+10FFFF. */
#ifndef QUIRE_BASE_UTF8_H
#define QUIRE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whole text valid? */
bool utf8_valid(const char *text, size_t length);

/* Decode one code point at text[0..length). Returns its length 1–4 and sets *code_point. On an
   invalid sequence returns minus the length (1–3) of the maximal invalid subpart (to be replaced by
   one U+FFFD). If the bytes are a proper prefix of a valid sequence (more are needed), or length is
   0, returns 0. */
int utf8_decode(const char *text, size_t length, uint32_t *code_point);

/* Encode into out, returns the length 1–4. code_point must be a scalar value. */
int utf8_encode(uint32_t code_point, char out[static 4]);

#endif
