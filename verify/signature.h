/* The signature of a folder: SHA256SUMS, which lists every file, is signed, and SHA256SUMS.sig holds the signature. Private to verify/. */
#ifndef BL_VERIFY_SIGNATURE_H
#define BL_VERIFY_SIGNATURE_H

#include "verify/key.h"
#include "verify/witness.h"

/* Why an archive is not signed. */
#define BL_SIGN_ARCHIVE "is an archive: sign the folder, then pack it"

/* Is w's SHA256SUMS signed by key? What is missing or does not fit is found at level 4. */
bl_status bl_signature_check(bl_finder *f, const bl_checkpoint *c, const bl_key *key, const bl_witnesses *w, bool *right, bl_error *err);

/* Sign c's folder, after a scan that found nothing: complete SHA256SUMS by the files that were wanted, if there are any, and write
 * SHA256SUMS.sig. *listed: files that were added. */
bl_status bl_signature_make(const bl_checkpoint *c, const bl_key *key, const bl_witnesses *w, size_t *listed, bl_error *err);

#endif
