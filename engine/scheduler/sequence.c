/*
 * Page arithmetic of one sequence, and its page tables.
 *
 * Every question "how many pages" is answered here, for the same sequence in the same words: what
 * it starts with, what it takes next, what it may take in the worst case, what is free when it is
 * preempted. Admission and preemption add these up over the running sequences; so the answers must
 * never be too low, or a step finds no page that it was promised.
 *
 * With one KV cache group a table has no gaps and grows by one page at a time. With several, groups
 * with a window release pages at their heads, and the null page stands there.
 */
#include "engine/scheduler/sequence.h"

#include "base/check.h"
#include "base/minmax.h"

void sequence_init(struct sequence *sequence, struct completion *completion, uint32_t index)
{
    CHECK(sequence->completion == NULL && !sequence_has_pages(sequence));
    *sequence = (struct sequence){
        .completion = completion,
        .index = index,
        .record = &completion->sequences[index],
        .state = SEQUENCE_PREFILL,
        .token_count = completion_token_count(completion, index),
        .tables = sequence->tables,
    };
}

void sequence_clear(struct sequence *sequence, struct pager *pager)
{
    page_tables_release(sequence->tables, pager_groups(pager)->count, pager);
    sequence->completion = NULL;
    sequence->parent = NULL;
}

uint32_t sequence_page_count(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        count += sequence->tables[g].count - sequence->tables[g].first;
    return count;
}

static uint32_t private_pages(const struct page_table *table, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t i = table->first; i < table->count; i++)
        count += pager_ref_count(pager, table->pages[i]) == 1;
    return count;
}

uint32_t sequence_private_pages(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        count += private_pages(&sequence->tables[g], pager);
    return count;
}

uint32_t sequence_recompute_tokens(const struct sequence *sequence, const struct pager *pager)
{
    const struct page_table *table = &sequence->tables[0]; /* its shared pages stay cached */
    uint32_t shared = (table->count - private_pages(table, pager)) * pager_page_size(pager);
    return sequence->computed > shared ? sequence->computed - shared : 0;
}

/* ---- how many pages ---- */

/* The most pages of a group at once, of page_count, when those before `first` are not needed. */
static uint32_t pages_at_once(const struct pager *pager, uint32_t group, uint32_t chunk,
                              uint32_t first, uint32_t page_count)
{
    return (uint32_t)kv_groups_most_pages(pager_groups(pager), group, pager_page_size(pager), chunk,
                                          page_count - first);
}

/* The first page of a group that a sequence needs that starts from there. */
static uint32_t first_after(const struct pager *pager, uint32_t group,
                            const struct sequence_origin *origin)
{
    return kv_groups_first(pager_groups(pager), group, pager_page_size(pager), origin->computed);
}

uint64_t sequence_initial_pages(const struct pager *pager, uint32_t token_count, uint32_t chunk,
                                const struct sequence_origin *origin)
{
    uint32_t pages = kv_groups_pages(pager_page_size(pager), token_count);
    uint64_t need = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        need += pages_at_once(pager, g, chunk, first_after(pager, g, origin), pages);
    return need;
}

uint64_t sequence_worst_case_pages(const struct pager *pager, uint32_t token_limit, uint32_t chunk,
                                   const struct sequence_origin *origin)
{
    /* The last token's keys and values are never computed. Shared pages of a window save nothing:
       when the window moves on they may stay in use. */
    return sequence_initial_pages(pager, token_limit - 1, chunk, origin) -
           origin->match.full_referenced_count;
}

static bool is_shared(const struct pager *pager, const struct page_table *table, uint32_t index)
{
    return index < table->count && pager_ref_count(pager, table->pages[index]) > 1;
}

uint64_t sequence_worst_case_growth(const struct sequence *sequence, const struct pager *pager,
                                    uint32_t chunk)
{
    uint32_t size = pager_page_size(pager);
    uint32_t pages = kv_groups_pages(size, sequence->completion->token_limit - 1);
    uint64_t growth = 0;
    if (sequence->state == SEQUENCE_SWAPPING_OUT)
        return 0;
    if (sequence->state == SEQUENCE_DECODE)
        chunk = 1;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        const struct page_table *table = &sequence->tables[g];
        uint32_t most = pages_at_once(pager, g, chunk, table->first, pages), has;
        if (pager_groups(pager)->window[g] == 0)
            has = table->count - is_shared(pager, table, sequence->computed / size);
        else /* a shared page that leaves the window frees no page */
            has = private_pages(table, pager);
        growth += max_u32(most, has) - has;
    }
    return growth;
}

