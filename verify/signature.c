#include "verify/signature.h"

#include "formats/file.h"
#include "formats/names.h"
#include "formats/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the signature");
}

/* The signature's bytes; *found tells whether there are some, and what is there instead is found. */
static bl_status read_signature(bl_finder *f, const char *path, uint8_t signature[BL_SIGNATURE_BYTES], bool *found, bl_error *err)
{
    bl_file *file;
    bl_error e;
    bl_error_clear(&e);
    *found = false;
    f->level = 4;
    if (access(path, F_OK) != 0) {
        bl_find(f, 4, path, NULL, -1, -1, "is missing: this folder is not signed");
        return BL_OK;
    }
    bl_status s = bl_file_open(&file, path, &e);
    if (s == BL_OK && bl_file_size(file) != BL_SIGNATURE_BYTES) {
        s = bl_fail(&e, BL_E_INPUT, path, NULL, -1, "has %llu byte%s: it is no Ed25519 signature, which has %d",
                    (unsigned long long)bl_file_size(file), bl_plural(bl_file_size(file)), BL_SIGNATURE_BYTES);
    } else if (s == BL_OK) {
        s = bl_file_read(file, signature, BL_SIGNATURE_BYTES, 0, &e);
        *found = s == BL_OK;
    }
    bl_file_close(&file);
    if (s == BL_E_INPUT) {
        bl_finder_problem(f, &e);
        return BL_OK;
    }
    return s == BL_OK ? BL_OK : bl_fail(err, s, path, NULL, -1, "%s", e.message);
}

bl_status bl_signature_check(bl_finder *f, const bl_checkpoint *c, const bl_key *key, const bl_witnesses *w, bool *right, bl_error *err)
{
    uint8_t signature[BL_SIGNATURE_BYTES];
    char who[BL_KEY_NAME_ROOM];
    bl_arena arena = {0};
    const char *sums = bl_path_join(&arena, c->path, BL_SUMS_NAME), *path = bl_path_join(&arena, c->path, BL_SIGNATURE_NAME);
    bool found = false;
    *right = false;
    bl_status s = sums && path ? BL_OK : nomem(err);
    if (s == BL_OK && w->unread) {
        found = false; /* said already */
    } else if (s == BL_OK && !w->text) {
        bl_find(f, 4, sums, NULL, -1, -1, "is missing: there is nothing that a signature could cover");
    } else if (s == BL_OK) {
        s = read_signature(f, path, signature, &found, err);
    }
    if (s == BL_OK && found) {
        s = bl_key_check(key, w->text, w->bytes, signature, right, err);
        if (s == BL_OK && !*right) {
            bl_find(f, 4, path, NULL, -1, -1,
                    "is no signature of " BL_SUMS_NAME " by %s: another key made it, or " BL_SUMS_NAME " has changed", bl_key_name(key, who));
        }
    }
    bl_arena_reset(&arena);
    return s;
}

/* The text to sign: as it is, or, malloc'd in *made, completed. */
static bl_status complete(const bl_witnesses *w, char **made, size_t *n, size_t *listed, bl_error *err)
{
    bl_sum_line *lines = malloc((w->count + 1) * sizeof *lines);
    *made = NULL;
    *listed = 0;
    if (!lines) {
        return nomem(err);
    }
    bool all = true;
    for (size_t i = 0; i < w->count; i++) {
        all &= w->items[i].hashed;
        lines[i].name = w->items[i].name;
        memcpy(lines[i].digest, w->items[i].sha256, sizeof lines[i].digest);
        *listed += !w->items[i].listed;
    }
    bl_status s = !all    ? bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "a file was not hashed before signing")
                  : *listed ? bl_sums_text(lines, w->count, made, n, err)
                            : BL_OK;
    free(lines);
    return s;
}

bl_status bl_signature_make(const bl_checkpoint *c, const bl_key *key, const bl_witnesses *w, size_t *listed, bl_error *err)
{
    uint8_t signature[BL_SIGNATURE_BYTES];
    bl_arena arena = {0};
    char *made = NULL;
    size_t n = 0;
    const char *sums = bl_path_join(&arena, c->path, BL_SUMS_NAME), *path = bl_path_join(&arena, c->path, BL_SIGNATURE_NAME);
    bl_status s = sums && path ? complete(w, &made, &n, listed, err) : nomem(err);
    if (s == BL_OK) {
        s = bl_key_sign(key, made ? made : w->text, made ? n : w->bytes, signature, err);
    }
    if (s == BL_OK && made) {
        s = bl_output_file(sums, made, n, err);
    }
    if (s == BL_OK) {
        s = bl_output_file(path, signature, sizeof signature, err);
    }
    free(made);
    bl_arena_reset(&arena);
    return s;
}
