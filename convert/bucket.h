/* Weight-sync buckets: a checkpoint's tensors, as they are, dealt to files that a trainer sends and a rollout engine loads one by
 * one. formats/buckets.h says what the folder holds. */
#ifndef BL_CONVERT_BUCKET_H
#define BL_CONVERT_BUCKET_H

#include "formats/delta.h"

/* Kinds of tensors that a receiver may keep by itself. */
#define BL_HOST_ENGRAM 1u /* Engram tables and their scales */
#define BL_HOST_DSPARK 2u /* draft layers */
#define BL_HOST_VISION 4u

typedef struct bl_bucket_options {
    uint64_t size;  /* most bytes of a bucket */
    uint64_t align; /* of every tensor from the start of its bucket: a power of two up to BL_BUCKETS_MAX_ALIGN */
    bool slice;     /* tensors larger than a bucket are cut by rows; else each is alone, with what it must travel with */
    unsigned host;  /* BL_HOST_ bits: not sent */
    bool no_host_digests; /* do not read what is not sent for its value digests (those of a packed model are on record) */
    const char *base; /* buckets of an older state, a folder or an archive of one: write what has changed since. size, align, slice and
                       * host are then its */
    bl_delta_encoding encoding; /* base: of what has changed; BL_DELTA_AUTO compresses it twice */
    int level;      /* base: of zstd, 1 to 9: beyond, setting up costs more than small tensors give back */
    int jobs;       /* threads; <= 0 = chosen */
    unsigned cpu;   /* kernel capability mask */
    uint64_t spill_max; /* bytes of an archive's compressed weights that may be unpacked as a whole */
    bool no_sha256; /* leave SHA-256 of the buckets out */
    bool dry_run;
    void (*note)(const char *text);                                    /* may be NULL */
    bool (*cancelled)(void);                                           /* may be NULL */
    void (*progress)(void *progress_arg, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
    void (*on_plan)(void *plan_arg, const bl_buckets *plan); /* with dry_run: all but the digests; may be NULL */
    void *plan_arg;
} bl_bucket_options;

typedef struct bl_bucket_report {
    size_t source_tensors;
    uint64_t source_bytes;
    size_t buckets, groups, tensors; /* tensors: sent, each counted once however many slices it is in */
    size_t sliced, oversize;         /* tensors in slices; buckets above the size */
    uint64_t tensor_bytes, padding_bytes, largest, file_bytes;
    size_t host_tensors, host_digests;
    uint64_t host_bytes;
    size_t changed;         /* base: tensors and slices that differ, in changed_buckets */
    size_t changed_buckets;
    uint64_t changed_bytes; /* of these tensors */
    uint64_t delta_bytes;   /* of the delta's files */
    uint64_t archive_bytes; /* of the archive that was written; 0: a folder was */
    size_t host_changed;    /* what is not sent and has another value digest: no delta has it */
    double seconds;
} bl_bucket_report;

/* Write the buckets of the checkpoint at src (whatever bl_convert takes) into the folder dst, which must not exist or be empty, or
 * into an archive where dst is named like one (bl_archive_kind_of).
 * Tensors are in model order; what must travel together is one group, in one bucket: a weight with its scale, wq_a with wkv, a
 * compressor's wkv with its wgate, an indexer's compressor. Every tensor of the model is sent or in host_owned, or nothing is
 * written. Equal checkpoints and options give equal bytes, whatever form the source has. Peak memory does not depend on sizes. On
 * any failure dst is not there. BL_E_USAGE: with slice, a group of several weights or a vector that is larger than size. */
bl_status bl_bucket_write(const char *src, const char *dst, const bl_bucket_options *o, bl_bucket_report *report, bl_error *err);

/* With o->base: the delta from the buckets in that folder to those of src (formats/delta.h). Both states are read once; what is read of
 * the base must have its digests. BL_E_INPUT: the two have not the same tensors. */
bl_status bl_bucket_delta(const char *src, const char *dst, const bl_bucket_options *o, bl_bucket_report *report, bl_error *err);

typedef struct bl_apply_options {
    bool link; /* hard-link buckets in which nothing changes, where that can be done; they are read and proven like the others */
    int jobs;
    uint64_t spill_max; /* as in bl_bucket_options */
    bool no_sha256;
    void (*note)(const char *text);                                    /* may be NULL */
    bool (*cancelled)(void);                                           /* may be NULL */
    void (*progress)(void *progress_arg, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
} bl_apply_options;

typedef struct bl_apply_report {
    size_t buckets, changed_buckets, linked, tensors, changed;
    uint64_t file_bytes, linked_bytes, delta_bytes;
    uint64_t archive_bytes; /* as in bl_bucket_report */
    double seconds;
} bl_apply_report;

/* Make the state that delta leads to from the buckets in base (folders, or archives of them), in dst, as bl_bucket_write has it: what that
 * gives for that state, byte for byte. The base is not touched, so that a run that dies leaves an old state that is whole and no new one.
 * Every tensor of the result is proven by its digest. BL_E_INPUT: base is not the state that the delta was made for, or either is
 * damaged. */
bl_status bl_bucket_apply(const char *delta, const char *base, const char *dst, const bl_apply_options *o, bl_apply_report *report,
                          bl_error *err);

#endif
