/*
 * The prefix cache in a file: pages that can be found, kept over a restart. Holds the bytes of
 * pages with their tokens, salts and parents; what is read back is verified, and is found in the
 * pager as any other page: by comparing tokens, parent and salt. Knows no models: the owner says
 * what the pages must have been computed with, and a file that says otherwise is begun anew.
 *
 *     DIR/quire.pages   [ header ][ head, page ][ head, page ] …        (a head and its page: a
 * slot)
 *
 * Names of pages (ids) are numbers that the file never uses twice, so nothing is found by a hash
 * and no secret has to be kept. Every slot is whole by its checksums or is not there: whenever the
 * process is killed, whatever the disk does. One process at a time has the file (flock).
 *
 * A pass brings the file up to the pager: prefix_file_plan, then for each page prefix_file_next →
 * prefix_file_write → prefix_file_done. Slots are reused in the order in which their pages were
 * last used, and never for a page that the pass would keep.
 *
 * Threads: everything by the thread that has the pager, but prefix_file_write and
 * prefix_file_reset, which another may do, one at a time. The file is 0600 in a directory made
 * 0700: prompts are in it.
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

/* What bytes and tokens of a page mean, beside the pager's page size and groups. */
struct prefix_file_identity {
    uint64_t model;      /* of the model file */
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

/* Bytes that prefix_file_open allocates and holds. */
uint64_t prefix_file_memory_bytes(uint64_t cap_bytes, uint64_t page_bytes, uint32_t page_count,
                                  uint32_t page_size);

/* Open or begin the file; a foreign or damaged one is begun anew, with one line in the log. Heads
   are read one after the other until `deadline_ns`; slots whose turn has not come by then are cut
   off, with one line in the log: they may name ids that must not be given again, so they cannot
   just be left. The pager has no findable pages yet and outlives the file. STATUS_IO with a
   sentence when the directory or file cannot be used, STATUS_BUSY when another process has it,
   STATUS_INVALID when the cap does not hold a page: then there is no file, and nothing else is
   changed. */
enum status prefix_file_open(const struct prefix_file_options *options, struct pager *pager,
                             uint64_t deadline_ns, struct prefix_file **out, struct error *error);
void prefix_file_close(struct prefix_file *file); /* NULL is fine */

/* Bring pages back, those used last first, as many as are free and until `deadline_ns`; bytes are
   read into page(arg, page). They are then cached, in the order of their last use. Returns how
   many; damaged ones are left out, with one line in the log for all, and counted in *damaged. */
uint32_t prefix_file_load(struct prefix_file *file, void *(*page)(void *arg, uint32_t page),
                          void *arg, uint64_t deadline_ns, uint32_t *damaged);

/* Begin a pass while nobody holds pages; returns how many pages are to be written. A pass is over
   when the pager changes: begin another. */
uint32_t prefix_file_plan(struct prefix_file *file);

/* The next page to be written gets a slot; false: that was all. Each job is to be done before the
   next. */
bool prefix_file_next(struct prefix_file *file, struct prefix_file_job *out);
enum status prefix_file_write(struct prefix_file *file, const struct prefix_file_job *job,
                              const void *bytes, struct error *error);
void prefix_file_done(struct prefix_file *file, const struct prefix_file_job *job, bool written);

/* Keep the order in which the pages of the last plan were used, until `deadline_ns`. At the end of
   everything: writes. */
enum status prefix_file_rank(struct prefix_file *file, uint64_t deadline_ns, struct error *error);

/* Forget everything: clear in memory, by who has the pager (a job that was not done by then is
   none any more); reset on disk, before the next write. */
void prefix_file_clear(struct prefix_file *file);
enum status prefix_file_reset(struct prefix_file *file, struct error *error);

uint32_t prefix_file_page_count(const struct prefix_file *file); /* pages in the file */
uint32_t prefix_file_slot_count(const struct prefix_file *file);
uint64_t prefix_file_slot_bytes(const struct prefix_file *file); /* of one, head included */

#endif
