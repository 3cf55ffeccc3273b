/* See request_read.h. */
#include "api/request_read.h"

#include "base/check.h"

enum status request_read(const struct api_context *context, enum answer_kind kind, const char *body,
                         size_t length, const struct answer_caller *caller, struct request *out,
                         struct error *error)
{
    *out = (struct request){.kind = kind};
    struct json_document document;
    enum status status = json_open(body, length, context->budget, &document, error);
    out->source_bytes = length + document.taken_bytes;
    request_yield(context);
    if (status == STATUS_OK)
        status = request_is_pooling(out)
                     ? request_read_pooling(context, &document, caller, out, error)
                 : context->embeds_only
                     ? error_set_code(error, STATUS_UNSUPPORTED, "unsupported_model", "model",
                                      "The model \"%.100s\" generates no text: it makes %s.",
                                      context->model_names[0],
                                      context->pooling == POOLING_RANK
                                          ? "scores, POST /v1/rerank or /v1/score"
                                          : "embeddings, POST /v1/embeddings")
                     : request_read_shared(context, &document, caller, out, error);
    if (status == STATUS_OK && !request_is_pooling(out))
        status = kind == ANSWER_CHAT ? request_read_chat(context, &document, out, error)
                                     : request_read_completion(context, &document, out, error);
    json_close(&document);
    out->source_bytes = length; /* until the answer is open */
    CHECK(status != STATUS_OK || out->prompt_count >= 1);
    return status;
}
