/* Proving a folder: levels 0 to 4, every problem named, and comparison of two models by their values.
 *
 *   0 names      every tensor in exactly the shard the index or manifest names; nothing missing, doubled or stray
 *   1 structure  strict safetensors headers, sizes, manifests that agree with the files
 *   2 semantic   tensors against the config, scale pairing and grids, no NaN code, no NaN scale, finite F32 and BF16,
 *                quantization_config exactly when there are quantised weights; of a packed model's manifest what was dropped and the Engram
 *                layers with rows and multipliers, against the config
 *   3 content    SHA-256 of every file that SHA256SUMS or the Hugging Face cache names a digest for; of others that are stored in a zip
 *                archive the CRC-32 that it has of them (what is compressed is compared while it is unpacked); in a packed model every
 *                8 MiB chunk of every tensor against the manifest, and equal copies where several ranks hold the same
 *   4 trust      SHA256SUMS.sig is the signature of SHA256SUMS by a given key, and SHA256SUMS lists every file: what git and the
 *                Hugging Face client keep for themselves aside (.git, .gitattributes, .gitignore, .github, .cache, .huggingface). The
 *                signature comes first: when it does not hold nothing else is looked at
 *
 * Levels include the lower ones. Levels 2 and 3 read everything once; memory does not depend on sizes. */
#ifndef BL_VERIFY_VERIFY_H
#define BL_VERIFY_VERIFY_H

#include "formats/checkpoint.h"

/* One problem. Strings are borrowed for the call, and printable as those of a bl_error are. */
typedef struct bl_finding {
    int level;          /* at which it shows; -1: the comparison */
    const char *path;   /* file or folder */
    const char *tensor; /* "" when none */
    int64_t begin, end; /* byte range in path; -1 when none */
    const char *message;
} bl_finding;

typedef struct bl_verify_options {
    int level;           /* 0..4; 4 exactly when key is set */
    const char *key;     /* file of the Ed25519 public key to check the signature with; NULL = none */
    const char *sign;    /* file of the private key to sign the folder with when all holds at level 3, which then also means that every
                            file is listed. A folder without SHA256SUMS gets one; one that lacks the payload of a packed model, which
                            was packed without, is completed. NULL = do not sign */
    const char *cache;   /* file, or folder of files, that remembers proven files (verify/proven.h): they are not read again while size,
                            inode and times are the same. Not with sign or against; level 3 and up. NULL = none */
    bool hub;            /* compare with the Hugging Face client's records also what SHA256SUMS lists, and say what has none */
    bool one_rank;       /* packed models: what is on a node that holds one rank, and not all ranks */
    int rank;            /* which */
    /* Hash multipliers of an Engram layer, which manifest.json of a packed model must have (bl_engram_multipliers). NULL: not compared. */
    void (*engram_multipliers)(int64_t *out, int n, int layer, int classes);
    uint64_t spill_max;  /* of bl_archive_options, for what is in an archive */
    bool weights_elsewhere; /* of a packed model: whoever asks reads the tensors, and holds them against bl_checkpoint_record's chunk digests.
                            Everything else is proven here; codes, scales and floats are not looked at (level 2). Not with sign, key, cache
                            or against */
    int jobs;            /* threads; <= 0 = chosen */
    unsigned cpu;        /* kernel capability mask */
    const char *against; /* another checkpoint to compare values with; NULL = none */
    void (*on_finding)(void *arg, const bl_finding *f); /* one at a time, from any thread */
    void (*on_unrecorded)(void *arg, const char *name); /* hub: a file without a record; may be NULL */
    void (*note)(void *arg, const char *text); /* one sentence for the user: a cache that is not used; may be NULL */
    void *arg;
    bool (*cancelled)(void);                                         /* may be NULL */
    void (*progress)(void *progress_arg, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
} bl_verify_options;

typedef enum bl_trust {
    BL_TRUST_NONE = 0, /* no key was given */
    BL_TRUST_SIGNED,   /* the signature holds */
    BL_TRUST_UNSIGNED, /* it does not: nothing else was looked at */
    BL_TRUST_MADE      /* the folder was signed now */
} bl_trust;

typedef struct bl_verify_report {
    bl_source_kind kind;
    size_t findings;
    size_t files, tensors;
    size_t files_hashed;   /* whose digest was recorded and is right */
    size_t files_hub;      /* of them by the Hugging Face client's records */
    size_t files_unrecorded; /* hub: those without such a record */
    bl_trust trust;
    char signer[80];       /* the public key: "ed25519:" and digits */
    size_t files_listed;   /* added to SHA256SUMS before it was signed */
    size_t files_crc;      /* whose CRC-32 an archive has, and it is right; those of files_hashed aside */
    size_t files_unproven; /* weight files that nothing is recorded for */
    size_t files_cached;   /* of files_hashed: not read, taken from the cache */
    uint64_t bytes_cached;
    size_t chunks;         /* chunk digests, or those of tensors in buckets, that are right */
    size_t compared;       /* weights whose values are equal on both sides */
    uint64_t bytes;        /* read */
    double seconds;
} bl_verify_report;

/* Verify path (HF folder, packed model, single safetensors file, folder of weight-sync buckets: bucket_proof.h; or an archive of a folder).
 * BL_OK: all of it holds. BL_E_FINDING: on_finding has said what does not. Anything else: path could not be verified at all (missing, not
 * a checkpoint, read error); for a single file a broken header is BL_E_INPUT. */
bl_status bl_verify(const char *path, const bl_verify_options *o, bl_verify_report *report, bl_error *err);

#endif
