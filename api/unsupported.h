/*
 * Fields that mean something and that this server does not do: each is refused by name, so that no
 * client takes silence for consent. Private to api/.
 *
 * The list is that of the public request types of OpenAI, vLLM, llama.cpp's server, SGLang and
 * Ollama. What only tags a request (metadata, safety_identifier), or tunes something that is off
 * unless another field here turns it on (mirostat_tau, xtc_threshold), has no effect and is not in
 * it.
 */
#ifndef QUIRE_API_UNSUPPORTED_H
#define QUIRE_API_UNSUPPORTED_H

#include "api/api.h"
#include "api/json.h"

/* 400 unsupported_parameter for the first field that is there and asks for something. null never
   does; which other values ask for nothing is each field's own. */
enum status unsupported_check(enum answer_kind kind, const struct cJSON *root, struct error *error);

#endif
