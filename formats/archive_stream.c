/* The second reading of an archive, for the weights that are wanted. It runs in the spool's thread. */
#include "formats/archive_parts.h"

#include <archive_entry.h>
#include <string.h>

typedef struct streaming {
    bl_members x;
    const bl_member *m;
} streaming;

static bl_status stream_block(void *arg, const char *data, uint64_t n, uint64_t at, bool *enough)
{
    const streaming *g = arg;
    *enough = false;
    return bl_spool_put(g->x.a->spool, data, n, g->m->base + at, g->x.err);
}

static bl_status stream_member(streaming *g, struct archive_entry *e)
{
    const bl_member *m = g->m;
    bl_spool *spool = g->x.a->spool;
    if (m->kind != BL_MEMBER_SPOOLED || !bl_spool_wants(spool, m->base, m->base + m->size)) {
        return bl_members_skip(&g->x, m->name);
    }
    BL_TRY(bl_members_blocks(&g->x, m, archive_entry_sparse_count(e) > 0, g, stream_block));
    return bl_spool_put(spool, "", 0, m->base + m->size, g->x.err); /* a hole at its end */
}

static bl_status stream_all(streaming *g)
{
    static const char changed[] = "changed while it was being read";
    const bl_archive *a = g->x.a;
    struct archive_entry *e;
    size_t at = 0;
    BL_TRY(bl_members_open(&g->x));
    for (;;) {
        const char *why, *name;
        BL_TRY(bl_members_next(&g->x, &e));
        if (!e) {
            break;
        }
        name = bl_entry_name(e, &why);
        if (!why && archive_entry_filetype(e) == AE_IFDIR) {
            continue;
        }
        const bl_member *m = g->m = at < a->count ? &a->members[at++] : NULL;
        if (why || !m || strcmp(m->name, name) != 0 || (m->kind == BL_MEMBER_SPOOLED && (uint64_t)archive_entry_size(e) != m->size)) {
            return bl_members_refuse(&g->x, NULL, changed);
        }
        BL_TRY(stream_member(g, e));
    }
    return at == a->count ? BL_OK : bl_members_refuse(&g->x, NULL, changed);
}

bl_status bl_archive_stream(void *arg, bl_error *err)
{
    streaming g = {.x = {.a = arg, .err = err}}; /* who waits polls; the spool stops the stream */
    bl_status s = stream_all(&g);
    bl_members_close(&g.x);
    return s;
}
