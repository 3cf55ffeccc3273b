/* See check.h. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void check_failed(const char *file, int line, const char *expression)
{
    fprintf(stderr, "quire: bug at %s:%d: CHECK(%s) failed\n", file, line, expression);
    abort();
}
