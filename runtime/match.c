#include "runtime/match.h"

bool bl_matcher_init(bl_matcher *m, size_t n, bl_arena *a)
{
    *m = (bl_matcher){.capacity = n};
    m->patterns = bl_arena_array(a, n, sizeof *m->patterns);
    return m->patterns != NULL;
}

bool bl_matcher_add(bl_matcher *m, const char *p, size_t n, int what, bl_arena *a)
{
    bl_pattern *q = &m->patterns[m->count];
    const char *copy = bl_arena_strndup(a, p, n);
    size_t *fail = bl_arena_array(a, n, sizeof *fail);
    if (m->count == m->capacity || !copy || !fail)
        return false;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && p[i] != p[k])
            k = fail[k - 1];
        k += p[i] == p[k];
        fail[i] = k;
    }
    *q = (bl_pattern){.p = copy, .n = n, .fail = fail, .what = what};
    m->count++;
    return true;
}

const bl_pattern *bl_matcher_step(bl_matcher *m, char c)
{
    const bl_pattern *hit = NULL;
    m->hold = 0;
    for (size_t i = 0; i < m->count; i++) {
        bl_pattern *q = &m->patterns[i];
        while (q->state > 0 && q->p[q->state] != c)
            q->state = q->fail[q->state - 1];
        q->state += q->p[q->state] == c;
        if (q->state == q->n) {
            q->state = q->fail[q->n - 1];
            if (!hit || q->n > hit->n)
                hit = q;
        }
        if (q->state > m->hold)
            m->hold = q->state;
    }
    return hit;
}

void bl_matcher_reset(bl_matcher *m)
{
    m->hold = 0;
    for (size_t i = 0; i < m->count; i++)
        m->patterns[i].state = 0;
}
