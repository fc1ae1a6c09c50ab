#include "convert/bucket_job.h"

#include "verify/buckets.h"

#include <stdlib.h>
#include <string.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

/* ---- planning */

static void fill_report(const bl_bucket_job *b, bl_bucket_report *r)
{
    const bl_buckets *k = &b->planned.buckets;
    r->source_tensors = b->job.source->tensor_count;
    r->source_bytes = b->job.source->tensor_bytes;
    r->buckets = k->count;
    r->host_tensors = k->host_count;
    r->file_bytes = b->planned.plan.file_bytes;
    for (size_t i = 0; i < k->count; i++) {
        const bl_bucket *bucket = &k->buckets[i];
        uint64_t bytes = 0;
        for (size_t t = 0; t < bucket->count; t++) {
            const bl_bucket_tensor *e = &bucket->tensors[t];
            bool first = !e->of || e->row == 0;
            r->groups = e->group + 1 > r->groups ? (size_t)e->group + 1 : r->groups;
            r->tensors += first;
            r->sliced += e->of && first;
            bytes += e->tensor.nbytes;
        }
        r->tensor_bytes += bytes;
        r->padding_bytes += bucket->nbytes - bytes;
        r->largest = bucket->nbytes > r->largest ? bucket->nbytes : r->largest;
        r->oversize += bucket->nbytes > k->size;
    }
    for (size_t i = 0; i < k->host_count; i++) {
        r->host_bytes += k->host[i].tensor.nbytes;
        r->host_digests += k->host[i].value_class != BL_VALUE_NONE;
    }
}

bl_status bl_bucket_job_open(bl_bucket_job *b, const char *src, const char *dst, const bl_bucket_options *o, const bl_buckets *like,
                             bl_bucket_report *report, bl_error *err)
{
    *b = (bl_bucket_job){.options = {.target = BL_TO_MERGED, .jobs = o->jobs, .cpu = o->cpu, .spill_max = o->spill_max,
                                     .no_sha256 = o->no_sha256, .dry_run = o->dry_run, .note = o->note,
                                     .cancelled = o->cancelled, .progress = o->progress, .progress_arg = o->progress_arg}};
    b->job.o = &b->options;
    b->job.kind = bl_archive_kind_of(dst);
    pthread_mutex_init(&b->job.lock, NULL);
    BL_TRY(bl_job_check_archive(&b->job, dst, err));
    BL_TRY(bl_job_open(&b->job, src, dst, err));
    if (b->job.source->kind == BL_SOURCE_FILE) {
        return bl_fail(err, BL_E_INPUT, b->job.source->path, NULL, -1, "is a single file: a checkpoint folder with config.json is needed");
    }
    BL_TRY(bl_job_bind(&b->job, err));
    BL_TRY(bl_bucket_plan_make(b->job.source, &b->job.binding, o, like, &b->job.arena, &b->planned, err));
    BL_TRY(bl_names_digest(b->planned.names, b->planned.name_count, &b->planned.buckets.names, err));
    b->job.plan = b->planned.plan;
    fill_report(b, report);
    return BL_OK;
}

void bl_bucket_job_close(bl_bucket_job *b, bl_status s, bl_error *err)
{
    if (s != BL_OK && b->job.source) {
        bl_archive_show(b->job.source->archive, err);
    }
    for (size_t i = 0; b->hashes && i < b->job.plan.file_count; i++) {
        bl_data_hashes_close(&b->hashes[i]);
    }
    pthread_mutex_destroy(&b->job.lock);
    free(b->job.sums);
    bl_checkpoint_close(&b->job.source);
    bl_arena_reset(&b->job.arena);
}

bl_status bl_bucket_place(bl_place *p, const char *path, const char *dst, uint64_t spill_max, bool (*cancelled)(void), bl_error *err)
{
    char *spill = bl_archive_spill(dst);
    const bl_archive_options archives = {.spill = spill, .spill_max = spill_max, .cancelled = cancelled};
    bl_status s = spill ? bl_place_open(p, path, &archives, err) : nomem(err);
    free(spill);
    return s;
}

/* ---- layouts */

static bool same_tensor(const bl_tensor *s, const bl_tensor *t)
{
    return !strcmp(s->name, t->name) && s->dtype == t->dtype && s->ndim == t->ndim &&
           memcmp(s->shape, t->shape, s->ndim * sizeof *s->shape) == 0;
}

static bl_status differ(const char *path, const char *name, const char *what, bl_error *err)
{
    return bl_fail(err, BL_E_INPUT, path, name, -1, "the two states do not have the same %s: buckets of both are needed instead of a delta",
                   what);
}

bl_status bl_buckets_alike(const bl_buckets *a, const bl_buckets *b, const char *path, bl_error *err)
{
    if (a->size != b->size || a->align != b->align || a->slice != b->slice) {
        return differ(path, NULL, "options", err);
    }
    if (a->count != b->count || a->host_count != b->host_count || !bl_digest_equal(&a->names, &b->names)) {
        return differ(path, NULL, "tensors", err);
    }
    for (size_t i = 0; i < a->host_count; i++) {
        if (!same_tensor(&a->host[i].tensor, &b->host[i].tensor)) {
            return differ(path, b->host[i].tensor.name, "tensors", err);
        }
    }
    for (size_t i = 0; i < a->count; i++) {
        const bl_bucket *s = &a->buckets[i], *t = &b->buckets[i];
        if (s->count != t->count || s->data_offset != t->data_offset || s->nbytes != t->nbytes) {
            return differ(path, t->name, "tensors", err);
        }
        for (size_t k = 0; k < s->count; k++) {
            if (!same_tensor(&s->tensors[k].tensor, &t->tensors[k].tensor) || s->tensors[k].group != t->tensors[k].group) {
                return differ(path, t->tensors[k].tensor.name, "tensors", err);
            }
        }
    }
    return BL_OK;
}

