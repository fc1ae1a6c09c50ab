/* From nothing to the first token over HTTP: the server is started, the model opened, a prompt posted, its first token read. What the
 * prompt costs on a model that is already open is measured beside it: the rest is what starting costs. */
#include "tools/bench.h"

#include "runtime/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_PROMPT = 4096 };

typedef struct start_run {
    const char *path;
    bl_model_options options;
    int32_t ids[MAX_PROMPT];
    int64_t count;
    bl_model *open;  /* for the prompt alone */
    float *logits;
    bl_server *server; /* of the last start, ended before the next */
    bl_model *model;
} start_run;

static bl_status run_prompt(void *arg, bl_error *err)
{
    start_run *r = arg;
    bl_sequence *s;
    BL_TRY(bl_sequence_create(&s, r->open, err));
    const bl_span span = {.sequence = s, .ids = r->ids, .count = r->count, .logits_from = r->count - 1};
    bl_status status = bl_forward(r->open, &span, 1, r->logits, NULL, err);
    bl_sequence_destroy(&s);
    return status;
}

/* Post the prompt and wait for an answer of one token. */
static bl_status ask(const start_run *r, int fd, bl_error *err)
{
    char body[MAX_PROMPT * 12 + 128], head[256], answer[4096];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\":1,\"temperature\":0,\"prompt\":[");
    for (int64_t i = 0; i < r->count; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, i ? ",%d" : "%d", (int)r->ids[i]);
    n += (size_t)snprintf(body + n, sizeof body - n, "]}");
    size_t m = (size_t)snprintf(head, sizeof head,
                                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                                "Content-Length: %zu\r\n\r\n",
                                n);
    if (send(fd, head, m, MSG_NOSIGNAL | MSG_MORE) != (ssize_t)m || send(fd, body, n, MSG_NOSIGNAL) != (ssize_t)n)
        return bl_fail(err, BL_E_IO, NULL, NULL, -1, "the request could not be sent");
    size_t got = 0;
    for (ssize_t k; got < sizeof answer - 1 && (k = recv(fd, answer + got, sizeof answer - 1 - got, 0)) > 0;)
        got += (size_t)k;
    answer[got] = 0;
    if (!strstr(answer, "\"completion_tokens\":1"))
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "the server gave no token: %.200s", answer);
    return BL_OK;
}

static bl_status run_start(void *arg, bl_error *err)
{
    start_run *r = arg;
    bl_server_options o = bl_server_defaults();
    o.model_name = "model";
    BL_TRY(bl_server_start(&r->server, &o, err));
    BL_TRY(bl_model_open(&r->model, r->path, &r->options, err));
    BL_TRY(bl_server_ready(r->server, r->model, err));
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)bl_server_port(r->server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bl_status status = BL_OK;
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) != 0)
        status = bl_fail(err, BL_E_IO, NULL, NULL, -1, "the server could not be reached");
    if (status == BL_OK) status = ask(r, fd, err);
    if (fd >= 0) close(fd);
    return status;
}

static void end_start(void *arg)
{
    start_run *r = arg;
    bl_server_stop(&r->server);
    bl_model_close(&r->model);
}

static bl_status measure(bench *b, start_run *r, bl_error *err)
{
    int counts[2], n = bench_thread_counts(b, counts);
    BL_TRY(bench_threads(b, counts[n - 1], err)); /* the model makes its own pool, of as many */
    r->options.threads = counts[n - 1];
    BL_TRY(bl_model_open(&r->open, r->path, &r->options, err));
    int vocab = bl_model_config(r->open)->vocab_size;
    if (!(r->logits = malloc((size_t)vocab * sizeof *r->logits))) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for logits");
    for (int64_t i = 0; i < r->count; i++)
        r->ids[i] = (int32_t)((i * 7919 + 13) % vocab);
    const bench_subject subjects[] = {
        {.name = "prompt alone, model open", .run = run_prompt, .arg = r, .work = 1, .unit = "prompt"},
        {.name = "start to first token", .run = run_start, .reset = end_start, .arg = r, .work = 1, .unit = "start",
         .ceiling = {{0, 1}}, .ceilings = 1},
    };
    return bench_run(b, "server start; the prompt's own compute is the ceiling", subjects, 2, err);
}

int bench_start(int argc, char **argv)
{
    static const char details[] = "Every start opens the model anew; its files stay in the page cache, so that this is a warm start.\n";
    bench b = {.rounds = 9};
    int64_t prompt = 16;
    const char *args[1];
    int count, check = BL_CHECK_FAST;
    const cli_option own[] = {
        {"prompt-tokens", CLI_INT(1, MAX_PROMPT), &prompt, "N", "tokens in the prompt (default 16)"},
        {"check", CLI_WORD(cli_checks), &check, "LEVEL", "what is proven at start: none, fast or full (default fast)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench start", .usage = "[MODEL] [options]", .details = details, .max_args = 1,
                     .summary = "Measure the time from nothing to the first token over HTTP."};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err;
    bl_error_clear(&err);
    start_run *r = bench_record(&b, sizeof *r);
    bl_status s = r ? BL_OK : bl_fail(&err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    if (s == BL_OK) {
        r->path = count ? args[0] : cli_default_model();
        r->count = prompt;
        r->options = (bl_model_options){.check = (bl_check)check, .cpu = b.cpu, .need_tokenizer = true};
        s = measure(&b, r, &err);
        end_start(r);
        bl_model_close(&r->open);
        free(r->logits);
    }
    return bench_end(&b, s, &err);
}
