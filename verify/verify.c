#include "verify/verify.h"

#include "formats/delta.h"
#include "verify/bucket_proof.h"
#include "verify/companions.h"
#include "verify/compare.h"
#include "verify/manifest_check.h"
#include "verify/scales.h"
#include "verify/signature.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One side of the job: the checkpoint, what is known about it, and its pass over the files. */
typedef struct side {
    bl_checkpoint *c;
    bl_binding binding;
    bl_witnesses witnesses;
    bl_scan scan;
    bl_proven *proven;
    bl_arena arena;
    const bl_layout *beside; /* of a packed model that is compared with it; NULL: there is none */
} side;

/* A folder without config, index and weights is not a damaged checkpoint but something else. */
static bool looks_like_one(const char *path)
{
    static const char *const marks[] = {"config.json", "model.safetensors.index.json", "manifest.json", "rank-0000",
                                        "SHA256SUMS"};
    char name[4096];
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        snprintf(name, sizeof name, "%s/%s", path, marks[i]);
        if (access(name, F_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* What the cache can know is of folders, and a signature can only be put into one. */
static bl_status check_archive(const bl_archive *a, const char *path, const bl_verify_options *o, bl_error *err)
{
    return a && (o->sign || o->cache) ? bl_fail(err, BL_E_USAGE, path, NULL, -1, "%s",
                                                o->sign ? BL_SIGN_ARCHIVE : "is an archive: the cache knows files of a folder")
                                      : BL_OK;
}

static bl_status check_kind(const side *s, const bl_verify_options *o, bl_error *err)
{
    return s->c->kind == BL_SOURCE_FILE && (o->sign || o->key || o->hub || o->cache)
               ? bl_fail(err, BL_E_USAGE, s->c->name, NULL, -1, "is a single file: signatures, download records and a cache are for folders")
               : BL_OK;
}

/* Level 0 and 1. Problems of a single file, and of what is no checkpoint at all, are failures, not findings. *opened: path's archive, taken
 * over. */
static bl_status open_side(side *s, const char *path, bl_archive **opened, bl_finder *f, bool one_rank, bl_error *err)
{
    struct stat st;
    bl_checkpoint_options o = {.tolerate = true, .on_problem = bl_finder_problem, .arg = f, .any_generation = true,
                               .one_rank = one_rank, .rank = f->o->rank};
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    f->level = 1;
    o.tolerate = *opened || (folder && looks_like_one(path));
    o.opened = opened;
    BL_TRY(bl_checkpoint_open(&s->c, path, &o, err));
    f->archives[f->archives[0] != NULL] = s->c->archive;
    if (one_rank && s->c->kind != BL_SOURCE_PACKED) {
        return bl_fail(err, BL_E_USAGE, s->c->path, NULL, -1, "has no ranks: it is no packed model");
    }
    if (f->o->against && !s->c->has_config) {
        return bl_fail(err, BL_E_INPUT, s->c->path, NULL, -1, "has no usable config.json, which a comparison of values needs");
    }
    return check_kind(s, f->o, err);
}

/* F32 scales against what the config says of them. That they are sound is seen where every byte is looked at. */
static bl_status check_scales(side *s, bl_finder *f, bl_error *err)
{
    bl_scale_survey survey;
    BL_TRY(bl_scales_survey(s->c, &s->binding, BL_SCALES_ALL, &survey, err));
    return bl_scales_claim(s->c, &survey, bl_finder_problem, f, err);
}

static void check_copy(side *s, bl_finder *f, const bl_tensor *t, const bl_tensor *first)
{
    const bl_manifest_tensor *m = bl_checkpoint_record(s->c, t), *other = bl_checkpoint_record(s->c, first);
    bool same = m->chunk_count == other->chunk_count && m->value_count == other->value_count;
    for (size_t i = 0; same && i < m->chunk_count; i++) {
        same = bl_digest_equal(&m->chunks[i], &other->chunks[i]);
    }
    for (size_t i = 0; same && i < m->value_count; i++) {
        same = bl_digest_equal(&m->values[i], &other->values[i]);
    }
    if (!same) {
        bl_find(f, 3, bl_checkpoint_file(s->c, t)->path, t->name, -1, -1, "differs from the copy in %s, by the digests in the manifests",
                bl_checkpoint_file(s->c, first)->name);
    }
}

/* What several ranks have must be the same: that the manifests say so is enough, the bytes are held against them. */
static void check_replicas(side *s, bl_finder *f)
{
    for (size_t i = 0, first = 0; i < s->binding.count; i++) {
        const bl_weight *w = &s->binding.weights[i];
        first = w->slot == s->binding.weights[first].slot ? first : i;
        if (!w->replica || (w->tensor->ndim > w->slot->ndim && w->offset != w->tensor->offset)) {
            continue; /* a stacked tensor is compared with its first expert */
        }
        const bl_weight *v = &s->binding.weights[first];
        while (memcmp(&v->part, &w->part, sizeof v->part) != 0) {
            v++;
        }
        check_copy(s, f, w->tensor, v->tensor);
        if (w->scale && v->scale) {
            check_copy(s, f, w->scale, v->scale);
        }
    }
}

static bool hub_knows(const bl_witnesses *w)
{
    for (size_t i = 0; i < w->count; i++) {
        if (w->items[i].hub.kind != BL_HUB_NONE) {
            return true;
        }
    }
    return false;
}

/* Scales that a cast kept. Those of a packed model are in its manifest. */
static bl_status check_kept_scales(const side *s, bl_finder *f, bl_error *err)
{
    bl_error e = {0};
    bl_status status = bl_companion_scales_check(s->c, &e);
    if (status == BL_E_INPUT) {
        bl_finder_problem(f, &e);
        return BL_OK;
    }
    if (status != BL_OK && err) {
        *err = e;
    }
    return status;
}

/* Levels above 1 of a side. full: everything that the level asks for; else values alone. */
static bl_status scan_side(side *s, bl_finder *f, bool full, bool values, bl_error *err)
{
    int level = f->o->level;
    const bool elsewhere = f->o->weights_elsewhere && s->c->kind == BL_SOURCE_PACKED;
    s->scan = (bl_scan){.c = s->c, .values = values, .proven = s->proven, .beside = s->beside, .skip_weights = elsewhere};
    if (s->c->has_config && (level >= 2 || values)) {
        f->level = 2;
        BL_TRY(bl_bind(s->c, &s->arena, bl_finder_problem, f, &s->binding, err));
        s->scan.binding = &s->binding;
        if (full && level >= 2) {
            BL_TRY(bl_bind_forms(s->c, &s->binding, bl_finder_problem, f, err));
            BL_TRY(check_scales(s, f, err));
            check_replicas(s, f);
        }
    }
    if (full && level >= 3 && s->c->kind != BL_SOURCE_FILE) {
        BL_TRY(bl_witness_gather(f, s->c, &s->arena, &s->witnesses, err));
        if (f->o->hub && s->witnesses.unrecorded && !s->witnesses.damaged && !hub_knows(&s->witnesses)) {
            bl_find(f, 3, s->c->path, NULL, -1, -1, "has no records of the Hugging Face client: there is nothing to compare with");
        }
        s->scan.witnesses = &s->witnesses;
        s->scan.chunks = s->c->rank_count > 0 && !elsewhere;
    }
    if (full && level >= 1 && s->c->kind != BL_SOURCE_FILE) {
        f->level = 1;
        BL_TRY(bl_companions_check(s->c->path, bl_finder_problem, f, err));
        BL_TRY(s->c->kind == BL_SOURCE_HF ? check_kept_scales(s, f, err) : BL_OK);
    }
    BL_TRY(full ? bl_manifest_check(f, s->c, &s->witnesses, err) : BL_OK);
    s->scan.semantic = full && level >= 2 && !elsewhere;
    BL_TRY(s->scan.semantic || s->scan.witnesses || values ? bl_scan_run(&s->scan, f, &s->arena, err) : BL_OK);
    return s->c->archive ? bl_archive_finish(s->c->archive, err) : BL_OK;
}

static void close_side(side *s)
{
    bl_proven_close(&s->proven);
    bl_checkpoint_close(&s->c);
    bl_arena_reset(&s->arena);
}

static void fill_report(const side *s, int level, bl_verify_report *r)
{
    r->kind = s->c->kind;
    r->files = s->c->file_count;
    r->tensors = s->c->tensor_count;
    r->chunks = s->scan.chunks_right;
    r->bytes = s->scan.bytes;
    r->files_cached = s->scan.files_cached;
    r->bytes_cached = s->scan.bytes_cached;
    r->files_unrecorded = s->witnesses.unrecorded;
    r->files_crc = s->scan.crcs_right;
    for (size_t i = 0; i < s->witnesses.count; i++) {
        r->files_hashed += bl_witness_proven(&s->witnesses.items[i]);
        r->files_hub += s->witnesses.items[i].hub_right;
    }
    for (size_t i = 0; level >= 3 && s->c->kind != BL_SOURCE_PACKED && i < s->c->file_count; i++) {
        const bl_witness *w = bl_witness_of(&s->witnesses, s->c->files[i].path);
        uint32_t crc;
        if ((w && (w->listed || w->hub.kind != BL_HUB_NONE)) || bl_file_crc32(s->c->files[i].file, &crc)) {
            continue; /* counted where it was compared */
        }
        const bool unpacked = s->c->archive && bl_archive_sums(s->c->archive);
        r->files_crc += unpacked;
        r->files_unproven += !unpacked;
    }
}

/* The signature comes before everything that it vouches for. */
static bl_status check_trust(side *s, bl_finder *f, const bl_key *key, bl_verify_report *r, bl_error *err)
{
    bool right = false;
    BL_TRY(bl_signature_check(f, s->c, key, &s->witnesses, &right, err));
    r->trust = right ? BL_TRUST_SIGNED : BL_TRUST_UNSIGNED;
    r->kind = s->c->kind;
    return BL_OK;
}

static void say(const bl_finder *f, const char *note)
{
    if (note && f->o->note) {
        f->o->note(f->o->arg, note);
    }
}

static bl_status open_cache(side *s, bl_finder *f, bl_error *err)
{
    const char *note;
    BL_TRY(bl_proven_open(&s->proven, f->o->cache, s->c, &note, err));
    say(f, note);
    return BL_OK;
}

/* What was found out is true also where it cannot be remembered. */
static void save_cache(side *s, const bl_finder *f)
{
    bl_error e;
    char text[1200];
    bl_error_clear(&e);
    if (bl_proven_write(s->proven, &e) != BL_OK) {
        snprintf(text, sizeof text, "the cache was not written: %s", e.message);
        say(f, text);
    }
}

/* Compare with another model. */
static bl_status compare(bl_finder *f, side sides[2], bl_verify_report *report, bl_error *err)
{
    BL_TRY(scan_side(&sides[1], f, false, true, err));
    report->bytes += sides[1].scan.bytes;
    report->compared = bl_compare(f, &sides[0].scan, &sides[1].scan);
    return BL_OK;
}

/* The other side of a comparison. */
static bl_status open_other(side *s, bl_finder *f, bl_error *err)
{
    const bl_archive_options archives = {.spill_max = f->o->spill_max, .cancelled = f->o->cancelled};
    bl_place place;
    bl_status status = bl_place_open(&place, f->o->against, &archives, err);
    status = status == BL_OK ? open_side(s, f->o->against, &place.archive, f, false, err) : status;
    bl_place_close(&place);
    return status;
}

static bl_status verify(bl_place *place, bl_finder *f, side sides[2], const bl_key *key, bl_verify_report *report, bl_error *err)
{
    const bl_verify_options *o = f->o;
    bool values = o->against != NULL;
    BL_TRY(check_archive(place->archive, place->name, o, err)); /* before findings are told */
    BL_TRY(open_side(&sides[0], place->name, &place->archive, f, o->one_rank, err));
    if (o->level >= 3 && sides[0].c->kind != BL_SOURCE_FILE) {
        BL_TRY(bl_witness_read(f, sides[0].c, &sides[0].arena, &sides[0].witnesses, err));
    }
    if (o->key) {
        BL_TRY(check_trust(&sides[0], f, key, report, err));
        if (report->trust == BL_TRUST_UNSIGNED) {
            return BL_OK;
        }
    }
    if (values) { /* now: what cannot be compared with should not show after hours of reading */
        BL_TRY(open_other(&sides[1], f, err));
    }
    for (int i = 0; values && i < 2; i++) {
        sides[i].beside = sides[1 - i].c->manifest ? &sides[1 - i].c->manifest->layout : NULL;
    }
    BL_TRY(o->cache ? open_cache(&sides[0], f, err) : BL_OK);
    BL_TRY(scan_side(&sides[0], f, true, values, err));
    fill_report(&sides[0], o->level, report);
    if (o->cache) {
        save_cache(&sides[0], f);
    }
    BL_TRY(values ? compare(f, sides, report, err) : BL_OK);
    if (o->sign && f->count == 0) {
        BL_TRY(bl_signature_make(sides[0].c, key, &sides[0].witnesses, &report->files_listed, err));
        report->trust = BL_TRUST_MADE;
    }
    return BL_OK;
}

bl_status bl_verify(const char *path, const bl_verify_options *o, bl_verify_report *report, bl_error *err)
{
    bl_finder f = {.o = o};
    side sides[2] = {0};
    bl_key *key = NULL;
    double start = now();
    *report = (bl_verify_report){0};
    if (o->key || o->sign) {
        BL_TRY(bl_key_read(&key, o->sign ? o->sign : o->key, o->sign != NULL, err));
        bl_key_name(key, report->signer);
    }
    pthread_mutex_init(&f.lock, NULL);
    const bl_archive_options archives = {.spill_max = o->spill_max, .cancelled = o->cancelled};
    bl_place place;
    bl_status s = bl_place_open(&place, path, &archives, err);
    s = s != BL_OK                           ? s
        : bl_buckets_recognise(place.folder) ? bl_buckets_prove(&place, &f, key, report, err)
        : bl_delta_recognise(place.folder)   ? bl_delta_prove(&place, &f, key, report, err)
                                             : verify(&place, &f, sides, key, report, err);
    for (size_t i = 0; s != BL_OK && i < 2; i++) {
        bl_archive_show(f.archives[i], err);
    }
    close_side(&sides[0]);
    close_side(&sides[1]);
    bl_place_close(&place);
    bl_key_destroy(&key);
    bl_finder_close(&f);
    report->findings = f.count;
    report->seconds = now() - start;
    return s == BL_OK && f.count ? BL_E_FINDING : s;
}
