/* Monotonic time for durations, wall time for timestamps. Any thread. */
#ifndef QUIRE_BASE_CLOCK_H
#define QUIRE_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void); /* monotonic nanoseconds, never 0 */
int64_t clock_unix_s(void);  /* wall clock, seconds since 1970 */

#endif
