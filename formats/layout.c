/* safetensors for writing: places of the tensors and the text of the header. */
#include "formats/safetensors.h"

#include "formats/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bl_st_metadata[2] = {"format", "pt"};

/* Text that is counted first and written on a second pass. */
typedef struct sink {
    char *buf; /* NULL while counting */
    size_t n;
} sink;

static void put(sink *s, const char *text, size_t n)
{
    if (s->buf) {
        memcpy(s->buf + s->n, text, n);
    }
    s->n += n;
}

static void put_text(sink *s, const char *text)
{
    put(s, text, strlen(text));
}

static void put_u64(sink *s, uint64_t u)
{
    char digits[24];
    put(s, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, u));
}

static void put_string(sink *s, const char *text)
{
    s->n += bl_json_quote(s->buf ? s->buf + s->n : NULL, text);
}

static void put_tensor(sink *s, const bl_tensor *t, uint64_t begin)
{
    put_string(s, t->name);
    put_text(s, ":{\"dtype\":\"");
    put_text(s, bl_dtype_name(t->dtype));
    put_text(s, "\",\"shape\":[");
    for (uint32_t i = 0; i < t->ndim; i++) {
        put_text(s, i ? "," : "");
        put_u64(s, t->shape[i]);
    }
    put_text(s, "],\"data_offsets\":[");
    put_u64(s, begin);
    put_text(s, ",");
    put_u64(s, begin + t->nbytes);
    put_text(s, "]}");
}

static void put_header(sink *s, bl_tensor *const *order, size_t count, const char *const *metadata,
                       size_t metadata_count)
{
    uint64_t begin = 0;
    const char *comma = "";
    put_text(s, "{");
    if (metadata_count) {
        put_text(s, "\"__metadata__\":{");
        for (size_t i = 0; i < metadata_count; i++) {
            put_text(s, i ? "," : "");
            put_string(s, metadata[2 * i]);
            put_text(s, ":");
            put_string(s, metadata[2 * i + 1]);
        }
        put_text(s, "}");
        comma = ",";
    }
    for (size_t i = 0; i < count; i++, comma = ",") {
        put_text(s, comma);
        put_tensor(s, order[i], begin);
        begin += order[i]->nbytes;
    }
    put_text(s, "}");
}

static int by_name(const void *a, const void *b)
{
    return bl_tensor_by_name(*(bl_tensor *const *)a, *(bl_tensor *const *)b);
}

/* Largest first; sizes that are no multiple of 8 after all others, widest elements first. Everything before
 * such a tensor then is a multiple of its element size, so that all are aligned. */
static int by_layout(const void *a, const void *b)
{
    const bl_tensor *s = *(bl_tensor *const *)a, *t = *(bl_tensor *const *)b;
    int s_odd = s->nbytes % 8 != 0, t_odd = t->nbytes % 8 != 0;
    if (s_odd != t_odd) {
        return s_odd - t_odd;
    }
    unsigned s_bits = bl_dtype_bits(s->dtype), t_bits = bl_dtype_bits(t->dtype);
    if (s_odd && s_bits != t_bits) {
        return s_bits > t_bits ? -1 : 1;
    }
    if (s->nbytes != t->nbytes) {
        return s->nbytes > t->nbytes ? -1 : 1;
    }
    return strcmp(s->name, t->name);
}

/* Names and sizes; order is left sorted by name. */
static bl_status check_tensors(bl_tensor *tensors, bl_tensor **order, size_t count, uint64_t *data,
                               bl_error *err)
{
    *data = 0;
    for (size_t i = 0; i < count; i++) {
        bl_tensor *t = order[i] = &tensors[i];
        if (!bl_tensor_name_ok(t->name, strlen(t->name))) {
            return bl_fail(err, BL_E_INPUT, NULL, t->name, -1, "not a legal tensor name");
        }
        if (t->ndim > BL_MAX_DIMS || !bl_tensor_size(t->dtype, t->shape, t->ndim, &t->nbytes) ||
            bl_add_overflow(*data, t->nbytes, data) || *data > INT64_MAX) {
            return bl_fail(err, BL_E_INPUT, NULL, t->name, -1,
                           "dtype %s and the shape give no size that a file can have",
                           bl_dtype_name(t->dtype));
        }
    }
    qsort(order, count, sizeof *order, by_name);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(order[i - 1]->name, order[i]->name) == 0) {
            return bl_fail(err, BL_E_INPUT, NULL, order[i]->name, -1, "two tensors of this name");
        }
    }
    return BL_OK;
}

