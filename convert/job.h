/* What the parts of one conversion share. Private to convert/. */
#ifndef BL_CONVERT_JOB_H
#define BL_CONVERT_JOB_H

#include "convert/convert.h"
#include "convert/produce.h"
#include "convert/restore.h"
#include "convert/writer.h"
#include "verify/sha256.h"

/* One output file while it is being made, and what remains of it. */
typedef struct bl_job_file {
    bl_writer *writer;
    bl_chunker *chunker;
    bl_sha256 *hash;
    uint8_t sha256[32];
} bl_job_file;

typedef struct bl_job {
    const bl_convert_options *o;
    bl_checkpoint *source;
    bl_binding binding;
    bl_layout layout;
    bl_restored restored; /* BL_TO_RELEASED */
    bl_hints *hints;      /* NULL = none */
    bl_scale_survey scales;
    bl_plan plan;
    bl_producer producer;
    char *folder;      /* the temporary output folder */
    bl_job_file *files; /* [plan.file_count] */
    bl_digest **chunks; /* [plan.tensor_count], packed only */
    pthread_mutex_t lock; /* of opening files */
    bl_sum_line *sums; /* files of the folder with their SHA-256 */
    size_t sum_count, sum_cap;
    bl_arena arena;
} bl_job;

/* folder/name in the arena. */
const char *bl_job_path(bl_job *j, const char *name);
/* Write a small file and note its SHA-256 for SHA256SUMS. */
bl_status bl_job_small_file(bl_job *j, const char *name, const void *data, size_t n, bl_error *err);
/* Note a file's SHA-256. */
bl_status bl_job_sum(bl_job *j, const char *name, const uint8_t sha256[32], bl_error *err);

/* Stream all payload files: produce, write, hash. */
bl_status bl_job_stream(bl_job *j, bl_error *err);
/* config.json, config.source.json, tokenizer files. */
bl_status bl_job_extras(bl_job *j, bl_error *err);
/* model.safetensors.index.json. */
bl_status bl_job_index(bl_job *j, bl_error *err);
/* rank-0000/manifest.json and manifest.json; needs everything else written. */
bl_status bl_job_manifests(bl_job *j, bl_error *err);

#endif
