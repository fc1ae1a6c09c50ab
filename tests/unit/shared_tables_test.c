/* Tables that processes share: who fills them, what becomes of them when one dies, when they go. */
#include "runtime/shared_tables.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 3 << 20 };

static pid_t run; /* so that one run of this test does not meet another */

static bl_shared_key key_of(uint8_t which, uint64_t bytes)
{
    bl_shared_key k = {.bytes = bytes};
    memset(k.contents.b, 0x5a, sizeof k.contents.b);
    k.contents.b[0] = which;
    memcpy(k.contents.b + 1, &run, sizeof run);
    return k;
}

static bl_shared *open_key(const bl_shared_key *key)
{
    bl_shared *s;
    bl_error err = {0};
    if (bl_shared_open(&s, key, NULL, &err) != BL_OK) fail_msg("%s", err.message);
    return s;
}

static void fill(bl_shared *s)
{
    memset(bl_shared_memory(s), 7, BYTES);
    bl_shared_ready(s);
}

static bool is_whole(const bl_shared *s)
{
    for (int i = 0; i < BYTES; i++)
        if (bl_shared_memory(s)[i] != 7) return false;
    return true;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* It has the locks of what is open here, as whoever inherits a descriptor. */
static pid_t child(int (*work)(const bl_shared_key *key, int say), const bl_shared_key *key, int *heard)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t p = fork();
    if (p == 0) {
        close(ends[0]);
        alarm(60);
        _exit(work(key, ends[1]));
    }
    close(ends[1]);
    *heard = ends[0];
    return p;
}

static void hear(int end)
{
    char c;
    assert_int_equal(read(end, &c, 1), 1);
}

static int status_of(pid_t p)
{
    int status;
    assert_int_equal(waitpid(p, &status, 0), p);
    return status;
}

static void kill_child(pid_t p)
{
    kill(p, SIGKILL);
    assert_true(WIFSIGNALED(status_of(p)));
}

static bool silent; /* the file system does not say what it has */

int statvfs(const char *path, struct statvfs *out)
{
    struct statfs v;
    if (silent || statfs(path, &v) != 0) return -1;
    *out = (struct statvfs){.f_frsize = (unsigned long)v.f_frsize, .f_bavail = v.f_bavail};
    return 0;
}

/* ---- children */

static int open_and_wait(const bl_shared_key *key, int say)
{
    bl_shared *s;
    if (bl_shared_open(&s, key, NULL, NULL) != BL_OK) return 10;
    if (!bl_shared_filled(s)) bl_shared_memory(s)[0] = 7; /* and no further */
    else bl_shared_ready(s);
    if (write(say, "", 1) != 1) return 11;
    pause();
    return 12;
}

static void wake(int number)
{
    (void)number;
}

static int open_and_close(const bl_shared_key *key, int say)
{
    bl_shared *s;
    if (bl_shared_open(&s, key, NULL, NULL) != BL_OK) return 10;
    signal(SIGUSR1, wake);
    if (write(say, "", 1) != 1) return 11;
    pause();
    bl_shared_close(&s);
    return 0;
}

static int fill_and_wait(const bl_shared_key *key, int say)
{
    bl_shared *s;
    if (bl_shared_open(&s, key, NULL, NULL) != BL_OK) return 10;
    if (!bl_shared_filled(s)) fill(s);
    if (write(say, "", 1) != 1) return 11;
    pause();
    return 12;
}

/* 0: another filled it; 1: this one. */
static int use(const bl_shared_key *key, int say)
{
    bl_shared *s;
    if (bl_shared_open(&s, key, NULL, NULL) != BL_OK) return 10;
    const bool filled = bl_shared_filled(s);
    if (!filled) fill(s);
    const bool whole = is_whole(s);
    bl_shared_close(&s);
    if (write(say, "", 1) != 1) return 11;
    return !whole ? 12 : filled ? 0 : 1;
}

static int write_to_it(const bl_shared_key *key, int say)
{
    bl_shared *s = NULL;
    (void)say;
    signal(SIGSEGV, SIG_DFL);
    if (bl_shared_open(&s, key, NULL, NULL) != BL_OK) return 10;
    bl_shared_ready(s);
    bl_shared_memory(s)[5] = 9;
    return 0;
}

