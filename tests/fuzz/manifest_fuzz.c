#include "tests/fuzz/fuzz.h"

#include "formats/manifest.h"

#include <string.h>

static void check_rank(const bl_rank_manifest *r)
{
    for (size_t i = 0; i < r->tensor_count; i++) {
        const bl_manifest_tensor *t = &r->tensors[i];
        BL_MUST(t->tensor.file < r->file_count);
        BL_MUST(t->tensor.nbytes <= r->files[t->tensor.file].bytes - t->tensor.offset);
        BL_MUST(t->chunk_count == bl_chunk_count(t->tensor.nbytes));
        BL_MUST(bl_rank_manifest_find(r, t->tensor.name) == t);
    }
}

/* Either kind: what is neither is refused by both. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_arena arena = {0};
    bl_manifest m;
    bl_rank_manifest r;
    bl_error err = {0};
    if (bl_manifest_parse((const char *)data, size, "input", &arena, &m, &err) == BL_OK) {
        BL_MUST(m.layout.ranks == m.layout.pp * (m.layout.tp > m.layout.ep ? m.layout.tp : m.layout.ep));
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    bl_error_clear(&err);
    if (bl_rank_manifest_parse((const char *)data, size, "input", &arena, &r, &err) == BL_OK) {
        check_rank(&r);
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    bl_arena_reset(&arena);
    return 0;
}
