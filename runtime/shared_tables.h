/* Engram tables that all processes of a host share: one object of shared memory, a file in /dev/shm, that the first process fills and
 * the others use in place. It is named for what is in it, and is removed when its last user closes it. A user that dies without
 * closing leaves it behind: the next process with the same tables takes it over, others can only tell of it.
 *
 * The object: at byte 0 a head (text "BLTABLES", then, in the machine's order, u32 version 1, u32 ready, u64 bytes of the tables, 16 bytes
 * of their digest), from byte BL_SHARED_HEAD on the tables. ready is 1 when all of their bytes are there.
 *
 * Locks are of open file descriptions, which end with the process: byte 0 for whoever opens, fills or removes the object; byte 1,
 * shared, for as long as it is used. An object that is not ready and whose byte 0 is free was given up halfway: it is filled anew. */
#ifndef BL_RUNTIME_SHARED_TABLES_H
#define BL_RUNTIME_SHARED_TABLES_H

#include "formats/manifest.h"
#include "formats/pool.h"

#define BL_SHARED_FOLDER "/dev/shm"
#define BL_SHARED_HEAD ((uint64_t)2 << 20) /* a huge page, so that tables begin at one */

/* What is in an object. */
typedef struct bl_shared_key {
    bl_digest contents; /* of whatever tells these tables from others */
    uint64_t bytes;
} bl_shared_key;

/* What there is room for. */
typedef struct bl_shared_room {
    uint64_t there; /* bytes of the object that are in memory already */
    uint64_t free;  /* bytes that shared memory may still grow by; 0 = not known */
} bl_shared_room;

/* Of the object with that key, if there is one; nothing is changed. */
bl_shared_room bl_shared_look(const bl_shared_key *key);

typedef struct bl_shared bl_shared;

/* Open the object with that key, or make it, with all of its memory, which pool's threads take (NULL: this one alone). Waits while
 * another process fills it. Unless it is filled (bl_shared_filled), the caller writes the tables and calls bl_shared_ready; the
 * object is locked until then. BL_E_NOMEM: no room, before or after trying, with the numbers; BL_E_IO: names the object. */
bl_status bl_shared_open(bl_shared **out, const bl_shared_key *key, bl_pool *pool, bl_error *err);
/* Tables [key.bytes], at a page's begin. */
uint8_t *bl_shared_memory(const bl_shared *s);
/* Did another process fill it, now or before? */
bool bl_shared_filled(const bl_shared *s);
const char *bl_shared_path(const bl_shared *s);
/* All bytes are there. From now on the memory can only be read. */
void bl_shared_ready(bl_shared *s);
/* Unmap, and remove the object where nobody else uses it. Nulls *s; NULL is fine. */
void bl_shared_close(bl_shared **s);

/* Before a process ends at once, with threads that may still use what it has open: remove what nobody else uses. */
void bl_shared_leave_all(void);

/* Objects of this user that no process has open: what they are called, and their bytes in memory. */
void bl_shared_each_left(void (*on)(void *arg, const char *path, uint64_t bytes), void *arg);

#endif
