/* Dealing the tensors of a checkpoint to buckets. Pure: descriptions in, descriptions out. Private to convert/. */
#ifndef BL_CONVERT_BUCKET_PLAN_H
#define BL_CONVERT_BUCKET_PLAN_H

#include "convert/bucket.h"
#include "convert/plan.h"

typedef struct bl_bucket_plan {
    /* Files: the buckets, then, where something is to be read for its value digest, one that is not written. Its tensors are those
     * of the files, padding and slices included. */
    bl_plan plan;
    bl_bucket_tensor **entries; /* [plan.tensor_count] what describes a tensor; NULL: padding, or not sent */
    bl_host_tensor **hosts;     /* [plan.tensor_count] likewise, of what is read and not sent */
    bl_buckets buckets;         /* all but the digests, names included */
    const char **names;         /* [name_count] of all tensors of the model, sorted */
    size_t name_count;
} bl_bucket_plan;

/* Plan the buckets of c, whose binding is b. What is kept by the receiver is what like, which may be NULL, has so. All lives in arena
 * and borrows from c and b. */
bl_status bl_bucket_plan_make(const bl_checkpoint *c, const bl_binding *b, const bl_bucket_options *o, const bl_buckets *like,
                              bl_arena *arena, bl_bucket_plan *out, bl_error *err);

/* Tensors and slices in buckets, but not yet at places. */
typedef struct bl_bucket_dealt {
    const bl_plan_tensor *made; /* [count] bucket by bucket; tensor.file is the bucket */
    const bl_bucket_tensor *about; /* [count] group and slice of each */
    size_t count;
    bl_plan_tensor *const *read; /* [read_count] what is read and not sent */
    size_t read_count;
} bl_bucket_dealt;

/* Give everything its place: out's plan files and tensors, its entries and hosts, its description of the buckets. */
bl_status bl_bucket_lay_out(const bl_bucket_dealt *dealt, bl_arena *arena, bl_bucket_plan *out, bl_error *err);

/* The header of the file of a bucket whose places are known. */
bl_status bl_bucket_head(const bl_bucket *b, bl_arena *arena, bl_st_head *out, bl_error *err);

/* What keeps a weight from being sent without others: weights of equal text travel together. Into buf of cap bytes; returns buf. */
char *bl_bucket_group(char *buf, size_t cap, const char *weight);

#endif
