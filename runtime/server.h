/* The OpenAI-compatible server: HTTP in front, one scheduler behind. Which request fields are accepted, ignored and refused is in the
 * table of api_fields.c and in README.md. */
#ifndef BL_RUNTIME_SERVER_H
#define BL_RUNTIME_SERVER_H

#include "runtime/forward.h"

typedef struct bl_server bl_server;

typedef struct bl_server_options {
    const char *host;
    int port;               /* 0 = any free one */
    const char *api_key;    /* Bearer key that all but /health and /metrics want; NULL = none */
    const char *model_name; /* in answers and /v1/models */
    int max_requests;       /* sequences that run together, 1..4096 */
    int max_queue;          /* sequences that wait for a place; beyond it 503 with Retry-After */
    uint64_t max_body;      /* bytes, at most 2^40; beyond it 413 */
    int64_t max_context;    /* tokens of prompt and answer together; 0 = the model's max_position_embeddings */
    int64_t step_tokens;    /* most tokens in one forward pass */
    bool thinking;          /* what a chat request that does not say gets */
    double timeout;         /* seconds for a request's head, and for its body, to arrive; also for a client to take what is sent */
    void (*report)(const bl_error *what); /* may be NULL; as in scheduler.h */
    double ping;            /* seconds of silence after which a stream gets a comment line */
} bl_server_options;

/* What baleend starts from: the loopback interface, a free port, the rest as its help says. */
static inline bl_server_options bl_server_defaults(void)
{
    return (bl_server_options){.host = "127.0.0.1", .model_name = NULL, .max_requests = 32, .max_queue = 256, .max_body = 64u << 20,
                               .step_tokens = 512, .timeout = 120, .ping = 15};
}

/* Listen at once; every route but /metrics answers 503 until bl_server_ready. Strings are borrowed. */
bl_status bl_server_start(bl_server **out, const bl_server_options *options, bl_error *err);
int bl_server_port(const bl_server *s);
/* Connections that there is room for: all requests that may be under way and 256 more, unless the limit on open files (ulimit -n) is lower.
 * Beyond that a new one takes the place of the one that has been idle for longest, and gets 503 when none is. */
int bl_server_connections(const bl_server *s);
/* Start serving a model, which is the server's alone from here and must outlive it. BL_E_INPUT when it has no tokenizer, BL_E_IO when its
 * files leave none for connections. */
bl_status bl_server_ready(bl_server *s, bl_model *m, bl_error *err);
/* Refuse new work; what is under way goes on. */
void bl_server_drain(bl_server *s);
/* Wait for the end of what is under way, at most that many seconds; true when nothing is left. */
bool bl_server_wait_idle(bl_server *s, double seconds);
/* End what is still under way (streams get a last event and [DONE]) and everything else. NULL is fine. */
void bl_server_stop(bl_server **s);

#endif