uint32_t sequence_next_growth(const struct sequence *sequence, const struct pager *pager)
{
    const struct kv_groups *groups = pager_groups(pager);
    if (sequence->state == SEQUENCE_SWAPPING_OUT)
        return 0;
    if (groups->count == 1)
        return 1;
    uint32_t size = pager_page_size(pager), growth = 0;
    uint32_t pages = sequence->state == SEQUENCE_DECODE
                         ? sequence->tables[0].count
                         : kv_groups_pages(size, sequence->token_count);
    for (uint32_t g = 0; g < groups->count; g++)
        growth += kv_groups_first(groups, g, size, pages * size) <= sequence->tables[g].first;
    return growth;
}

/* Where the table must end for the next positions. */
static uint32_t end_for(const struct sequence *sequence, const struct pager *pager, uint32_t group,
                        uint32_t chunk)
{
    uint32_t size = pager_page_size(pager), first = sequence->tables[group].first;
    if (sequence->state == SEQUENCE_DECODE)
        return sequence->computed / size + 1;
    return first +
           pages_at_once(pager, group, chunk, first, kv_groups_pages(size, sequence->token_count));
}

static uint32_t missing_pages(const struct sequence *sequence, const struct pager *pager,
                              uint32_t group, uint32_t chunk)
{
    uint32_t count = sequence->tables[group].count;
    return max_u32(end_for(sequence, pager, group, chunk), count) - count;
}

uint32_t sequence_missing_pages(const struct sequence *sequence, const struct pager *pager,
                                uint32_t chunk)
{
    uint32_t pages = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        pages += missing_pages(sequence, pager, g, chunk);
    return pages;
}

/* ---- pages ---- */

void sequence_recount_origin(struct sequence_origin *origin, const struct pager *pager,
                             const struct page_table *tables)
{
    origin->match.referenced_count = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        for (uint32_t i = first_after(pager, g, origin); i < origin->match.page_count; i++)
            origin->match.referenced_count += pager_ref_count(pager, tables[g].pages[i]) > 0;
    }
}

void sequence_start(struct sequence *sequence, struct pager *pager, uint32_t chunk,
                    const struct sequence_origin *origin)
{
    uint32_t found = origin->match.page_count;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        struct page_table *table = &sequence->tables[g];
        uint32_t first = first_after(pager, g, origin);
        page_table_adopt(table, pager, table->pages, first, max_u32(found, first));
    }
    /* Only now that all have a reference: taking pages may evict cached ones. */
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        bool grown =
            page_table_grow(&sequence->tables[g], pager, missing_pages(sequence, pager, g, chunk));
        CHECK(grown);
    }
    sequence->computed = origin->computed;
    sequence->published = found;
    sequence->parent_id = origin->match.parent_id;
    if (origin->computed > found * pager_page_size(pager))
        sequence->state = SEQUENCE_SWAPPING_IN;
}

void sequence_slide(struct sequence *sequence, struct pager *pager)
{
    const struct kv_groups *groups = pager_groups(pager);
    uint32_t size = pager_page_size(pager);
    if (groups->count == 1 || (sequence->state == SEQUENCE_DECODE &&
                               sequence->computed / size < sequence->tables[0].count))
        return;
    for (uint32_t g = 0; g < groups->count; g++)
        page_table_slide(&sequence->tables[g], pager,
                         kv_groups_first(groups, g, size, sequence->computed));
}

uint32_t sequence_page_to_write(const struct sequence *sequence, uint32_t page_size)
{
    uint32_t index = sequence->computed / page_size;
    return index < sequence->tables[0].count ? sequence->tables[0].pages[index] : 0;
}

