/*
 * The prefix cache in a file: cached pages that survive a restart. The file contains the bytes of
 * the pages with their tokens, salts and parents. What is read back is verified and enters the
 * pager as any other page does: it is found by comparing tokens, parent and salt. The file knows no
 * models: its owner says what the pages must have been computed with, and a file that says
 * otherwise is begun anew.
 *
 *     DIR/quire.pages   [ header ][ head, page ][ head, page ] …      a slot is a head and its page
 *
 * Pages are named by numbers (ids) that the file never uses twice, so nothing is found by a hash
 * and no secret has to be saved. A slot whose checksums do not agree is no slot: that covers a
 * process that is killed at any time and whatever the disk does. One process at a time has the file
 * (flock).
 *
 * A pass brings the file up to the pager: prefix_file_begin_pass, then for each page
 * prefix_file_next → prefix_file_write → prefix_file_done. Slots are reused in the order in which
 * their pages were last used, and never for a page that the pass wants to keep.
 *
 * Threads: everything is called by the thread that owns the pager, except prefix_file_write and
 * prefix_file_reset, which another thread may call, one at a time. The file has mode 0600 in a
 * directory made with mode 0700: prompts are in it.
 */
#ifndef QUIRE_PAGER_DISK_PREFIX_FILE_H
#define QUIRE_PAGER_DISK_PREFIX_FILE_H

#include "base/error.h"
#include "pager/disk/page_store.h"
#include "pager/pager.h"

#include <stdbool.h>
#include <stdint.h>

#define PREFIX_FILE_NAME "quire.pages"
#define PREFIX_FILE_PAGE_SIZE_MAX 64u

struct prefix_file;

/* What the bytes and tokens of a page mean, beside the pager's page size and groups. */
struct prefix_file_identity {
    uint64_t model;      /* its content */
    uint64_t scope;      /* whose prompts may be found */
    uint64_t arithmetic; /* version */
    char kv_type[16];    /* and the backend's name, where it matters; padded with zeros */
};

struct prefix_file_options {
    const char *directory; /* made if its parent is there */
    uint64_t cap_bytes;    /* of the file; 0: room for as many pages as the pager has */
    uint64_t page_bytes;   /* of a page's keys and values */
    struct prefix_file_identity identity;
    struct page_store_calls calls; /* NULL: the system's */
    uint64_t (*clock)(void);       /* of all deadlines; NULL: clock_now_ns */
};

/* A page to be written. Plain data. */
struct prefix_file_job {
    uint32_t page;  /* of the pager: whose bytes are wanted */
    uint32_t slot;  /* where they go, 1 … */
    uint64_t entry; /* the pager's name of it when the job was made */
    uint64_t id, parent, salt, stamp;
    uint32_t group;
    uint32_t tokens[PREFIX_FILE_PAGE_SIZE_MAX];
};

/* Bytes that prefix_file_open allocates. */
uint64_t prefix_file_memory_bytes(uint64_t cap_bytes, uint64_t page_bytes, uint32_t page_count,
                                  uint32_t page_size);

/* Opens or begins the file. A foreign or damaged file is begun anew, with one line in the log.
   Heads are read one after the other until `deadline_ns`; the slots that were not read by then are
   cut off, with one line in the log: they may name ids that must not be given again, so they cannot
   just be left. The pager has no cached pages yet and outlives the file.

   STATUS_IO with a sentence when the directory or file cannot be used, STATUS_BUSY when another
   process has it, STATUS_INVALID when the cap is smaller than a page: then there is no file, and
   nothing else has changed. */
enum status prefix_file_open(const struct prefix_file_options *options, struct pager *pager,
                             uint64_t deadline_ns, struct prefix_file **out, struct error *error);
void prefix_file_close(struct prefix_file *file); /* NULL is fine */

/* Reads pages back, those used last first, as many as are free and until `deadline_ns`. The bytes
   go to page(arg, page). Afterwards the pages are cached, in the order of their last use. Returns
   how many; damaged ones are left out, with one line in the log for all, and counted in *damaged.
 */
uint32_t prefix_file_load(struct prefix_file *file, void *(*page)(void *arg, uint32_t page),
                          void *arg, uint64_t deadline_ns, uint32_t *damaged);

/* Begins a pass while no sequence has pages; returns how many pages are to be written. A pass ends
   when the pager changes: then another one is begun. */
uint32_t prefix_file_begin_pass(struct prefix_file *file);

/* Gives the next page to be written a slot; false: there is none. Each job is done before the next
   one is asked for. */
bool prefix_file_next(struct prefix_file *file, struct prefix_file_job *out);
enum status prefix_file_write(struct prefix_file *file, const struct prefix_file_job *job,
                              const void *bytes, struct error *error);
void prefix_file_done(struct prefix_file *file, const struct prefix_file_job *job, bool written);

/* Writes the order in which the pages of the last pass were used, until `deadline_ns`. Called at
   the end of everything. */
enum status prefix_file_save_order(struct prefix_file *file, uint64_t deadline_ns,
                                   struct error *error);

/* Forgets everything: clear does so in memory, on the thread that owns the pager (a job that was
   not done by then is void); reset does so on disk, before the next write. */
void prefix_file_clear(struct prefix_file *file);
enum status prefix_file_reset(struct prefix_file *file, struct error *error);

uint32_t prefix_file_page_count(const struct prefix_file *file); /* pages in the file */
uint32_t prefix_file_slot_count(const struct prefix_file *file);
uint64_t prefix_file_slot_bytes(const struct prefix_file *file); /* of one, head included */

#endif
