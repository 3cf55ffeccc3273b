/* See sequence.h. */
#include "engine/sequence.h"

#include "base/check.h"

void sequence_init(struct sequence *sequence, struct completion *completion, uint32_t choice)
{
    CHECK(sequence->completion == NULL && sequence->table.count == 0);
    struct page_table table = sequence->table;
    *sequence = (struct sequence){
        .completion = completion,
        .choice = choice,
        .state = SEQUENCE_PROMPT,
        .token_count = completion->prompt_count + completion_generated(completion, choice),
        .table = table,
    };
}

uint32_t sequence_growth(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t size = pager_page_size(pager);
    /* The last token's keys and values are never computed. */
    uint32_t most = pager_pages_for(size, sequence->completion->token_limit - 1);
    const struct page_table *table = &sequence->table;
    uint32_t growth = most > table->count ? most - table->count : 0;
    uint32_t index = sequence->computed / size;
    if (index < table->count && pager_holders(pager, table->pages[index]) > 1)
        growth++;
    return growth;
}

uint32_t sequence_page_to_write(const struct sequence *sequence, uint32_t page_size)
{
    uint32_t index = sequence->computed / page_size;
    return index < sequence->table.count ? sequence->table.pages[index] : 0;
}

uint32_t sequence_own_pages(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sequence->table.count; i++)
        count += pager_holders(pager, sequence->table.pages[i]) == 1;
    return count;
}

uint32_t sequence_cost(const struct sequence *sequence, const struct pager *pager)
{
    uint32_t shared = sequence->table.count - sequence_own_pages(sequence, pager);
    uint32_t kept = shared * pager_page_size(pager);
    return sequence->computed > kept ? sequence->computed - kept : 0;
}

enum sequence_room sequence_make_room(struct sequence *sequence, struct pager *pager,
                                      uint32_t *from, uint32_t *to)
{
    struct page_table *table = &sequence->table;
    uint32_t index = sequence->computed / pager_page_size(pager);
    enum sequence_room room = SEQUENCE_ROOM;
    if (index == table->count) {
        if (!page_table_grow(table, pager, 1))
            return SEQUENCE_NO_ROOM;
    } else {
        switch (page_table_own(table, pager, index, from, to)) {
        case PAGE_OWN_NO_ROOM:
            return SEQUENCE_NO_ROOM;
        case PAGE_OWN_COPY:
            room = SEQUENCE_ROOM_COPY;
            break;
        case PAGE_OWN_ALREADY:
            break;
        }
    }
    CHECK(!pager_findable(pager, table->pages[index]));
    return room;
}

void sequence_advance(struct sequence *sequence, struct pager *pager, uint32_t count, bool publish)
{
    uint32_t size = pager_page_size(pager);
    sequence->computed += count;
    CHECK(sequence->computed <= sequence->token_count);
    CHECK(pager_pages_for(size, sequence->computed) <= sequence->table.count);
    if (!publish)
        return;
    const uint32_t *history = sequence_history(sequence);
    for (; sequence->published < sequence->computed / size; sequence->published++) {
        uint32_t page = sequence->table.pages[sequence->published];
        sequence->chain = pager_publish(pager, page, sequence->chain,
                                        history + (size_t)sequence->published * size,
                                        sequence->completion->cache_salt);
    }
}

void sequence_fork(struct sequence *sequence, struct pager *pager, const struct sequence *leader)
{
    CHECK(sequence->state == SEQUENCE_FOLLOWING && sequence->leader == leader);
    CHECK(leader->completion == sequence->completion);
    CHECK(leader->computed == sequence->token_count);
    page_table_fork(&sequence->table, pager, &leader->table);
    sequence->computed = leader->computed;
    sequence->published = leader->published;
    sequence->chain = leader->chain;
    sequence->leader = NULL;
}

void sequence_clear(struct sequence *sequence, struct pager *pager)
{
    page_table_release(&sequence->table, pager);
    sequence->completion = NULL;
    sequence->leader = NULL;
}
