#include "verify/folder_proof.h"

#include "formats/foreign.h"
#include "formats/names.h"
#include "verify/signature.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG ((uint64_t)64 << 20)

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

bl_status bl_folder_judge(const bl_folder_proof *p, int level, bl_status s, const bl_error *e, bl_error *err)
{
    if (s == BL_E_INPUT) {
        p->f->level = level;
        bl_finder_problem(p->f, e);
        return BL_OK;
    }
    if (s != BL_OK && err && err->code == BL_OK) {
        *err = *e;
    }
    return s;
}

bl_status bl_folder_config(bl_folder_proof *p, bl_config *c, const char **path, bl_error *err)
{
    char *text, *file = bl_path_join(&p->arena, p->folder, "config.json");
    size_t n;
    BL_TRY(file ? bl_foreign_slurp(file, MAX_CONFIG, &text, &n, err) : nomem(err));
    bl_status s = bl_config_parse_any(text, n, file, &p->arena, c, err);
    free(text);
    if (path) {
        *path = file;
    }
    return s;
}

bl_status bl_folder_expect(bl_folder_proof *p, size_t count, bl_error *err)
{
    p->expected = bl_arena_array(&p->arena, count, sizeof *p->expected);
    p->expected_count = count;
    /* Records of files are looked up as in a packed model: nothing may be there unlisted, but for what the manifest has without SHA-256.
     * So has this one (--no-sha256): the description, which must be listed, has digests of its own. */
    p->manifest = (bl_manifest){.files = p->expected, .file_count = count};
    return p->expected ? BL_OK : nomem(err);
}

static bool is_expected(const bl_folder_proof *p, const char *name)
{
    for (size_t i = 0; i < p->expected_count; i++) {
        if (!strcmp(p->expected[i].name, name)) {
            return true;
        }
    }
    return false;
}

bl_status bl_folder_strays(bl_folder_proof *p, bl_error *err)
{
    DIR *d = opendir(p->folder);
    if (!d) {
        return bl_fail(err, BL_E_INPUT, p->folder, NULL, -1, "cannot list the folder");
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (bl_ends_with(e->d_name, ".safetensors") && !is_expected(p, e->d_name)) {
            bl_find(p->f, 0, bl_path_join(&p->arena, p->folder, e->d_name), NULL, -1, -1, "is not among the files of this folder");
        }
    }
    closedir(d);
    return BL_OK;
}

bl_status bl_folder_open(bl_folder_proof *p,
                         bl_status (*match)(bl_folder_proof *p, size_t i, const bl_st_header *h, bl_payload *out, bl_error *err),
                         bl_error *err)
{
    p->files = bl_arena_array(&p->arena, p->expected_count, sizeof *p->files);
    if (!p->files) {
        return nomem(err);
    }
    for (size_t i = 0; i < p->expected_count; i++) {
        bl_payload *out = &p->files[p->file_count];
        bl_st_header h;
        bl_error e = {0};
        *out = (bl_payload){.path = bl_path_join(&p->arena, p->folder, p->expected[i].name)};
        bl_status s = out->path ? bl_place_file(p->place, p->expected[i].name, &out->file, &e) : nomem(&e);
        s = s == BL_OK ? bl_st_read(out->file, 0, &p->arena, &h, &e) : s;
        s = s == BL_OK ? match(p, i, &h, out, &e) : s;
        if (s == BL_OK) {
            p->file_count++;
        } else {
            bl_file_close(&out->file);
        }
        BL_TRY(bl_folder_judge(p, 1, s, &e, err));
    }
    p->report->files = p->expected_count;
    return BL_OK;
}

