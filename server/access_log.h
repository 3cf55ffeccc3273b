/*
 * The access log: one line for each request, when it ends. Private to server/. Any thread.
 */
#ifndef QUIRE_SERVER_ACCESS_LOG_H
#define QUIRE_SERVER_ACCESS_LOG_H

#include "api/answer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define TRACE_ID_BYTES 33 /* with its end */

/* What is known of a request at its end. Strings are borrowed; NULL or empty is left out. */
struct access_record {
    const char *id, *client_id, *trace_id;
    const char *client; /* address */
    uint32_t key;       /* number of the API key; 0: none */
    const char *method, *target;
    const char *route; /* as in the metrics; NULL: none */
    unsigned status;
    uint64_t start_ns, first_data_ns, end_ns; /* clock_now_ns; first_data_ns 0: nothing was sent */
    const struct error *error;                /* of a refusal or a stream that failed; NULL: none */
    bool stream;
    const struct answer_summary *work; /* NULL: the engine had nothing to do with it */
    bool quiet;                        /* at debug level: probes */
};

void access_log_write(const struct access_record *record);

/* The trace id of a traceparent header (W3C Trace Context), or "" if that is NULL or malformed. */
void access_log_trace_id(const char *traceparent, char out[static TRACE_ID_BYTES]);

#endif
