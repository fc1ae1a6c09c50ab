/* What proving folders of buckets and of deltas have in common: payload files with a description, small files, SHA256SUMS and its
 * signature. Private to verify/. */
#ifndef BL_VERIFY_FOLDER_PROOF_H
#define BL_VERIFY_FOLDER_PROOF_H

#include "formats/place.h"
#include "formats/safetensors.h"
#include "verify/key.h"
#include "verify/payload.h"

typedef struct bl_folder_proof {
    const bl_place *place;
    const char *folder; /* its: of small files */
    bl_finder *f;
    bl_verify_report *report;
    bl_arena arena;
    bl_manifest_file *expected; /* [expected_count] the payload files */
    size_t expected_count;
    bl_payload *files; /* [file_count] those that can be read */
    size_t file_count;
    bl_manifest manifest;    /* of the expected files */
    bl_checkpoint as_packed; /* what records of files are looked up by */
    bl_witnesses witnesses;
} bl_folder_proof;

/* Prove: the signature if one is asked for, then whatever prove finds, then the content of the files that it has opened, small ones, and
 * SHA256SUMS; sign if that is asked for and nothing was found. Frees what p holds. */
bl_status bl_folder_prove(bl_folder_proof *p, const bl_key *key, bl_status (*prove)(bl_folder_proof *p, bl_error *err), bl_error *err);

/* What is wrong with the input is a finding at the level; other failures come back. */
bl_status bl_folder_judge(const bl_folder_proof *p, int level, bl_status s, const bl_error *e, bl_error *err);
/* The folder's config.json, in p's arena; *path, which may be NULL: its path. */
bl_status bl_folder_config(bl_folder_proof *p, bl_config *c, const char **path, bl_error *err);
/* Room for count expected files, to be filled in. */
bl_status bl_folder_expect(bl_folder_proof *p, size_t count, bl_error *err);
/* No other file may be a safetensors file: readers that take all of a folder must find the expected ones alone. Level 0. */
bl_status bl_folder_strays(bl_folder_proof *p, bl_error *err);
/* Open the expected files; match holds the header of file i against its description, and sets all of out but path and file. What does not
 * fit is found at level 1, and is not read. */
bl_status bl_folder_open(bl_folder_proof *p,
                         bl_status (*match)(bl_folder_proof *p, size_t i, const bl_st_header *h, bl_payload *out, bl_error *err),
                         bl_error *err);

#endif
