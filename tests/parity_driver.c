/* `baleen logits` with one rounding of the model left out: parity_driver WHAT MODEL IDS GOLDEN TRACE OUT. Proves that the layer
 * checks see each of them. Rows that are not to be rounded travel as a number in the packed row; the values stay here. */
#include "kernels/cast.h"
#include "kernels/cpu.h"
#include "kernels/fmath.h"
#include "tools/logits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bl_op_kernels real;
static uint16_t *kept;       /* unrounded rows, one after the other */
static size_t kept_count, kept_capacity;
static bool plain_window, plain_latent, plain_probabilities;

/* ---- rows that only pretend to be packed */

static void keep_row(uint8_t *row, const uint16_t *x, int64_t d)
{
    if (kept_count + (size_t)d > kept_capacity) {
        kept_capacity = 2 * (kept_count + (size_t)d);
        kept = realloc(kept, kept_capacity * sizeof *kept);
        if (!kept) exit(4);
    }
    memcpy(kept + kept_count, x, (size_t)d * sizeof *x);
    memcpy(row, &kept_count, sizeof kept_count);
    kept_count += (size_t)d;
}

static const uint16_t *kept_row(const uint8_t *row)
{
    size_t at;
    memcpy(&at, row, sizeof at);
    return kept + at;
}

static void slot_values(float *v, const bl_attn_slots *s, int64_t i, int64_t d)
{
    static uint16_t bf[4096];
    const bool window = i < s->window_slots;
    const uint8_t *row = window ? s->window[i] : s->selected[i - s->window_slots];
    const uint16_t *x = bf;
    if (window ? plain_window : plain_latent) x = kept_row(row);
    else if (window) real.unpack_window(bf, row, d);
    else real.unpack_latent(bf, row, d);
    for (int64_t e = 0; e < d; e++) v[e] = bl_bf16_to_f32(x[e]);
}

static bool hole(const bl_attn_slots *s, int64_t i)
{
    return i < s->window_slots ? !s->window[i] : !s->selected[i - s->window_slots];
}

/* The definition of ops.h in another summation order. */
static void attention(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                      float scale, void *scratch)
{
    static float v[BL_ATTN_BLOCK][4096];
    const int64_t n = slots->window_slots + slots->selected_slots;
    (void)scratch;
    for (int64_t h = 0; h < heads; h++) {
        float acc[4096] = {0}, total = 0, peak = -1e30f;
        for (int64_t b = 0; b < n; b += BL_ATTN_BLOCK) {
            float s[BL_ATTN_BLOCK], most = peak;
            const int64_t m = n - b < BL_ATTN_BLOCK ? n - b : BL_ATTN_BLOCK;
            for (int64_t i = 0; i < m; i++) {
                s[i] = -INFINITY;
                if (hole(slots, b + i)) continue;
                double dot = 0;
                slot_values(v[i], slots, b + i, d);
                for (int64_t e = 0; e < d; e++) dot += (double)bl_bf16_to_f32(q[h * d + e]) * (double)v[i][e];
                s[i] = (float)dot * scale;
                if (s[i] > most) most = s[i];
            }
            const float fade = bl_exp(peak - most);
            total *= fade;
            for (int64_t e = 0; e < d; e++) acc[e] *= fade;
            for (int64_t i = 0; i < m; i++) {
                if (s[i] == -INFINITY) continue;
                const float p = bl_exp(s[i] - most), used = plain_probabilities ? p : bl_bf16_to_f32(bl_f32_to_bf16(p));
                total += p;
                for (int64_t e = 0; e < d; e++) acc[e] += used * v[i][e];
            }
            peak = most;
        }
        total += bl_exp(sink[h] - peak);
        for (int64_t e = 0; e < d; e++) o[h * d + e] = bl_f32_to_bf16(acc[e] / total);
    }
}

static void index_scores(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys, int64_t n)
{
    const size_t bytes = bl_index_row_bytes(d);
    for (int64_t j = 0; j < n; j++) {
        const uint16_t *k = kept_row(keys + (size_t)j * bytes);
        scores[j] = 0;
        for (int64_t h = 0; h < heads; h++) {
            const uint16_t *x = kept_row(q + (size_t)h * bytes);
            float dot = 0;
            for (int64_t e = 0; e < d; e++) dot += bl_bf16_to_f32(x[e]) * bl_bf16_to_f32(k[e]);
            scores[j] += (dot > 0 ? dot : 0) * w[h];
        }
    }
}

/* ---- roundings done wrong */

static void chop(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = (uint16_t)(bl_float_bits(x[i]) >> 16);
}

static void copy(uint16_t *y, const uint16_t *x, int64_t n)
{
    memmove(y, x, (size_t)n * sizeof *x);
}

static void rope_forward_only(uint16_t *x, int64_t heads, int64_t d, int64_t R, const float *cs, int inverse)
{
    if (!inverse) real.rope(x, heads, d, R, cs, 0);
}

/* The expert's weight as if it came behind the second product: the rounding in between does not see it. */
static void swiglu_unweighted(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate, float limit, int64_t n)
{
    (void)gate;
    real.swiglu(y, g, u, 1, limit, n);
}

static const char *what;

static void adjust(bl_linear_kernels *linear, bl_op_kernels *ops)
{
    (void)linear;
    real = *ops;
    if (!strcmp(what, "window") || !strcmp(what, "latent") || !strcmp(what, "probabilities") || !strcmp(what, "attention"))
        ops->attention = attention;
    plain_window = !strcmp(what, "window");
    plain_latent = !strcmp(what, "latent");
    plain_probabilities = !strcmp(what, "probabilities");
    if (plain_window) ops->pack_window = keep_row;
    if (plain_latent) ops->pack_latent = keep_row;
    if (!strcmp(what, "index")) {
        ops->pack_index = keep_row;
        ops->index_scores = index_scores;
    }
    if (!strcmp(what, "activations")) ops->round_fp8 = copy;
    if (!strcmp(what, "nearest")) ops->to_bf16 = chop;
    if (!strcmp(what, "unrotate")) ops->rope = rope_forward_only;
    if (!strcmp(what, "gates")) ops->swiglu = swiglu_unweighted;
}

int main(int argc, char **argv)
{
    static int32_t ids[1 << 16];
    logits_sequence sequence = {.ids = ids};
    if (argc != 7) return 2;
    what = argv[1];
    for (char *p = strtok(argv[3], ","); p && sequence.count < 1 << 16; p = strtok(NULL, ",")) ids[sequence.count++] = atoi(p);
    /* one thread: the kept rows are not guarded */
    const logits_job j = {.model = argv[2], .inject = argv[4], .trace = argv[5], .out = argv[6], .sequences = &sequence,
                          .sequence_count = 1, .options = {.cpu = bl_cpu_detect(), .threads = 1, .adjust = adjust}};
    bl_error err = {0};
    char line[4096];
    const bl_status s = logits_run(&j, NULL, &err);
    if (s != BL_OK) fprintf(stderr, "%s\n", bl_error_line(&err, line, sizeof line));
    free(kept);
    return bl_exit_code(s);
}