static bl_status check_small(bl_folder_proof *p, bl_error *err)
{
    for (size_t i = 0; i < p->witnesses.count; i++) {
        bl_witness *w = &p->witnesses.items[i];
        uint8_t sha256[32];
        bl_error e = {0};
        if (is_expected(p, w->name) || (p->place->archive && bl_ends_with(w->name, ".safetensors"))) {
            continue; /* with its tensors; of an archive, what else there is has been found, and lies there as a hole */
        }
        bl_status s = w->hub.kind == BL_HUB_GIT ? bl_witness_check_git(p->f, w, &e) : BL_OK;
        if (s == BL_OK && bl_witness_hashes(w) && (s = bl_sha256_file(w->path, sha256, &e)) == BL_OK) {
            bl_witness_judge(p->f, w, sha256, 0);
        }
        BL_TRY(bl_folder_judge(p, 3, s, &e, err));
    }
    return BL_OK;
}

static bl_status check_content(bl_folder_proof *p, bl_error *err)
{
    bl_payload_proof proof;
    if (p->f->o->level >= 3) {
        BL_TRY(bl_witness_gather(p->f, &p->as_packed, &p->arena, &p->witnesses, err));
        BL_TRY(check_small(p, err));
    }
    for (size_t i = 0; i < p->file_count; i++) {
        p->files[i].witness = bl_witness_of(&p->witnesses, p->files[i].path);
    }
    BL_TRY(bl_payload_prove(p->f, p->files, p->file_count, &p->arena, &proof, err));
    BL_TRY(p->place->archive ? bl_archive_finish(p->place->archive, err) : BL_OK);
    p->report->chunks = proof.digests;
    p->report->bytes = proof.bytes;
    for (size_t i = 0; i < p->witnesses.count; i++) {
        p->report->files_hashed += bl_witness_proven(&p->witnesses.items[i]);
    }
    return BL_OK;
}

static bl_status check_options(const bl_folder_proof *p, bl_error *err)
{
    const bl_verify_options *o = p->f->o;
    if (o->against || o->one_rank || o->cache || o->hub) {
        return bl_fail(err, BL_E_USAGE, p->place->name, NULL, -1,
                       "is for weight sync: there are no ranks, no values to compare, no records of a download, and no cache");
    }
    return o->sign && p->place->archive ? bl_fail(err, BL_E_USAGE, p->place->name, NULL, -1, BL_SIGN_ARCHIVE) : BL_OK;
}

static bl_status run(bl_folder_proof *p, const bl_key *key, bl_status (*prove)(bl_folder_proof *p, bl_error *err), bl_error *err)
{
    const bl_verify_options *o = p->f->o;
    bool trusted = true;
    BL_TRY(check_options(p, err));
    p->f->archives[0] = p->place->archive;
    p->as_packed = (bl_checkpoint){.kind = BL_SOURCE_PACKED,
                                   .path = p->folder,
                                   .name = p->place->name,
                                   .archive = p->place->archive,
                                   .manifest = &p->manifest,
                                   .only_rank = -1};
    if (o->level >= 3) {
        BL_TRY(bl_witness_read(p->f, &p->as_packed, &p->arena, &p->witnesses, err));
    }
    if (o->key) { /* before everything that it vouches for */
        BL_TRY(bl_signature_check(p->f, &p->as_packed, key, &p->witnesses, &trusted, err));
        p->report->trust = trusted ? BL_TRUST_SIGNED : BL_TRUST_UNSIGNED;
    }
    if (!trusted) {
        return BL_OK;
    }
    BL_TRY(prove(p, err));
    if (p->expected && o->level >= 2) {
        BL_TRY(check_content(p, err));
    }
    if (o->sign && p->f->count == 0) {
        BL_TRY(bl_signature_make(&p->as_packed, key, &p->witnesses, &p->report->files_listed, err));
        p->report->trust = BL_TRUST_MADE;
    }
    return BL_OK;
}

bl_status bl_folder_prove(bl_folder_proof *p, const bl_key *key, bl_status (*prove)(bl_folder_proof *p, bl_error *err), bl_error *err)
{
    bl_status s = run(p, key, prove, err);
    for (size_t i = 0; i < p->file_count; i++) {
        bl_file_close(&p->files[i].file);
    }
    bl_arena_reset(&p->arena);
    return s;
}
