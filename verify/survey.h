/* Which weights of a checkpoint look wrong, found in one pass over its files: memory does not depend on their sizes. */
#ifndef BL_VERIFY_SURVEY_H
#define BL_VERIFY_SURVEY_H

#include "formats/checkpoint.h"
#include "verify/classes.h"
#include "verify/oddity.h"

typedef struct bl_survey_options {
    int jobs;     /* threads; <= 0 = chosen */
    unsigned cpu; /* kernel capability mask */
    bool (*cancelled)(void);                                             /* may be NULL */
    void (*progress)(void *progress_arg, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
} bl_survey_options;

/* One kind of oddity in one weight, or in one rank's part of it. */
typedef struct bl_survey_item {
    bl_oddity kind;
    bl_class class;
    const char *name;  /* of the weight; a single expert's also where experts are stacked */
    const char *path;  /* of the file with its codes, or for the kinds about scales, with those */
    const char *what;  /* flaws: which */
    const char *other; /* BL_ODD_EQUAL: the first weight with these codes */
    uint64_t count, of; /* rows, scales or elements, as the kind has it */
    uint64_t row, col; /* of the first, in the part; of the grid for scales; col 0 for rows */
} bl_survey_item;

typedef struct bl_survey {
    bl_survey_item *items; /* [count], by kind, then most first, then by name */
    size_t count;
    size_t kinds[BL_ODDITIES]; /* items of each */
    size_t weights;  /* looked at */
    size_t problems; /* that binding met: tensors they concern were not looked at, verify names them */
    uint64_t bytes;  /* read */
} bl_survey;

/* What an oddity is called: "all-zero rows" ... Stable: receipts carry it. */
const char *bl_oddity_name(bl_oddity kind);
/* Has no sound weight this? */
bool bl_oddity_is_wrong(bl_oddity kind);

/* Look at every weight of c, also of a single file without config (bl_bind's rules where there is one, else dtypes, shapes and the
 * names of scales). Of embeddings, heads and Engram tables less than one row in 16 may be like others, since some tokens are never
 * met, and they may be equal as wholes, since draft layers repeat them. Everything lives in arena. Fails only when a file cannot be
 * read. */
bl_status bl_survey_run(const bl_checkpoint *c, const bl_survey_options *o, bl_arena *arena, bl_survey *out, bl_error *err);

#endif
