/* Ranges of data that comes as a stream: a file without a name that holds what has come and is still needed.
 *
 * A thread puts the stream in, forwards. Readers wait for the bytes that they want. Told beforehand how often every range will be
 * read, the spool stores nothing else, and gives the room back when a range was read for the last time (holes in the file). The
 * stream pauses while much is stored and nobody waits for what comes next; since somebody may wait for something far ahead, what
 * the spool holds is bounded by the order of the reads and not by a limit. Nothing of it survives the process. */
#ifndef BL_FORMATS_SPOOL_H
#define BL_FORMATS_SPOOL_H

#include "formats/status.h"

#include <stdbool.h>

typedef struct bl_spool bl_spool;

/* Make the file in folder. pause: how many bytes are stored at least before the stream pauses. cancelled is polled by those who
 * wait; may be NULL. */
bl_status bl_spool_create(bl_spool **out, const char *folder, uint64_t pause, bool (*cancelled)(void), bl_error *err);
/* Stop the stream and free everything; NULL is fine. No reader may be left. */
void bl_spool_destroy(bl_spool **s);
int bl_spool_fd(const bl_spool *s); /* borrowed: for reading, after bl_spool_wait */

/* Before the stream begins, by one thread: store bytes that stay. Offsets ascend. */
bl_status bl_spool_keep(bl_spool *s, const void *data, uint64_t n, uint64_t offset, bl_error *err);
/* Likewise bytes of all that comes, for as long as there is little of it: then bl_spool_complete says that this was all, and there
 * is no stream; or bl_spool_drop gives the room of those back that were not kept. */
bl_status bl_spool_fill(bl_spool *s, const void *data, uint64_t n, uint64_t offset, bl_error *err);
void bl_spool_complete(bl_spool *s);
void bl_spool_drop(bl_spool *s);

/* Another reader of bytes [begin, begin + n), before the stream begins. Ranges are equal or do not overlap. */
bl_status bl_spool_expect(bl_spool *s, uint64_t begin, uint64_t n, bl_error *err);
/* All readers are known: other bytes are not stored. Without this everything is, to the end. */
void bl_spool_seal(bl_spool *s);
/* One of the readers of the range is done. */
void bl_spool_done(bl_spool *s, uint64_t begin, uint64_t n);

/* What the thread runs: puts the whole stream, in ascending order. It begins when somebody waits for the first time. */
void bl_spool_source(bl_spool *s, bl_status (*run)(void *arg, bl_error *err), void *arg);
/* n bytes of the stream at offset; may block. Everything before offset has come; what was not put is zero. BL_E_CANCELLED when the
 * spool is being destroyed. */
bl_status bl_spool_put(bl_spool *s, const void *data, uint64_t n, uint64_t offset, bl_error *err);

bool bl_spool_streams(const bl_spool *s); /* has it a source? */

/* Wait until bytes [begin, end) are there. Fails with what made the stream fail. */
bl_status bl_spool_wait(bl_spool *s, uint64_t begin, uint64_t end, bl_error *err);
/* Will any of bytes [begin, end) be read? */
bool bl_spool_wants(bl_spool *s, uint64_t begin, uint64_t end);
/* All readers are done: wait for the stream to end, if it was begun, so that a fault behind the last byte read shows too. */
bl_status bl_spool_finish(bl_spool *s, bl_error *err);
/* Most bytes that were stored at once so far. */
uint64_t bl_spool_peak(bl_spool *s);

#endif
