/* Every request field the server knows: what it accepts, what it ignores, what it refuses.
 *
 * Nothing that would change the result is ignored silently: a field that is not implemented is refused unless its value is the one
 * that asks for nothing. Fields that are not listed are ignored. */
#include "runtime/api_values.h"
#include "runtime/chat_impl.h"

#include <stdlib.h>
#include <string.h>

typedef bl_status read_fn(api_reader *r);

/* ---- fields that count */

static bl_status f_stream(api_reader *r)
{
    return bl_api_flag(r, &r->p->stream);
}

static bl_status f_echo(api_reader *r)
{
    return bl_api_flag(r, &r->p->echo);
}

static bl_status f_stream_options(api_reader *r)
{
    static const char *const names[2] = {"include_usage", "continuous_usage_stats"};
    bl_json m[2];
    if (r->v.kind != BL_JSON_OBJECT)
        return bl_api_refuse(r, "must be an object");
    bl_chat_pick(r->v, names, m, 2);
    for (int i = 0; i < 2; i++)
        if (m[i].kind != BL_JSON_NONE && !bl_json_bool(m[i], i ? &r->p->continuous_usage : &r->p->include_usage))
            return bl_api_refuse(r, i ? "continuous_usage_stats must be true or false" : "include_usage must be true or false");
    return BL_OK;
}

static bl_status f_n(api_reader *r)
{
    int64_t n;
    BL_TRY(bl_api_int(r, 1, API_MAX_CHOICES, &n));
    r->p->n = (int)n;
    return BL_OK;
}

static bl_status f_max_tokens(api_reader *r)
{
    return bl_api_int(r, 1, INT64_MAX, &r->p->max_tokens);
}

static bl_status f_temperature(api_reader *r)
{
    return bl_api_real(r, 0, 1e6, &r->p->sampling.temperature);
}

static bl_status f_top_p(api_reader *r)
{
    BL_TRY(bl_api_real(r, 0, 1, &r->p->sampling.top_p));
    return r->p->sampling.top_p > 0 ? BL_OK : bl_api_refuse(r, "must be above 0");
}

static bl_status f_min_p(api_reader *r)
{
    return bl_api_real(r, 0, 1, &r->p->sampling.min_p);
}

static bl_status f_top_k(api_reader *r)
{
    int64_t k;
    BL_TRY(bl_api_int(r, -1, INT32_MAX, &k));
    r->p->sampling.top_k = k > 0 ? (int)k : 0; /* -1 and 0 are off */
    return BL_OK;
}

static bl_status f_presence(api_reader *r)
{
    return bl_api_real(r, -2, 2, &r->p->adjust.presence);
}

static bl_status f_frequency(api_reader *r)
{
    return bl_api_real(r, -2, 2, &r->p->adjust.frequency);
}

static bl_status f_repetition(api_reader *r)
{
    BL_TRY(bl_api_real(r, 0, 2, &r->p->adjust.repetition));
    return r->p->adjust.repetition > 0 ? BL_OK : bl_api_refuse(r, "must be above 0");
}

static bl_status f_min_tokens(api_reader *r)
{
    return bl_api_int(r, 0, r->server->context, &r->p->min_tokens);
}

/* A key of logit_bias: a token id in decimal, as JSON would write the number. */
static bool read_id(const api_reader *r, bl_json key, uint64_t *id)
{
    char digits[16];
    size_t n = bl_json_string(key, digits, sizeof digits);
    const bl_json number = {.p = digits, .n = n, .kind = BL_JSON_NUMBER};
    if (n == 0 || n >= sizeof digits || strspn(digits, "0123456789") != n || (digits[0] == '0' && n > 1))
        return false;
    return bl_json_u64(number, id) && *id < (uint64_t)r->server->vocab;
}

static bl_status f_logit_bias(api_reader *r)
{
    bl_json key, v;
    uint64_t id;
    double d;
    if (r->v.kind != BL_JSON_OBJECT)
        return bl_api_refuse(r, "must be an object of token ids and numbers");
    if (bl_json_count(r->v) == 0)
        return BL_OK;
    float *bias = bl_arena_array(r->arena, (size_t)r->server->vocab, sizeof *bias);
    if (!bias)
        return bl_fail(r->err, BL_E_NOMEM, NULL, r->key, -1, "no memory");
    for (bl_json_iter it = bl_json_begin(r->v); bl_json_next(&it, &key, &v);) {
        if (!read_id(r, key, &id))
            return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "keys must be token ids from 0 to %d", r->server->vocab - 1);
        if (!bl_json_double(v, &d) || !(d >= -100 && d <= 100))
            return bl_api_refuse(r, "values must be numbers from -100 to 100");
        bias[id] = (float)d;
    }
    r->p->adjust.bias = bias;
    return BL_OK;
}

