#include "tools/cli.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct cli_progress {
    pthread_mutex_t lock;
    const char *what;
    double start, last;
    uint64_t total; /* another one is another pass, timed anew */
    bool shown;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

cli_progress *cli_progress_begin(const char *what, bool quiet)
{
    if (quiet || !isatty(STDERR_FILENO)) return NULL;
    cli_progress *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->what = what;
    p->start = p->last = now();
    return p;
}

void cli_progress_update(void *progress, uint64_t done, uint64_t total)
{
    cli_progress *p = progress;
    if (!p || pthread_mutex_trylock(&p->lock)) return;
    double t = now();
    if (total != p->total) {
        p->start = t;
        p->total = total;
    }
    if (t - p->last >= 0.1 && total) {
        double rate = t > p->start ? (double)done / (t - p->start) : 0;
        double left = rate > 0 && done <= total ? (double)(total - done) / rate : 0;
        fprintf(stderr, "\r%s %3.0f%%  %.2f GB/s  %d:%02d left\033[K", p->what, 100.0 * (double)done / (double)total,
                rate * 1e-9, (int)(left / 60), (int)left % 60);
        fflush(stderr);
        p->last = t;
        p->shown = true;
    }
    pthread_mutex_unlock(&p->lock);
}

void cli_progress_line(cli_progress *p, const char *line)
{
    if (p) pthread_mutex_lock(&p->lock);
    fprintf(stderr, "%s%s\n", p && p->shown ? "\r\033[K" : "", line);
    if (p) {
        p->shown = false;
        pthread_mutex_unlock(&p->lock);
    }
}

void cli_progress_end(cli_progress **p)
{
    if (!*p) return;
    if ((*p)->shown) fprintf(stderr, "\r\033[K");
    pthread_mutex_destroy(&(*p)->lock);
    free(*p);
    *p = NULL;
}