static int leave(const bl_shared_key *key, int say)
{
    bl_shared *s;
    (void)say;
    if (bl_shared_open(&s, key, NULL, NULL) != BL_OK) return 10;
    bl_shared_leave_all();
    return 0;
}

/* ---- tests */

static void test_first_fills_last_removes(void **state)
{
    const bl_shared_key key = key_of(1, BYTES);
    char path[128];
    int heard;
    bl_shared *s = open_key(&key), *again;
    snprintf(path, sizeof path, "%s", bl_shared_path(s));
    assert_false(bl_shared_filled(s));
    assert_int_equal((uintptr_t)bl_shared_memory(s) % 4096, 0);
    fill(s);
    const bl_shared_room room = bl_shared_look(&key);
    assert_in_range(room.there, BYTES, BL_SHARED_HEAD + BYTES);
    assert_int_equal(status_of(child(use, &key, &heard)), 0);
    assert_true(exists(path)); /* it was not the last */
    again = open_key(&key); /* twice in one process are two users */
    assert_true(bl_shared_filled(again));
    bl_shared_close(&s);
    assert_true(exists(path) && is_whole(again));
    bl_shared_close(&again);
    assert_null(again);
    assert_false(exists(path));
    assert_int_equal(bl_shared_look(&key).there, 0);
}

static void test_no_process_spoils_it(void **state)
{
    const bl_shared_key key = key_of(2, BYTES);
    int heard;
    bl_shared *s = open_key(&key);
    fill(s);
    const int status = status_of(child(write_to_it, &key, &heard));
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    assert_true(is_whole(s));
    bl_shared_close(&s);
}

/* Another waits meanwhile, and takes over. */
static void test_filler_is_killed(void **state)
{
    const bl_shared_key key = key_of(3, BYTES);
    int first, second;
    const pid_t filler = child(open_and_wait, &key, &first);
    hear(first);
    const pid_t waiter = child(use, &key, &second);
    usleep(200000);
    assert_int_equal(waitpid(waiter, NULL, WNOHANG), 0);
    kill_child(filler);
    hear(second);
    assert_int_equal(WEXITSTATUS(status_of(waiter)), 1);
    assert_int_equal(bl_shared_look(&key).there, 0);
}

/* The filler gives up: those who wait make a new one. */
static void test_filler_closes(void **state)
{
    const bl_shared_key key = key_of(4, BYTES);
    int first, second;
    const pid_t filler = child(open_and_close, &key, &first);
    hear(first);
    const pid_t waiter = child(fill_and_wait, &key, &second);
    usleep(200000);
    assert_int_equal(waitpid(waiter, NULL, WNOHANG), 0);
    kill(filler, SIGUSR1);
    assert_int_equal(status_of(filler), 0);
    hear(second);
    bl_shared *s = open_key(&key);
    assert_true(bl_shared_filled(s) && is_whole(s));
    kill_child(waiter);
    bl_shared_close(&s);
    assert_int_equal(bl_shared_look(&key).there, 0);
}

typedef struct left {
    char path[128];
    uint64_t bytes;
    int count;
} left;

/* Of this test, wherever else there may be some. */
static void note_left(void *arg, const char *path, uint64_t bytes)
{
    left *l = arg;
    if (strcmp(path, l->path) != 0) return;
    l->bytes = bytes;
    l->count++;
}

static void test_users_are_killed(void **state)
{
    const bl_shared_key key = key_of(5, BYTES);
    int a, b;
    left l = {.count = 0};
    const pid_t first = child(fill_and_wait, &key, &a);
    hear(a);
    const pid_t second = child(open_and_wait, &key, &b);
    hear(b);
    kill_child(first);
    bl_shared *s = open_key(&key);
    snprintf(l.path, sizeof l.path, "%s", bl_shared_path(s));
    assert_true(bl_shared_filled(s) && is_whole(s));
    bl_shared_close(&s);
    assert_true(exists(l.path)); /* the second has it */
    bl_shared_each_left(note_left, &l);
    assert_int_equal(l.count, 0);
    kill_child(second);
    bl_shared_each_left(note_left, &l);
    assert_int_equal(l.count, 1);
    assert_in_range(l.bytes, BYTES, BL_SHARED_HEAD + BYTES);
    s = open_key(&key);
    assert_true(bl_shared_filled(s) && is_whole(s));
    bl_shared_close(&s);
    assert_false(exists(l.path));
}

