/* See sequence.h. */
#include "engine/scheduler/sequence.h"

#include "base/check.h"

void sequence_init(struct sequence *sequence, struct completion *completion, uint32_t choice)
{
    CHECK(sequence->completion == NULL && !sequence_has_pages(sequence));
    *sequence = (struct sequence){
        .completion = completion,
        .choice = choice,
        .state = SEQUENCE_PROMPT,
        .token_count = completion->prompt_count + completion_generated(completion, choice),
        .tables = sequence->tables,
    };
}

uint32_t sequence_pages(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        count += sequence->tables[g].count - sequence->tables[g].first;
    return count;
}

static uint32_t own_pages(const struct page_table *table, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t i = table->first; i < table->count; i++)
        count += pager_ref_count(pager, table->pages[i]) == 1;
    return count;
}

uint32_t sequence_own_pages(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        count += own_pages(&sequence->tables[g], pager);
    return count;
}

uint32_t sequence_cost(const struct sequence *sequence, const struct pager *pager)
{
    const struct page_table *table = &sequence->tables[0]; /* what it shares there can be found */
    uint32_t kept = (table->count - own_pages(table, pager)) * pager_page_size(pager);
    return sequence->computed > kept ? sequence->computed - kept : 0;
}

/* ---- how many pages ---- */

/* Pages of a group held at once, of page_count, when those before `first` are not needed. */
static uint32_t held(const struct pager *pager, uint32_t group, uint32_t rows, uint32_t first,
                     uint32_t page_count)
{
    return (uint32_t)kv_groups_most_pages(pager_groups(pager), group, pager_page_size(pager), rows,
                                          page_count - first);
}

/* First page of a group that a prompt needs that starts from there. */
static uint32_t first_after(const struct pager *pager, uint32_t group,
                            const struct sequence_origin *origin)
{
    return kv_groups_first(pager_groups(pager), group, pager_page_size(pager), origin->computed);
}

uint64_t sequence_need(const struct pager *pager, uint32_t token_count, uint32_t rows,
                       const struct sequence_origin *origin)
{
    uint32_t pages = kv_groups_pages(pager_page_size(pager), token_count);
    uint64_t need = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        need += held(pager, g, rows, first_after(pager, g, origin), pages);
    return need;
}

uint64_t sequence_full_need(const struct pager *pager, uint32_t token_limit, uint32_t rows,
                            const struct sequence_origin *origin)
{
    /* The last token's keys and values are never computed. And what others hold of a window may
       stay with them when it moves on: it saves nothing. */
    return sequence_need(pager, token_limit - 1, rows, origin) -
           origin->match.full_referenced_count;
}

static bool is_shared(const struct pager *pager, const struct page_table *table, uint32_t index)
{
    return index < table->count && pager_ref_count(pager, table->pages[index]) > 1;
}

uint64_t sequence_growth(const struct sequence *sequence, const struct pager *pager, uint32_t rows)
{
    uint32_t size = pager_page_size(pager);
    uint32_t pages = kv_groups_pages(size, sequence->completion->token_limit - 1);
    uint64_t growth = 0;
    if (sequence->state == SEQUENCE_LEAVING)
        return 0;
    if (sequence->state == SEQUENCE_DECODING)
        rows = 1;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        const struct page_table *table = &sequence->tables[g];
        uint32_t most = held(pager, g, rows, table->first, pages), has;
        if (pager_groups(pager)->window[g] == 0)
            has = table->count - is_shared(pager, table, sequence->computed / size);
        else /* a shared page that leaves the window makes no room for another */
            has = own_pages(table, pager);
        growth += most > has ? most - has : 0;
    }
    return growth;
}

uint32_t sequence_next_growth(const struct sequence *sequence, const struct pager *pager)
{
    const struct kv_groups *groups = pager_groups(pager);
    if (sequence->state == SEQUENCE_LEAVING)
        return 0;
    if (groups->count == 1)
        return 1;
    uint32_t size = pager_page_size(pager), growth = 0;
    uint32_t pages = sequence->state == SEQUENCE_DECODING
                         ? sequence->tables[0].count
                         : kv_groups_pages(size, sequence->token_count);
    for (uint32_t g = 0; g < groups->count; g++)
        growth += kv_groups_first(groups, g, size, pages * size) <= sequence->tables[g].first;
    return growth;
}

/* Where the table has to end for the next positions. */
static uint32_t end_for(const struct sequence *sequence, const struct pager *pager, uint32_t group,
                        uint32_t rows)
{
    uint32_t size = pager_page_size(pager), first = sequence->tables[group].first;
    if (sequence->state == SEQUENCE_DECODING)
        return sequence->computed / size + 1;
    return first + held(pager, group, rows, first, kv_groups_pages(size, sequence->token_count));
}

static uint32_t wanted(const struct sequence *sequence, const struct pager *pager, uint32_t group,
                       uint32_t rows)
{
    uint32_t end = end_for(sequence, pager, group, rows), count = sequence->tables[group].count;
    return end > count ? end - count : 0;
}