static bl_status f_seed(api_reader *r)
{
    int64_t n;
    double d;
    if (!bl_json_u64(r->v, &r->p->sampling.seed)) {
        if (r->v.kind == BL_JSON_NUMBER && (!bl_json_double(r->v, &d) || d < -0x1p63 || d >= 0x1p64))
            return bl_api_refuse(r, "must be a whole number from -9223372036854775808 to 18446744073709551615");
        BL_TRY(bl_api_int(r, INT64_MIN, INT64_MAX, &n));
        r->p->sampling.seed = (uint64_t)n;
    }
    r->p->seeded = true;
    return BL_OK;
}

static bl_status f_stop(api_reader *r)
{
    bl_json key, v;
    size_t n = r->v.kind == BL_JSON_ARRAY ? bl_json_count(r->v) : 1;
    if (n > API_MAX_STOPS)
        return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "may hold at most %d strings", API_MAX_STOPS);
    r->p->stops = bl_arena_array(r->arena, n, sizeof *r->p->stops);
    if (!r->p->stops)
        return bl_fail(r->err, BL_E_NOMEM, NULL, r->key, -1, "no memory");
    if (r->v.n > API_MAX_STOP_BYTES) /* every answer has a table of them */
        return bl_fail(r->err, BL_E_INPUT, NULL, r->key, -1, "may take at most %d bytes", API_MAX_STOP_BYTES);
    if (r->v.kind != BL_JSON_ARRAY) {
        r->p->stop_count = 1;
        return bl_api_string(r, r->v, &r->p->stops[0]);
    }
    for (bl_json_iter it = bl_json_begin(r->v); bl_json_next(&it, &key, &v);)
        BL_TRY(bl_api_string(r, v, &r->p->stops[r->p->stop_count++]));
    return BL_OK;
}

static bl_status f_stop_ids(api_reader *r)
{
    bl_json key, v;
    if (r->v.kind != BL_JSON_ARRAY || bl_json_count(r->v) > API_MAX_STOPS)
        return bl_api_refuse(r, "must be a list of at most 64 token ids");
    for (bl_json_iter it = bl_json_begin(r->v); bl_json_next(&it, &key, &v);) {
        uint64_t id;
        if (!bl_json_u64(v, &id) || id >= (uint64_t)r->server->vocab)
            return bl_api_refuse(r, "must be a list of token ids");
        r->p->stop_ids[r->p->stop_id_count++] = (int32_t)id;
    }
    return BL_OK;
}

static bl_status f_ignore_eos(api_reader *r)
{
    return bl_api_flag(r, &r->p->ignore_eos);
}

/* Chat: true or false, how many others in top_logprobs. Text: their number, 0 = only the chosen tokens. */
static bl_status f_logprobs(api_reader *r)
{
    int64_t k;
    if (r->p->route == API_CHAT)
        return bl_api_flag(r, &r->p->logprobs);
    BL_TRY(bl_api_int(r, 0, BL_MAX_TOP_LOGPROBS, &k));
    r->p->logprobs = true;
    r->p->top_logprobs = (int)k;
    return BL_OK;
}

static bl_status f_top_logprobs(api_reader *r)
{
    int64_t k;
    BL_TRY(bl_api_int(r, 0, BL_MAX_TOP_LOGPROBS, &k));
    r->p->top_logprobs = (int)k;
    return BL_OK;
}

static bl_status f_parallel(api_reader *r)
{
    return bl_api_flag(r, &r->p->parallel_calls);
}

static bl_status f_separate(api_reader *r)
{
    return bl_api_flag(r, &r->p->separate_reasoning);
}

static bl_status f_include(api_reader *r)
{
    return bl_api_flag(r, &r->p->include_reasoning);
}

static bl_status f_stream_reasoning(api_reader *r)
{
    return bl_api_flag(r, &r->p->stream_reasoning);
}

static bl_status f_stop_in_reasoning(api_reader *r)
{
    return bl_api_flag(r, &r->p->stop_in_reasoning);
}

static bl_status f_skip_special(api_reader *r)
{
    bool skip;
    BL_TRY(bl_api_flag(r, &skip));
    if (!skip && r->p->route == API_CHAT)
        return bl_api_refuse(r, "must be true here: control tokens shape a chat answer and are no part of it");
    r->p->keep_special = !skip;
    return BL_OK;
}

