#include "verify/stream.h"

#include "formats/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_SEGMENTS 512
/* Tiles of all workers together stay in the last-level cache on their way from reading to the last hash, and are large enough
 * for a disk. */
#define MAX_TILE ((uint64_t)2 << 20)
#define MIN_TILE ((uint64_t)1 << 20)
#define HUGE_PAGE ((uint64_t)2 << 20)
#define OPEN_LANES 4 /* for each worker, at most */

/* Where a lane stands: what is dealt, and what went through in_order. */
typedef struct cursor {
    size_t part;
    uint64_t part_offset, file_offset;
    uint64_t dealt, ordered; /* tiles */
    uint64_t left;           /* bytes not dealt yet */
    bool finished;           /* all dealt */
} cursor;

/* A lane by size. */
typedef struct sized {
    uint64_t bytes;
    size_t lane;
} sized;

typedef struct run {
    const bl_stream *s;
    pthread_mutex_t lock;
    pthread_cond_t moved; /* some lane's ordered count changed, or the run failed */
    cursor *cursors;
    sized *order;  /* [lanes], longest first */
    size_t *open; /* lanes that tiles are dealt from */
    size_t open_count, open_max, next, jobs;
    uint64_t turns, ordered; /* tiles of all lanes: dealt in a sequence, through in_order */
    uint64_t tile, dealt, done, total; /* bytes */
    uint8_t *buffers;
    uint64_t buffer_bytes, tile_room;
    bl_segment *segments;
    bl_status status;
    bl_error *err;
} run;

