/* Prints the table of docs/api.md that api/fields.c holds: tests/structure/fields.py puts it there. */
#include "api/fields.h"

#include <math.h>
#include <stdio.h>

static const char *const TYPES[] = {
    [FIELD_ANY] = "",
    [FIELD_NUMBER] = "number",
    [FIELD_INTEGER] = "integer",
    [FIELD_BOOL] = "boolean",
    [FIELD_STRING] = "string",
    [FIELD_STRINGS] = "string or list of strings",
    [FIELD_IDS] = "list of ids",
    [FIELD_LIST] = "list",
    [FIELD_OBJECT] = "object",
};

static void print_range(const struct field *field)
{
    printf("%s", TYPES[field->type]);
    if (field->low == 0 && field->high == 0)
        return;
    if (isinf(field->low) && isinf(field->high))
        return;
    if (isinf(field->high))
        printf(", from %.10g on", field->low);
    else
        printf(", %.10g … %.10g", field->low, field->high);
}

static void print_neutral(const struct field *field)
{
    switch (field->neutral) {
    case NEUTRAL_NONE:
        printf("refused");
        break;
    case NEUTRAL_EMPTY:
        printf("refused, unless it is empty or false");
        break;
    case NEUTRAL_FALSE:
        printf("refused, unless it is false");
        break;
    case NEUTRAL_TRUE:
        printf("refused, unless it is true");
        break;
    case NEUTRAL_NUMBER:
        printf("refused, unless it is %g", field->number);
        break;
    case NEUTRAL_NOT_POSITIVE:
        printf("refused, unless it is 0 or less");
        break;
    case NEUTRAL_TEXT:
        printf("refused, unless it is ");
        for (const char *at = field->texts; *at; at++)
            if (*at == '|')
                printf(" or ");
            else
                putchar(*at);
        break;
    }
}

int main(void)
{
    size_t count;
    const struct field *fields = fields_table(&count);
    printf("| field | of | in | accepts | what it does |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < count; i++) {
        const struct field *field = &fields[i];
        printf("| `%s` | %s | %s | ", field->name, field->api,
               field->endpoint == FIELD_ALL    ? "all"
               : field->endpoint == FIELD_BOTH ? "both"
               : field->endpoint == FIELD_CHAT ? "chat"
                                               : "completions");
        if (field->support == FIELD_DONE)
            print_range(field);
        printf(" | ");
        if (field->same_as)
            printf("another name of `%s`", field->same_as);
        else if (field->support == FIELD_REFUSED)
            print_neutral(field);
        else if (field->support == FIELD_NO_EFFECT)
            printf("no effect%s%s", field->texts ? ": " : "", field->texts ? field->texts : "");
        else
            printf("%s", field->texts ? field->texts : "done");
        printf(" |\n");
    }
    return 0;
}