static bl_status f_tools(api_reader *r)
{
    if (r->v.kind != BL_JSON_ARRAY)
        return bl_api_refuse(r, "must be a list");
    r->p->calls_allowed = bl_json_count(r->v) > 0;
    return BL_OK;
}

/* After tools in the table. */
static bl_status f_tool_choice(api_reader *r)
{
    if (bl_json_equals(r->v, "none"))
        r->p->calls_allowed = false;
    else if (!bl_json_equals(r->v, "auto"))
        return bl_api_refuse(r, "must be auto or none: calls cannot be forced");
    return BL_OK;
}

static bl_status f_messages(api_reader *r)
{
    r->p->messages = r->v;
    return BL_OK;
}

static bl_status f_prompt(api_reader *r)
{
    r->p->prompt = r->v;
    return BL_OK;
}

/* ---- fields that are not implemented: only the value that asks for nothing passes */

static bl_status f_refused(api_reader *r)
{
    return bl_api_refuse(r, "is not supported");
}

static bl_status f_false_only(api_reader *r)
{
    bool on;
    BL_TRY(bl_api_flag(r, &on));
    return on ? bl_api_refuse(r, "is not supported") : BL_OK;
}

static bl_status f_true_only(api_reader *r)
{
    bool on;
    BL_TRY(bl_api_flag(r, &on));
    return on ? BL_OK : bl_api_refuse(r, "must be true: nothing else is supported");
}

static bl_status f_empty_only(api_reader *r)
{
    bool empty = (r->v.kind == BL_JSON_OBJECT || r->v.kind == BL_JSON_ARRAY) && bl_json_count(r->v) == 0;
    return empty || bl_json_equals(r->v, "") ? BL_OK : bl_api_refuse(r, "is not supported");
}

static bl_status f_best_of(api_reader *r)
{
    int64_t k;
    BL_TRY(bl_api_int(r, 1, API_MAX_CHOICES, &k));
    return k == r->p->n ? BL_OK : bl_api_refuse(r, "is not supported; it must equal n");
}

static bl_status f_response_format(api_reader *r)
{
    return bl_json_equals(bl_json_get(r->v, "type"), "text")
               ? BL_OK
               : bl_api_refuse(r, "must be {\"type\": \"text\"}: constrained output is not supported");
}

static bl_status f_modalities(api_reader *r)
{
    bl_json key, v;
    if (r->v.kind != BL_JSON_ARRAY)
        return bl_api_refuse(r, "must be a list");
    for (bl_json_iter it = bl_json_begin(r->v); bl_json_next(&it, &key, &v);)
        if (!bl_json_equals(v, "text"))
            return bl_api_refuse(r, "must be [\"text\"]");
    return BL_OK;
}

#define BOTH (API_CHAT | API_TEXT)

/* Read in this order. bl_chat_options_read sees to the fields that shape the prompt: reasoning_effort, reasoning, thinking,
 * enable_thinking, chat_template_kwargs, task, continue_final_message, and the content of tools. Ignored by intent: model, user,
 * metadata, store, service_tier, prediction, safety_identifier, prompt_cache_key, and whatever else is not here. */
