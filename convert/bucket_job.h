/* What making buckets and making deltas share. Private to convert/. */
#ifndef BL_CONVERT_BUCKET_JOB_H
#define BL_CONVERT_BUCKET_JOB_H

#include "convert/bucket_plan.h"
#include "convert/job.h"
#include "formats/place.h"

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

/* Open src, plan its buckets (like: bl_bucket_plan_make), and fill in what of the report follows. Always followed by
 * bl_bucket_job_close. */
bl_status bl_bucket_job_open(bl_bucket_job *b, const char *src, const char *dst, const bl_bucket_options *o, const bl_buckets *like,
                             bl_bucket_report *report, bl_error *err);
/* s, err: how the job ended. */
void bl_bucket_job_close(bl_bucket_job *b, bl_status s, bl_error *err);

/* Open a folder of buckets or of a delta, or an archive of one, which unpacks beside dst. */
bl_status bl_bucket_place(bl_place *p, const char *path, const char *dst, uint64_t spill_max, bool (*cancelled)(void), bl_error *err);

/* Produce the bytes of all files, and digest them; pass->work gets each tile of a bucket once it is made, on any thread,
 * pass->in_order gets it in file order. Then the description of the buckets is complete and covers the model. */
bl_status bl_bucket_job_stream(bl_bucket_job *b, const bl_bucket_pass *pass, bl_error *err);

/* Make dst, a folder or an archive of one (the job's kind; *archive_bytes is then its size): begun, filled, complete or not there. */
bl_status bl_bucket_output(bl_bucket_job *b, const char *dst, bl_status (*fill)(bl_bucket_job *b, bl_error *err), uint64_t *archive_bytes,
                           bl_error *err);
/* Have a and b the same tensors at the same places, and the same options? Else BL_E_INPUT, naming the first difference in path. */
bl_status bl_buckets_alike(const bl_buckets *a, const bl_buckets *b, const char *path, bl_error *err);

/* What describes the tensor of a segment of a bucket's tile; NULL: padding, or the header. */
const bl_bucket_tensor *bl_bucket_entry(const bl_bucket_job *b, const bl_tile *t, const bl_segment *g);
/* A generated text as a file of the folder. Frees text. */
bl_status bl_bucket_text_file(bl_job *j, const char *name, char *text, size_t n, bl_error *err);
/* Seconds of a steady clock. */
double bl_bucket_now(void);

/* The two flattened forms of metadata, into the folder. */
bl_status bl_bucket_flattened(bl_job *j, const bl_buckets *k, bl_error *err);

#endif
