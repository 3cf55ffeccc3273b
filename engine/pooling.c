/* Adds, copies or asks for scores; it decides nothing. See pooling.h. */
#include "engine/pooling.h"

#include "base/check.h"

#include <string.h>

static void add_states(const struct backend *backend, const struct schedule_pooling *pooling,
                       struct completion *completion)
{
    float *sum = completion->pooled;
    CHECK(pooling->count == 0 || pooling->first_position == completion->pooled_positions);
    for (uint32_t i = 0; i < pooling->count; i++) {
        const float *state = backend->ops->hidden(backend, pooling->logits_index + i);
        for (uint32_t d = 0; d < backend->hidden_width; d++)
            sum[d] += state[d];
    }
    completion->pooled_positions += pooling->count;
    if (!pooling->is_complete)
        return;
    CHECK(completion->pooled_positions == completion->prompt_count);
    for (uint32_t d = 0; d < backend->hidden_width; d++)
        sum[d] /= (float)completion->prompt_count;
}

void pooling_run(struct backend *backend, const struct schedule *schedule)
{
    for (uint32_t i = 0; i < schedule->pooling_count; i++) {
        const struct schedule_pooling *pooling = &schedule->poolings[i];
        struct completion *completion = pooling->sequence->completion;
        if (completion->pooling == POOLING_MEAN)
            add_states(backend, pooling, completion);
        else if (pooling->count > 0 && completion->pooling == POOLING_RANK)
            backend->ops->scores(backend, pooling->logits_index, completion->pooled);
        else if (pooling->count > 0)
            memcpy(completion->pooled, backend->ops->hidden(backend, pooling->logits_index),
                   backend->hidden_width * sizeof(float));
    }
}
