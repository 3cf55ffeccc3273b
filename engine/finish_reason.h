/* Why a sequence ended. Plain data, below everything else in engine/. */
#ifndef QUIRE_ENGINE_FINISH_REASON_H
#define QUIRE_ENGINE_FINISH_REASON_H

enum finish_reason {
    FINISH_NONE = 0, /* still going */
    FINISH_STOP,   /* an end-of-generation token (not among the output tokens), or a stop string */
    FINISH_LENGTH, /* max_tokens, the context's edge, or the pool's */
    FINISH_CANCELLED, /* completion_cancel */
    FINISH_ERROR,     /* a fault; the other requests go on */
    FINISH_TIMEOUT,   /* its deadline has passed; what was generated until then is there */
    FINISH_REASONS
};

#endif
