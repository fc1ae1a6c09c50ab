#include "convert/convert.h"

#include "convert/job.h"
#include "verify/companions.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

static bl_status choose_layers(bl_job *j, const bool **out, bl_error *err)
{
    const bl_convert_options *o = j->o;
    int layers = j->source->config.num_hidden_layers;
    *out = NULL;
    if (!o->layer_count) {
        return BL_OK;
    }
    bool *keep = bl_arena_array(&j->arena, (size_t)layers, sizeof *keep);
    if (!keep) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < o->layer_count; i++) {
        if (o->layers[i] < 0 || o->layers[i] >= layers) {
            return bl_fail(err, BL_E_USAGE, NULL, "--layers", -1, "layer %d is not among 0..%d", o->layers[i], layers - 1);
        }
        keep[o->layers[i]] = true;
    }
    *out = keep;
    return BL_OK;
}

/* Complete the layout that was asked for. */
static bl_status make_layout(bl_job *j, bl_error *err)
{
    const bl_config *c = &j->source->config;
    bl_layout *l = &j->layout;
    *l = j->o->layout;
    l->tp = l->tp ? l->tp : 1;
    l->ep = l->ep ? l->ep : 1;
    l->pp = l->pp ? l->pp : 1;
    int64_t ranks = (int64_t)l->pp * (l->tp > l->ep ? l->tp : l->ep);
    if (ranks > BL_MAX_RANKS) {
        return bl_fail(err, BL_E_USAGE, j->source->path, NULL, -1, "%lld ranks, the most is %d", (long long)ranks, BL_MAX_RANKS);
    }
    l->ranks = (int)ranks;
    bool whole = (uint64_t)c->vocab_size % (BL_BLOCK * (uint64_t)l->tp) == 0;
    int pad = j->o->pad_vocab ? j->o->pad_vocab : l->split == BL_SPLIT_PAD && l->tp > 1 && !whole ? BL_BLOCK : 0;
    if (pad) {
        uint64_t unit = (uint64_t)pad * (uint64_t)l->tp, rows = bl_pieces((uint64_t)c->vocab_size, unit) * unit;
        l->vocab_rows = rows > (uint64_t)c->vocab_size ? rows : 0;
    }
    if (l->pp == 1 || l->stage_layers) {
        return BL_OK;
    }
    int *layers = bl_arena_array(&j->arena, (size_t)l->pp, sizeof *layers);
    if (!layers) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    bl_layout_even(c->num_hidden_layers, l->pp, layers);
    l->stage_layers = layers;
    return BL_OK;
}

static bool encodes(const bl_job *j)
{
    return j->plan.action_count[BL_ACT_ENCODE] + j->plan.action_count[BL_ACT_RECAST] > 0;
}

/* The hints asked for, or what a cast kept in the source's folder. */
static bl_status open_hints(bl_job *j, bl_error *err)
{
    const char *path = j->o->scale_hints;
    char kept[4096];
    if (!path && !j->o->no_hints) {
        int n = snprintf(kept, sizeof kept, "%s/%s", j->source->path, BL_SCALES_NAME);
        path = n > 0 && (size_t)n < sizeof kept && access(kept, F_OK) == 0 ? kept : NULL;
    }
    if (path && encodes(j)) {
        return bl_hints_open(&j->hints, path, err);
    }
    if (j->o->scale_hints && j->o->note) {
        j->o->note("the source has no weights to encode, only codes, which stay: the scale hints are not used");
    }
    return BL_OK;
}

/* The scales that packing kept of what it decoded: the manifest lists them when there are any. */
static bl_status open_kept(bl_job *j, bl_plan_options *po, bl_error *err)
{
    const bl_manifest *m = j->source->manifest;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", j->source->path, BL_SCALES_NAME);
    for (size_t i = 0; i < m->file_count; i++) {
        if (strcmp(m->files[i].name, BL_SCALES_NAME) != 0) {
            continue;
        }
        if (access(path, F_OK) != 0) {
            return bl_fail(err, BL_E_INPUT, path, NULL, -1,
                           "is listed in manifest.json but is not there: the scales of weights that packing decoded are in it");
        }
        BL_TRY(bl_hints_open(&j->hints, path, err));
        po->kept = bl_hints_source(j->hints);
    }
    return BL_OK;
}

