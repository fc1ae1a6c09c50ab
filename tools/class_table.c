#include "tools/class_table.h"

#include <stdio.h>

#include "formats/status.h"

const char *class_bytes(uint64_t bytes, char *buf, size_t cap)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1000 && u < 4) {
        v /= 1000;
        u++;
    }
    snprintf(buf, cap, u ? "%.3f %s" : "%.0f %s", v, units[u]);
    return buf;
}

void class_table_add(class_table *k, const bl_config *config, const char *name, bl_dtype dtype, uint64_t nbytes, bool further)
{
    class_row *row = &k->rows[bl_class_of(config, name)];
    row->tensors += !further;
    row->bytes += nbytes;
    row->by_dtype[dtype] += nbytes;
}

void class_table_print(const class_table *k)
{
    char b[32];
    for (int i = 0; i < BL_CLASSES; i++) {
        const class_row *row = &k->rows[i];
        if (!row->tensors) continue;
        printf("  %-19s %6llu %-7s", bl_class_name((bl_class)i), (unsigned long long)row->tensors,
               row->tensors == 1 ? "tensor" : "tensors");
        if (row->bytes || !k->names_only) printf(" %12s", class_bytes(row->bytes, b, sizeof b));
        const char *gap = "  ";
        for (int d = 1; d < BL_DT_COUNT; d++) {
            if (!row->by_dtype[d]) continue;
            printf("%s%s %s", gap, bl_dtype_name((bl_dtype)d), class_bytes(row->by_dtype[d], b, sizeof b));
            gap = " ";
        }
        printf("\n");
    }
}

static json_t *row_json(const class_table *k, int i)
{
    const class_row *row = &k->rows[i];
    json_t *j = json_pack("{s:s, s:I}", "class", bl_class_name((bl_class)i), "tensors", (json_int_t)row->tensors);
    if (row->bytes || !k->names_only) json_object_set_new(j, "bytes", json_integer((json_int_t)row->bytes));
    if (k->names_only) return j;
    json_t *types = json_object();
    for (int d = 1; d < BL_DT_COUNT; d++)
        if (row->by_dtype[d]) json_object_set_new(types, bl_dtype_name((bl_dtype)d), json_integer((json_int_t)row->by_dtype[d]));
    json_object_set_new(j, "dtypes", types);
    return j;
}

json_t *class_table_json(const class_table *k)
{
    json_t *list = json_array();
    for (int i = 0; i < BL_CLASSES; i++)
        if (k->rows[i].tensors) json_array_append_new(list, row_json(k, i));
    return list;
}
