/* See page_table.h. */
#include "pager/page_table.h"

#include "base/check.h"
#include "pager/pager.h"

bool page_table_grow(struct page_table *table, struct pager *pager, uint32_t page_count)
{
    CHECK(page_count <= table->capacity - table->count);
    if (!pager_take(pager, page_count, table->pages + table->count))
        return false;
    table->count += page_count;
    return true;
}

void page_table_adopt(struct page_table *table, struct pager *pager, const uint32_t *pages,
                      uint32_t page_count)
{
    CHECK(page_count <= table->capacity - table->count);
    for (uint32_t i = 0; i < page_count; i++) {
        pager_hold(pager, pages[i]);
        table->pages[table->count++] = pages[i];
    }
}

void page_table_fork(struct page_table *table, struct pager *pager, const struct page_table *source)
{
    CHECK(table->count == 0 && table != source);
    page_table_adopt(table, pager, source->pages, source->count);
}

void page_table_release(struct page_table *table, struct pager *pager)
{
    while (table->count > 0)
        pager_release(pager, table->pages[--table->count]);
}

enum page_own page_table_own(struct page_table *table, struct pager *pager, uint32_t index,
                             uint32_t *from, uint32_t *to)
{
    CHECK(index < table->count);
    uint32_t page = table->pages[index];
    if (pager_holders(pager, page) == 1)
        return PAGE_OWN_ALREADY;
    uint32_t copy;
    if (!pager_take(pager, 1, &copy))
        return PAGE_OWN_NO_ROOM;
    table->pages[index] = copy;
    pager_release(pager, page);
    *from = page;
    *to = copy;
    return PAGE_OWN_COPY;
}
