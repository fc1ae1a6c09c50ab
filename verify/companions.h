/* The small files that travel with the weights: tokenizer, chat template, generation settings, the source's config, and the two
 * modules that the auto_map of earlier generations' configs names. */
#ifndef BL_VERIFY_COMPANIONS_H
#define BL_VERIFY_COMPANIONS_H

#include "verify/bind.h"

#define BL_COMPANION_MAX ((uint64_t)64 << 20)
#define BL_COMPANIONS 12
extern const char *const bl_companions[BL_COMPANIONS];

/* Look at every companion that folder has: a regular file of at most BL_COMPANION_MAX bytes, no git-lfs pointer or web page in
 * its place, and JSON where its name says so. A symbolic link to nothing is a companion that is missing. Problems go to
 * on_problem; when that is NULL the first one is the result (BL_E_INPUT). */
bl_status bl_companions_check(const char *folder, bl_problem_fn on_problem, void *arg, bl_error *err);
/* Is the BL_SCALES_NAME of c's folder, if there is one, a safetensors file of the size that its header says? Other failures than
 * BL_E_INPUT are of the reading. What an archive has in that place is not looked at. */
bl_status bl_companion_scales_check(const bl_checkpoint *c, bl_error *err);

#endif
