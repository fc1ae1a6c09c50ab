/* Which tensors weight-sync buckets hold between them: the coverage of a model. */
#ifndef BL_VERIFY_BUCKETS_H
#define BL_VERIFY_BUCKETS_H

#include "formats/delta.h"

/* The names of all tensors of b, sent (whole ones, also where they are in slices) and not sent, sorted. Arrays live in arena. */
bl_status bl_buckets_names(const bl_buckets *b, bl_arena *arena, const char ***names, size_t *count, bl_error *err);
/* "names" of buckets.json of sorted names. */
bl_status bl_names_digest(const char *const *names, size_t count, bl_digest *out, bl_error *err);

/* target.json of the delta d in folder: the new state, by its digest in d. *text (malloc'd) and *n, which may be NULL, get the text. */
bl_status bl_delta_target(const char *folder, const bl_delta *d, bl_arena *arena, bl_buckets *out, char **text, size_t *n, bl_error *err);

#endif
