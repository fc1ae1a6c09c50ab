/* A model on disk, of either kind, as one list of tensors: an HF checkpoint folder (released or cast), a packed model, or
 * a single safetensors file. */
#ifndef BL_FORMATS_CHECKPOINT_H
#define BL_FORMATS_CHECKPOINT_H

#include "formats/archives.h"
#include "formats/config.h"
#include "formats/manifest.h"
#include "formats/safetensors.h"

typedef enum bl_source_kind {
    BL_SOURCE_FILE = 1, /* one safetensors file, no config */
    BL_SOURCE_HF,       /* folder: config.json, *.safetensors, model.safetensors.index.json */
    BL_SOURCE_PACKED,   /* folder: manifest.json, rank-NNNN/ */
    BL_SOURCE_BUCKETS,  /* folder: buckets.json; no checkpoint, but proven by verify */
    BL_SOURCE_DELTA     /* folder: delta.json; likewise */
} bl_source_kind;

typedef struct bl_source_file {
    const char *name; /* relative to the folder */
    const char *path;
    bl_file *file; /* open */
    uint64_t header_bytes, file_bytes;
    size_t tensor_count;
    const bl_rank_manifest *rank; /* packed models: the manifest of the rank in whose folder it lies, or that needs it; else NULL */
} bl_source_file;

/* What is in a checkpoint. Everything lives in arena; opened with bl_checkpoint_open, closed with bl_checkpoint_close. */
typedef struct bl_checkpoint {
    bl_source_kind kind;
    const char *path;
    const char *name; /* what was opened: path, or the archive that path stands for */
    bl_source_file *files; /* [file_count] */
    size_t file_count;
    bl_tensor *tensors; /* [tensor_count], sorted by name (bytes), those of several ranks by rank. Of a V4.1 folder whose names all begin
                         * with "model." (those of the head may not) the names without it */
    size_t tensor_count;
    uint64_t tensor_bytes;
    bool has_config;
    bl_config config;
    const bl_manifest *manifest;   /* packed models; NULL otherwise */
    const bl_rank_manifest *ranks; /* [rank_count] likewise: the manifests of the ranks that were opened, ascending */
    size_t rank_count;
    int only_rank; /* -1: all ranks were asked for */
    size_t problems;               /* reported through on_problem */
    const char **unread;           /* [unread_count], sorted: tensors that the index or manifest places in files that could
                                      not be read */
    size_t unread_count;
    bool unread_unknown;           /* a file could not be read, and nothing says which tensors it would have had */
    bl_archive *archive;           /* NULL, or what it is read from; path is then the folder that stands for it */
    bl_arena arena;
} bl_checkpoint;

typedef struct bl_checkpoint_options {
    bool tolerate; /* report bad input through on_problem and go on without what is damaged (verify, inspect) */
    void (*on_problem)(void *arg, const bl_error *problem); /* may be NULL */
    void *arg;
    bool one_rank; /* packed models: open one rank alone, and not all of them as one model */
    int rank;      /* which */
    const bl_archive_options *archives; /* NULL: an archive is refused like any other file */
    bl_archive **opened; /* NULL, or path's archive, opened already (NULL: it is none): taken over, also on failure */
    bool any_generation; /* HF folders: also those of generations before V4.1, whose config says little (config.earlier) */
} bl_checkpoint_options;

/* Open path (folder or file).
 *
 * HF folders: config.json must be there. The index is read tolerantly (metadata may be empty or absent, extra keys are
 * ignored) but every tensor must be in exactly the shard it names, no shard may hold a tensor the index lacks, no
 * *.safetensors file may stand beside them unnamed, no name may occur twice, and as many shards must exist as "-of-NNNNN" in
 * their names says. File names with '/', a leading '.', NUL or control characters are refused, symbolic links are followed.
 * metadata.total_size is often wrong in the wild: a mismatch is reported when tolerate is set and ignored otherwise. Without
 * an index a folder with exactly one *.safetensors file is that file.
 *
 * Folders of weight-sync buckets and of deltas are refused as what they are.
 *
 * Packed models: config.json, manifest.json and the files and offsets of every rank's manifest (or one rank's), each payload
 * file's header read and compared with it; no other *.safetensors file may be in a rank's folder. A name may then occur once for
 * each rank; a file that several ranks name is there once.
 *
 * options may be NULL. With tolerate BL_OK is returned also when problems were reported (their count is in problems); what
 * could not be read is absent from files and tensors. Trouble that is not the input's (BL_E_IO, BL_E_NOMEM) always fails. */
bl_status bl_checkpoint_open(bl_checkpoint **out, const char *path, const bl_checkpoint_options *options, bl_error *err);
/* Close the files, free everything, null *c; NULL is fine. */
void bl_checkpoint_close(bl_checkpoint **c);

/* By name; NULL when absent; of several ranks' the first. O(log n). */
const bl_tensor *bl_checkpoint_find(const bl_checkpoint *c, const char *name);
/* The same, of one rank; the rank does not matter where there are no ranks. */
const bl_tensor *bl_checkpoint_find_rank(const bl_checkpoint *c, const char *name, int rank);
/* What the manifest of its rank says of a tensor; NULL when c is no packed model. */
const bl_manifest_tensor *bl_checkpoint_record(const bl_checkpoint *c, const bl_tensor *t);
/* Is there no tensor of this name only because its file could not be read (tolerate)? Whoever looks for it need not report it
 * too. */
bool bl_checkpoint_unread(const bl_checkpoint *c, const char *name);
/* Is a file of the folder (relative name) part of what was opened: not of a rank that was not asked for? */
bool bl_checkpoint_covers(const bl_checkpoint *c, const char *name);
/* The file of a tensor. */
const bl_source_file *bl_checkpoint_file(const bl_checkpoint *c, const bl_tensor *t);

#endif