/* The layout's split, if some weight needs it, and of scales as the release has them. */
static bl_status check_split(bl_job *j, bl_error *err)
{
    if (j->o->target == BL_TO_PACKED || j->o->save_scales) {
        BL_TRY(bl_plan_released_scales(j->source, err));
    }
    if (!bl_layout_splits(&j->layout, &j->binding.slots)) {
        j->layout.split = BL_SPLIT_NONE;
    }
    return BL_OK;
}

bl_status bl_job_bind(bl_job *j, bl_error *err)
{
    BL_TRY(bl_bind(j->source, &j->arena, NULL, NULL, &j->binding, err));
    BL_TRY(bl_bind_forms(j->source, &j->binding, NULL, NULL, err));
    BL_TRY(bl_scales_survey(j->source, &j->binding, BL_SCALES_ALL, &j->scales, err));
    BL_TRY(bl_scales_sound(j->source, &j->scales, err));
    return bl_scales_claim(j->source, &j->scales, NULL, NULL, err);
}

/* The codes of an earlier generation: as the source has them, or as V4 Flash and Pro were released. */
static bl_status choose_codes(bl_job *j, bl_plan_options *po, bl_error *err)
{
    const bl_config *was = &j->restored.config;
    if (j->o->experts || j->o->fp8_block_rows) {
        return bl_fail(err, BL_E_USAGE, j->source->path, NULL, -1, "is a %s checkpoint: --experts and --fp8-block are for DeepSeek-V4.1",
                       bl_generation_name(j->binding.generation));
    }
    if (j->binding.generation == BL_GEN_V4 && !j->source->config.quantized && was->quantized && !was->experts_fp4) {
        return bl_fail(err, BL_E_INPUT, j->restored.path, NULL, -1,
                       "is of a model with fp8 experts and float32 scales (V4 Base): back to codes go those with fp4 experts");
    }
    po->fp8_block_rows = j->binding.block ? j->binding.block : 128;
    return BL_OK;
}

/* What an earlier generation had as codes is told by names: scales that were kept must bear them out. */
static bl_status check_hints(const bl_job *j, size_t found, bl_error *err)
{
    const bl_checkpoint *c = j->hints ? bl_hints_source(j->hints) : NULL;
    if (!c || c->kind != BL_SOURCE_FILE || !j->source->config.earlier || j->plan.present || found == c->tensor_count) {
        return BL_OK;
    }
    return bl_fail(err, BL_E_INPUT, c->path, NULL, -1, "has %zu scale%s, but only %zu of them are of weights that %s has as codes",
                   c->tensor_count, bl_plural(c->tensor_count), found, bl_generation_name(j->binding.generation));
}

static bl_status make_plan(bl_job *j, bl_convert_report *report, bl_error *err)
{
    bl_plan_options po = {.target = j->o->target,
                          .drop = j->o->drop,
                          .shard_size = j->o->shard_size,
                          .save_scales = j->o->save_scales,
                          .experts = j->o->experts,
                          .fp8_block_rows = j->o->fp8_block_rows,
                          .layout = &j->layout,
                          .link = j->o->link && !j->source->archive};
    if (j->source->kind == BL_SOURCE_FILE) {
        return bl_fail(err, BL_E_INPUT, j->source->path, NULL, -1, "is a single file: a checkpoint folder with config.json is needed");
    }
    if (po.target == BL_TO_MERGED && j->source->kind != BL_SOURCE_PACKED) {
        return bl_fail(err, BL_E_INPUT, j->source->path, NULL, -1, "is no packed model: there is nothing to merge");
    }
    if (j->o->link && j->source->archive && j->o->note) {
        j->o->note("the source is an archive, in which there are no files to link: Engram tables are copied");
    }
    BL_TRY(make_layout(j, err));
    BL_TRY(choose_layers(j, &po.layers, err));
    if (po.target == BL_TO_RELEASED) {
        BL_TRY(bl_config_restore(j->source, &j->arena, &j->restored, err));
        po.drop |= j->restored.absent;
        po.fp8_block_rows = po.fp8_block_rows ? po.fp8_block_rows : j->restored.config.fp8_block_rows;
    }
    BL_TRY(bl_job_bind(j, err));
    if (po.target == BL_TO_RELEASED && j->source->config.earlier) {
        BL_TRY(choose_codes(j, &po, err));
    }
    BL_TRY(bl_companions_check(j->source->path, NULL, NULL, err)); /* now, not after hours of casting */
    BL_TRY(check_split(j, err));
    if (po.target == BL_TO_MERGED) {
        BL_TRY(open_kept(j, &po, err));
    }
    BL_TRY(bl_plan_make(j->source, &j->binding, &po, &j->arena, &j->plan, err));
    if (po.link && !j->plan.action_count[BL_ACT_LINK] && j->o->note) {
        j->o->note("nothing is linked: no rank has an Engram table as a file of the source holds it, whole");
    }
    if (po.target == BL_TO_RELEASED) {
        BL_TRY(open_hints(j, err));
    }
    report->hinted = j->hints != NULL;
    BL_TRY(j->hints ? bl_hints_bind(j->hints, &j->plan, &report->hinted_count, &report->hinted_among, err) : BL_OK);
    return check_hints(j, report->hinted_count, err);
}

