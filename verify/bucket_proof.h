/* Proving folders for weight sync: buckets, and deltas of buckets. Private to verify/. */
#ifndef BL_VERIFY_BUCKET_PROOF_H
#define BL_VERIFY_BUCKET_PROOF_H

#include "formats/place.h"
#include "verify/finder.h"
#include "verify/key.h"

/* Level 0: the tensors of buckets.json are those of the model and of config.json, no file but the buckets is a safetensors file;
 * 1: every bucket's header is as described, the flattened metadata follow from buckets.json; 2: no NaN code, no value that is not
 * finite; 3: XXH3-128 of every tensor (report: chunks) and bucket, SHA256SUMS. key: to sign with, or to check
 * the signature with, as f's options say; else NULL. */
bl_status bl_buckets_prove(const bl_place *place, bl_finder *f, const bl_key *key, bl_verify_report *report, bl_error *err);
/* The same for what turns one state into another: 0: delta.json and target.json agree, 1: headers, 3: XXH3-128 of every stream,
 * SHA256SUMS. That the streams lead to the new state is proven when they are applied. */
bl_status bl_delta_prove(const bl_place *place, bl_finder *f, const bl_key *key, bl_verify_report *report, bl_error *err);

#endif