uint32_t sequence_wanted(const struct sequence *sequence, const struct pager *pager, uint32_t rows)
{
    uint32_t pages = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        pages += wanted(sequence, pager, g, rows);
    return pages;
}

/* ---- pages ---- */

void sequence_narrow(struct sequence_origin *origin, const struct pager *pager,
                     const struct page_table *tables)
{
    origin->match.referenced_count = 0;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        for (uint32_t i = first_after(pager, g, origin); i < origin->match.page_count; i++)
            origin->match.referenced_count += pager_ref_count(pager, tables[g].pages[i]) > 0;
    }
}

void sequence_start(struct sequence *sequence, struct pager *pager, uint32_t rows,
                    const struct sequence_origin *origin)
{
    uint32_t found = origin->match.page_count;
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        struct page_table *table = &sequence->tables[g];
        uint32_t first = first_after(pager, g, origin);
        page_table_adopt(table, pager, table->pages, first, found > first ? found : first);
    }
    /* Only when all are held: what is taken may be what was found. */
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        bool grown = page_table_grow(&sequence->tables[g], pager, wanted(sequence, pager, g, rows));
        CHECK(grown);
    }
    sequence->computed = origin->computed;
    sequence->published = found;
    sequence->parent_id = origin->match.parent_id;
    if (origin->computed > found * pager_page_size(pager))
        sequence->state = SEQUENCE_RETURNING;
}

void sequence_slide(struct sequence *sequence, struct pager *pager)
{
    const struct kv_groups *groups = pager_groups(pager);
    uint32_t size = pager_page_size(pager);
    if (groups->count == 1 || (sequence->state == SEQUENCE_DECODING &&
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

void sequence_make_room(struct sequence *sequence, struct pager *pager, uint32_t rows,
                        struct page_copy *copies, uint32_t *copy_count)
{
    uint32_t index = sequence->computed / pager_page_size(pager);
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
        struct page_table *table = &sequence->tables[g];
        bool grown = page_table_grow(table, pager, wanted(sequence, pager, g, rows));
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
    const uint32_t *history = sequence_history(sequence);
    for (; sequence->published < sequence->computed / size; sequence->published++) {
        uint64_t parent_id = sequence->parent_id;
        for (uint32_t g = 0; g < pager_groups(pager)->count; g++) {
            if (sequence->published < sequence->tables[g].first)
                continue; /* came back without what its window had left */
            uint64_t next = pager_publish(pager, sequence->tables[g].pages[sequence->published], g,
                                          parent_id, history + (size_t)sequence->published * size,
                                          sequence->completion->cache_salt);
            if (g == 0)
                sequence->parent_id = next;
        }
    }
}

void sequence_fork(struct sequence *sequence, struct pager *pager, const struct sequence *leader)
{
    CHECK(sequence->state == SEQUENCE_FOLLOWING && sequence->leader == leader);
    CHECK(leader->completion == sequence->completion);
    CHECK(leader->computed == sequence->token_count);
    for (uint32_t g = 0; g < pager_groups(pager)->count; g++)
        page_table_fork(&sequence->tables[g], pager, &leader->tables[g]);
    sequence->computed = leader->computed;
    sequence->published = leader->published;
    sequence->parent_id = leader->parent_id;
    sequence->leader = NULL;
}

/* ---- giving way to the swap file ---- */

uint32_t sequence_kept(const struct sequence *sequence, const struct pager *pager)
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

uint32_t sequence_image_pages(const struct sequence *sequence, const struct pager *pager,
                              uint32_t kept)
{
    const struct kv_groups *groups = pager_groups(pager);
    uint32_t size = pager_page_size(pager), count = 0;
    uint32_t end = kv_groups_pages(size, sequence->computed);
    for (uint32_t g = 0; g < groups->count; g++) {
        uint32_t first = kv_groups_first(groups, g, size, sequence->computed);
        first = first > kept ? first : kept;
        count += end > first ? end - first : 0;
    }
    return count;
}

void sequence_leave(struct sequence *sequence, struct pager *pager)
{
    const struct kv_groups *groups = pager_groups(pager);
    uint32_t size = pager_page_size(pager);
    uint32_t end = kv_groups_pages(size, sequence->computed);
    for (uint32_t g = 0; g < groups->count; g++) {
        struct page_table *table = &sequence->tables[g];
        while (table->count > end && table->count > table->first)
            page_table_pop(table, pager);
        uint32_t first = kv_groups_first(groups, g, size, sequence->computed);
        page_table_slide(table, pager, first < table->count ? first : table->count);
    }
    sequence->state = SEQUENCE_LEAVING;
    sequence->turn = 0;
}

uint32_t sequence_longest(const struct sequence *sequence, const struct pager *pager)
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

void sequence_clear(struct sequence *sequence, struct pager *pager)
{
    page_tables_release(sequence->tables, pager_groups(pager)->count, pager);
    sequence->completion = NULL;
    sequence->leader = NULL;
}
