/*
 * Page tables are lists of page numbers; every change goes through the pager, which counts the
 * references. The tables of a sequence grow and end together, but slide apart: each group has its
 * own window.
 *
 * The order of releasing is the order of eviction. That is why all tables of a sequence are
 * released by one function, page by page from the tails.
 */
#include "pager/page_table.h"

#include "base/check.h"
#include "base/minmax.h"
#include "pager/pager.h"

#include <string.h>

bool page_table_grow(struct page_table *table, struct pager *pager, uint32_t page_count)
{
    CHECK(page_count <= table->capacity - table->count);
    if (!pager_take(pager, page_count, table->pages + table->count))
        return false;
    table->count += page_count;
    return true;
}

void page_table_adopt(struct page_table *table, struct pager *pager, const uint32_t *pages,
                      uint32_t first, uint32_t count)
{
    CHECK(table->count == 0 && table->first == 0);
    CHECK(first <= count && count <= table->capacity);
    for (uint32_t i = 0; i < first; i++)
        table->pages[i] = 0;
    for (uint32_t i = first; i < count; i++) {
        pager_add_reference(pager, pages[i]);
        table->pages[i] = pages[i];
    }
    table->first = first;
    table->count = count;
}

void page_table_fork(struct page_table *table, struct pager *pager, const struct page_table *source)
{
    CHECK(table != source);
    page_table_adopt(table, pager, source->pages, source->first, source->count);
}

void page_table_slide(struct page_table *table, struct pager *pager, uint32_t first)
{
    CHECK(first <= table->count);
    for (; table->first < first; table->first++) {
        pager_release(pager, table->pages[table->first]);
        table->pages[table->first] = 0;
    }
}

void page_table_pop(struct page_table *table, struct pager *pager)
{
    CHECK(table->count > table->first);
    pager_release(pager, table->pages[--table->count]);
}

void page_tables_release(struct page_table *tables, uint32_t table_count, struct pager *pager)
{
    uint32_t longest = 0;
    for (uint32_t t = 0; t < table_count; t++)
        longest = max_u32(longest, tables[t].count);
    for (uint32_t index = longest; index-- > 0;) {
        for (uint32_t t = 0; t < table_count; t++) {
            if (index >= tables[t].first && index < tables[t].count)
                pager_release(pager, tables[t].pages[index]);
        }
    }
    for (uint32_t t = 0; t < table_count; t++)
        tables[t].first = tables[t].count = 0;
}

enum page_own page_table_own(struct page_table *table, struct pager *pager, uint32_t index,
                             struct page_copy *copy)
{
    CHECK(index >= table->first && index < table->count);
    uint32_t page = table->pages[index];
    if (pager_ref_count(pager, page) == 1)
        return PAGE_OWN_ALREADY;
    uint32_t own;
    if (!pager_take(pager, 1, &own))
        return PAGE_OWN_NO_ROOM;
    table->pages[index] = own;
    pager_release(pager, page);
    *copy = (struct page_copy){page, own};
    return PAGE_OWN_COPY;
}

bool page_tables_check(const struct page_table *const *tables, size_t table_count,
                       const struct pager *pager, uint32_t *scratch, struct error *error)
{
    uint32_t page_count = pager_total_count(pager) + 1;
    memset(scratch, 0, page_count * sizeof *scratch);
    for (size_t t = 0; t < table_count; t++) {
        for (uint32_t i = 0; i < tables[t]->count; i++) {
            uint32_t page = tables[t]->pages[i];
            if ((page == 0) != (i < tables[t]->first) || page >= page_count) {
                error_set(error, STATUS_INTERNAL, NULL, "table %zu names page %u at %u", t, page,
                          i);
                return false;
            }
            scratch[page] += page != 0;
        }
    }
    return pager_check(pager, scratch, error);
}