static const struct {
    const char *name;
    unsigned routes;
    read_fn *read;
} fields[] = {
    {"messages", API_CHAT, f_messages},
    {"prompt", API_TEXT, f_prompt},
    {"stream", BOTH, f_stream},
    {"echo", API_TEXT, f_echo},
    {"stream_options", BOTH, f_stream_options},
    {"n", BOTH, f_n},
    {"max_tokens", BOTH, f_max_tokens},
    {"max_completion_tokens", BOTH, f_max_tokens}, /* wins over max_tokens */
    {"temperature", BOTH, f_temperature},
    {"top_p", BOTH, f_top_p},
    {"top_k", BOTH, f_top_k},
    {"min_p", BOTH, f_min_p},
    {"seed", BOTH, f_seed},
    {"frequency_penalty", BOTH, f_frequency},
    {"presence_penalty", BOTH, f_presence},
    {"repetition_penalty", BOTH, f_repetition},
    {"logit_bias", BOTH, f_logit_bias},
    {"min_tokens", BOTH, f_min_tokens},
    {"stop", BOTH, f_stop},
    {"stop_token_ids", BOTH, f_stop_ids},
    {"ignore_eos", BOTH, f_ignore_eos},
    {"logprobs", BOTH, f_logprobs},
    {"top_logprobs", API_CHAT, f_top_logprobs},
    {"tools", API_CHAT, f_tools},
    {"tool_choice", API_CHAT, f_tool_choice},
    {"parallel_tool_calls", API_CHAT, f_parallel},
    {"separate_reasoning", API_CHAT, f_separate},
    {"include_reasoning", API_CHAT, f_include},
    {"stream_reasoning", API_CHAT, f_stream_reasoning},
    {"stop_in_reasoning", API_CHAT, f_stop_in_reasoning},
    {"skip_special_tokens", BOTH, f_skip_special},

    {"no_stop_trim", BOTH, f_false_only},
    {"include_stop_str_in_output", BOTH, f_false_only},
    {"add_generation_prompt", API_CHAT, f_true_only},
    {"response_format", BOTH, f_response_format},
    {"best_of", API_TEXT, f_best_of},
    {"suffix", API_TEXT, f_empty_only},
    {"modalities", API_CHAT, f_modalities},
    {"return_hidden_states", BOTH, f_false_only},
    {"return_routed_experts", BOTH, f_false_only},
    {"return_token_ids", BOTH, f_false_only},
    {"use_beam_search", BOTH, f_false_only},
    {"stop_regex", BOTH, f_empty_only},
    {"regex", BOTH, f_refused},
    {"ebnf", BOTH, f_refused},
    {"json_schema", BOTH, f_refused},
    {"structured_outputs", BOTH, f_refused},
    {"guided_json", BOTH, f_refused},
    {"guided_regex", BOTH, f_refused},
    {"guided_choice", BOTH, f_refused},
    {"guided_grammar", BOTH, f_refused},
    {"grammar", BOTH, f_refused},
    {"logits_processors", BOTH, f_refused},
    {"custom_logit_processor", BOTH, f_refused},
    {"input_ids", BOTH, f_refused},
    {"input_embeds", BOTH, f_refused},
    {"lora_path", BOTH, f_refused},
    {"audio", API_CHAT, f_refused},
    {"functions", API_CHAT, f_refused},
    {"function_call", API_CHAT, f_refused},
    {"web_search_options", API_CHAT, f_refused},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static void set_defaults(const bl_server *s, unsigned route, api_params *p)
{
    *p = (api_params){.route = route,
                      .n = 1,
                      .sampling = {.temperature = 1, .top_p = 1},
                      .parallel_calls = true,
                      .separate_reasoning = true,
                      .include_reasoning = true,
                      .stream_reasoning = true,
                      .chat = bl_chat_defaults()};
    p->chat.thinking = s->options.thinking;
}

bl_status bl_api_read_params(const bl_server *s, bl_json root, unsigned route, bl_arena *arena, api_params *p, bl_error *err)
{
    const char *names[FIELDS];
    bl_json values[FIELDS];
    set_defaults(s, route, p);
    p->stop_ids = bl_arena_array(arena, API_MAX_STOPS + 1, sizeof *p->stop_ids);
    if (!p->stop_ids)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory");
    for (int i = 0; i < FIELDS; i++)
        names[i] = fields[i].name;
    bl_chat_pick(root, names, values, FIELDS);
    for (int i = 0; i < FIELDS; i++)
        if (values[i].kind != BL_JSON_NONE && (fields[i].routes & route)) {
            api_reader r = {.server = s, .p = p, .arena = arena, .key = fields[i].name, .v = values[i], .err = err};
            BL_TRY(fields[i].read(&r));
        }
    int eos = bl_model_config(s->model)->eos_token_id;
    if (!p->ignore_eos && eos >= 0)
        p->stop_ids[p->stop_id_count++] = eos;
    if (p->top_logprobs > 0 && !p->logprobs)
        return bl_fail(err, BL_E_INPUT, NULL, "top_logprobs", -1, "needs logprobs");
    if (p->echo && p->logprobs)
        return bl_fail(err, BL_E_INPUT, NULL, "echo", -1, "is not supported together with logprobs");
    if (route == API_TEXT && p->max_tokens == 0)
        p->max_tokens = 16;
    if (p->max_tokens > 0 && p->min_tokens > p->max_tokens)
        return bl_fail(err, BL_E_INPUT, NULL, "min_tokens", -1, "must not exceed max_tokens, which is %lld", (long long)p->max_tokens);
    return route == API_CHAT ? bl_chat_options_read(root, &p->chat, err) : BL_OK;
}
