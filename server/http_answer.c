/*
 * Answers that take time: from the body to the preprocessing thread, the engine and back to the
 * socket.
 *
 * The library pulls: what the engine made stays in the completion's ring until the socket takes
 * more, so a slow client costs no memory beyond the ring and one pump's worth of text, and slows no
 * one. Long whole answers are pulled in pieces too. A stream's headers are held until its first
 * bytes, or LIMIT_KEEPALIVE_SECONDS: until then a failure keeps its own status.
 */
#include "server/http_request.h"

#include "api/models.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define SECOND_NS 1000000000u
#define KEEPALIVE ": keep-alive\n\n"
/* Small out buffers are part of a connection's share; larger ones are entered when they appear. */
#define OUT_SHARE_BYTES 4096u
/* Only HTTP/1.0 streams use this block; the others go through the connection's pool. */
#define STREAM_BLOCK_BYTES 1024u

/* Under the request's lock. */
static void wake_locked(struct request *r)
{
    r->signalled = true;
    if (r->suspended && r->text_done) {
        r->suspended = false;
        MHD_resume_connection(r->connection);
    }
}

/* The engine's wake: under a completion's lock. */
static void wake_answer(void *arg)
{
    struct request *r = arg;
    pthread_mutex_lock(&r->lock);
    wake_locked(r);
    pthread_mutex_unlock(&r->lock);
}

void http_request_hangup(void *request)
{
    struct request *r = request;
    pthread_mutex_lock(&r->lock);
    r->cancelled = true;
    struct answer *answer = r->answer;
    wake_locked(r);
    pthread_mutex_unlock(&r->lock);
    /* Alive: it is closed only after the watcher was told, which waits for us. */
    if (answer)
        answer_cancel(answer);
}

void http_request_abort(void *request)
{
    struct request *r = request;
    pthread_mutex_lock(&r->lock);
    r->aborted = true;
    struct answer *answer = r->answer;
    wake_locked(r);
    pthread_mutex_unlock(&r->lock);
    if (answer)
        answer_cancel(answer);
}

