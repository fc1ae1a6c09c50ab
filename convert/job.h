/* What the parts of one conversion share. Private to convert/. */
#ifndef BL_CONVERT_JOB_H
#define BL_CONVERT_JOB_H

#include "convert/convert.h"
#include "convert/journal.h"
#include "convert/produce.h"
#include "convert/restore.h"
#include "convert/writer.h"
#include "formats/archive_write.h"
#include "verify/both.h"

/* Room beside the payload: config, tokenizer, index, manifests. */
#define BL_JOB_SMALL_FILES ((uint64_t)64 << 20)

/* One output file while it is being made, and what remains of it. */
typedef struct bl_job_file {
    bl_writer *writer;
    bool opened;
    bool linked; /* to the source's file: nothing is written */
    bl_chunker *chunker;
    bl_sha256 *hash;
    bl_chunker *whole; /* without SHA-256: chunks of the file, for the journal */
    bl_digest *whole_chunks;
    uint8_t digest[32]; /* as in the journal: SHA-256, or the digest of whole_chunks */
    uint8_t noted[32];  /* in the journal */
    bl_digest state;    /* of the source's files that it is made from */
    bool done;          /* by an earlier run */
    bl_reader *reader;  /* while that is being proven */
} bl_job_file;

typedef struct bl_job {
    const bl_convert_options *o;
    bl_checkpoint *source;
    bl_binding binding;
    bl_layout layout;
    size_t linked_files;
    uint64_t linked_bytes;
    bl_restored restored; /* BL_TO_RELEASED */
    bl_hints *hints;      /* NULL = none */
    bl_scale_survey scales;
    bl_plan plan;
    bl_producer producer;
    bl_folder *out;
    const char *folder; /* out's files: the temporary output folder */
    bl_archive_kind kind;       /* of the destination; BL_ARCHIVE_NONE: it is a folder */
    bl_archive_writer *archive; /* what it is written to; small files are in folder too. NULL: a folder */
    bl_journal journal;
    size_t *order;    /* [plan.file_count] in which the files are made one after the other; NULL: as it comes, several at once */
    bool arrives;     /* the source's tensors come in the order of an archive */
    uint64_t waiting; /* bytes of the source that wait on disk at most: bl_job_expect */
    size_t kept_files; /* proven, from an earlier run */
    uint64_t kept_bytes;
    bl_job_file *files; /* [plan.file_count] */
    bl_digest **chunks; /* [plan.tensor_count], packed only */
    pthread_mutex_t lock; /* of opening files, and of the journal */
    bl_sum_line *sums; /* files of the folder with their SHA-256 */
    size_t sum_count, sum_cap;
    bl_arena arena;
} bl_job;

/* Refuse (BL_E_USAGE) a folder dst that would lie in src: a proven model would hold what its SHA256SUMS does not list. */
bl_status bl_job_place(const char *src, const char *dst, bl_error *err);
/* Open the source (a folder, or an archive of one, unpacked beside dst where needed); dst must not lie in it. */
bl_status bl_job_open(bl_job *j, const char *src, const char *dst, bl_error *err);
/* Bind the source's tensors, its scales looked at; the first problem is the result. */
bl_status bl_job_bind(bl_job *j, bl_error *err);
/* Is there room for the planned files at dst? */
bl_status bl_job_space(const bl_job *j, const char *dst, bl_error *err);
/* folder/name in the arena. */
const char *bl_job_path(bl_job *j, const char *name);
/* Write a small file and note its SHA-256 for SHA256SUMS. */
bl_status bl_job_small_file(bl_job *j, const char *name, const void *data, size_t n, bl_error *err);
/* Put a small file that is in the folder into the archive, if one is written. */
bl_status bl_job_put_file(bl_job *j, const char *name, bl_error *err);
/* SHA256SUMS of all files that were noted: the last file. */
bl_status bl_job_sums(bl_job *j, bl_error *err);
/* Note a file's SHA-256. */
bl_status bl_job_sum(bl_job *j, const char *name, const uint8_t sha256[32], bl_error *err);

