/* The CRC-32 of a file of which parts are read in any order, by several threads, some of them more than once. Private to verify/. */
#ifndef BL_VERIFY_COVER_H
#define BL_VERIFY_COVER_H

#include "formats/file.h"

typedef struct bl_cover bl_cover;

bl_status bl_cover_create(bl_cover **out, bl_error *err);
void bl_cover_destroy(bl_cover **c); /* nulls *c; NULL is fine */
/* n bytes at offset were read: those that were not before are taken in. Thread-safe. Where memory lacks, false: they count as not read. */
bool bl_cover_add(bl_cover *c, const uint8_t *data, uint64_t n, uint64_t offset);
/* Nobody reads any more. Where at least half of f was taken in, read the rest and hold the whole against f's noted CRC-32: BL_E_INPUT when
 * it differs. Of a file of which less was wanted nothing is said. */
bl_status bl_cover_prove(bl_cover *c, const bl_file *f, bl_error *err);

#endif
