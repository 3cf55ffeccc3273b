/*
 * Passes, which bring the file up to what is cached in the pager.
 *
 * A pass wants the pages that were used last, as many as there are slots. It goes through them by
 * the pager's ids, parents before what follows them. A wanted page that is in the file already,
 * under whatever number, moves its slot to the end of the reuse order before any slot is reused: so
 * no wanted page loses its slot to another, and a pass over an unchanged pager writes nothing.
 */
#include "pager/disk/prefix_file_private.h"

#include "base/check.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int by_entry(const void *a, const void *b)
{
    uint64_t x = ((const struct prefix_ordered *)a)->entry;
    uint64_t y = ((const struct prefix_ordered *)b)->entry;
    return (x > y) - (x < y);
}

/* The slot of a page that the pager calls `entry`; 0: it is not in the file. */
static uint32_t slot_of(const struct prefix_file *file, uint32_t page, uint64_t entry)
{
    const struct prefix_saved *saved = &file->saved[page];
    bool known =
        entry != 0 && saved->entry == entry && file->index.entries[saved->slot].id == saved->id;
    return known ? saved->slot : 0;
}

/* What the file calls the page that the pager calls `entry`, of those the pass wants. */
static bool id_of(const struct prefix_file *file, uint64_t entry, uint64_t *id)
{
    *id = PREFIX_ROOT;
    if (entry == PREFIX_ROOT)
        return true;
    struct prefix_ordered key = {.entry = entry};
    const struct prefix_ordered *at =
        bsearch(&key, file->order, file->recent_count, sizeof key, by_entry);
    uint32_t slot = at ? slot_of(file, at->page, entry) : 0;
    *id = file->index.entries[slot].id;
    return slot != 0;
}

static uint32_t wanted_slot(const struct prefix_file *file, uint32_t page)
{
    struct pager_entry entry;
    pager_describe(file->pager, page, &entry);
    return slot_of(file, page, entry.id);
}

static void note_saved(struct prefix_file *file, uint32_t page, uint64_t entry, uint32_t slot)
{
    file->saved[page] = (struct prefix_saved){entry, file->index.entries[slot].id, slot};
}

uint32_t prefix_file_begin_pass(struct prefix_file *file)
{
    file->recent_count = pager_cached(file->pager, file->recent, file->slot_count);
    struct pager_entry entry;
    for (uint32_t i = 0; i < file->recent_count; i++) {
        pager_describe(file->pager, file->recent[i], &entry);
        file->order[i] = (struct prefix_ordered){entry.id, file->recent[i]};
    }
    qsort(file->order, file->recent_count, sizeof *file->order, by_entry);
    uint32_t missing = 0;
    for (uint32_t i = 0; i < file->recent_count; i++) {
        uint32_t page = file->order[i].page, slot = 0;
        uint64_t parent;
        if (slot_of(file, page, file->order[i].entry))
            continue;
        pager_describe(file->pager, page, &entry);
        if (id_of(file, entry.parent, &parent))
            slot = prefix_index_find(&file->index, entry.group, parent, entry.tokens, entry.salt);
        if (slot)
            note_saved(file, page, entry.id, slot);
        else
            missing++;
    }
    for (uint32_t i = file->recent_count; i-- > 0;) {
        uint32_t slot = wanted_slot(file, file->recent[i]);
        if (slot == 0)
            continue;
        page_pool_add_reference(&file->pool, slot);
        page_pool_release(&file->pool, slot);
    }
    file->next = 0;
    file->last_stamp++;
    return missing;
}

bool prefix_file_next(struct prefix_file *file, struct prefix_file_job *out)
{
    struct pager_entry entry;
    for (; file->next < file->recent_count; file->next++) {
        uint32_t page = file->order[file->next].page;
        uint64_t parent;
        if (slot_of(file, page, file->order[file->next].entry))
            continue;
        pager_describe(file->pager, page, &entry);
        CHECK(entry.id == file->order[file->next].entry); /* the pager has not changed */
        if (!id_of(file, entry.parent, &parent))
            continue; /* it could never be found: its parent is not in the file */
        /* Two pages of the pager can have the same content here: one follows a page that was
           evicted and has been computed again since. */
        uint32_t known =
            prefix_index_find(&file->index, entry.group, parent, entry.tokens, entry.salt);
        if (known) {
            note_saved(file, page, entry.id, known);
            continue;
        }
        uint32_t slot = page_pool_take(&file->pool);
        CHECK(slot != 0);
        if (file->index.entries[slot].id)
            prefix_file_drop(file, slot);
        *out = (struct prefix_file_job){
            .page = page,
            .slot = slot,
            .entry = entry.id,
            .id =
                prefix_index_add(&file->index, slot, entry.group, parent, entry.tokens, entry.salt),
            .parent = parent,
            .salt = entry.salt,
            .stamp = file->last_stamp,
            .group = entry.group,
        };
        memcpy(out->tokens, entry.tokens, file->page_size * sizeof *out->tokens);
        file->next++;
        return true;
    }
    return false;
}

void prefix_file_done(struct prefix_file *file, const struct prefix_file_job *job, bool written)
{
    if (file->index.entries[job->slot].id != job->id)
        return; /* cleared in between */
    if (written) {
        page_pool_set_cached(&file->pool, job->slot, true);
        note_saved(file, job->page, job->entry, job->slot);
    } else {
        prefix_index_remove(&file->index, job->slot);
    }
    page_pool_release(&file->pool, job->slot);
}

enum status prefix_file_save_order(struct prefix_file *file, uint64_t deadline_ns,
                                   struct error *error)
{
    uint64_t stamp = file->last_stamp;
    file->last_stamp += file->recent_count;
    enum status status = STATUS_OK;
    /* The last used page first: if time runs out, those keep their place in the order. */
    for (uint32_t i = 0; i < file->recent_count && !status; i++) {
        uint32_t slot = wanted_slot(file, file->recent[i]);
        uint64_t used = stamp + (file->recent_count - i);
        if (slot == 0)
            continue;
        if (i % 64 == 0 && file->options.clock() >= deadline_ns)
            break;
        uint64_t at = page_store_offset(file->store, slot - 1) -
                      (prefix_file_slot_bytes(file) - file->options.page_bytes);
        status = page_store_write_at(file->store, at + offsetof(struct prefix_head, stamp), &used,
                                     sizeof used, error);
    }
    return status;
}
