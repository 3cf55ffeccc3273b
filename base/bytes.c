/* Byte sizes: see bytes.h. */
#include "base/bytes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool bytes_multiply(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

bool bytes_add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

/* The factor of a suffix; 0 if it is none. */
static double unit_factor(const char *suffix)
{
    static const char letters[] = "KMGT";
    if (!*suffix || !strcasecmp(suffix, "b"))
        return 1;
    const char *letter = strchr(letters, toupper((unsigned char)suffix[0]));
    if (!letter)
        return 0;
    bool binary = !strcasecmp(suffix + 1, "ib");
    if (!binary && suffix[1] && strcasecmp(suffix + 1, "b"))
        return 0;
    double factor = 1;
    for (const char *at = letters; at <= letter; at++)
        factor *= binary ? 1024 : 1000;
    return factor;
}

bool bytes_parse(const char *text, uint64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    size_t digits = strspn(text, "0123456789.");
    char number[40];
    if (digits >= sizeof number)
        return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    double value = strtod(number, &end);
    if (*end)
        return false;
    double factor = unit_factor(text + digits);
    if (factor == 0 || value * factor >= 0x1p63)
        return false;
    *out = factor == 1 && !strchr(number, '.') ? strtoull(number, NULL, 10)
                                               : (uint64_t)(value * factor);
    return true;
}

const char *bytes_format(uint64_t bytes, char out[static 24])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < KIB) {
        snprintf(out, 24, "%u B", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    unsigned unit = 0;
    while (value >= 1024 && unit < 3) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 24, "%.1f %s", value, units[unit]);
    return out;
}
