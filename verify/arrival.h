/* Reading a checkpoint whose tensors come in the order of an archive: telling what will be read, and what was. */
#ifndef BL_VERIFY_ARRIVAL_H
#define BL_VERIFY_ARRIVAL_H

#include "verify/view.h"

/* Do c's weights come in a second reading of an archive? Everything below is for those. */
bool bl_arrives(const bl_checkpoint *c);
/* Does this file? */
bool bl_file_arrives(const bl_file *f);

/* One more part of the work will read n bytes at offset of f, a tensor or what lies between tensors; and is done with them. */
bl_status bl_arrival_expect(const bl_file *f, uint64_t offset, uint64_t n, bl_error *err);
void bl_arrival_done(const bl_file *f, uint64_t offset, uint64_t n);
/* That was all. */
void bl_arrival_seal(const bl_checkpoint *c);
void bl_arrival_seal_file(const bl_file *f); /* any file of the archive that arrives */

/* Indexes of c's files, in the order in which they come, or as they are; NULL when out of memory. */
size_t *bl_arrival_order(const bl_checkpoint *c, bl_arena *arena);
/* Where in the archive's data byte offset of f is: the files lie one after the other. */
uint64_t bl_arrival_place(const bl_file *f, uint64_t offset);

#endif