static void test_leaving_at_once(void **state)
{
    const bl_shared_key key = key_of(6, BYTES);
    int heard;
    assert_int_equal(status_of(child(leave, &key, &heard)), 0);
    assert_int_equal(bl_shared_look(&key).there, 0);
    const pid_t user = child(fill_and_wait, &key, &heard);
    hear(heard);
    assert_int_equal(status_of(child(leave, &key, &heard)), 0);
    assert_true(bl_shared_look(&key).there > 0); /* another uses it */
    kill_child(user);
    bl_shared *s = open_key(&key);
    bl_shared_close(&s);
}

/* What lies under the name is of another version, cut short, or something else. */
static void test_wrong_head(void **state)
{
    const struct {
        off_t at;
        const char *bytes;
    } damages[] = {{0, "X"}, {8, "\2"}, {12, "\0"}, {16, "\1"}, {24, "X"}, {-1, ""}};
    const bl_shared_key key = key_of(7, BYTES);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        int heard;
        bl_error err = {0};
        const pid_t user = child(fill_and_wait, &key, &heard);
        hear(heard);
        bl_shared *s = open_key(&key), *other;
        const int fd = open(bl_shared_path(s), O_RDWR);
        if (damages[i].at < 0) assert_int_equal(ftruncate(fd, BYTES), 0);
        else assert_int_equal(pwrite(fd, damages[i].bytes, 1, damages[i].at), 1);
        close(fd);
        assert_int_equal(bl_shared_open(&other, &key, NULL, &err), BL_E_IO);
        assert_non_null(strstr(err.message, "is in use"));
        assert_string_equal(err.path, bl_shared_path(s));
        assert_true(exists(err.path));
        assert_null(other);
        kill_child(user);
        char path[128];
        snprintf(path, sizeof path, "%s", bl_shared_path(s));
        bl_shared_close(&s); /* the last one's is removed, damaged or not */
        assert_false(exists(path));
        const int left_over = open(path, O_RDWR | O_CREAT, 0600);
        assert_int_equal(write(left_over, "something else", 14), 14);
        close(left_over);
        s = open_key(&key);
        assert_false(bl_shared_filled(s));
        fill(s);
        assert_true(is_whole(s));
        bl_shared_close(&s);
    }
}

static void test_no_room(void **state)
{
    const bl_shared_key key = key_of(8, (uint64_t)1 << 50);
    bl_shared *s;
    bl_error err = {0};
    assert_int_equal(bl_shared_open(&s, &key, NULL, &err), BL_E_NOMEM);
    assert_non_null(strstr(err.message, "take 1048576.00 GiB"));
    assert_non_null(strstr(err.message, "free"));
    assert_null(s);
    assert_false(exists(err.path));
}

/* In a file system of 1 MiB of which nobody knows: found out page by page. */
static int open_in_little(const bl_shared_key *key, int say)
{
    bl_shared *s;
    bl_error err = {0};
    (void)say;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", BL_SHARED_FOLDER, "tmpfs", 0, "size=1m") != 0)
        return 77;
    silent = true;
    if (bl_shared_open(&s, key, NULL, &err) != BL_E_NOMEM || !strstr(err.message, "out of shared memory")) return 1;
    return exists(err.path) ? 2 : 0;
}

static void test_room_runs_out(void **state)
{
    const bl_shared_key key = key_of(9, BYTES);
    int heard;
    const int status = status_of(child(open_in_little, &key, &heard));
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) print_message("no mount here: running out of shared memory halfway is NOT tested\n");
    else assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    struct stat st;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_fills_last_removes), cmocka_unit_test(test_no_process_spoils_it),
        cmocka_unit_test(test_filler_is_killed),         cmocka_unit_test(test_filler_closes),
        cmocka_unit_test(test_users_are_killed),         cmocka_unit_test(test_leaving_at_once),
        cmocka_unit_test(test_wrong_head),               cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_room_runs_out),
    };
    if (stat(BL_SHARED_FOLDER, &st) != 0) {
        printf("no " BL_SHARED_FOLDER ": shared tables are NOT tested\n");
        return 77;
    }
    run = getpid();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