/* ---- the stream */

static bool is_sent(const bl_bucket_job *b, size_t file)
{
    return file < b->planned.buckets.count;
}

/* The planned tensor of a segment; NULL: a header. */
static const bl_plan_tensor *planned(const bl_bucket_job *b, const bl_tile *t, const bl_segment *g)
{
    const bl_producer *p = &b->job.producer;
    return p->pieces[p->lanes[t->lane].parts[g->part].tag].tensor;
}

static bl_bucket_tensor *entry_of(const bl_bucket_job *b, const bl_tile *t, const bl_segment *g)
{
    const bl_plan_tensor *pt = planned(b, t, g);
    return pt ? b->planned.entries[pt - b->job.plan.tensors] : NULL;
}

const bl_bucket_tensor *bl_bucket_entry(const bl_bucket_job *b, const bl_tile *t, const bl_segment *g)
{
    return entry_of(b, t, g);
}

/* What is not sent is read for its value digests alone, unless producing has added to them already. */
static bl_status digest_values(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    bl_producer *p = &b->job.producer;
    const uint8_t *data = t->data;
    for (size_t i = 0; !p->digest && i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_plan_tensor *pt = planned(b, t, g);
        if (pt) {
            bl_view v = bl_plan_view(pt, 0);
            BL_TRY(bl_values_add(&p->values, &v, pt->scale, g->offset, g->nbytes, data, t->scratch, &p->sums[pt->members[0].sum], err));
        }
        data += g->nbytes;
    }
    return BL_OK;
}

static bl_status produce(bl_job *j, const bl_tile *t, bl_error *err)
{
    bl_bucket_job *b = (bl_bucket_job *)(void *)j;
    BL_TRY(bl_produce(&j->producer, t, err));
    bl_job_arrived(j, t);
    return is_sent(b, t->lane) ? b->pass->work(b, t, err) : digest_values(b, t, err);
}

static bl_status hash(bl_bucket_job *b, const bl_tile *t, bl_error *err)
{
    const uint8_t *data = t->data;
    bl_data_hashes *h = &b->hashes[t->lane];
    if (!h->data) {
        BL_TRY(bl_data_hashes_open(h, err));
    }
    for (size_t i = 0; i < t->segment_count; data += t->segments[i++].nbytes) {
        const bl_segment *g = &t->segments[i];
        bl_bucket_tensor *entry = entry_of(b, t, g);
        if (planned(b, t, g)) {
            bl_data_hash(h, data, g->nbytes, entry != NULL);
        }
        if (entry && g->offset + g->nbytes == entry->tensor.nbytes) {
            entry->digest = bl_hasher_final(h->tensor);
        }
    }
    if (t->last) {
        b->planned.buckets.buckets[t->lane].digest = bl_hasher_final(h->data);
        bl_data_hashes_close(h);
    }
    return BL_OK;
}

static bl_status in_order(bl_job *j, const bl_tile *t, bl_error *err)
{
    bl_bucket_job *b = (bl_bucket_job *)(void *)j;
    if (!is_sent(b, t->lane)) {
        return BL_OK;
    }
    BL_TRY(hash(b, t, err));
    return b->pass->in_order(b, t, err);
}

/* The value digests of what is not sent; then: is every tensor of the model either sent or not, by the finished description? */
static bl_status finish(bl_bucket_job *b, bl_error *err)
{
    bl_bucket_plan *k = &b->planned;
    const char **names;
    size_t count;
    for (size_t i = 0; i < b->job.plan.tensor_count; i++) {
        if (k->hosts[i]) {
            k->hosts[i]->value = bl_sum_digest(b->job.producer.sums[b->job.plan.tensors[i].members[0].sum]);
        }
    }
    BL_TRY(bl_buckets_names(&k->buckets, &b->job.arena, &names, &count, err));
    for (size_t i = 0; i < count || i < k->name_count; i++) {
        int c = i == count ? 1 : i == k->name_count ? -1 : strcmp(names[i], k->names[i]);
        if (c) {
            return bl_fail(err, BL_E_INTERNAL, b->job.source->path, c > 0 ? k->names[i] : names[i], -1,
                           c > 0 ? "is in no bucket, and nobody keeps it" : "is in a bucket, but not in the model");
        }
    }
    return BL_OK;
}

bl_status bl_bucket_job_stream(bl_bucket_job *b, const bl_bucket_pass *pass, bl_error *err)
{
    bl_job *j = &b->job;
    b->pass = pass;
    j->files = bl_arena_array(&j->arena, j->plan.file_count, sizeof *j->files);
    b->hashes = bl_arena_array(&j->arena, j->plan.file_count, sizeof *b->hashes);
    if (!j->files || !b->hashes) {
        return nomem(err);
    }
    bl_status s = bl_producer_open(&j->producer, j->source, &j->binding, &j->plan, j->source->rank_count > 0, j->o->cpu, &j->arena, err);
    s = s == BL_OK ? bl_job_expect(j, err) : s;
    s = s == BL_OK ? bl_job_pass(j, false, produce, in_order, err) : s;
    s = s == BL_OK ? bl_producer_prove(&j->producer, err) : s;
    s = s == BL_OK ? bl_job_recorded(j, err) : s;
    s = s == BL_OK ? finish(b, err) : s;
    bl_producer_close(&j->producer);
    return s;
}
