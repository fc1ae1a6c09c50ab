#include "verify/arrival.h"

bool bl_arrives(const bl_checkpoint *c)
{
    bool again = false;
    return c->archive && bl_archive_compressed(c->archive, &again) && again;
}

bool bl_file_arrives(const bl_file *f)
{
    return bl_file_spool(f) && bl_spool_streams(bl_file_spool(f));
}

uint64_t bl_arrival_place(const bl_file *f, uint64_t offset)
{
    return bl_file_base(f) + offset;
}

bl_status bl_arrival_expect(const bl_file *f, uint64_t offset, uint64_t n, bl_error *err)
{
    bl_spool *s = bl_file_spool(f); /* NULL: the archive holds the file as it is */
    return s ? bl_spool_expect(s, bl_arrival_place(f, offset), n, err) : BL_OK;
}

void bl_arrival_done(const bl_file *f, uint64_t offset, uint64_t n)
{
    bl_spool *s = bl_file_spool(f);
    if (s) {
        bl_spool_done(s, bl_arrival_place(f, offset), n);
    }
}

size_t *bl_arrival_order(const bl_checkpoint *c, bl_arena *arena)
{
    size_t *order = bl_arena_array(arena, c->file_count, sizeof *order);
    bool arrives = bl_arrives(c);
    for (size_t i = 0; order && i < c->file_count; i++) {
        size_t at = i;
        for (; arrives && at > 0 && bl_file_base(c->files[order[at - 1]].file) > bl_file_base(c->files[i].file); at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return order;
}

void bl_arrival_seal_file(const bl_file *f)
{
    bl_spool_seal(bl_file_spool(f));
}

void bl_arrival_seal(const bl_checkpoint *c)
{
    for (size_t i = 0; i < c->file_count; i++) {
        if (bl_file_spool(c->files[i].file)) {
            bl_arrival_seal_file(c->files[i].file);
            return;
        }
    }
}
