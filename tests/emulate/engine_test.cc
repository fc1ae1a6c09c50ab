/* The engine by itself: threads meet, blocks reach one another, and what a kernel forgets is seen. */
#include "tests/emulate/engine.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace emu;

static thread_local int shared[MOST_THREADS];
static int wrong, failures;

static void expect(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "FAIL %s\n", what);
    failures++;
}

static int from_lane(int x, int lane)
{
    struct message {
        int x, lane;
    } in = {x, lane};
    int out;
    meet_warp("a shuffle", ~0u, &in, &out, sizeof in, sizeof out, [](const void *all_in, void *all_out) {
        const message *m = (const message *)all_in;
        for (int i = 0; i < LANES; i++) ((int *)all_out)[i] = m[m[i].lane].x;
    });
    return out;
}

/* Reverses a block's numbers through shared memory, adding up by warps; barriers: how many of two. */
static void reverse(int barriers)
{
    int sum = (int)here.thread;
    for (int m = LANES / 2; m; m /= 2) sum += from_lane(sum, (int)(here.thread % LANES) ^ m);
    shared[here.thread] = sum;
    if (barriers > 0) barrier_sync(0, 0);
    const unsigned other = here.threads - 1 - here.thread, first = other / LANES * LANES;
    if (shared[other] != (int)(LANES * first + LANES * (LANES - 1) / 2)) wrong++;
    if (barriers > 1) barrier_sync(0, 0);
    shared[here.thread] = -1;
}

/* Reads both kinds of shared memory of the next block. */
static void look_next(bool stay)
{
    int *const mine = (int *)dynamic_memory();
    mine[here.thread] = (int)(here.block[0] * 1000 + here.thread);
    shared[here.thread] = (int)here.block[0];
    cluster_arrive();
    cluster_wait();
    const unsigned next = (here.rank + 1) % here.cluster, block = here.block[0] - here.rank + next;
    if (*(int *)at(map_address(shared_address(mine + here.thread), next)) != (int)(block * 1000 + here.thread)) wrong++;
    if (*(int *)at(map_address(shared_address(shared + here.thread), next)) != (int)block) wrong++;
    if (!stay) return;
    cluster_arrive();
    cluster_wait();
}

/* Takes what is copied, without looking whether it is there. */
static void take_copy(bool wait)
{
    int *const mine = (int *)dynamic_memory();
    bool there = false;
    const uint32_t to = shared_address(mine + here.thread);
    later([&there, to] {
        *(int *)at(to) = 7;
        there = true;
    });
    if (wait) wait_until("a copy", [&there] { return there; });
    if (mine[here.thread] != 7) wrong++;
    if (!wait) wait_until("a copy", [&there] { return there; });
}

static int wrong_of(const char *name, const shape &s, borrowed<void()> kernel)
{
    wrong = 0;
    for (int i = 0; i < 30; i++) run(name, s, kernel);
    return wrong;
}

/* Does the kernel end the program with a line that has these words? */
static bool dies_of(const char *words, const shape &s, borrowed<void()> kernel)
{
    int ends[2], status;
    char said[512] = "";
    if (pipe(ends)) return false;
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        for (int i = 0; i < 30; i++) run("a kernel", s, kernel);
        _exit(0);
    }
    close(ends[1]);
    for (size_t n = 0; n < sizeof said - 1;) {
        const ssize_t r = read(ends[0], said + n, sizeof said - 1 - n);
        if (r <= 0) break;
        n += (size_t)r;
    }
    close(ends[0]);
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3 && strstr(said, words) && strstr(said, "a kernel")) return true;
    fprintf(stderr, "want \"%s\", have \"%s\"\n", words, said);
    return false;
}

int main()
{
    const shape alone = {{3, 2, 1}, 256, 1, 1024}, pairs = {{8, 1, 1}, 96, 4, 2048};
    /* first, before there are OS threads, which a fork leaves behind */
    expect(dies_of("barrier 0", alone, [] { if (here.thread != 5) barrier_sync(0, 0); }), "a thread that does not come");
    expect(dies_of("a shuffle", alone, [] { if (here.thread != 40) from_lane(0, 0); }), "a lane that does not come");
    expect(dies_of("other threads", alone, [] { barrier_sync(1, here.thread < 128 ? 128 : 256); }), "a barrier of unequal counts");
    expect(dies_of("that never comes", alone, [] { wait_until("what that never comes", [] { return false; }); }), "a wait without end");
    expect(dies_of("outside of shared memory", alone, [] { *(int *)at(shared_address(dynamic_memory()) + 1024) = 0; }), "an address outside");
    expect(dies_of("a block that has ended", pairs, [] { look_next(false); }), "a block that has ended");
    expect(wrong_of("reverse", alone, [] { reverse(2); }) == 0, "barriers");
    expect(wrong_of("reverse", alone, [] { reverse(1); }) > 0, "the second barrier dropped");
    expect(wrong_of("reverse", alone, [] { reverse(0); }) > 0, "both barriers dropped");
    expect(wrong_of("look", pairs, [] { look_next(true); }) == 0, "clusters");
    expect(wrong_of("copy", alone, [] { take_copy(true); }) == 0, "copies");
    expect(wrong_of("copy", alone, [] { take_copy(false); }) > 0, "the wait for a copy dropped");
    return failures != 0;
}
