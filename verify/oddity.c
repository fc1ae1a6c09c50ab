#include "verify/oddity.h"

#include "verify/flaw.h"
#include "verify/stream.h"

#include <string.h>

enum { SAMPLES = 512, LEAST_SAMPLES = 32, LEAST_SCALES = 8, EXPONENTS = 256, ZERO_BLOCK = 1 };

void bl_odd_add(bl_odd_count *into, bl_odd_count more)
{
    if (more.count) {
        into->first = into->count && into->first < more.first ? into->first : more.first;
        into->count += more.count;
    }
}

static void note(bl_odd_count *c, uint64_t at)
{
    bl_odd_add(c, (bl_odd_count){1, at});
}

static uint64_t part_cols(const bl_weight *w, bool scale)
{
    return scale ? bl_weight_scale_cols(w) : bl_weight_cols(w);
}

/* Elements of a row as it is stored: padding lies behind those of the part. */
static uint64_t stored_cols(const bl_weight *w, bool scale)
{
    return part_cols(w, scale) + (scale && w->block_cols ? w->pad_cols / w->block_cols : w->pad_cols);
}

/* Which element of the part is stored element i; padding counts as the last of its row. */
static uint64_t in_part(const bl_weight *w, bool scale, uint64_t i)
{
    uint64_t cols = part_cols(w, scale), stored = stored_cols(w, scale), col = i % stored;
    return i / stored * cols + (col < cols ? col : cols - 1);
}

static uint64_t stored_row_bytes(const bl_weight *w, bool scale)
{
    return scale ? stored_cols(w, true) * (bl_weight_f32_scaled(w) ? 4 : 1) : bl_weight_row_bytes(w);
}

uint64_t bl_odd_group(const bl_weight *w, bool scale)
{
    uint64_t row = stored_row_bytes(w, scale);
    uint64_t scales = bl_weight_f32_scaled(w) ? 4 * BL_ODD_SCALES : BL_ODD_SCALES;
    uint64_t rows = scale ? (row && row < scales ? scales / row : 1) : BL_ODD_ROWS;
    while (rows > 1 && rows * row > BL_STREAM_TILE) {
        rows /= 2;
    }
    return row && rows * row <= BL_STREAM_TILE ? rows * row : 0;
}

bool bl_odd_has_rows(const bl_weight *w)
{
    return w->form != BL_FORM_F32 && w->form != BL_FORM_OTHER && w->slot->ndim > 1 && bl_weight_rows(w) >= BL_ODD_LEAST_ROWS;
}

/* ---- rows */

/* The bits that make a value other than zero. */
static uint64_t magnitude_bits(bl_form form)
{
    return form == BL_FORM_FP4 ? 0x7777777777777777u : form == BL_FORM_BF16 ? 0x7fff7fff7fff7fffu : 0x7f7f7f7f7f7f7f7fu;
}

static bool is_zero(const uint8_t *row, uint64_t n, uint64_t mask)
{
    uint64_t word = 0, at = 0;
    for (; at + 8 <= n; at += 8) {
        memcpy(&word, row + at, 8);
        if (word & mask) {
            return false;
        }
    }
    word = 0;
    memcpy(&word, row + at, n - at);
    return !(word & mask);
}

static void look_at_rows(const bl_weight *w, uint64_t first, uint64_t rows, const uint8_t *data, bl_odd_count *out)
{
    uint64_t n = bl_weight_row_bytes(w), size = w->form == BL_FORM_BF16 ? 2 : 1, mask = magnitude_bits(w->form);
    for (uint64_t r = 0; r < rows; r++, data += n) {
        if (is_zero(data, n, mask)) {
            note(&out[BL_ODD_ZERO_ROWS], first + r);
        } else if (n > size && memcmp(data, data + size, n - size) == 0) {
            note(&out[BL_ODD_CONSTANT_ROWS], first + r);
        } else if (r % BL_ODD_ROWS && memcmp(data, data - n, n) == 0) {
            note(&out[BL_ODD_REPEATED_ROWS], first + r);
        }
    }
}

/* Integers, the experts of tokens: of interest where there are none but zeros. */
static void look_at_integers(const bl_weight *w, uint64_t first, uint64_t rows, const uint8_t *data, bl_odd_count *out)
{
    uint64_t n = bl_weight_row_bytes(w);
    for (uint64_t r = 0; r < rows; r++, data += n) {
        if (is_zero(data, n, UINT64_MAX)) {
            note(&out[BL_ODD_ZERO_ROWS], first + r);
        }
    }
}

/* Are n BF16 values all e4m3 codes, with the largest of them? A cast has a scale's powers of two in them. */
static bool looks_unscaled(const uint8_t *data, uint64_t n)
{
    enum { FRACTION = 0xf, LEAST = 0x3b00, MOST = 0x43e0 }; /* below e4m3's three bits; 2^-9; 448 */
    unsigned most = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, data + 2 * i, 2);
        v &= 0x7fff;
        if (v && ((v & FRACTION) || v < LEAST || v > MOST)) {
            return false;
        }
        most = v > most ? v : most;
    }
    return most == MOST;
}

/* ---- magnitudes */

/* Element i without its sign, as the upper half of a float32. */
static unsigned upper_half(const uint8_t *data, uint64_t i, bool f32)
{
    uint16_t v;
    memcpy(&v, f32 ? data + 4 * i + 2 : data + 2 * i, 2);
    return v & 0x7fff;
}

/* Exponent field of element i; 0 for zeros and subnormals, 255 for what is not finite. */
static unsigned exponent(const uint8_t *data, uint64_t i, bool f32)
{
    return upper_half(data, i, f32) >> 7;
}