/* Bytes of files below the folder, one level of sub-folders, as allocated. */
static uint64_t bytes_below(const char *folder, int levels)
{
    DIR *d = opendir(folder);
    uint64_t sum = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || n < 0 || (size_t)n >= sizeof path || lstat(path, &st) != 0) {
            continue;
        }
        sum += S_ISREG(st.st_mode) ? (uint64_t)st.st_blocks * 512 : S_ISDIR(st.st_mode) && levels > 0 ? bytes_below(path, levels - 1) : 0;
    }
    if (d) {
        closedir(d);
    }
    return sum;
}

/* What an earlier run left is overwritten, removed or kept: its room counts as free. */
bl_status bl_job_space(const bl_job *j, const char *dst, bl_error *err)
{
    bool packs = j->kind == BL_ARCHIVE_TAR_GZ || j->kind == BL_ARCHIVE_TAR_ZST; /* to a size that nobody knows */
    uint64_t have, need = (packs ? 0 : j->plan.file_bytes) + BL_JOB_SMALL_FILES, left = j->out ? bytes_below(bl_folder_files(j->out), 1) : 0;
    BL_TRY(bl_free_space(dst, &have, err));
    have += left;
    if (have < need) {
        return bl_fail(err, BL_E_IO, dst, NULL, -1, "needs %llu bytes, %llu are free", (unsigned long long)need,
                       (unsigned long long)have);
    }
    return BL_OK;
}

/* Weights that packing decoded go back to codes under the scales that it kept. That a value has none there means damage. */
static bl_status check_restored(const bl_job *j, bl_error *err)
{
    bl_encode_stats stats[BL_ENCODE_CLASSES] = {0};
    uint64_t wrong = 0;
    if (j->plan.target != BL_TO_MERGED || !j->producer.encoder) {
        return BL_OK;
    }
    bl_job_encoded(j, stats);
    for (int i = 0; i < BL_ENCODE_CLASSES; i++) {
        wrong += stats[i].blocks - stats[i].kept;
    }
    return wrong ? bl_fail(err, BL_E_INPUT, j->source->path, BL_SCALES_NAME, -1,
                           "%llu scale%s not fit the values decoded under %s: the model is damaged", (unsigned long long)wrong,
                           wrong == 1 ? " does" : "s do", wrong == 1 ? "it" : "them")
                 : BL_OK;
}

/* What is known before the payload: an archive has it first, for who reads it forwards. */
static bl_status known_files(bl_job *j, bl_error *err)
{
    BL_TRY(bl_job_extras(j, err));
    return j->plan.target == BL_TO_PACKED ? BL_OK : bl_job_index(j, err);
}

