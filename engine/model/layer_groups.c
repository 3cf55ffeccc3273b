/*
 * How a model's layers divide into groups that a page holds the keys and values of.
 *
 * The division is a function of three numbers (layers, those with a window, the window), so that the
 * planner has it without a file. Every layer has exactly one place; the groups that see all come
 * first, since the prefix index takes parents from group 0. Any thread; nothing is kept.
 */
#include "engine/model/layer_groups.h"

#include "base/check.h"

/* Of the places of layers with a window this share may stay unused. */
#define UNUSED_SHARE 8u

/* Places of a group: as many as fit, since each group costs every sequence a page table. They
   divide the layers that see all, whose pages grow with a sequence; of the others a few may stay
   unused. 0: no such number. */
static uint32_t choose_layers(uint32_t full, uint32_t local)
{
    for (uint32_t layers = full; layers > 0; layers--) {
        uint32_t groups = (local + layers - 1) / layers;
        uint32_t unused = groups * layers - local;
        if (full % layers == 0 && unused * UNUSED_SHARE <= local &&
            full / layers + groups <= KV_GROUPS_MAX)
            return layers;
    }
    return 0;
}

struct model_groups model_groups_of(uint32_t layers, uint32_t window_layers, uint32_t window)
{
    CHECK(window_layers <= layers);
    uint32_t full = layers - window_layers;
    struct model_groups out = {.groups = {.count = 1}, .layers = layers};
    uint32_t each = window_layers > 0 ? choose_layers(full, window_layers) : 0;
    if (each == 0)
        return out;
    out.layers = each;
    out.groups.count = full / each + (window_layers + each - 1) / each;
    for (uint32_t group = full / each; group < out.groups.count; group++)
        out.groups.window[group] = window;
    return out;
}

struct model_groups layer_groups_of(const struct model_config *config)
{
    return model_groups_of(config->layers, config->window_layers, config->window);
}

void layer_groups_places(const struct model_details *details, struct kv_place *places)
{
    const struct model_config *config = &details->config;
    struct model_groups groups = layer_groups_of(config);
    bool whole = groups.groups.count == 1;
    /* The next place of each kind, counted through the groups. */
    uint32_t full = 0, local = config->layers - config->window_layers;
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        uint32_t at = whole ? layer : model_layer_is_local(details, layer) ? local++ : full++;
        places[layer] = (struct kv_place){.group = (uint16_t)(at / groups.layers),
                                          .layer = (uint16_t)(at % groups.layers)};
        CHECK(places[layer].group < groups.groups.count);
    }
}
