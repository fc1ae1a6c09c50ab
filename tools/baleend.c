/* baleend: serve a model over HTTP. The command line, the signals, and the two lines that are printed; the server itself is in runtime/. */
#include "formats/file.h"
#include "formats/json.h"
#include "kernels/cpu.h"
#include "runtime/scheduler.h"
#include "runtime/server.h"
#include "runtime/shared_tables.h"
#include "tools/cli.h"
#include "tools/memory_plan.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_BODY ((int64_t)1 << 40)
#define MAX_TOKENS 1000000000

static const char details[] =
    "MODEL is a packed model or an HF checkpoint folder; without it the demo model is served.\n"
    "The server listens at once and says so, unless MODEL can be refused at a glance; /health answers 503 until the model is\n"
    "ready, which a second line reports.\n"
    "Routes: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /server_info, /health, /metrics.\n"
    "On a GPU all memory is taken at the start by a plan: a model that does not fit is refused with the numbers, the cache gets what\n"
    "is left (up to --max-requests times --max-context tokens). --plan prints it and ends; --memory plans for a GPU that is not here.\n"
    "SIGTERM or SIGINT: no new requests, running ones may take --drain seconds, then they are ended; exit 0. A second one\n"
    "ends the server at once.\n";

typedef struct settings {
    bl_server_options server;
    bl_model_options model;
    const char *path;
    double drain;
    bool plan, json;  /* print it, and how */
    uint64_t memory;  /* to plan for */
    char *own_key, *own_name; /* where they are not borrowed from the command line */
} settings;

static atomic_bool ready;

/* Wait for the first signal. While the model is being loaded nothing is under way that could be finished. */
static void *wait_for_signal(void *arg)
{
    int sig;
    sigwait(arg, &sig);
    if (!atomic_load(&ready)) {
        fprintf(stderr, "baleend: stopped while loading\n");
        bl_shared_leave_all();
        _exit(0);
    }
    return NULL;
}

/* From the engine: it goes on listening, /health says the same. */
static void report(const bl_error *what)
{
    cli_report("baleend", what->code, what);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void say_tables(const bl_model *m, const bl_memory_plan *plan)
{
    uint64_t huge;
    bool filled;
    const char *shared = bl_model_shared_tables(m, &filled);
    printf("baleend: Engram tables: %s: %s", cli_engram_places[plan->engram], plan->engram_why);
    if (shared)
        printf("; in %s, %s", shared, filled ? "which was filled" : "filled");
    if (bl_model_huge_pages(m, &huge))
        printf("; %.0f of %.0f MiB in huge pages", (double)huge / (1 << 20), (double)plan->engram_bytes / (1 << 20));
    printf("\n");
}

/* Arguments: where to. */
static void say_left(void *arg, const char *path, uint64_t bytes)
{
    fprintf(arg, "baleend: %s: %.2f GiB of Engram tables are left by a process that has ended (rm %s)\n", path,
            (double)bytes / (1 << 30), path);
}

static void say_ready(const settings *o, const bl_model *m, const bl_server *server, double seconds)
{
    const bl_config *c = bl_model_config(m);
    int64_t context = c->max_position_embeddings;
    if (o->server.max_context > 0 && o->server.max_context < context)
        context = o->server.max_context;
    printf("baleend: ready in %.0f ms: %s, context %lld, %d sequence%s at once (%.1f MB each when full), %d waiting, %d connection%s, "
           "thinking %s, on %s\n",
           seconds * 1e3, o->server.model_name, (long long)context, o->server.max_requests,
           bl_plural((uint64_t)o->server.max_requests), (double)bl_sequence_bytes(m, context) * 1e-6, o->server.max_queue,
           bl_server_connections(server), bl_plural((uint64_t)bl_server_connections(server)),
           o->server.thinking ? "on" : "off", strcmp(bl_model_device(m), "cpu") == 0 ? "the CPU" : "the GPU");
    const bl_error *no_gpu = bl_model_no_gpu(m);
    if (no_gpu)
        printf("baleend: the GPU is not used: %s\n", no_gpu->message);
    const bl_memory_plan *plan = bl_model_memory(m);
    if (plan && plan->device == BL_DEVICE_CUDA && plan->engram)
        say_tables(m, plan);
    if (plan && plan->device == BL_DEVICE_CUDA)
        bl_shared_each_left(say_left, stdout);
    fflush(stdout);
}

static int serve(const settings *o, sigset_t *signals)
{
    bl_server *server = NULL;
    bl_model *model = NULL;
    pthread_t waiter;
    bl_error err;
    bl_error_clear(&err);
    double begin = seconds_now();
    bl_status s = bl_model_look(o->path, &err);
    if (s == BL_OK)
        s = bl_server_start(&server, &o->server, &err);
    if (s == BL_OK && pthread_create(&waiter, NULL, wait_for_signal, signals) != 0)
        s = bl_fail(&err, BL_E_NOMEM, NULL, NULL, -1, "no thread for signals");
    if (s == BL_OK) {
        const char *host = o->server.host;
        printf(strchr(host, ':') ? "baleend: listening on http://[%s]:%d\n" : "baleend: listening on http://%s:%d\n", host,
               bl_server_port(server));
        fflush(stdout);
        s = bl_model_open(&model, o->path, &o->model, &err);
    }
    if (s == BL_OK)
        s = bl_server_ready(server, model, &err);
    if (s != BL_OK) {
        bl_server_stop(&server);
        bl_model_close(&model);
        const int rc = cli_report("baleend", s, &err);
        if (s == BL_E_NOMEM && (o->model.engram == BL_ENGRAM_HOST || o->model.engram == BL_ENGRAM_SHARED))
            bl_shared_each_left(say_left, stderr);
        return rc;
    }
    say_ready(o, model, server, seconds_now() - begin);
    atomic_store(&ready, true);
    pthread_join(waiter, NULL);
    pthread_sigmask(SIG_UNBLOCK, signals, NULL); /* the next one kills */
    bl_server_drain(server);
    bl_server_wait_idle(server, o->drain);
    bl_server_stop(&server);
    const bool broken = bl_model_fault(model) != NULL; /* no thread changes it any more */
    bl_model_close(&model);
    return broken ? 4 : 0;
}

/* What would be taken, without taking it. */
static int show_plan(const settings *o)
{
    bl_memory_plan plan;
    bl_error err = {0};
    const bl_status s = bl_model_plan(&plan, o->path, &o->model, o->memory, &err);
    if (s != BL_OK && (s != BL_E_NOMEM || !plan.count))
        return cli_report("baleend", s, &err);
    if (o->json)
        plan_print_json(&plan);
    else
        plan_print(&plan, o->path);
    return s == BL_OK ? 0 : 1;
}

/* The folder's own name, without trailing slashes. */
static char *folder_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/')
        from--;
    return strndup(path + from, n - from);
}