static void fail(run *r, bl_status s, const bl_error *e)
{
    pthread_mutex_lock(&r->lock);
    if (r->status == BL_OK) {
        r->status = s;
        if (r->err && r->err->code == BL_OK) {
            *r->err = *e;
        }
    }
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

/* Cut the next tile of a lane. */
static void cut(run *r, size_t lane, bl_tile *t, bl_segment *segments)
{
    const bl_lane *l = &r->s->lanes[lane];
    cursor *c = &r->cursors[lane];
    *t = (bl_tile){.lane = lane, .offset = c->file_offset, .segments = segments};
    while (c->part < l->count && t->segment_count < MAX_SEGMENTS) {
        const bl_part *p = &l->parts[c->part];
        uint64_t left = p->nbytes - c->part_offset, room = r->tile - t->nbytes, take = left;
        if (take > room) {
            take = room - room % p->granule;
        }
        if (take == 0 && left != 0) {
            break;
        }
        if (take != 0) {
            segments[t->segment_count++] = (bl_segment){.part = c->part, .offset = c->part_offset, .nbytes = take};
            t->nbytes += take;
        }
        c->part_offset += take;
        if (c->part_offset == p->nbytes) {
            c->part++;
            c->part_offset = 0;
        }
    }
    c->file_offset += t->nbytes;
    c->left -= t->nbytes;
    t->last = c->part == l->count;
    c->finished = t->last;
    c->dealt++;
}

/* Does so much of what is left lie in one lane that it must go on without a pause, or end after all others? */
static bool is_long(const run *r, uint64_t left)
{
    return left >= (r->total - r->dealt) / r->jobs;
}

/* The open lane with the fewest tiles on their way, which would wait for each other. Among equal ones a long lane, the longest
 * first; then the one nearest its end, so that files become complete one after the other. */
static size_t choose(const run *r)
{
    size_t best = 0;
    for (size_t i = 1; i < r->open_count; i++) {
        const cursor *c = &r->cursors[r->open[i]], *b = &r->cursors[r->open[best]];
        uint64_t mine = c->dealt - c->ordered, its = b->dealt - b->ordered;
        bool more = c->left > b->left, either = is_long(r, c->left) || is_long(r, b->left);
        if (mine < its || (mine == its && c->left != b->left && more == either)) {
            best = i;
        }
    }
    return best;
}

/* As many lanes as workers, and every long one; in a sequence one. */
static void open_lanes(run *r)
{
    if (r->s->sequence) {
        if (r->open_count == 0 && r->next < r->s->lane_count) {
            r->open[r->open_count++] = r->next++;
        }
        return;
    }
    while (r->next < r->s->lane_count && r->open_count < r->open_max &&
           (r->open_count < r->jobs || is_long(r, r->order[r->next].bytes))) {
        r->open[r->open_count++] = r->order[r->next++].lane;
    }
}

/* Deal a tile to a worker; false when there are none left or the run is over. *turn is its place in its lane. */
static bool deal(run *r, int worker, bl_tile *t, uint64_t *turn)
{
    bool got = false;
    pthread_mutex_lock(&r->lock);
    open_lanes(r);
    if (r->status == BL_OK && r->open_count > 0) {
        size_t at = choose(r), lane = r->open[at];
        cut(r, lane, t, r->segments + (size_t)worker * MAX_SEGMENTS);
        *turn = r->s->sequence ? r->turns++ : r->cursors[lane].dealt - 1;
        r->dealt += t->nbytes;
        if (r->cursors[lane].finished) {
            r->open[at] = r->open[--r->open_count];
        }
        got = true;
    }
    pthread_mutex_unlock(&r->lock);
    if (got) {
        uint8_t *base = r->buffers + (uint64_t)worker * r->buffer_bytes;
        t->worker = worker;
        t->data = base + t->offset % BL_IO_ALIGN;
        t->scratch = base + r->tile_room;
    }
    return got;
}

/* Wait until all earlier tiles of the lane, in a sequence of all lanes, went through; false when the run failed. Earlier tiles are
 * held by workers that wait for still earlier ones only, so the first of them can always go on. */
static bool wait_turn(run *r, size_t lane, uint64_t turn)
{
    pthread_mutex_lock(&r->lock);
    const uint64_t *ordered = r->s->sequence ? &r->ordered : &r->cursors[lane].ordered;
    while (r->status == BL_OK && *ordered != turn) {
        pthread_cond_wait(&r->moved, &r->lock);
    }
    bool ok = r->status == BL_OK;
    pthread_mutex_unlock(&r->lock);
    return ok;
}

static void pass_turn(run *r, const bl_tile *t)
{
    pthread_mutex_lock(&r->lock);
    r->cursors[t->lane].ordered++;
    r->ordered++;
    r->done += t->nbytes;
    uint64_t done = r->done;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
    if (r->s->progress) {
        r->s->progress(r->s->progress_arg, done, r->total);
    }
}

static void worker_loop(void *arg, int64_t item, int worker)
{
    run *r = arg;
    bl_tile t;
    uint64_t turn;
    bl_error e;
    bl_error_clear(&e);
    while (deal(r, worker, &t, &turn)) {
        bl_status s = BL_OK;
        if (r->s->cancelled && r->s->cancelled()) {
            s = bl_fail(&e, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
        } else {
            s = r->s->work(r->s->arg, &t, &e);
        }
        if (s == BL_OK && r->s->in_order) {
            if (!wait_turn(r, t.lane, turn)) {
                return;
            }
            s = r->s->in_order(r->s->arg, &t, &e);
        }
        if (s != BL_OK) {
            fail(r, s, &e);
            return;
        }
        pass_turn(r, &t);
    }
}

static int longer_first(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1) : (x->lane > y->lane) - (x->lane < y->lane);
}

/* Sizes of the lanes; returns the largest granule that matters. */
static uint64_t measure_lanes(run *r)
{
    uint64_t granule = 1;
    for (size_t i = 0; i < r->s->lane_count; i++) {
        const bl_lane *l = &r->s->lanes[i];
        for (size_t k = 0; k < l->count; k++) {
            uint64_t g = l->parts[k].granule < l->parts[k].nbytes ? l->parts[k].granule : l->parts[k].nbytes;
            granule = g > granule ? g : granule;
            r->cursors[i].left += l->parts[k].nbytes;
        }
        r->total += r->cursors[i].left;
        r->order[i] = (sized){.bytes = r->cursors[i].left, .lane = i};
    }
    qsort(r->order, r->s->lane_count, sizeof *r->order, longer_first);
    return granule;
}

/* Choose the tile and the number of threads so that all buffers stay inside the budget. */
static int plan_buffers(run *r, uint64_t granule)
{
    const bl_stream *s = r->s;
    int jobs = s->jobs > 0 ? s->jobs : 2 * bl_cpus_available();
    jobs = s->jobs <= 0 && jobs < 8 ? 8 : jobs;
    uint64_t most = r->total / MIN_TILE + 1; /* no more threads than there are tiles */
    jobs = (uint64_t)jobs > most ? (int)most : jobs;
    for (uint64_t tile = MAX_TILE;; tile /= 2) {
        r->tile = tile > granule ? tile : granule;
        r->tile_room = BL_READ_ROOM(r->tile);
        r->tile_room += (BL_IO_ALIGN - r->tile_room % BL_IO_ALIGN) % BL_IO_ALIGN;
        uint64_t scratch = s->scratch + r->tile / 16 * s->scratch_ratio;
        r->buffer_bytes = r->tile_room + (scratch + BL_IO_ALIGN - 1) / BL_IO_ALIGN * BL_IO_ALIGN;
        uint64_t fit = BL_STREAM_BUDGET / r->buffer_bytes;
        if ((uint64_t)jobs <= fit) {
            return jobs;
        }
        if (tile <= MIN_TILE || tile <= granule) {
            return fit > 1 ? (int)fit : 1;
        }
    }
}

/* Huge pages where there are any: the kernel pins the pages of a direct write one by one. */
static uint8_t *new_buffers(uint64_t bytes)
{
    uint8_t *p = aligned_alloc(HUGE_PAGE, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (p) {
        madvise(p, bytes, MADV_HUGEPAGE);
    }
    return p;
}

static bl_status allocate(run *r, int *jobs, bl_error *err)
{
    r->cursors = calloc(r->s->lane_count + 1, sizeof *r->cursors);
    r->order = calloc(r->s->lane_count + 1, sizeof *r->order);
    if (!r->cursors || !r->order) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for %zu files", r->s->lane_count);
    }
    *jobs = plan_buffers(r, measure_lanes(r));
    r->jobs = (size_t)*jobs;
    r->open_max = OPEN_LANES * r->jobs;
    r->open = calloc(r->open_max, sizeof *r->open);
    r->segments = calloc((size_t)*jobs * MAX_SEGMENTS, sizeof *r->segments);
    r->buffers = new_buffers((uint64_t)*jobs * r->buffer_bytes);
    return r->open && r->segments && r->buffers
               ? BL_OK
               : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for %d buffers of %llu bytes", *jobs,
                         (unsigned long long)r->buffer_bytes);
}

static bl_status start(run *r, bl_error *err)
{
    int jobs = 0;
    bl_pool *pool = NULL;
    bl_status s = allocate(r, &jobs, err);
    bool pinned = false;
    if (s == BL_OK && r->s->pin) {
        s = r->s->pin(r->s->pin_arg, r->buffers, (uint64_t)jobs * r->buffer_bytes, err);
        pinned = s == BL_OK;
    }
    if (s == BL_OK) {
        s = bl_pool_create(&pool, jobs, err);
    }
    if (s == BL_OK) {
        bl_pool_run(pool, jobs, worker_loop, r);
        s = r->status;
    }
    bl_pool_destroy(&pool);
    if (pinned) {
        r->s->unpin(r->s->pin_arg, r->buffers);
    }
    free(r->cursors);
    free(r->order);
    free(r->open);
    free(r->segments);
    free(r->buffers);
    return s;
}

bl_status bl_stream_run(const bl_stream *s, bl_error *err)
{
    run r = {.s = s, .err = err};
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.moved, NULL);
    bl_status result = start(&r, err);
    pthread_mutex_destroy(&r.lock);
    pthread_cond_destroy(&r.moved);
    return result;
}