/* The exponent that half of the counted ones do not reach; 0 when there are fewer than least. */
static unsigned median(const uint32_t count[EXPONENTS], uint32_t least)
{
    uint32_t all = 0, below = 0;
    unsigned e = 0;
    for (unsigned i = 0; i < EXPONENTS; i++) {
        all += count[i];
    }
    while (all >= least && e < EXPONENTS - 1 && 2 * (below += count[e]) < all) {
        e++;
    }
    return e;
}

/* Largest exponent, that of what is not finite included. */
static unsigned largest(const uint8_t *data, uint64_t n, bool f32)
{
    unsigned most = 0;
    for (uint64_t i = 0; i < n; i++) {
        unsigned v = upper_half(data, i, f32);
        most = v > most ? v : most;
    }
    return most >> 7;
}

static void look_at_magnitudes(uint64_t first, uint64_t n, const uint8_t *data, bool f32, bl_odd_count *out)
{
    uint32_t sampled[EXPONENTS] = {0};
    uint64_t step = n / SAMPLES + 1;
    for (uint64_t i = 0; i < n; i += step) {
        sampled[exponent(data, i, f32)]++;
    }
    sampled[0] = sampled[255] = 0;
    unsigned limit = median(sampled, LEAST_SAMPLES) + BL_ODD_LARGE_ABOVE;
    if (limit == BL_ODD_LARGE_ABOVE || largest(data, n, f32) < limit) {
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        unsigned e = exponent(data, i, f32);
        if (e >= limit && e < 255) {
            note(&out[BL_ODD_LARGE], first + i);
        }
    }
}

/* ---- scales */

static void look_at_scales(const bl_weight *w, uint64_t first, uint64_t n, const uint8_t *data, bl_odd_count *out)
{
    bool f32 = bl_weight_f32_scaled(w);
    uint64_t cols = bl_weight_scale_cols(w), stored = stored_cols(w, true);
    uint32_t count[EXPONENTS] = {0};
    for (uint64_t i = 0; i < n; i++) {
        count[f32 ? exponent(data, i, true) : data[i]] += i % stored < cols;
    }
    if (w->form == BL_FORM_FP4) {
        count[ZERO_BLOCK] = 0; /* what quantisers write for a block of zeros */
    }
    unsigned usual = median(count, LEAST_SCALES);
    unsigned lo = w->form == BL_FORM_FP8 ? BL_FP8_SCALE_MIN : BL_FP4_SCALE_MIN;
    unsigned hi = w->form == BL_FORM_FP8 ? BL_FP8_SCALE_MAX : w->form == BL_FORM_FP4 ? BL_FP4_SCALE_MAX : 254;
    for (unsigned e = lo; e <= hi; e++) { /* what is beyond is a flaw */
        bool far = usual && (e >= usual + BL_ODD_SCALE_ABOVE || e + BL_ODD_SCALE_BELOW <= usual), end = e == 0 || e == 254;
        for (uint64_t i = 0; count[e] && (far || end) && i < n; i++) {
            if (i % stored < cols && (f32 ? exponent(data, i, true) : data[i]) == e) {
                note(&out[end ? BL_ODD_SCALE_ENDS : BL_ODD_SCALE_FAR], first + in_part(w, true, i));
            }
        }
    }
}

/* ---- the whole */

/* first: of the stored elements. */
static void look_at_flaws(const bl_cast_kernels *k, const bl_weight *w, bool scale, uint64_t first, uint64_t n, const uint8_t *data,
                          bl_odd_count *out, const char **what)
{
    bl_flaw f = bl_flaw_find(k, (scale ? w->scale : w->tensor)->dtype, w, data, n);
    if (f.count) {
        bl_odd_add(&out[scale ? BL_ODD_SCALE_FLAW : BL_ODD_FLAW], (bl_odd_count){f.count, in_part(w, scale, first + f.first)});
        *what = f.what;
    }
}

/* A group, or as much of one as the weight has. */
static void look_at_group(const bl_weight *w, bool scale, uint64_t first, uint64_t n, const uint8_t *data, bl_odd_count *out)
{
    uint64_t row = bl_weight_row_bytes(w), size = bl_weight_f32_scaled(w) ? 4 : 1;
    if (scale) {
        look_at_scales(w, first, n / size, data, out);
        return;
    }
    if (bl_odd_has_rows(w)) {
        look_at_rows(w, first / bl_weight_cols(w), n / row, data, out);
        if (w->form == BL_FORM_BF16 && looks_unscaled(data, n / 2)) {
            bl_odd_add(&out[BL_ODD_UNSCALED], (bl_odd_count){n / row, first / bl_weight_cols(w)});
        }
    } else if (w->form == BL_FORM_OTHER && w->slot->ndim > 1) {
        look_at_integers(w, first / bl_weight_cols(w), n / row, data, out);
    }
    if (w->form == BL_FORM_BF16 || w->form == BL_FORM_F32) {
        bool f32 = w->form == BL_FORM_F32;
        look_at_magnitudes(first, n / (f32 ? 4 : 2), data, f32, out);
    }
}

void bl_odd_look(const bl_cast_kernels *k, const bl_weight *w, bool scale, uint64_t offset, uint64_t n, const uint8_t *data,
                 bl_odd_count out[BL_ODDITIES], const char **what)
{
    uint64_t group = bl_odd_group(w, scale), stored = stored_cols(w, scale), row = stored_row_bytes(w, scale);
    if (!row) {
        return; /* elements smaller than a byte, which no model has */
    }
    look_at_flaws(k, w, scale, offset / row * stored + offset % row * stored / row, n, data, out, what);
    for (uint64_t at = 0; group && at < n; at += group) {
        uint64_t piece = n - at < group ? n - at : group;
        look_at_group(w, scale, (offset + at) / row * part_cols(w, scale), piece, data + at, out);
    }
}