static bl_status fill_folder(bl_job *j, bl_error *err)
{
    for (int rank = 0; j->plan.target == BL_TO_PACKED && rank < j->plan.layout->ranks; rank++) {
        char name[16];
        const char *folder = bl_job_path(j, bl_rank_folder(name, rank));
        if (!folder || (mkdir(folder, 0777) != 0 && errno != EEXIST)) {
            return bl_fail_errno(err, errno, 0, folder ? folder : j->folder, "cannot create the folder");
        }
    }
    BL_TRY(j->archive ? known_files(j, err) : BL_OK);
    BL_TRY(bl_job_stream(j, err));
    BL_TRY(check_restored(j, err));
    BL_TRY(bl_job_recorded(j, err));
    BL_TRY(j->archive ? BL_OK : known_files(j, err));
    BL_TRY(j->plan.target == BL_TO_PACKED ? bl_job_manifests(j, err) : BL_OK);
    return bl_job_sums(j, err);
}

static bl_status open_encoder(bl_job *j, bl_error *err)
{
    bl_encoder *e;
    bl_encode_options o = {
        .ties = j->o->fp4_ties, .canonical_zero = j->o->canonical_zero, .hints = j->hints, .cpu = j->o->cpu};
    bl_sum *sums = j->producer.digest ? j->producer.sums : NULL;
    BL_TRY(bl_encoder_create(&e, &j->plan, &j->producer.values, sums, &o, j->folder, err));
    bl_producer_encode(&j->producer, e);
    return BL_OK;
}

static bl_status make_files(bl_job *j, const char *dst, bl_convert_report *report, bl_error *err)
{
    BL_TRY(bl_job_states(j, err));
    BL_TRY(bl_job_journal(j, err));
    if (bl_folder_committed(j->out)) {
        BL_TRY(bl_job_committed(j, dst, err));
        bl_job_encoded(j, report->encoded);
        return BL_OK;
    }
    BL_TRY(bl_job_space(j, dst, err));
    bl_status s = bl_producer_open(&j->producer, j->source, &j->binding, &j->plan,
                                   (j->plan.target == BL_TO_PACKED || j->source->rank_count) && !j->o->no_digests, j->o->cpu,
                                   &j->arena, err);
    j->producer.caster = j->o->caster;
    if (s == BL_OK && encodes(j)) {
        s = open_encoder(j, err);
    }
    if (s == BL_OK) {
        s = fill_folder(j, err);
    }
    if (s == BL_OK) {
        bl_job_encoded(j, report->encoded);
    }
    bl_producer_close(&j->producer);
    if (s == BL_OK && j->o->cancelled && j->o->cancelled()) {
        s = bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
    }
    return s;
}

/* What an archive is made of. */
typedef struct making {
    bl_job *j;
    const char *dst;
    bl_convert_report *report;
} making;

static bl_status make_members(void *arg, bl_error *err)
{
    const making *m = arg;
    return make_files(m->j, m->dst, m->report, err);
}

static bl_status write_folder(bl_job *j, const char *dst, bl_convert_report *report, bl_error *err)
{
    BL_TRY(bl_folder_begin(&j->out, dst, j->o->resume, err));
    j->folder = bl_folder_files(j->out);
    if (bl_folder_left_over(j->out) && !j->o->resume && j->o->note) {
        j->o->note("an earlier run left an unfinished folder: begun anew (--resume goes on from it)");
    }
    bl_status s = make_files(j, dst, report, err);
    if (s == BL_OK && !bl_folder_committed(j->out)) {
        s = bl_folder_commit(&j->out, err);
    }
    /* What was there may be another job's; without a finished file there is nothing to go on from. */
    bool keep = s != BL_OK && j->o->resume && j->out && (bl_folder_left_over(j->out) || j->journal.added);
    if (s == BL_E_CANCELLED && keep) {
        bl_error_clear(err);
        bl_fail(err, s, bl_folder_partial(j->out), NULL, -1, "interrupted: --resume goes on from what is done");
    }
    bl_folder_abort(&j->out, keep);
    return s;
}

/* A dry run: tell of the plan, also when there is no room for it here. */
static bl_status rehearse(bl_job *j, const char *dst, bl_error *err)
{
    if (j->o->on_outline && j->plan.target == BL_TO_PACKED) {
        bl_outline outline;
        BL_TRY(bl_outline_make(&j->source->config, &j->plan, &j->arena, &outline, err));
        j->o->on_outline(j->o->outline_arg, &j->source->config, &j->plan, &outline);
    }
    BL_TRY(bl_folder_check(dst, err));
    return bl_job_space(j, dst, err);
}

