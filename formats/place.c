#include "formats/place.h"

#include "formats/names.h"

#include <stdlib.h>

bl_status bl_place_open(bl_place *p, const char *path, const bl_archive_options *o, bl_error *err)
{
    bl_archive_options fitting = *o;
    *p = (bl_place){.name = path, .folder = path};
    if (!bl_archive_recognise(path)) {
        return BL_OK;
    }
    char *spill = o->spill ? NULL : bl_archive_spill(path);
    fitting.spill = spill ? spill : o->spill;
    bl_status s = fitting.spill ? bl_archive_open(&p->archive, path, &fitting, err)
                                : bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    free(spill);
    p->folder = p->archive ? bl_archive_root(p->archive) : path;
    return s;
}

bl_status bl_place_file(const bl_place *p, const char *name, bl_file **out, bl_error *err)
{
    bl_arena arena = {0};
    if (p->archive) {
        return bl_archive_file(p->archive, name, out, err);
    }
    const char *path = bl_path_join(&arena, p->folder, name);
    bl_status s = path ? bl_file_open(out, path, err) : bl_fail(err, BL_E_NOMEM, p->name, NULL, -1, "out of memory");
    bl_arena_reset(&arena);
    return s;
}

void bl_place_close(bl_place *p)
{
    bl_archive_close(&p->archive);
    p->folder = p->name;
}
