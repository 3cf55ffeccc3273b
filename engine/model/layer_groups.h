/*
 * Where in a page a layer's keys and values lie: its KV cache group (config.h, pager/kv_groups.h) and
 * its number in the group. Private to engine/model/.
 *
 * Gemma 3 270M, where every sixth of 18 layers sees all and the others a window:
 *
 *     group 0   5 11 17     sees all
 *     group 1   0 1 2       window
 *     group 2   3 4 6       …
 *     group 5   14 15 16
 */
#ifndef QUIRE_ENGINE_MODEL_LAYER_GROUPS_H
#define QUIRE_ENGINE_MODEL_LAYER_GROUPS_H

#include "engine/model/architecture.h"

#include <stdint.h>

struct kv_place {
    uint16_t group;
    uint16_t layer; /* its number in the group */
};

struct model_groups layer_groups_of(const struct model_config *config);

/* places [config.layers] */
void layer_groups_places(const struct model_details *details, struct kv_place *places);

#endif
