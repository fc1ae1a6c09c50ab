/* Whole conversions: a checkpoint in, a checkpoint or a packed model out, complete or not at all. */
#ifndef BL_CONVERT_CONVERT_H
#define BL_CONVERT_CONVERT_H

#include "convert/encode.h"
#include "convert/outline.h"
#include "kernels/cast_device.h"
#include "verify/scales.h"

typedef struct bl_convert_options {
    bl_target target;
    unsigned drop;       /* BL_DROP_ bits */
    uint64_t shard_size; /* HF checkpoints: most bytes of tensors in one file */
    const int *layers;   /* [layer_count] backbone layers to keep; layer_count 0 = all */
    size_t layer_count;
    bool save_scales;    /* BL_TO_BF16: keep the scales beside the cast, for the way back */
    bl_layout layout;    /* BL_TO_PACKED: degrees (0 = 1), stage_layers (NULL = even, the last stages having what is left over),
                            engram_shared, split; ranks and vocab_rows follow */
    bool link;           /* BL_TO_PACKED: hard-link source files with whole Engram tables, or copy them where that cannot be */
    int pad_vocab;       /* BL_TO_PACKED: pad the vocabulary to a multiple of this times tp; 0 = do not */
    /* BL_TO_RELEASED */
    bl_form experts;         /* bl_plan_options */
    int fp8_block_rows;      /* likewise; 0 = as the source has them, or had them before it was cast */
    const char *scale_hints; /* bl_hints_open; NULL: what the source itself kept, if it did */
    bool no_hints;           /* not even that */
    bl_fp4_ties fp4_ties;
    bool canonical_zero; /* bl_encode_options */
    uint64_t spill_max; /* of bl_archive_options, for a source in an archive */
    int jobs;          /* threads; <= 0 = chosen */
    unsigned cpu;      /* kernel capability mask */
    bl_cast_device *caster; /* borrowed: casts whole blocks of fp8 and fp4 weights in the processor's place; NULL: it does not */
    bool no_sha256;    /* leave SHA-256 of the payload files out; small files keep theirs */
    bool no_digests;   /* BL_TO_PACKED, for measuring only: leave chunk and value digests zero */
    bool dry_run;      /* plan and check the free space, write nothing */
    bool resume;       /* go on from what an earlier run left, and leave what is done when this one fails */
    /* Hash multipliers of an Engram layer for manifest.json (bl_engram_multipliers). NULL: the list stays empty. */
    void (*engram_multipliers)(int64_t *out, int n, int layer, int classes);
    /* Told of the plan of a dry run to a packed model; everything is borrowed. May be NULL. */
    void (*on_outline)(void *arg, const bl_config *c, const bl_plan *plan, const bl_outline *outline);
    void *outline_arg;
    bool (*cancelled)(void); /* polled; may be NULL */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes written; any thread; may be NULL */
    void *progress_arg;
    void (*note)(const char *text); /* one sentence for the user: what an earlier run left, what is not linked; from any thread, may be NULL */
} bl_convert_options;

typedef struct bl_convert_report {
    size_t action_count[BL_ACTIONS]; /* source tensors by action */
    size_t source_tensors, tensors, files; /* tensors and files of the checkpoint that comes out */
    size_t scales_saved;                   /* beside it, in one more file */
    uint64_t source_bytes, tensor_bytes, file_bytes; /* file_bytes: payload files, headers included */
    unsigned dropped;
    size_t linked_files; /* of the source, not counted in file_bytes */
    uint64_t linked_bytes;
    int ranks, source_ranks; /* 0: the source is no packed model */
    bl_encode_stats encoded[BL_ENCODE_CLASSES]; /* of all files, those included that an earlier run made */
    bool hinted;         /* scale hints were used */
    size_t hinted_count; /* of how many weights */
    size_t hinted_among; /* of those that are encoded */
    bl_generation generation;
    bl_scale_survey scales; /* of the whole source, without its pointers: a cast is exact when none is rounded */
    size_t kept_files; /* finished by an earlier run and proven by this one */
    uint64_t kept_bytes;
    uint64_t archive_bytes; /* of the archive that was written; 0: a folder was */
    double seconds;
} bl_convert_report;

/* Convert the checkpoint at src (a folder, or an archive of one: formats/archives.h; what must be unpacked goes beside
 * dst) into the folder dst, which must not exist or be empty. Free space is checked first; peak memory does not depend on tensor sizes. On any failure, and when cancelled (BL_E_CANCELLED), dst is not there.
 *
 * Until it is complete dst is made in "<dst>.partial" (formats/output.h). That is removed on failure, unless resume is set, and
 * stays when the process dies. Without resume a later run begins anew; with it, files that the journal there calls finished, whose
 * digest is still the one noted, and whose source files have not changed since (size, times of content and of state) are kept, the rest is
 * made, and the result has the bytes of an undisturbed run. A source with another config or other headers, other options, and a dst that
 * another process is making, are BL_E_USAGE. */
bl_status bl_convert(const char *src, const char *dst, const bl_convert_options *o, bl_convert_report *report, bl_error *err);

#endif
