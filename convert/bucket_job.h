/* What making buckets and making deltas share. Private to convert/. */
#ifndef BL_CONVERT_BUCKET_JOB_H
#define BL_CONVERT_BUCKET_JOB_H

#include "convert/bucket_plan.h"
#include "convert/job.h"

struct bl_bucket_job;
typedef struct bl_bucket_pass {
    bl_status (*work)(struct bl_bucket_job *b, const bl_tile *t, bl_error *err);
    bl_status (*in_order)(struct bl_bucket_job *b, const bl_tile *t, bl_error *err);
} bl_bucket_pass;

typedef struct bl_bucket_job {
    bl_job job; /* first: the stream's callbacks get a pointer to it */
    bl_convert_options options;
    bl_bucket_plan planned;
    bl_data_hashes *hashes; /* [files] */
    const bl_bucket_pass *pass;
} bl_bucket_job;

/* Open src, plan its buckets, and fill in what of the report follows. Always followed by bl_bucket_job_close. */
bl_status bl_bucket_job_open(bl_bucket_job *b, const char *src, const char *dst, const bl_bucket_options *o, bl_bucket_report *report,
                             bl_error *err);
void bl_bucket_job_close(bl_bucket_job *b);

/* Produce the bytes of all files, and digest them; pass->work gets each tile of a bucket once it is made, on any thread,
 * pass->in_order gets it in file order. Then the description of the buckets is complete and covers the model. */
bl_status bl_bucket_job_stream(bl_bucket_job *b, const bl_bucket_pass *pass, bl_error *err);

/* Make the folder dst: begun, filled, complete or not there. */
bl_status bl_bucket_folder(bl_bucket_job *b, const char *dst, bl_status (*fill)(bl_bucket_job *b, bl_error *err), bl_error *err);
/* buckets.json and the two flattened forms, into the folder. */
bl_status bl_bucket_descriptions(bl_job *j, const bl_buckets *k, bl_error *err);

#endif
