/* What the manifest of a packed model says of a tensor, against what the layout says. Private to verify/. */
#ifndef BL_VERIFY_RECORDS_H
#define BL_VERIFY_RECORDS_H

#include "verify/share.h"

/* Is w's tensor (or its scale) recorded as the part that share is, with value digests of its tiles? If not, text says what is wrong.
 * True where nothing is recorded. stacked: it holds several experts. */
bool bl_records_agree(const bl_checkpoint *c, const bl_weight *w, const bl_share *share, bool scale, bool stacked, char *text, size_t cap);

#endif