void sequence_take_pages(struct sequence *sequence, struct pager *pager, uint32_t chunk,
                         struct page_copy *copies, uint32_t *copy_count)
{
    uint32_t index = sequence->computed / pager_page_size(pager);
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        struct page_table *table = &sequence->tables[g];
        bool grown = page_table_grow(table, pager, missing_pages(sequence, pager, g, chunk));
        enum page_own own = page_table_own(table, pager, index, &copies[*copy_count]);
        CHECK(grown && own != PAGE_OWN_NO_ROOM);
        *copy_count += own == PAGE_OWN_COPY;
        CHECK(!pager_is_cached(pager, table->pages[index]));
    }
}

void sequence_advance(struct sequence *sequence, struct pager *pager, uint32_t count, bool publish)
{
    uint32_t size = pager_page_size(pager);
    sequence->computed += count;
    CHECK(sequence->computed <= sequence->token_count);
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        CHECK(kv_groups_pages(size, sequence->computed) <= sequence->tables[g].count);
    if (!publish)
        return;
    const uint32_t *history = sequence->record->history;
    for (; sequence->published < sequence->computed / size; sequence->published++) {
        uint64_t parent_id = sequence->parent_id;
        for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
            if (sequence->published < sequence->tables[g].first)
                continue; /* it was swapped in without the pages before its window */
            uint64_t next = pager_publish(pager, sequence->tables[g].pages[sequence->published], g,
                                          parent_id, history + (size_t)sequence->published * size,
                                          sequence->completion->cache_salt);
            if (g == 0)
                sequence->parent_id = next;
        }
    }
}

void sequence_fork(struct sequence *sequence, struct pager *pager, const struct sequence *parent)
{
    CHECK(sequence->state == SEQUENCE_PENDING_FORK && sequence->parent == parent);
    CHECK(parent->completion == sequence->completion);
    CHECK(parent->computed == sequence->token_count);
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        page_table_fork(&sequence->tables[g], pager, &parent->tables[g]);
    sequence->computed = parent->computed;
    sequence->published = parent->published;
    sequence->parent_id = parent->parent_id;
    sequence->parent = NULL;
}

/* ---- swapping out ---- */

uint32_t sequence_shared_pages(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t full = sequence->computed / pager_page_size(pager);
    for (uint32_t i = 0; i < full; i++) {
        for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
            uint32_t page = sequence->tables[g].pages[i];
            if (page && (pager_ref_count(pager, page) == 1 || !pager_is_cached(pager, page)))
                return i;
        }
    }
    return full;
}

uint32_t sequence_pages_to_swap(const struct sequence *sequence, const struct pager *pager,
                                uint32_t shared_count)
{
    const struct kv_groups *groups = pager_groups(pager);
    uint32_t size = pager_page_size(pager), count = 0;
    uint32_t end = kv_groups_pages(size, sequence->computed);
    for (uint32_t g = 0; g < groups->count; g++) {
        uint32_t first =
            max_u32(kv_groups_first(groups, g, size, sequence->computed), shared_count);
        count += max_u32(end, first) - first;
    }
    return count;
}

void sequence_start_swap_out(struct sequence *sequence, struct pager *pager)
{
    const struct kv_groups *groups = pager_groups(pager);
    uint32_t size = pager_page_size(pager);
    uint32_t end = kv_groups_pages(size, sequence->computed);
    for (uint32_t g = 0; g < groups->count; g++) {
        struct page_table *table = &sequence->tables[g];
        while (table->count > end && table->count > table->first)
            page_table_pop(table, pager);
        uint32_t first = kv_groups_first(groups, g, size, sequence->computed);
        page_table_slide(table, pager, min_u32(first, table->count));
    }
    sequence->state = SEQUENCE_SWAPPING_OUT;
    sequence->is_selected = false;
}

uint32_t sequence_longest_group(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t longest = 0;
    for (uint32_t g = 1; g < pager_groups(pager)->count; g++) {
        const struct page_table *table = &sequence->tables[g];
        if (table->count > table->first && table->count >= sequence->tables[longest].count)
            longest = g;
    }
    CHECK(sequence->tables[longest].count > sequence->tables[longest].first);
    return longest;
}
