/* Root-mean-square norm and rotary positions. */
#include "kernels/fmath.h"
#include "kernels/x86/ops_x86.h"

float BL_LEVEL(bl_sum_squares)(const uint16_t *x, int64_t n)
{
    vf sum[VECS] = {{0}};
    for (int64_t i = 0; i < n; i += 16)
        for (int v = 0; v < VECS; v++) {
            vf a = vf_widen(x + i + LANES * v);
            sum[v] = vf_fmadd(a, a, sum[v]);
        }
    return vf_lane_tree(sum);
}

static void rmsnorm(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t T, int64_t n, float eps)
{
    for (int64_t t = 0; t < T; t++, x += n, y += n) {
        const vf r = vf_set1(bl_rsqrt(BL_LEVEL(bl_sum_squares)(x, n) / (float)n + eps));
        for (int64_t i = 0; i < n; i += 16) {
            vf out[VECS];
            for (int v = 0; v < VECS; v++) out[v] = vf_widen(w + i + LANES * v) * (vf_widen(x + i + LANES * v) * r);
            vf_narrow(y + i, out);
        }
    }
}

/* Pairs x = (a, b): (a c - b s, b c + a s). cs holds their cosines and sines as they come, flip the sign bit for each element:
 * an addition of the negated product is the subtraction. */
BL_INLINE vf rotate(vf x, vf cs, vi flip)
{
    vf c = BL_MM(moveldup_ps)(cs), s = (vf)((vi)BL_MM(movehdup_ps)(cs) ^ flip);
    return x * c + BL_MM(permute_ps)(x, 0xb1) * s;
}

static void rope(uint16_t *x, int64_t heads, int64_t d, int64_t R, const float *cs, int inverse)
{
    const vi flip = vi_set1_64(inverse ? INT64_MIN : 0x80000000);
    const int64_t whole = R / 16 * 16;
    for (int64_t h = 0; h < heads; h++) {
        uint16_t *p = x + h * d + (d - R);
        for (int64_t i = 0; i < whole; i += 16) {
            vf out[VECS];
            for (int v = 0; v < VECS; v++) out[v] = rotate(vf_widen(p + i + LANES * v), vf_loadu(cs + i + LANES * v), flip);
            vf_narrow(p + i, out);
        }
    }
    bl_rope_c(x, heads, d, R - whole, cs + whole, inverse);
}

void BL_LEVEL(bl_op_norm_init)(bl_op_kernels *t)
{
    t->rmsnorm = rmsnorm;
    t->rope = rope;
    t->sum_squares = BL_LEVEL(bl_sum_squares);
}
