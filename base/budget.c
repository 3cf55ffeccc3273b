/* The byte budget: see budget.h. */
#include "base/budget.h"

#include "base/bytes.h"
#include "base/check.h"

#include <string.h>

static const char *const names[BUDGET_ACCOUNTS] = {
    [BUDGET_PROGRAM] = "program",
    [BUDGET_WEIGHTS] = "weights",
    [BUDGET_TOKENIZER] = "tokenizer",
    [BUDGET_TEMPLATE] = "template",
    [BUDGET_GRAMMAR] = "grammar",
    [BUDGET_SCRATCH] = "scratch",
    [BUDGET_HTTP] = "http",
    [BUDGET_REQUESTS] = "requests",
    [BUDGET_KV] = "kv",
};

const char *budget_account_name(enum budget_account account)
{
    CHECK(account < BUDGET_ACCOUNTS);
    return names[account];
}

void budget_init(struct budget *budget, uint64_t total_bytes)
{
    memset(budget, 0, sizeof *budget);
    budget->total_bytes = total_bytes;
}

uint64_t budget_unreserved(const struct budget *budget)
{
    uint64_t reserved = 0;
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        reserved += budget->cap_bytes[i];
    CHECK(reserved <= budget->total_bytes);
    return budget->total_bytes - reserved;
}

enum status budget_reserve(struct budget *budget, enum budget_account account, uint64_t bytes,
                           struct error *error)
{
    CHECK(account < BUDGET_ACCOUNTS);
    uint64_t left = budget_unreserved(budget);
    if (bytes > left) {
        char need[24], have[24], total[24], least[24];
        return error_set(error, STATUS_INVALID, "memory",
                         "%s needs %s, but only %s of the memory budget of %s are left; "
                         "at least %s are needed in all",
                         names[account], bytes_format(bytes, need), bytes_format(left, have),
                         bytes_format(budget->total_bytes, total),
                         bytes_format(budget->total_bytes - left + bytes, least));
    }
    budget->cap_bytes[account] += bytes;
    return STATUS_OK;
}

bool budget_take(struct budget *budget, enum budget_account account, uint64_t bytes)
{
    CHECK(account < BUDGET_ACCOUNTS);
    uint_fast64_t used = atomic_load(&budget->used_bytes[account]);
    do {
        CHECK(used <= budget->cap_bytes[account]);
        if (bytes > budget->cap_bytes[account] - used)
            return false;
    } while (!atomic_compare_exchange_weak(&budget->used_bytes[account], &used, used + bytes));
    uint_fast64_t peak = atomic_load(&budget->peak_bytes[account]);
    while (peak < used + bytes &&
           !atomic_compare_exchange_weak(&budget->peak_bytes[account], &peak, used + bytes))
        ;
    return true;
}

uint64_t budget_used(const struct budget *budget, enum budget_account account)
{
    CHECK(account < BUDGET_ACCOUNTS);
    return atomic_load(&budget->used_bytes[account]);
}

uint64_t budget_peak(const struct budget *budget, enum budget_account account)
{
    CHECK(account < BUDGET_ACCOUNTS);
    return atomic_load(&budget->peak_bytes[account]);
}

void budget_give(struct budget *budget, enum budget_account account, uint64_t bytes)
{
    CHECK(account < BUDGET_ACCOUNTS);
    uint_fast64_t before = atomic_fetch_sub(&budget->used_bytes[account], bytes);
    CHECK(before >= bytes);
}

enum status budget_take_request(struct budget *budget, uint64_t held_bytes, uint64_t bytes,
                                const char *param, struct error *error)
{
    uint64_t cap = budget->cap_bytes[BUDGET_REQUESTS], all = 0;
    char need[24], have[24];
    if (!bytes_add(held_bytes, bytes, &all) || all > cap)
        return error_set_code(error, STATUS_TOO_LARGE, "request_too_large", param,
                              "This request needs at least %s of memory (its body and what is made "
                              "of it); the server's --memory leaves %s for all requests together.",
                              bytes_format(all ? all : UINT64_MAX, need), bytes_format(cap, have));
    if (budget_take(budget, BUDGET_REQUESTS, bytes))
        return STATUS_OK;
    enum status status =
        error_set(error, STATUS_BUSY, NULL, "The memory for requests is in use; try again later.");
    if (error)
        error->retry_after_s = 1;
    return status;
}

void budget_print(const struct budget *budget, struct buffer *out)
{
    char text[24];
    for (unsigned i = 0; i < BUDGET_ACCOUNTS; i++)
        buffer_appendf(out, "  %-10s %12s\n", names[i], bytes_format(budget->cap_bytes[i], text));
    buffer_appendf(out, "  %-10s %12s\n", "free", bytes_format(budget_unreserved(budget), text));
    buffer_appendf(out, "  %-10s %12s\n", "total", bytes_format(budget->total_bytes, text));
}
