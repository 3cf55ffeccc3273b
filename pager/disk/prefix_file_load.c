/*
 * Pages from the file back into the pager, before the engine starts.
 *
 * Which pages are loaded is decided by their last use: as many as are free, those used last first.
 * They are loaded in the order of their ids, since a page's parent has to be published before it,
 * and released in the order of their last use, so that the pager evicts them in that order.
 */
#include "pager/disk/prefix_file_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

struct loaded {
    uint64_t id;
    uint64_t pager_id; /* what the pager calls it */
    uint32_t slot;
    uint32_t use;  /* 0: used last */
    uint32_t page; /* 0: not loaded */
};

struct load {
    struct prefix_file *file;
    void *(*page)(void *arg, uint32_t page);
    void *arg;
    struct loaded *pages; /* [count] */
    uint32_t count;
    uint32_t done, damaged;
    struct error error; /* of the first damaged one */
};

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct loaded *)a)->id, y = ((const struct loaded *)b)->id;
    return (x > y) - (x < y);
}

static int by_use(const void *a, const void *b)
{
    uint32_t x = ((const struct loaded *)a)->use, y = ((const struct loaded *)b)->use;
    return (x > y) - (x < y);
}

/* What the pager calls a page of the file; false when it is not loaded. */
static bool pager_id_of(const struct load *load, uint64_t id, uint64_t *out)
{
    struct loaded key = {.id = id};
    const struct loaded *at = bsearch(&key, load->pages, load->count, sizeof key, by_id);
    *out = id == PREFIX_ROOT ? PREFIX_ROOT : at ? at->pager_id : 0;
    return id == PREFIX_ROOT || (at && at->page);
}

/* The slots used last, at most as many as pages are free. */
static void choose(struct load *load, uint32_t most)
{
    const struct page_pool *pool = &load->file->pool;
    for (uint32_t slot = pool->pages[0].previous;
         load->count < most && slot != 0 && pool->pages[slot].is_cached;
         slot = pool->pages[slot].previous) {
        load->pages[load->count] = (struct loaded){
            .id = load->file->index.entries[slot].id, .slot = slot, .use = load->count};
        load->count++;
    }
}

static void load_page(struct load *load, struct loaded *loaded)
{
    struct prefix_file *file = load->file;
    const struct prefix_entry *entry = &file->index.entries[loaded->slot];
    uint64_t parent_id;
    uint32_t page;
    if (!pager_id_of(load, entry->parent, &parent_id) || !pager_take(file->pager, 1, &page))
        return;
    struct error error;
    if (page_store_read(file->store, loaded->slot - 1, load->page(load->arg, page), &error)) {
        if (load->damaged++ == 0)
            load->error = error;
        pager_release(file->pager, page);
        prefix_file_drop(file, loaded->slot);
        return;
    }
    loaded->pager_id = pager_publish(file->pager, page, entry->group, parent_id,
                                     prefix_index_tokens(&file->index, loaded->slot), entry->salt);
    CHECK(pager_is_cached(file->pager, page)); /* the file names no content twice */
    pager_mark_restored(file->pager, page);
    loaded->page = page;
    file->saved[page] = (struct prefix_saved){loaded->pager_id, loaded->id, loaded->slot};
    load->done++;
}

uint32_t prefix_file_load(struct prefix_file *file, void *(*page)(void *arg, uint32_t page),
                          void *arg, uint64_t deadline_ns, uint32_t *damaged)
{
    struct load load = {.file = file, .page = page, .arg = arg};
    uint32_t most = pager_free_count(file->pager);
    *damaged = 0;
    load.pages = malloc((most + (size_t)1) * sizeof *load.pages);
    if (!load.pages)
        return 0; /* the server works with an empty cache */
    choose(&load, most);
    qsort(load.pages, load.count, sizeof *load.pages, by_id);
    uint32_t tried = 0;
    while (tried < load.count && file->options.clock() < deadline_ns)
        load_page(&load, &load.pages[tried++]);
    if (tried < load.count)
        log_warn("cache_dir", "reading takes long: %u of %u pages are left for another time",
                 load.count - tried, load.count);
    if (load.damaged)
        log_warn("cache_dir", "%u pages are ignored: %s", load.damaged, load.error.message);
    /* They become free, in the order of their last use. */
    qsort(load.pages, load.count, sizeof *load.pages, by_use);
    for (uint32_t i = load.count; i-- > 0;) {
        if (load.pages[i].page)
            pager_release(file->pager, load.pages[i].page);
    }
    free(load.pages);
    *damaged = load.damaged;
    return load.done;
}
