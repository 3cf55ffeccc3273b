/*
 * The prefix file from inside: shared by prefix_file.c (the file: header, slots, reading them when
 * it is opened), prefix_file_load.c (pages back into the pager) and prefix_file_save.c (passes).
 * Nobody else includes this.
 *
 *     slot   [ stamp ][ sum ][ id parent salt page_sum group tokens … ][ zeros ][ the page's bytes
 * ]
 *                            '------------- under sum --------------'           '---- page_sum
 * ----'
 *
 * Numbers are in the machine's own byte order; the header says which that is. Slots are counted
 * from 1, as pages are: pool and index are the pager's own types, over slots in place of pages.
 *
 * Invariants: a slot is cached in the pool exactly when it has an entry in the index; an entry's
 * parent is PREFIX_ROOT or was in the file before it, and ids only grow; last_id is at least every
 * id that any slot of the file names.
 */
#ifndef QUIRE_PAGER_DISK_PREFIX_FILE_PRIVATE_H
#define QUIRE_PAGER_DISK_PREFIX_FILE_PRIVATE_H

#include "pager/disk/prefix_file.h"
#include "pager/page_pool.h"
#include "pager/prefix_index.h"

/* Of a slot, in the file. The stamp is outside of what is summed: it is written again alone, and
   says no more than an order. */
struct prefix_head {
    uint64_t stamp;
    uint64_t sum;
    uint64_t id, parent, salt, page_sum;
    uint32_t group;
    uint32_t tokens[PREFIX_FILE_PAGE_SIZE_MAX]; /* [page_size] are in the file */
};

/* Where a page of the pager is in the file. Valid while both sides still have these names. */
struct prefix_saved {
    uint64_t entry; /* in the pager */
    uint64_t id;    /* in the file */
    uint32_t slot;
};

struct prefix_ordered {
    uint64_t entry; /* the pager's */
    uint32_t page;
};

struct prefix_file {
    /* fixed after start */
    struct prefix_file_options options;
    struct pager *pager;
    int fd;
    uint32_t page_size;
    uint32_t slot_count;
    uint32_t head_bytes; /* in the file */
    struct page_store *store;
    struct kv_groups groups;
    /* the thread that writes */
    uint64_t nonce; /* of this file since it was begun: older slots are no slots */
    /* the thread that owns the pager */
    struct prefix_index index;
    struct page_pool pool;
    struct prefix_saved *saved;   /* [pager's pages] */
    struct prefix_ordered *order; /* [recent_count] of the pass, by the pager's names */
    uint32_t *recent;             /* [recent_count] the same, last used first */
    uint32_t recent_count;
    uint32_t next; /* in order */
    uint64_t last_stamp;
    void *memory; /* all arrays */
};

/* Removes the slot from the index; it must not be in use. */
void prefix_file_drop(struct prefix_file *file, uint32_t slot);

#endif
