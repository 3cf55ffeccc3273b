/*
 * What the upper folders cost in memory: stated here, below all of them, so that the planner of
 * sizing/ can add them up without knowing sockets or templates. Who spends the bytes checks itself
 * against these numbers (server/http.c), or is held to them (the template's allocator of api/).
 */
#ifndef QUIRE_BASE_COSTS_H
#define QUIRE_BASE_COSTS_H

#include "base/bytes.h"
#include "base/limits.h"

/* The log's waiting lines, and the stack of the thread that writes them. */
#define COST_LOG_STACK_BYTES (128 * KIB)
#define COST_LOG_BYTES (LIMIT_LOG_BYTES + COST_LOG_STACK_BYTES)

/* A chat template with this much memory has the most fuel, see api/chat_template.h. */
#define COST_TEMPLATE_BYTES_MAX (96 * MIB)

/* Connections over the limit are accepted, answered 503 and closed. */
#define COST_HTTP_OVERFLOW_CONNECTIONS 32u
/* A connection's structs of the library, our request, and a response's headers: about 5 KiB
   measured; and its share of the out buffers. */
#define COST_HTTP_REQUEST_BYTES (6 * KIB)
#define COST_HTTP_CONNECTION_BYTES                                                                 \
    (LIMIT_HTTP_POOL_BYTES + LIMIT_HEAD_BYTES + COST_HTTP_REQUEST_BYTES)
/* What slow clients' unsent text may hold beyond their shares. */
#define COST_HTTP_UNSENT_BYTES(connections) (1 * MIB + (connections)*4 * KIB)

/* All that `connections` connections may hold. */
static inline uint64_t cost_http_bytes(unsigned connections)
{
    uint64_t all = connections + COST_HTTP_OVERFLOW_CONNECTIONS;
    return all * COST_HTTP_CONNECTION_BYTES + COST_HTTP_UNSENT_BYTES(all);
}

#endif
