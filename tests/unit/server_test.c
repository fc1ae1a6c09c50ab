/* The whole server in one process on the stub model: many clients at once, some of which leave, and an end in the middle. Meant for the
 * thread sanitizer; what the answers hold is tested in tests/py. */
#include "runtime/server.h"
#include "tests/stub/stub_model.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const bl_server_options defaults = {.host = "127.0.0.1",
                                           .model_name = "stub",
                                           .max_requests = 4,
                                           .max_queue = 64,
                                           .max_body = 1 << 20,
                                           .step_tokens = 32,
                                           .timeout = 60,
                                           .ping = 15};

static bl_server *start(const bl_server_options *o, bl_model *m)
{
    bl_server *s;
    bl_error err = {0};
    assert_int_equal(bl_server_start(&s, o, &err), BL_OK);
    if (m)
        assert_int_equal(bl_server_ready(s, m, &err), BL_OK);
    return s;
}

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 ? fd : -1;
}

static bool post(int fd, const char *body)
{
    char request[1024];
    int n = snprintf(request, sizeof request,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    return send(fd, request, (size_t)n, MSG_NOSIGNAL) == n;
}

/* What comes until the server closes, or cap - 1 bytes of it. */
static size_t collect(int fd, char *buf, size_t cap)
{
    size_t n = 0;
    for (ssize_t k; n < cap - 1 && (k = recv(fd, buf + n, cap - 1 - n, 0)) > 0;)
        n += (size_t)k;
    buf[n] = 0;
    return n;
}

typedef struct client {
    pthread_t thread;
    int port, number;
    int whole, streams, refused, odd; /* answers by kind; odd = none of them */
} client;

static void one_request(client *c, int i, char *buf, size_t cap)
{
    static const char *const bodies[4] = {
        "{\"prompt\": \"hello hello\", \"max_tokens\": 8, \"temperature\": 0}",
        "{\"prompt\": [10, 20, 30], \"max_tokens\": 12, \"temperature\": 0, \"stream\": true, \"n\": 2, \"logprobs\": 2}",
        "{\"prompt\": \"x\", \"max_tokens\": 3000, \"temperature\": 0, \"stream\": true}",
        "{\"prompt\": ",
    };
    int fd = dial(c->port), kind = (i + c->number) % 4;
    if (fd < 0 || !post(fd, bodies[kind])) {
        c->odd++;
    } else if (kind == 2) { /* leaves, sooner or later */
        usleep((unsigned)(i % 7) * 1000);
    } else {
        collect(fd, buf, cap);
        c->whole += strstr(buf, " 200 ") && strstr(buf, "\"total_tokens\":");
        c->streams += strstr(buf, " 200 ") && strstr(buf, "data: [DONE]");
        c->refused += strstr(buf, " 400 ") && strstr(buf, "invalid_request_error");
    }
    if (fd >= 0)
        close(fd);
}

static void *run_client(void *arg)
{
    client *c = arg;
    enum { CAP = 1 << 16 };
    char *buf = malloc(CAP);
    for (int i = 0; buf && i < 24; i++)
        one_request(c, i, buf, CAP);
    free(buf);
    return NULL;
}

static void test_crowd(void **state)
{
    enum { CLIENTS = 6 };
    client c[CLIENTS] = {{0}};
    bl_model *m = stub_open(&(stub_options){.context = 4096, .step_us = 200, .tokenizer = true});
    bl_server *s = start(&defaults, m);
    for (int i = 0; i < CLIENTS; i++) {
        c[i].port = bl_server_port(s);
        c[i].number = i;
        assert_int_equal(pthread_create(&c[i].thread, NULL, run_client, &c[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].odd, 0);
        assert_int_equal(c[i].whole, 6);
        assert_int_equal(c[i].streams, 6);
        assert_int_equal(c[i].refused, 6);
    }
    assert_true(bl_server_wait_idle(s, 60)); /* those that left are gone too */
    for (int i = 0; i < 2000 && stub_counted(m)->live > 0; i++)
        usleep(1000);
    assert_int_equal(stub_counted(m)->live, 0);
    bl_server_stop(&s);
    assert_null(s);
    bl_model_close(&m);
}

/* Stopped with streams and a whole answer under way: each gets its end. */
static void test_stop_in_the_middle(void **state)
{
    enum { STREAMS = 3 };
    char buf[STREAMS + 1][1 << 14];
    int fd[STREAMS + 1];
    bl_model *m = stub_open(&(stub_options){.context = 4096, .step_us = 2000, .tokenizer = true});
    bl_server *s = start(&defaults, m);
    for (int i = 0; i <= STREAMS; i++) {
        fd[i] = dial(bl_server_port(s));
        assert_true(post(fd[i], i < STREAMS ? "{\"prompt\": \"x\", \"max_tokens\": 4000, \"temperature\": 0, \"stream\": true}"
                                            : "{\"prompt\": \"x\", \"max_tokens\": 4000, \"temperature\": 0}"));
    }
    for (int i = 0; i < 5000 && stub_counted(m)->live < STREAMS + 1; i++)
        usleep(1000);
    assert_int_equal(stub_counted(m)->live, STREAMS + 1);
    bl_server_drain(s);
    assert_false(bl_server_wait_idle(s, 0.01));
    assert_int_equal(dial(bl_server_port(s)), -1);
    bl_server_stop(&s);
    assert_int_equal(stub_counted(m)->live, 0);
    for (int i = 0; i <= STREAMS; i++) {
        collect(fd[i], buf[i], sizeof buf[i]);
        close(fd[i]);
        assert_non_null(strstr(buf[i], i < STREAMS ? " 200 " : " 503 "));
        if (i < STREAMS) {
            assert_non_null(strstr(buf[i], "\"finish_reason\":\"abort\""));
            assert_non_null(strstr(buf[i], "data: [DONE]\n\n"));
        }
    }
    bl_model_close(&m);
}

static void test_never_ready(void **state)
{
    char buf[1024];
    bl_server *s = start(&defaults, NULL);
    int fd = dial(bl_server_port(s));
    assert_true(post(fd, "{\"prompt\": \"x\"}"));
    collect(fd, buf, sizeof buf);
    assert_non_null(strstr(buf, " 503 "));
    assert_non_null(strstr(buf, "Retry-After: "));
    close(fd);
    bl_server_stop(&s);
}

static void test_refused(void **state)
{
    bl_server *s = start(&defaults, NULL), *other;
    bl_server_options o = defaults;
    bl_error err = {0};
    o.port = bl_server_port(s);
    assert_int_equal(bl_server_start(&other, &o, &err), BL_E_IO);
    assert_null(other);
    assert_non_null(strstr(err.message, "127.0.0.1 port"));
    o.host = "no.such.host.invalid";
    bl_error_clear(&err);
    assert_int_equal(bl_server_start(&other, &o, &err), BL_E_USAGE);
    bl_model *m = stub_open(&(stub_options){.context = 4096}); /* no tokenizer */
    bl_error_clear(&err);
    assert_int_equal(bl_server_ready(s, m, &err), BL_E_INPUT);
    bl_server_stop(&s);
    bl_model_close(&m);
    bl_server_stop(&s); /* NULL is fine */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_stop_in_the_middle),
        cmocka_unit_test(test_never_ready),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