bool http_request_tick(void *request, uint64_t now_ns)
{
    struct request *r = request;
    bool stuck = false;
    pthread_mutex_lock(&r->lock);
    if (r->reply_deadline_ns) {
        stuck = now_ns > r->reply_deadline_ns;
    } else if (r->streaming && !r->suspended) {
        /* The library has bytes of ours and does not ask for more: the client does not read. */
        stuck = now_ns > r->last_read_ns + (uint64_t)LIMIT_STALL_SECONDS * SECOND_NS;
    } else if (r->stream && r->suspended && r->text_done && !r->keepalive_due &&
               now_ns > r->last_data_ns + (uint64_t)LIMIT_KEEPALIVE_SECONDS * SECOND_NS) {
        r->keepalive_due = true;
        wake_locked(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (stuck)
        log_info("client_stalled", "id=%s dropped: it does not read its answer", r->id);
    return stuck;
}

void http_free_body(struct request *r)
{
    if (!r->body)
        return;
    struct runtime *runtime = atomic_load(&r->server->runtime);
    budget_give(&runtime->budget, BUDGET_REQUESTS, r->body_capacity);
    free(r->body);
    r->body = NULL;
    r->body_capacity = r->body_length = 0;
}

/* Preprocessing is over: with an answer, or with r->error. From here on the request may be gone. */
static void finish_opening(struct request *r, struct answer *answer)
{
    pthread_mutex_lock(&r->lock);
    r->answer = answer;
    r->stream = answer && answer_is_stream(answer);
    r->last_data_ns = clock_now_ns();
    r->text_done = true;
    wake_locked(r);
    pthread_mutex_unlock(&r->lock);
}

static bool is_gone(struct request *r)
{
    pthread_mutex_lock(&r->lock);
    bool gone = r->cancelled || r->aborted || atomic_load(&r->server->aborting);
    pthread_mutex_unlock(&r->lock);
    return gone;
}

/* On the grammar thread; as open_answer, which has handed the answer over. */
static void compile_answer(void *arg)
{
    struct request *r = arg;
    struct answer *answer = r->compiling;
    r->compiling = NULL;
    enum status status = is_gone(r) ? http_draining(&r->error) : answer_compile(answer, &r->error);
    if (status != STATUS_OK) {
        r->refusal_status = api_http_status(status);
        answer_close(answer);
        answer = NULL;
    }
    finish_opening(r, answer);
}

/* False when too many grammars wait. */
static bool hand_to_grammar_thread(struct request *r, struct answer *answer)
{
    r->compiling = answer;
    r->job.run = compile_answer;
    return preprocessing_thread_push(r->server->config.grammars, &r->job);
}

/* On the preprocessing thread; the connection is suspended, or about to be, until text_done. */
static void open_answer(void *arg)
{
    struct request *r = arg;
    struct runtime *runtime = atomic_load(&r->server->runtime);
    struct answer *answer = NULL;
    error_clear(&r->error);
    enum status status;
    if (is_gone(r))
        status = http_draining(&r->error);
    else if (r->route->text)
        status = text_endpoint_answer(&runtime->api, r->route->text, r->body, r->body_length,
                                      &r->caller, &r->out, &r->error);
    else
        status = answer_open(&runtime->api, r->route->kind, r->body, r->body_length, r->number,
                             &r->caller, wake_answer, r, &answer, &r->error);
    CHECK((status == STATUS_OK && !r->route->text) == (answer != NULL));
    http_free_body(r);
    if (answer && answer_awaits_grammar(answer)) {
        if (hand_to_grammar_thread(r, answer))
            return;
        answer_close(answer);
        answer = NULL;
        status = error_set_code(&r->error, STATUS_BUSY, "queue_full", NULL,
                                "too many grammars wait to be compiled");
        r->error.retry_after_s = 1;
    }
    if (status != STATUS_OK)
        r->refusal_status = api_http_status(status);
    finish_opening(r, answer);
}

/* Suspend unless there is news. False: there is. */
static bool suspend_until_news(struct request *r)
{
    pthread_mutex_lock(&r->lock);
    bool waits = !r->signalled && !r->keepalive_due;
    if (waits) {
        CHECK(!r->suspended);
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
    pthread_mutex_unlock(&r->lock);
    return waits;
}

struct news {
    bool cancelled, aborted, keepalive;
};

/* Take what was signalled, so that what comes after is seen as new. */
static struct news take_news(struct request *r)
{
    pthread_mutex_lock(&r->lock);
    struct news news = {r->cancelled, r->aborted, r->keepalive_due};
    r->signalled = false;
    r->keepalive_due = false;
    pthread_mutex_unlock(&r->lock);
    return news;
}

static void note_bytes(struct request *r)
{
    uint64_t now_ns = clock_now_ns();
    if (!r->first_data_ns)
        r->first_data_ns = now_ns;
    pthread_mutex_lock(&r->lock);
    r->last_data_ns = now_ns;
    pthread_mutex_unlock(&r->lock);
}

/* An SSE event with an error of ours. */
static void append_error_event(struct request *r, const struct error *error)
{
    struct buffer body;
    buffer_init(&body, 0);
    api_write_error(error, &body);
    while (body.length && strchr("\r\n ", body.data[body.length - 1]))
        body.data[--body.length] = '\0';
    if (!body.failed)
        buffer_appendf(&r->out, "data: %s\n\n", body.data);
    buffer_deinit(&body);
}

static void end_stream(struct request *r)
{
    http_draining(&r->error);
    answer_end_stream(r->answer, &r->error, &r->out);
    r->stream_end = STREAM_ENDED;
}

/* Enter what a slow client's buffer holds beyond its share; false when there is no room for it. */
static bool charge_out(struct request *r)
{
    size_t wanted = r->out.capacity > OUT_SHARE_BYTES ? r->out.capacity : 0;
    struct budget *budget = &((struct runtime *)atomic_load(&r->server->runtime))->budget;
    if (wanted > r->out_charged) {
        if (!budget_take(budget, BUDGET_HTTP, wanted - r->out_charged))
            return false;
        r->out_charged = wanted;
    } else if (wanted < r->out_charged) {
        budget_give(budget, BUDGET_HTTP, r->out_charged - wanted);
        r->out_charged = wanted;
    }
    return true;
}

void http_free_out(struct request *r)
{
    buffer_deinit(&r->out);
    buffer_init(&r->out, 0);
    r->out_offset = 0;
    if (r->out_charged)
        charge_out(r);
}

/* Hand over bytes of `out`; 0 when it is empty. */
static size_t take_bytes(struct request *r, char *to, size_t most)
{
    size_t length = r->out.length - r->out_offset;
    if (length > most)
        length = most;
    if (!length)
        return 0;
    memcpy(to, r->out.data + r->out_offset, length);
    r->out_offset += length;
    if (r->out_offset == r->out.length) {
        r->out_offset = 0;
        if (r->out.capacity > OUT_SHARE_BYTES)
            http_free_out(r);
        else
            buffer_clear(&r->out);
    }
    return length;
}

/* One pump of an answer that has begun, into `out`. False: nothing now. */
static bool pump_stream(struct request *r)
{
    size_t before = r->out.length;
    enum answer_state state = answer_pump(r->answer, &r->out);
    if (state == ANSWER_FAILED)
        r->error = *answer_error(r->answer); /* the access log tells it */
    if (state == ANSWER_FAILED && !r->stream)
        r->broken = true;
    else if (state == ANSWER_FAILED && r->out.length == before)
        append_error_event(r, answer_error(r->answer));
    if (state == ANSWER_END || state == ANSWER_FAILED)
        r->stream_end = STREAM_ENDED;
    return r->out.length > before || r->stream_end == STREAM_ENDED;
}

/*
 * Break a stream off. The library (0.9.75, epoll) closes a connection whose reader says
 * END_WITH_ERROR, but then neither watches it nor cleans it up until its thread has other work: the
 * socket would stay open. It does clean up at once after a write that failed. So the socket is shut
 * down, and a byte that can go nowhere is handed over.
 */
static ssize_t break_off(struct request *r, char *to, size_t most)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info || !most)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    shutdown(info->connect_fd, SHUT_RDWR);
    *to = '\n';
    return 1;
}

/* The library asks for bytes of a stream. */
static ssize_t read_stream(void *cls, uint64_t position, char *to, size_t most)
{
    (void)position;
    struct request *r = cls;
    pthread_mutex_lock(&r->lock);
    r->last_read_ns = clock_now_ns();
    pthread_mutex_unlock(&r->lock);
    for (;;) {
        size_t length = take_bytes(r, to, most);
        if (length) {
            note_bytes(r);
            return (ssize_t)length;
        }
        if (r->broken)
            return break_off(r, to, most);
        if (r->stream_end == STREAM_ENDED)
            return MHD_CONTENT_READER_END_OF_STREAM;
        struct news news = take_news(r);
        if (news.cancelled || (news.aborted && !r->stream))
            return break_off(r, to, most);
        if (news.aborted) {
            end_stream(r);
        } else if (!pump_stream(r)) {
            if (news.keepalive)
                buffer_append_text(&r->out, KEEPALIVE);
            else if (suspend_until_news(r))
                return 0;
        }
        if (r->out.failed || !charge_out(r)) {
            log_warn("client_slow", "id=%s dropped: no memory for what it has not read", r->id);
            return break_off(r, to, most);
        }
    }
}

/* Headers now, the rest through read_stream: a stream, or a whole answer too long for one piece. */
static enum MHD_Result begin_stream(struct request *r)
{
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, r, NULL);
    if (!response)
        return MHD_NO;
    if (r->stream) {
        MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    } else {
        MHD_add_response_header(response, "Content-Type", "application/json");
    }
    http_add_common_headers(r, response);
    r->state = REQUEST_STREAMING;
    r->status_sent = 200;
    pthread_mutex_lock(&r->lock);
    r->streaming = true;
    r->last_read_ns = clock_now_ns();
    pthread_mutex_unlock(&r->lock);
    enum MHD_Result result = MHD_queue_response(r->connection, 200, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result reply_whole(struct request *r)
{
    r->first_data_ns = clock_now_ns();
    return http_reply(r, 200, "application/json", &r->out);
}

static enum MHD_Result reply_failure(struct request *r, const struct error *error)
{
    http_free_out(r);
    return http_reply_error(r, api_http_status(error->status), error);
}

static enum MHD_Result reply_no_memory(struct request *r)
{
    http_refuse(r, 503, STATUS_UNAVAILABLE, "out_of_memory",
                "the answer is done, but there is no memory to send it from");
    return reply_failure(r, &r->error);
}

/* The answer is open and nothing was sent: wait for its first bytes (streams) or its end. */
static enum MHD_Result wait_for_answer(struct request *r)
{
    for (;;) {
        struct news news = take_news(r);
        if (news.cancelled)
            return MHD_NO;
        if (news.aborted) {
            r->refusal_status = 503;
            http_draining(&r->error);
            return reply_failure(r, &r->error);
        }
        enum answer_state state = answer_pump(r->answer, &r->out);
        if (r->out.failed)
            return MHD_NO;
        if (state == ANSWER_FAILED && (!r->stream || !r->out.length))
            return reply_failure(r, answer_error(r->answer));
        if (state == ANSWER_END || state == ANSWER_FAILED)
            r->stream_end = STREAM_ENDED;
        if (!charge_out(r))
            return reply_no_memory(r);
        if (!r->stream && state == ANSWER_END)
            return reply_whole(r);
        if (r->out.length || state == ANSWER_END)
            return begin_stream(r);
        if (r->stream && news.keepalive) {
            buffer_append_text(&r->out, KEEPALIVE);
            return begin_stream(r);
        }
        if (state == ANSWER_WAIT && suspend_until_news(r))
            return MHD_YES;
    }
}

static enum MHD_Result hand_to_preprocessing_thread(struct request *r)
{
    struct http_server *server = r->server;
    r->attached = true;
    if (!watcher_attach(server->watcher, r->watch_id, r)) {
        r->attached = false;
        return MHD_NO; /* already gone */
    }
    r->state = REQUEST_OPENING;
    r->job = (struct preprocessing_job){
        .run = open_answer, .arg = r, .lane = r->caller.tenant, .bytes = r->body_length};
    if (!preprocessing_thread_push(server->config.text, &r->job)) {
        http_refuse(r, 429, STATUS_BUSY, "queue_full", "too many requests are waiting");
        r->error.retry_after_s = 1;
        return http_reply_error(r, 429, &r->error);
    }
    pthread_mutex_lock(&r->lock);
    bool done = r->text_done;
    if (!done) {
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
    pthread_mutex_unlock(&r->lock);
    return done ? http_answer(r) : MHD_YES;
}

enum MHD_Result http_answer(struct request *r)
{
    if (r->state == REQUEST_NEW)
        return hand_to_preprocessing_thread(r);
    if (r->state == REQUEST_OPENING) {
        pthread_mutex_lock(&r->lock);
        CHECK(r->text_done); /* nobody resumes it before */
        bool gone = r->cancelled;
        pthread_mutex_unlock(&r->lock);
        if (gone)
            return MHD_NO;
        if (r->refusal_status)
            return http_reply_error(r, r->refusal_status, &r->error);
        if (r->route->text)
            return charge_out(r) ? reply_whole(r) : reply_no_memory(r);
        r->state = REQUEST_WAITING;
    }
    CHECK(r->state == REQUEST_WAITING);
    return wait_for_answer(r);
}
