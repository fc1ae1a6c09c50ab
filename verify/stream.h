/* The stream that every job over large files runs on: files are cut into tiles, several threads work on tiles at once, and
 * what needs a file's bytes in order (SHA-256, chunk digests) gets them in order, one thread at a time for each file.
 *
 * Lanes are begun in descending order of size, about as many at once as there are workers, and one that holds more than a worker's
 * share of what is left comes first: what must be done in order runs on one CPU for each lane, and a long lane begun late would
 * leave the others idle.
 *
 * A lane is one file: parts that follow each other without holes. A tile is a run of segments, each a piece of one part, cut
 * at multiples of the part's granule. Memory is one buffer for each thread, whatever the sizes of files and parts. */
#ifndef BL_VERIFY_STREAM_H
#define BL_VERIFY_STREAM_H

#include "formats/status.h"
#include "verify/reader.h"

#include <stdbool.h>

#define BL_STREAM_TILE ((uint64_t)8 << 20)    /* largest granule */
#define BL_STREAM_BUDGET ((uint64_t)176 << 20) /* bytes of all buffers together */

typedef struct bl_part {
    uint64_t nbytes;
    uint64_t granule; /* cut only at multiples of this many bytes from the part's start; at most BL_STREAM_TILE */
    uint64_t tag;     /* the caller's */
} bl_part;

typedef struct bl_lane {
    const bl_part *parts; /* [count]; their sizes add up to the file's */
    size_t count;
} bl_lane;

typedef struct bl_segment {
    size_t part;     /* index in the lane */
    uint64_t offset; /* in the part */
    uint64_t nbytes;
} bl_segment;

typedef struct bl_tile {
    size_t lane;
    uint64_t offset, nbytes; /* in the file */
    const bl_segment *segments;
    size_t segment_count;
    bool last; /* of its lane; a lane without bytes has one empty tile */
    int worker;
    uint8_t *data;    /* [nbytes], congruent to offset modulo BL_IO_ALIGN; whole pages around it are the worker's too */
    uint8_t *scratch; /* [scratch bytes] of this worker, aligned to BL_IO_ALIGN */
} bl_tile;

typedef struct bl_stream {
    const bl_lane *lanes;
    size_t lane_count;
    bool sequence;         /* one lane after the other, as given; in_order then sees all of their tiles in that order */
    int jobs;              /* threads; <= 0 = twice the CPUs, at least 8: most of them wait for the disk */
    uint64_t scratch;      /* bytes of scratch a worker needs beside its tile: scratch + scratch_ratio * tile size / 16 */
    uint64_t scratch_ratio;
    /* Make or read the tile's bytes. Any order, any thread. Tiles of one lane are begun in ascending order. */
    bl_status (*work)(void *arg, const bl_tile *t, bl_error *err);
    /* The same tile again, in file order within its lane; may be NULL. */
    bl_status (*in_order)(void *arg, const bl_tile *t, bl_error *err);
    void *arg;
    /* Prepare the memory of all tiles and scratch, whole pages, for who reads and writes it beside the processor, and the end of that;
     * both NULL: nobody. */
    bl_status (*pin)(void *pin_arg, void *memory, uint64_t bytes, bl_error *err);
    void (*unpin)(void *pin_arg, void *memory);
    void *pin_arg;
    bool (*cancelled)(void); /* polled between tiles; may be NULL */
    void (*progress)(void *progress_arg, uint64_t done, uint64_t total); /* bytes of tiles; any thread; may be NULL */
    void *progress_arg;
} bl_stream;

/* Run to the end, or to the first failure (returned; the others are dropped). */
bl_status bl_stream_run(const bl_stream *s, bl_error *err);

#endif