/* The first line of a file; it must not be empty. */
static bl_status read_key(const char *path, char **key, bl_error *err)
{
    size_t n;
    BL_TRY(bl_file_slurp(path, 4096, key, &n, err));
    (*key)[strcspn(*key, "\r\n")] = 0;
    return **key ? BL_OK : bl_fail(err, BL_E_INPUT, path, NULL, -1, "holds no key");
}

/* What the command line says. Returns -1 to go on, else the exit status. */
static int read_settings(int argc, char **argv, settings *o)
{
    static const char *const off_on[] = {"off", "on", NULL};
    const char *key_file = NULL, *args[1];
    int check = BL_CHECK_FAST, device = BL_DEVICE_AUTO, thinking = 0, access = BL_ACCESS_AUTO, engram = BL_ENGRAM_AUTO;
    int64_t port = 8000, threads = 0, requests = o->server.max_requests, queue = o->server.max_queue;
    int count;
    bl_server_options *v = &o->server;
    const cli_option options[] = {
        {"host", CLI_STRING, &v->host, "HOST", "name or address to listen on (default 127.0.0.1)"},
        {"port", CLI_INT(0, 65535), &port, "N", "port; 0 picks a free one (default 8000)"},
        {"model-name", CLI_STRING, &v->model_name, "NAME", "name in answers (default: the folder's)"},
        {"api-key", CLI_STRING, &v->api_key, "KEY", "ask for this Bearer key, except on /health and /metrics"},
        {"api-key-file", CLI_STRING, &key_file, "FILE", "the same, read from a file: arguments are visible to others"},
        {"max-requests", CLI_INT(1, BL_MAX_RUNNING), &requests, "N", "sequences that run together (default 32)"},
        {"max-queue", CLI_INT(0, 65536), &queue, "N", "sequences that wait; beyond it 503 (default 256)"},
        {"max-body", CLI_SIZE(1, MAX_BODY), &v->max_body, "SIZE", "largest request body; beyond it 413 (default 64MiB)"},
        {"max-context", CLI_INT(2, MAX_TOKENS), &v->max_context, "N", "most tokens of prompt and answer (default: the model's)"},
        {"step-tokens", CLI_INT(1, MAX_TOKENS), &v->step_tokens, "N", "most tokens in one forward pass (default 512)"},
        {"thinking", CLI_WORD(off_on), &thinking, "on|off", "for chats that do not say (default off)"},
        {"threads", CLI_INT(1, BL_POOL_MAX_THREADS), &threads, "N", "threads that compute (default: all CPUs)"},
        {"cpu", CLI_CPU, &o->model.cpu, "LEVEL", "highest instruction set to use (default native)"},
        {"device", CLI_WORD(cli_devices), &device, "NAME", "where to compute: cpu, cuda or auto (default auto)"},
        {"check", CLI_WORD(cli_checks), &check, "LEVEL",
         "what is proven at start: none, fast or full, which reads everything (default fast)"},
        {"access", CLI_WORD(cli_accesses), &access, "HOW", "auto, mmap or pread (default auto)"},
        {"cache-tokens", CLI_INT(1, MAX_TOKENS), &o->model.cache.tokens, "N",
         "on a GPU: room for tokens of all sequences (default: what fits)"},
        {"engram", CLI_WORD(cli_engram_places), &engram, "WHERE",
         "on a GPU: Engram tables on the device, on the host, there shared by processes, or mapped (default auto)"},
        {"plan", CLI_FLAG, &o->plan, NULL, "print what the model takes of which memory, and end: 1 when it does not fit"},
        {"memory", CLI_SIZE(1, CLI_SIZE_MOST), &o->memory, "SIZE",
         "with --plan: for a GPU with so much free (default: what there is here)"},
        {"json", CLI_FLAG, &o->json, NULL, "with --plan: as one JSON document"},
        {"timeout", CLI_REAL(1, 1e6), &v->timeout, "SECONDS", "for a request to arrive, and for a client to read (default 120)"},
        {"ping", CLI_REAL(0.1, 1e6), &v->ping, "SECONDS", "silence after which a stream gets a comment line (default 15)"},
        {"drain", CLI_REAL(0, 1e9), &o->drain, "SECONDS", "time for running requests after SIGTERM (default 30)"},
        CLI_END};
    const cli_command c = {"baleend", "[MODEL] [options]", "Serve a model over HTTP.", details, options, 0, 1};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0)
        return rc;
    if ((o->memory || o->json) && !o->plan)
        return cli_usage_error(&c, "--memory and --json go with --plan");
    if (device == BL_DEVICE_CPU && (o->memory || engram != BL_ENGRAM_AUTO || o->model.cache.tokens))
        return cli_usage_error(&c, "--memory, --engram and --cache-tokens are for a GPU, not for --device cpu");
    if (v->api_key && key_file)
        return cli_usage_error(&c, "--api-key and --api-key-file exclude each other");
    if (v->model_name && !bl_text_is_clean(v->model_name, strlen(v->model_name)))
        return cli_usage_error(&c, "--model-name takes printable UTF-8");
    bl_error err;
    bl_error_clear(&err);
    bl_status s = key_file ? read_key(key_file, &o->own_key, &err) : BL_OK;
    if (s != BL_OK)
        return cli_report("baleend", s, &err);
    o->path = count ? args[0] : cli_default_model();
    o->own_name = folder_name(o->path);
    if (o->own_key)
        v->api_key = o->own_key;
    if (!v->model_name)
        v->model_name = o->own_name && bl_text_is_clean(o->own_name, strlen(o->own_name)) ? o->own_name : "model";
    v->report = report;
    v->port = (int)port;
    v->max_requests = (int)requests;
    v->max_queue = (int)queue;
    v->thinking = thinking == 1;
    o->model.threads = (int)threads;
    o->model.device = (bl_device)device;
    o->model.access = (bl_access)access;
    o->model.check = (bl_check)check;
    o->model.engram = (bl_engram_place)engram;
    o->model.cache.sequences = (int)requests;
    o->model.cache.context = v->max_context;
    o->model.need_tokenizer = true;
    return -1;
}

int main(int argc, char **argv)
{
    settings o = {.server = bl_server_defaults(), .model = {.cpu = bl_cpu_detect()}, .drain = 30};
    sigset_t signals;
    cli_begin();
    int rc = read_settings(argc, argv, &o);
    if (rc < 0 && o.plan) {
        rc = show_plan(&o);
    } else if (rc < 0) {
        sigemptyset(&signals);
        sigaddset(&signals, SIGTERM);
        sigaddset(&signals, SIGINT);
        pthread_sigmask(SIG_BLOCK, &signals, NULL); /* before any thread exists */
        rc = serve(&o, &signals);
    }
    free(o.own_key);
    free(o.own_name);
    return cli_finish("baleend", rc);
}
