/* Binding without a config: every tensor of a file is a weight of its own. */
#ifndef BL_VERIFY_BIND_NAMES_H
#define BL_VERIFY_BIND_NAMES_H

#include "verify/bind.h"

/* A weight for each tensor of c that is no scale of another: its form by dtype, and by the scale that its name has beside it. Codes
 * whose scale is absent or does not fit them are BL_FORM_OTHER. More than two dimensions count as rows. The arrays live in arena. Only
 * failure: BL_E_NOMEM. */
bl_status bl_bind_names(const bl_checkpoint *c, bl_arena *arena, bl_binding *out, bl_error *err);

#endif
