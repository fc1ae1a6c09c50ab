#include "tools/receipt.h"

#include "formats/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *receipt_text(const char *s)
{
    json_t *j = json_string(s);
    if (j) {
        return j;
    }
    size_t cap = 4 * strlen(s) + 1;
    char *escaped = malloc(cap);
    if (escaped) {
        j = json_string(bl_text_escape(escaped, cap, s, 0));
    }
    free(escaped);
    return j;
}

json_t *receipt_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

int receipt_print(const char *program, json_t *j)
{
    if (!j) {
        fprintf(stderr, "%s: out of memory for the receipt\n", program);
        return 4;
    }
    json_dumpf(j, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(j);
    return 0;
}
