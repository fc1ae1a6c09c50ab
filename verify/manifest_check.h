/* What the global manifest of a packed model says, against what can be looked up or computed. Private to verify/. */
#ifndef BL_VERIFY_MANIFEST_CHECK_H
#define BL_VERIFY_MANIFEST_CHECK_H

#include "verify/finder.h"
#include "verify/witness.h"

/* Level 1: the files it lists are there and as long as it says, and the config of the source is kept. Level 2: what it calls dropped is not in
 * the config, and the Engram layers are the config's, with their rows and, where f->o has the function, their multipliers. Level 3: it and
 * SHA256SUMS record the same digests. c without a manifest has nothing to check. What source it names, and what wrote it, nobody can
 * look up: of an edit there SHA256SUMS alone tells. */
bl_status bl_manifest_check(bl_finder *f, const bl_checkpoint *c, const bl_witnesses *w, bl_error *err);

#endif