static bl_status check_metadata(const char *const *metadata, size_t count, bl_error *err)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(metadata[2 * i], metadata[2 * j]) == 0) {
                return bl_fail(err, BL_E_INPUT, NULL, "__metadata__", -1, "key '%s' twice", metadata[2 * i]);
            }
        }
    }
    return BL_OK;
}

void bl_st_head_copy(const bl_st_head *h, uint64_t offset, uint64_t n, void *dst)
{
    uint64_t held = h->text_bytes > offset ? h->text_bytes - offset : 0;
    held = held < n ? held : n;
    if (held) {
        memcpy(dst, h->text + offset, held);
    }
    memset((char *)dst + held, ' ', n - held);
}

bl_status bl_st_head_write(const bl_st_head *h, bl_output *out, bl_error *err)
{
    char piece[4096];
    for (uint64_t at = 0, n; at < h->header_bytes; at += n) {
        n = h->header_bytes - at < sizeof piece ? h->header_bytes - at : sizeof piece;
        bl_st_head_copy(h, at, n, piece);
        BL_TRY(bl_output_write(out, piece, n, at, err));
    }
    return BL_OK;
}

/* The header's length field and text, in the arena. */
static bl_status write_header(bl_tensor *const *order, size_t count, const char *const *metadata,
                              size_t metadata_count, uint32_t align, bl_arena *arena, bl_st_head *head, bl_error *err)
{
    sink s = {0};
    put_header(&s, order, count, metadata, metadata_count);
    uint64_t total = (8 + (uint64_t)s.n + align - 1) / align * align, n = total - 8;
    if (n > BL_ST_MAX_HEADER) {
        return bl_fail(err, BL_E_INPUT, NULL, NULL, -1,
                       "%zu tensors need a header of %" PRIu64 " bytes, the most is %u: use more files",
                       count, n, BL_ST_MAX_HEADER);
    }
    s = (sink){bl_arena_alloc(arena, s.n + 8), 8};
    if (!s.buf) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a header");
    }
    put_header(&s, order, count, metadata, metadata_count);
    for (int i = 0; i < 8; i++) {
        s.buf[i] = (char)(n >> 8 * i & 0xff);
    }
    *head = (bl_st_head){.text = s.buf, .text_bytes = s.n, .header_bytes = total};
    return BL_OK;
}

bl_status bl_st_layout(bl_tensor *tensors, size_t count, const char *const *metadata, size_t metadata_count,
                       uint32_t align, int keep_order, bl_arena *arena, bl_st_head *head, bl_error *err)
{
    uint64_t data;
    if (align < 8 || (align & (align - 1)) != 0) {
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "alignment %u is no power of two from 8", align);
    }
    bl_tensor **order = calloc(count + 1, sizeof *order);
    if (!order) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a layout");
    }
    bl_status s = check_tensors(tensors, order, count, &data, err);
    if (s == BL_OK) {
        s = check_metadata(metadata, metadata_count, err);
    }
    if (s == BL_OK) {
        if (keep_order) {
            for (size_t i = 0; i < count; i++) {
                order[i] = &tensors[i];
            }
        } else {
            qsort(order, count, sizeof *order, by_layout);
        }
        s = write_header(order, count, metadata, metadata_count, align, arena, head, err);
    }
    if (s == BL_OK) {
        uint64_t offset = head->header_bytes;
        for (size_t i = 0; i < count; i++) {
            order[i]->offset = offset;
            offset += order[i]->nbytes;
        }
        head->file_bytes = offset;
    }
    free(order);
    return s;
}
