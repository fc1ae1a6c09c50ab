#include "tools/encoded.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Sums grow in the order in which tiles are finished: six digits are the same every time. */
static double six(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    return strtod(text, NULL);
}

static double rms(const bl_encode_stats *s)
{
    return s->values ? six(sqrt(s->error2 / (double)s->values)) : 0;
}

static double relative(const bl_encode_stats *s)
{
    return s->value2 > 0 ? six(sqrt(s->error2 / s->value2)) : 0;
}

json_t *encoded_json(const bl_convert_report *r)
{
    json_t *list = json_array();
    for (int c = 0; c < BL_ENCODE_CLASSES; c++) {
        const bl_encode_stats *s = &r->encoded[c];
        if (s->weights) {
            json_array_append_new(
                list, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "class", bl_encode_class_name((bl_encode_class)c),
                                "weights", (json_int_t)s->weights, "values", (json_int_t)s->values, "scales",
                                (json_int_t)s->blocks, "scales_kept", (json_int_t)s->kept, "scales_new",
                                (json_int_t)(s->blocks - s->kept), "blocks_inexact", (json_int_t)s->lost, "max_error",
                                (double)s->error, "rms_error", rms(s), "relative_error", relative(s)));
        }
    }
    return list;
}

void encoded_print(const bl_convert_report *r)
{
    bool heading = false;
    for (int c = 0; c < BL_ENCODE_CLASSES; c++) {
        const bl_encode_stats *s = &r->encoded[c];
        if (!s->values) {
            continue;
        }
        if (!heading) {
            printf("%-16s %8s %14s %14s %14s %11s %11s %11s\n", "encoded", "weights", "scales kept", "scales new", "inexact blocks",
                   "max error", "rms error", "relative");
            heading = true;
        }
        printf("%-16s %8zu %14llu %14llu %14llu %11.4g %11.4g %11.4g\n", bl_encode_class_name((bl_encode_class)c), s->weights,
               (unsigned long long)s->kept, (unsigned long long)(s->blocks - s->kept), (unsigned long long)s->lost, (double)s->error,
               rms(s), relative(s));
    }
}
