#include "tests/fuzz/fuzz.h"

#include "runtime/api_impl.h"
#include "tests/stub/stub_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bl_server server;

/* What api_fields.c promises to the rest. */
static void check_params(const api_params *p)
{
    const bl_sampling *s = &p->sampling;
    BL_MUST(p->n >= 1 && p->n <= API_MAX_CHOICES && p->max_tokens >= 0);
    BL_MUST(isfinite(s->temperature) && s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    BL_MUST(fabsf(p->adjust.presence) <= 2 && fabsf(p->adjust.frequency) <= 2 && p->adjust.repetition >= 0 && p->adjust.repetition <= 2);
    BL_MUST(p->min_tokens >= 0 && (p->max_tokens == 0 || p->min_tokens <= p->max_tokens));
    for (int i = 0; p->adjust.bias && i < STUB_VOCAB; i++)
        BL_MUST(fabsf(p->adjust.bias[i]) <= 100);
    BL_MUST(p->stop_count <= API_MAX_STOPS && p->stop_id_count <= API_MAX_STOPS + 1);
    BL_MUST(p->top_logprobs >= 0 && p->top_logprobs <= BL_MAX_TOP_LOGPROBS && s->top_k >= 0);
    for (size_t i = 0; i < p->stop_count; i++)
        BL_MUST(p->stops[i] != NULL);
    for (int i = 0; i < p->stop_id_count; i++)
        BL_MUST(p->stop_ids[i] >= 0 && p->stop_ids[i] < STUB_VOCAB);
}

static void check_prompts(const api_params *p, const api_prompts *q)
{
    BL_MUST(q->count >= 1 && q->count * p->n <= API_MAX_CHOICES);
    for (int i = 0; i < q->count; i++) {
        BL_MUST(q->ids[i].count > 0 && (int64_t)q->ids[i].count + p->max_tokens <= server.context);
        for (size_t k = 0; k < q->ids[i].count; k++)
            BL_MUST(q->ids[i].ids[k] >= 0 && q->ids[i].ids[k] < STUB_VOCAB);
    }
}

/* An error is the client's, and what it is told is JSON. */
static void check_error(const bl_error *err)
{
    char line[2048];
    bl_text t = {0};
    bl_json root;
    BL_MUST(err->code == BL_E_INPUT);
    bl_api_write_error(&t, 400, bl_error_line(err, line, sizeof line), err->tensor, NULL);
    BL_MUST(!t.failed && bl_json_parse(t.p, t.n, NULL, "error", &root, NULL) == BL_OK);
    free(t.p);
}

static bl_status read_all(bl_json root, unsigned route, bl_arena *arena, api_params *p, api_prompts *q, bl_error *err)
{
    BL_TRY(bl_api_read_params(&server, root, route, arena, p, err));
    return bl_api_read_prompts(&server, p, q, err);
}

/* A body as both routes read it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned routes[2] = {API_CHAT, API_TEXT};
    const bl_json_limits limits = {.max_bytes = 1 << 20, .last_duplicate_wins = true};
    bl_json root;
    if (!server.model) {
        server.model = stub_open(&(stub_options){.context = 4096, .tokenizer = true});
        server.tokenizer = bl_model_tokenizer(server.model);
        server.vocab = STUB_VOCAB;
        server.context = 4096;
    }
    if (bl_json_parse((const char *)data, size, &limits, "body", &root, NULL) != BL_OK || root.kind != BL_JSON_OBJECT)
        return 0;
    for (int i = 0; i < 2; i++) {
        bl_arena arena = {0};
        api_params p;
        api_prompts q = {0};
        bl_error err = {0};
        if (read_all(root, routes[i], &arena, &p, &q, &err) == BL_OK) {
            check_params(&p);
            check_prompts(&p, &q);
        } else {
            check_error(&err);
        }
        bl_api_free_prompts(&q);
        bl_arena_reset(&arena);
    }
    return 0;
}
