/* Residual streams: collapse and expand. */
#include "kernels/x86/ops_x86.h"

enum { S = 4 };

static void collapse(uint16_t *y, const uint16_t *H, const float *pre, int64_t D)
{
    const vf p[S] = {vf_set1(pre[0]), vf_set1(pre[1]), vf_set1(pre[2]), vf_set1(pre[3])};
    for (int64_t i = 0; i < D; i += 16) {
        vf out[VECS];
        for (int v = 0; v < VECS; v++) {
            const uint16_t *h = H + i + LANES * v;
            out[v] = p[0] * vf_widen(h);
            for (int j = 1; j < S; j++) out[v] = vf_fmadd(p[j], vf_widen(h + j * D), out[v]);
        }
        vf_narrow(y + i, out);
    }
}

/* A vector of stream k after a sublayer. */
BL_INLINE vf expand_stream(const vf h[S], vf y, const float *post, const float *comb, int k)
{
    vf sum = vf_set1(comb[k]) * h[0];
    for (int j = 1; j < S; j++) sum = vf_fmadd(vf_set1(comb[S * j + k]), h[j], sum);
    return vf_fmadd(vf_set1(post[k]), y, sum);
}

static void expand(uint16_t *out, const uint16_t *y, const uint16_t *H, const float *post, const float *comb, int64_t D)
{
    for (int64_t i = 0; i < D; i += 16) {
        vf h[VECS][S], in[VECS];
        for (int v = 0; v < VECS; v++) {
            in[v] = vf_widen(y + i + LANES * v);
            for (int j = 0; j < S; j++) h[v][j] = vf_widen(H + j * D + i + LANES * v);
        }
        for (int k = 0; k < S; k++) {
            vf next[VECS];
            for (int v = 0; v < VECS; v++) next[v] = expand_stream(h[v], in[v], post, comb, k);
            vf_narrow(out + k * D + i, next);
        }
    }
}

void BL_LEVEL(bl_op_streams_init)(bl_op_kernels *t)
{
    t->collapse = collapse;
    t->expand = expand;
}
