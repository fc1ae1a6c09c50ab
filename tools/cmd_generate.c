/* baleen generate: text, without a server. */
#include "tools/cli.h"

#include "kernels/cpu.h"
#include "runtime/chat.h"
#include "runtime/forward.h"
#include "runtime/parse.h"
#include "runtime/sample.h"
#include "runtime/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROMPT_STEP 512 /* tokens of it in a pass */

typedef struct generate {
    const char *prompt;
    bool chat, thinking, json;
    int64_t effort, max_tokens;
    cli_list stops;
    bl_sampling sampling;
    /* while running */
    bl_model *model;
    bl_sequence *sequence;
    bl_parser *parser;
    bl_ids ids; /* of the prompt */
    float *logits;
    void *scratch;
    bl_text text; /* what came out, for --json */
    int64_t produced;
    const char *why;
    double first_token, seconds;
    bl_error *err;
} generate;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bl_status out_of_memory(const generate *g)
{
    return bl_fail(g->err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

/* ---- the prompt */

/* The text of a single user message and its answer's beginning. */
static bl_status chat_prompt(generate *g, char **text, size_t *n)
{
    bl_text messages = {0};
    bl_chat_options o = bl_chat_defaults();
    bl_json root;
    o.thinking = g->thinking;
    o.effort = g->effort != CLI_UNSET ? (int)g->effort : BL_CHAT_EFFORT_DEFAULT;
    bl_text_puts(&messages, "[{\"role\":\"user\",\"content\":");
    bl_text_quote(&messages, g->prompt, strlen(g->prompt));
    bl_text_puts(&messages, "}]");
    bl_status s = messages.failed ? out_of_memory(g) : bl_json_parse(messages.p, messages.n, NULL, "--prompt", &root, g->err);
    if (s == BL_OK) s = bl_chat_encode(root, &o, text, n, NULL, g->err);
    free(messages.p);
    return s;
}

static bl_status encode(generate *g)
{
    const bl_tokenizer *t = bl_model_tokenizer(g->model);
    const bl_config *c = bl_model_config(g->model);
    char *text = NULL;
    size_t n = strlen(g->prompt);
    bl_ids ids = {0};
    if (g->chat) BL_TRY(chat_prompt(g, &text, &n));
    bl_status s = bl_tokenizer_encode(t, text ? text : g->prompt, n, true, &ids, g->err);
    free(text);
    const bool bos = c->bos_token_id >= 0 && (ids.count == 0 || ids.ids[0] != c->bos_token_id);
    g->ids.ids = malloc((ids.count + 1) * sizeof *g->ids.ids);
    if (s == BL_OK && !g->ids.ids) s = out_of_memory(g);
    if (s == BL_OK) {
        if (bos) g->ids.ids[g->ids.count++] = c->bos_token_id;
        if (ids.count) memcpy(g->ids.ids + g->ids.count, ids.ids, ids.count * sizeof *ids.ids);
        g->ids.count += ids.count;
        if (g->ids.count == 0) s = bl_fail(g->err, BL_E_USAGE, NULL, "--prompt", -1, "is empty");
    }
    free(ids.ids);
    return s;
}

/* ---- the output */

static void on_text(void *arg, const bl_event *e)
{
    generate *g = arg;
    if (g->json) {
        bl_text_add(&g->text, e->text, e->n);
        return;
    }
    fwrite(e->text, 1, e->n, stdout);
    fflush(stdout);
}

static bl_status prepare(generate *g, const char *path, const bl_model_options *o)
{
    BL_TRY(bl_model_open(&g->model, path, o, g->err));
    BL_TRY(encode(g));
    BL_TRY(bl_sequence_create(&g->sequence, g->model, g->err));
    const size_t vocab = (size_t)bl_model_config(g->model)->vocab_size;
    g->logits = malloc(vocab * sizeof *g->logits);
    g->scratch = malloc(2 * vocab * sizeof(int32_t));
    if (!g->logits || !g->scratch) return out_of_memory(g);
    const bl_parser_options p = {.tokenizer = bl_model_tokenizer(g->model), .start = BL_SECTION_PLAIN, .stops = g->stops.items,
                                 .stop_count = (size_t)g->stops.count, .event = on_text, .arg = g};
    return bl_parser_create(&g->parser, &p, g->err);
}

static bl_status forward(generate *g, const int32_t *ids, int64_t n)
{
    const bl_span span = {.sequence = g->sequence, .ids = ids, .count = n, .logits_from = n - 1};
    const int vocab = bl_model_config(g->model)->vocab_size;
    int nans = 0;
    BL_TRY(bl_forward(g->model, &span, 1, g->logits, NULL, g->err));
    for (int i = 0; i < vocab; i++) nans += isnan(g->logits[i]) != 0;
    if (!nans) return BL_OK;
    return bl_fail(g->err, BL_E_INPUT, NULL, NULL, -1, "%d of the model's %d logits are no numbers (NaN): the model is damaged", nans, vocab);
}

/* The prompt in passes short enough to stop between them; how it is cut changes nothing. */
static bl_status read_prompt(generate *g)
{
    const int64_t count = (int64_t)g->ids.count;
    for (int64_t done = 0, n; done < count; done += n) {
        if (cli_interrupted()) return bl_fail(g->err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
        n = count - done < PROMPT_STEP ? count - done : PROMPT_STEP;
        BL_TRY(forward(g, g->ids.ids + done, n));
    }
    return BL_OK;
}

static bl_status run(generate *g)
{
    const bl_config *c = bl_model_config(g->model);
    const double begin = now();
    BL_TRY(read_prompt(g));
    g->first_token = now() - begin;
    g->why = "length";
    while (g->produced < g->max_tokens && bl_sequence_length(g->sequence) < c->max_position_embeddings) {
        const uint64_t position = (uint64_t)bl_sequence_length(g->sequence);
        const int32_t id = bl_sample(g->logits, c->vocab_size, &g->sampling, position, g->scratch, NULL);
        g->produced++;
        g->why = id == c->eos_token_id ? "stop" : g->why;
        if (id == c->eos_token_id) break;
        if (bl_parser_push(g->parser, id) != BL_OK) return out_of_memory(g);
        g->why = bl_parser_section(g->parser) == BL_SECTION_DONE ? "stop" : cli_interrupted() || ferror(stdout) ? "interrupted" : g->why;
        if (strcmp(g->why, "length") != 0 || g->produced == g->max_tokens) break;
        BL_TRY(forward(g, &id, 1));
    }
    g->seconds = now() - begin;
    return bl_parser_finish(g->parser) == BL_OK ? BL_OK : out_of_memory(g);
}

static bl_status print_receipt(generate *g)
{
    bl_text quoted = {0};
    bl_text_quote(&quoted, g->text.p ? g->text.p : "", g->text.n);
    if (g->text.failed || quoted.failed) {
        free(quoted.p);
        return out_of_memory(g);
    }
    printf("{\"text\": %.*s, \"prompt_tokens\": %zu, \"completion_tokens\": %lld, \"finish_reason\": \"%s\", \"prompt_seconds\": %.3f, "
           "\"seconds\": %.3f}\n", (int)quoted.n, quoted.p, g->ids.count, (long long)g->produced, g->why, g->first_token, g->seconds);
    free(quoted.p);
    return BL_OK;
}

static void release(generate *g)
{
    bl_parser_destroy(&g->parser);
    bl_sequence_destroy(&g->sequence);
    free(g->ids.ids);
    free(g->logits);
    free(g->scratch);
    free(g->text.p);
    bl_model_close(&g->model);
}

int cmd_generate(int argc, char **argv)
{
    generate g = {.max_tokens = 256, .effort = CLI_UNSET};
    const char *args[1] = {cli_default_model()};
    int device = BL_DEVICE_AUTO, engram = BL_ENGRAM_AUTO;
    int64_t threads = 0, top_k = 0, seed = 0;
    double temperature = 0, top_p = 1, min_p = 0;
    bl_model_options o = {.cpu = bl_cpu_detect(), .check = BL_CHECK_FAST, .need_tokenizer = true};
    const cli_option options[] = {
        {"prompt", CLI_TEXT, &g.prompt, "TEXT", "what to continue (required); special tokens may be written out"},
        {"chat", CLI_FLAG, &g.chat, NULL, "TEXT is a user's message"},
        {"thinking", CLI_FLAG, &g.thinking, NULL, "with --chat: begin the answer with reasoning"},
        {"effort", CLI_INT(1, 100), &g.effort, "N", "with --thinking: reasoning effort 1..100 (default 75)"},
        {"max-tokens", CLI_INT(1, INT64_MAX), &g.max_tokens, "N", "stop after N tokens (default 256)"},
        {"temperature", CLI_REAL(0, 100), &temperature, "T", "0 = the most likely token (default)"},
        {"top-k", CLI_INT(0, INT_MAX), &top_k, "K", "sample among the K most likely (default 0, off)"},
        {"top-p", CLI_REAL_ABOVE(0, 1), &top_p, "P", "... among the most likely that make up P (default 1, off)"},
        {"min-p", CLI_REAL(0, 1), &min_p, "P", "... among those at least P times as likely as the first (default 0)"},
        {"seed", CLI_INT(0, INT64_MAX), &seed, "N", "of the sampling (default 0): same seed, same text"},
        {"stop", CLI_LIST, &g.stops, "TEXT", "end before this text; may be repeated"},
        {"threads", CLI_INT(1, BL_POOL_MAX_THREADS), &threads, "N", "worker threads (default: all CPUs)"},
        {"cpu", CLI_CPU, &o.cpu, "LEVEL", "highest instruction set used: c, avx2, ... (default native)"},
        {"device", CLI_WORD(cli_devices), &device, "NAME", "where to compute: cpu, cuda or auto (default auto)"},
        {"engram", CLI_WORD(cli_engram_places), &engram, "WHERE",
         "on a GPU: Engram tables on the device, on the host, there shared by processes, or mapped (default auto)"},
        {"json", CLI_FLAG, &g.json, NULL, "print one JSON document instead of the text"},
        CLI_END,
    };
    const cli_command c = {
        .program = "baleen generate",
        .usage = "[MODEL] --prompt TEXT [options]",
        .summary = "Continue a text, or answer a message.",
        .details = "A begin-of-sentence token is put in front unless TEXT begins with one. The text goes to standard output as it comes.\n",
        .options = options,
        .max_args = 1,
    };
    int count, done = cli_parse(&c, argc, argv, args, &count);
    if (done >= 0) return done;
    if (!g.prompt) return cli_usage_error(&c, "--prompt is missing");
    if (device == BL_DEVICE_CPU && engram != BL_ENGRAM_AUTO) return cli_usage_error(&c, "--engram is for a GPU, not for --device cpu");
    if (g.thinking && !g.chat) return cli_usage_error(&c, "--thinking needs --chat");
    if (g.effort != CLI_UNSET && !g.thinking) return cli_usage_error(&c, "--effort needs --thinking");
    o.threads = (int)threads;
    o.device = (bl_device)device;
    o.engram = (bl_engram_place)engram;
    g.sampling = (bl_sampling){(float)temperature, (int)top_k, (float)top_p, (float)min_p, (uint64_t)seed};
    cli_catch_signals();
    bl_error err = {0};
    g.err = &err;
    bl_status s = prepare(&g, args[0], &o);
    if (s == BL_OK) s = run(&g);
    if (s == BL_OK && g.json) s = print_receipt(&g);
    else if (g.produced) printf("\n");
    if (s == BL_OK && cli_interrupted()) s = bl_fail(&err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
    const int status = cli_report(c.program, s, &err);
    release(&g);
    return status;
}