static void fill_report(const bl_job *j, bl_convert_report *r)
{
    memcpy(r->action_count, j->plan.action_count, sizeof r->action_count);
    r->source_tensors = j->source->tensor_count;
    r->source_bytes = j->source->tensor_bytes;
    r->tensors = j->plan.tensor_count - j->plan.aside_count;
    r->files = j->plan.file_count - (j->plan.aside_count > 0);
    r->scales_saved = j->plan.aside_count;
    r->tensor_bytes = j->plan.tensor_bytes;
    r->file_bytes = j->plan.file_bytes;
    r->dropped = j->plan.dropped;
    r->generation = j->binding.generation;
    r->scales = j->scales;
    r->scales.first_rounded.weight = r->scales.first_bad.weight = NULL; /* gone with the job */
    r->ranks = j->plan.layout->ranks;
    r->source_ranks = j->source->manifest ? j->source->manifest->layout.ranks : 0;
}

bl_status bl_job_place(const char *src, const char *dst, bl_error *err)
{
    char *plain = bl_folder_plain(dst), *slash = plain ? strrchr(plain, '/') : NULL;
    if (!plain) {
        return bl_fail(err, BL_E_NOMEM, dst, NULL, -1, "out of memory");
    }
    if (slash) {
        slash[slash == plain] = 0;
    }
    char *from = realpath(src, NULL), *parent = realpath(slash ? plain : ".", NULL);
    size_t n = from ? strlen(from) : 0;
    bl_status s = BL_OK;
    if (from && parent && strncmp(parent, from, n) == 0 && (parent[n] == 0 || parent[n] == '/')) {
        s = bl_fail(err, BL_E_USAGE, dst, NULL, -1, "lies in the source '%.300s'", src);
    }
    free(plain);
    free(from);
    free(parent);
    return s;
}

/* Now, not after hours of reading an archive. --resume takes what is there, and a dry run tells of its plan before it says that there is
 * no place for it here. */
static bl_status check_destination(const bl_convert_options *o, const char *dst, bl_error *err)
{
    bl_status s = o->resume ? BL_OK : bl_folder_check(dst, NULL);
    return s == BL_E_USAGE || (s != BL_OK && !o->dry_run) ? bl_folder_check(dst, err) : BL_OK;
}

bl_status bl_job_open(bl_job *j, const char *src, const char *dst, bl_error *err)
{
    BL_TRY(bl_job_place(src, dst, err));
    BL_TRY(check_destination(j->o, dst, err));
    char *spill = bl_archive_spill(dst);
    const bl_archive_options archives = {.spill = spill, .spill_max = j->o->spill_max, .cancelled = j->o->cancelled};
    const bl_checkpoint_options any = {.any_generation = true, .archives = spill ? &archives : NULL};
    bl_status s = bl_checkpoint_open(&j->source, src, &any, err);
    free(spill);
    return s;
}

bl_status bl_convert(const char *src, const char *dst, const bl_convert_options *o, bl_convert_report *report, bl_error *err)
{
    bl_job j = {.o = o, .kind = bl_archive_kind_of(dst)};
    double start = now();
    *report = (bl_convert_report){0};
    BL_TRY(bl_job_check_archive(&j, dst, err));
    BL_TRY(bl_job_open(&j, src, dst, err));
    pthread_mutex_init(&j.lock, NULL);
    bl_status s = make_plan(&j, report, err);
    if (s == BL_OK) {
        fill_report(&j, report);
        s = o->dry_run                  ? rehearse(&j, dst, err)
            : j.kind != BL_ARCHIVE_NONE ? bl_job_archive(&j, dst, make_members, &(making){&j, dst, report}, &report->archive_bytes, err)
                                        : write_folder(&j, dst, report, err);
    }
    if (s != BL_OK) {
        bl_archive_show(j.source->archive, err);
    }
    bl_hints_close(&j.hints);
    report->kept_files = j.kept_files;
    report->linked_files = j.linked_files;
    report->linked_bytes = j.linked_bytes;
    report->kept_bytes = j.kept_bytes;
    pthread_mutex_destroy(&j.lock);
    free(j.sums);
    bl_checkpoint_close(&j.source);
    bl_arena_reset(&j.arena);
    report->seconds = now() - start;
    return s;
}