/* Stream the payload files: prove those that an earlier run finished, then produce, write and hash the others. */
bl_status bl_job_stream(bl_job *j, bl_error *err);
/* One stream over the files that are done, or over those that are not. work and in_order get the job, and tiles whose lane is the
 * file's index. */
bl_status bl_job_pass(bl_job *j, bool done, bl_status (*work)(bl_job *j, const bl_tile *t, bl_error *err),
                      bl_status (*in_order)(bl_job *j, const bl_tile *t, bl_error *err), bl_error *err);
/* Set up the hashes of a file; add a tile to them, in order; after the last one set the file's digest. */
bl_status bl_job_hash_open(bl_job *j, size_t file, bl_error *err);
bl_status bl_job_hash(bl_job *j, const bl_tile *t, bl_error *err);
/* Put a tile of a planned file into the archive; the tiles of all files come in order. */
bl_status bl_job_put_tile(bl_job *j, const bl_tile *t, bl_error *err);
/* Make dst, which is to be an archive of j's kind. fill makes all files, in order. *bytes is set to the archive's size. */
bl_status bl_job_archive(bl_job *j, const char *dst, bl_status (*fill)(void *arg, bl_error *err), void *arg, uint64_t *bytes, bl_error *err);
/* Can dst be an archive, under these options? BL_E_USAGE if not. */
bl_status bl_job_check_archive(const bl_job *j, const char *dst, bl_error *err);
/* Where tensors come in the order of an archive: choose the order of the output files, and tell what will be read for those that are
 * not done. BL_E_IO when there is no room for what has to wait. */
bl_status bl_job_expect(bl_job *j, bl_error *err);
/* A tile was produced: what is now read for the last time may go. */
void bl_job_arrived(bl_job *j, const bl_tile *t);
/* Set up the files, each with its state: size and times of the source's files that it is made from, and of the scale hints where it is
 * encoded under these. First, before any of them is read. */
bl_status bl_job_states(bl_job *j, bl_error *err);
/* Open the journal: what the source is and what is wanted must be what it says. */
bl_status bl_job_journal(bl_job *j, bl_error *err);
/* Find out which files an earlier run finished: those in the journal whose bytes still have the digest noted there, made from files that
 * have not changed since. Their chunk and value digests are computed on the way. Everything else in the folder is removed. */
bl_status bl_job_prove(bl_job *j, bl_error *err);
/* The folder that is wanted is complete already (bl_folder_committed): was it made from the source as it is? BL_E_USAGE when not. */
bl_status bl_job_committed(bl_job *j, const char *dst, bl_error *err);
/* What became of all weights that are encoded, those in files included that an earlier run made. After bl_job_stream, or of a folder that
 * is complete. */
void bl_job_encoded(const bl_job *j, bl_encode_stats out[BL_ENCODE_CLASSES]);
/* Hold all that was read from a packed model against the value digests that its manifests record; BL_E_INPUT, naming the tensor,
 * where they differ. After bl_job_stream. */
bl_status bl_job_recorded(bl_job *j, bl_error *err);
/* The same for what is encoded into a file, before the file is finished: its bytes have other values, so that a later run, which
 * keeps it, could not tell. */
bl_status bl_job_recorded_file(bl_job *j, size_t file, bl_error *err);
/* Does bl_job_recorded read the pieces of this member once more? */
bool bl_job_reads_again(const bl_job *j, const bl_plan_tensor *t, size_t member);
/* config.json, config.source.json, tokenizer files. */
bl_status bl_job_extras(bl_job *j, bl_error *err);
/* model.safetensors.index.json. */
bl_status bl_job_index(bl_job *j, bl_error *err);
/* rank-0000/manifest.json and manifest.json; needs everything else written. */
bl_status bl_job_manifests(bl_job *j, bl_error *err);

#endif
