/* What the api files share: one HTTP request, from its fields to the answer. */
#ifndef BL_RUNTIME_API_IMPL_H
#define BL_RUNTIME_API_IMPL_H

#include "formats/arena.h"
#include "runtime/chat.h"
#include "runtime/http.h"
#include "runtime/parse.h"
#include "runtime/scheduler.h"
#include "runtime/server.h"

#include <pthread.h>
#include <stdatomic.h>

#define API_MAX_CHOICES 128 /* n times the number of prompts */
#define API_MAX_STOPS 64
#define API_MAX_STOP_BYTES 16384 /* of all stop strings, as they are written */
#define API_JSON "application/json"

struct bl_server {
    bl_server_options options;
    bl_http *http;
    double started;
    int64_t created; /* seconds since 1970 */
    /* Set by bl_server_ready before state becomes READY. */
    bl_model *model;
    bl_scheduler *scheduler;
    const bl_tokenizer *tokenizer;
    int vocab;
    int64_t context;
    double load_seconds;
    atomic_int state;
};
enum { API_LOADING = 0, API_READY, API_DRAINING };

/* ---- api_routes.c */

void bl_api_head(void *server, bl_exchange *x);
void bl_api_request(void *server, bl_exchange *x);
void bl_api_refusal(void *server, int status, const char *message, bl_text *body, const char **type);
/* Answer with an error. param and code may be NULL. */
void bl_api_fail(bl_exchange *x, int status, const char *message, const char *param, const char *code);
/* The same for a failed call: the client's fault is 400 with the message, ours is not told. */
void bl_api_fail_status(bl_exchange *x, bl_status status, const bl_error *err);
/* {"message": ..., "type": ..., "param": ..., "code": ...} */
void bl_api_write_error(bl_text *t, int status, const char *message, const char *param, const char *code);
/* The body as a JSON object. */
bl_status bl_api_body(bl_server *s, bl_exchange *x, bl_json *root, bl_error *err);

/* ---- api_info.c: answers that need no generation */

void bl_api_health(bl_server *s, bl_exchange *x);
void bl_api_metrics(bl_server *s, bl_exchange *x);
void bl_api_models(bl_server *s, bl_exchange *x);
void bl_api_model(bl_server *s, bl_exchange *x);
void bl_api_server_info(bl_server *s, bl_exchange *x);
void bl_api_tokenize(bl_server *s, bl_exchange *x);
void bl_api_detokenize(bl_server *s, bl_exchange *x);

/* ---- api_fields.c: what a request asks for */

enum { API_CHAT = 1, API_TEXT = 2 };

typedef struct api_params {
    unsigned route; /* API_CHAT or API_TEXT */
    bl_json messages, prompt;
    bool stream, include_usage, continuous_usage;
    bool echo; /* the text begins with the prompt's */
    int n;
    int64_t max_tokens; /* 0 = not said */
    bl_sampling sampling;
    bl_adjust adjust;
    int64_t min_tokens; /* at most max_tokens where that is said */
    bool seeded;
    const char **stops; /* [stop_count] */
    size_t stop_count;
    int32_t *stop_ids; /* [stop_id_count], EOS among them unless it is to be ignored */
    int stop_id_count;
    bool ignore_eos, logprobs, parallel_calls, stop_in_reasoning, keep_special;
    int top_logprobs;
    bool separate_reasoning, include_reasoning, stream_reasoning, calls_allowed;
    bl_chat_options chat;
} api_params;

/* Read the fields of a request; strings are copied into the arena, JSON values point into the request. */
bl_status bl_api_read_params(const bl_server *s, bl_json root, unsigned route, bl_arena *arena, api_params *p, bl_error *err);

/* ---- api_prompt.c: what is run */

typedef struct api_prompts {
    bl_ids *ids; /* [count] */
    int count;
    bl_section start; /* how the output begins */
    bl_call_mode calls;
} api_prompts;

/* The prompts of a request as ids below the vocabulary's size, at least one each. ids and what it points to are freed by
 * bl_api_free_prompts. */
bl_status bl_api_read_prompts(const bl_server *s, const api_params *p, api_prompts *out, bl_error *err);
/* The same without the limits of the context, for /tokenize. */
bl_status bl_api_encode_chat(const bl_server *s, const api_params *p, bl_ids *out, bl_section *start, bl_error *err);
bl_status bl_api_encode_text(const bl_server *s, bl_json prompt, api_prompts *out, bl_error *err);
void bl_api_free_prompts(api_prompts *p);

/* ---- api_call.c: generation */

/* A run of output of one kind. */
typedef struct api_piece {
    bl_event_kind kind;
    int call;
    size_t from, n;            /* in api_choice.text */
    size_t space_from, space_n; /* CALL_BEGIN: the name's name space */
} api_piece;

typedef struct api_choice {
    bl_job job;
    struct api_call *call;
    int index;
    bl_parser *parser;

    /* Filled by the engine thread, emptied by the socket thread when streaming; under api_call.lock. */
    bl_text text;
    api_piece *pieces;
    size_t piece_count, piece_cap;
    bl_output_token *tokens; /* with log-probabilities */
    size_t token_count, token_cap;
    int64_t generated, reasoning_tokens;
    int last_token;
    bool answer_begun; /* inline reasoning: the mark behind it is written */
    bool failed;       /* memory ran out */
    bl_finish why;     /* NONE while it runs */
    bl_status status;  /* when FAILED */

    /* The stream's. */
    bool role_sent, finish_sent;
    int64_t text_offset; /* characters of completion text in logprobs so far */
} api_choice;

typedef struct api_call {
    bl_server *server;
    bl_exchange *exchange;
    bl_arena arena;
    api_params params;
    api_prompts prompts;
    int64_t prompt_tokens, created;
    char id[48];
    api_choice *choices; /* [count]: n of the first prompt, n of the second, ... */
    int count;

    pthread_mutex_t lock;
    bool gone, submitted;
    int running; /* choices that have not finished */
} api_call;

void bl_api_complete(bl_server *s, bl_exchange *x, unsigned route);

/* ---- api_write.c: answers; the call is locked, or nothing runs any more */

/* The whole answer. */
void bl_api_write_whole(bl_text *t, api_call *c);
/* Events for all that is new; false when the stream is complete. */
bool bl_api_write_events(bl_text *t, api_call *c);

#endif
