#include "convert/stripe.h"

#include <string.h>

uint64_t bl_stripe_blocks(const bl_stripe *s)
{
    return bl_pieces(s->cols, 32);
}

/* Code of -0 becomes that of +0. */
static void canonical(const bl_stripe *s, uint8_t *codes)
{
    for (uint64_t i = 0; s->w->form == BL_FORM_FP8 && i < s->code_bytes; i++) {
        codes[i] = codes[i] == 0x80 ? 0 : codes[i];
    }
    for (uint64_t i = 0; s->w->form == BL_FORM_FP4 && i < s->code_bytes; i++) {
        uint8_t magnitude = codes[i] & 0x77; /* its sum with 7 carries into the sign's place unless it is 0 */
        codes[i] &= (uint8_t)(0x77 | ((magnitude + 0x77) & 0x88));
    }
}

/* What the blocks that share a scale have in common: the largest magnitude; whether a value in any of them differs. */
static void share_amax(const bl_stripe *s)
{
    uint16_t *a = s->r->amax;
    for (uint64_t i = 0, blocks = bl_stripe_blocks(s), k; s->each > 1 && i < blocks; i = k) {
        uint16_t most = 0;
        for (k = i; k < blocks && k < i + s->each; k++) {
            most = a[k] > most ? a[k] : most;
        }
        for (k = i; k < blocks && k < i + s->each; k++) {
            a[k] = most;
        }
    }
}

static void share_differs(const bl_stripe *s)
{
    uint8_t *d = s->r->differs;
    for (uint64_t i = 0, blocks = bl_stripe_blocks(s); s->each > 1 && i < blocks; i += s->each) {
        uint64_t n = blocks - i < s->each ? blocks - i : s->each;
        memset(d + i, memchr(d + i, 1, n) != NULL, n);
    }
}

/* Encode under s->r->scale, decode, compare: the sums, and s->r->differs. */
static void encode_rows(const bl_stripe *s, bl_quant_sums *sums)
{
    bool fp8 = s->w->form == BL_FORM_FP8;
    *sums = (bl_quant_sums){.error = 0};
    memset(s->r->differs, 0, bl_stripe_blocks(s));
    for (uint64_t i = 0; i < s->rows; i++) {
        const uint16_t *x = s->x + i * s->cols;
        uint8_t *codes = s->codes + i * s->code_bytes;
        if (fp8) {
            s->quant->fp8_row(codes, x, s->r->scale, (int64_t)s->cols);
        } else {
            s->quant->fp4_row(codes, x, s->r->scale, (int64_t)s->cols, s->o->ties);
        }
        if (s->o->canonical_zero) {
            canonical(s, codes);
        }
        (fp8 ? s->cast->fp8_row : s->cast->fp4_row)(s->r->back, codes, s->r->scale, (int64_t)s->cols);
        s->quant->compare_row(sums, s->r->differs, x, s->r->back, (int64_t)s->cols);
    }
    share_differs(s);
}

void bl_stripe_encode(const bl_stripe *s, bl_encode_stats *stats)
{
    uint64_t blocks = bl_stripe_blocks(s), changed = 0;
    bool fp8 = s->w->form == BL_FORM_FP8;
    int lo = fp8 ? BL_FP8_SCALE_MIN : BL_FP4_SCALE_MIN, hi = fp8 ? BL_FP8_SCALE_MAX : BL_FP4_SCALE_MAX;
    uint8_t *scale = s->r->scale;
    bl_quant_sums sums;
    (fp8 ? bl_fp8_scales : bl_fp4_scales)(scale, s->r->amax, (int64_t)blocks);
    if (s->hint) {
        uint8_t *chosen = s->r->chosen;
        memcpy(chosen, scale, blocks);
        for (uint64_t i = 0; i < blocks; i++) {
            uint8_t hint = s->hint[i / s->each];
            scale[i] = hint >= lo && hint <= hi ? hint : scale[i];
        }
        encode_rows(s, &sums);
        for (uint64_t i = 0; i < blocks; i++) {
            bool keep = s->hint[i / s->each] == scale[i] && !s->r->differs[i];
            changed += s->r->differs[i] && chosen[i] != scale[i];
            stats->kept += keep && i % s->each == 0;
            scale[i] = keep ? scale[i] : chosen[i];
        }
    }
    if (!s->hint || changed) {
        encode_rows(s, &sums);
    }
    stats->values += s->rows * s->cols;
    for (uint64_t i = 0; i < blocks; i += s->each) {
        s->scale[i / s->each] = scale[i];
        stats->blocks++;
        stats->lost += s->r->differs[i];
    }
    for (int l = 0; l < 16; l++) {
        stats->error2 += sums.error2[l];
        stats->value2 += sums.value2[l];
    }
    stats->error = sums.error > stats->error ? sums.error : stats->error;
}

bool bl_stripe_measure(const bl_stripe *s)
{
    bool finite = true;
    s->quant->amax_rows(s->r->amax, s->x, (int64_t)s->rows, (int64_t)s->cols);
    for (uint64_t i = 0; i < bl_stripe_blocks(s); i++) {
        finite &= s->r->amax[i] < 0x7f80;
    }
    share_amax(s);
    return finite;
}
