/* Which request goes where, who may ask, and how errors look. */
#include "runtime/api_impl.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static void do_chat(bl_server *s, bl_exchange *x)
{
    bl_api_complete(s, x, API_CHAT);
}

static void do_text(bl_server *s, bl_exchange *x)
{
    bl_api_complete(s, x, API_TEXT);
}

enum {
    OPEN = 1,   /* no key needed */
    EARLY = 2,  /* also while loading or draining */
    QUICK = 4,  /* answered on the socket thread */
    PREFIX = 8  /* path is a prefix */
};

static const struct route {
    const char *method, *path;
    unsigned flags;
    void (*run)(bl_server *s, bl_exchange *x);
} routes[] = {
    {"GET", "/health", OPEN | EARLY | QUICK, bl_api_health},
    {"GET", "/metrics", OPEN | EARLY | QUICK, bl_api_metrics},
    {"GET", "/v1/models", QUICK, bl_api_models},
    {"GET", "/v1/models/", QUICK | PREFIX, bl_api_model},
    {"GET", "/server_info", QUICK, bl_api_server_info},
    {"GET", "/model_info", QUICK, bl_api_server_info},
    {"POST", "/v1/chat/completions", 0, do_chat},
    {"POST", "/v1/completions", 0, do_text},
    {"POST", "/tokenize", 0, bl_api_tokenize},
    {"POST", "/v1/tokenize", 0, bl_api_tokenize},
    {"POST", "/detokenize", 0, bl_api_detokenize},
    {"POST", "/v1/detokenize", 0, bl_api_detokenize},
};
enum { ROUTES = sizeof routes / sizeof *routes };

static bool path_matches(const struct route *r, const char *path)
{
    return r->flags & PREFIX ? strncmp(path, r->path, strlen(r->path)) == 0 : strcmp(path, r->path) == 0;
}

/* The route of a request; NULL with *known telling whether the path exists under another method. */
static const struct route *find_route(const bl_exchange *x, const struct route **other)
{
    const char *method = bl_exchange_method(x);
    if (strcmp(method, "HEAD") == 0)
        method = "GET"; /* libmicrohttpd leaves the body out */
    *other = NULL;
    for (int i = 0; i < ROUTES; i++)
        if (path_matches(&routes[i], bl_exchange_path(x))) {
            if (strcmp(routes[i].method, method) == 0)
                return &routes[i];
            *other = &routes[i];
        }
    return NULL;
}

/* ---- errors */

void bl_api_write_error(bl_text *t, int status, const char *message, const char *param, const char *code)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {404, "invalid_request_error"}, {500, "server_error"}, {503, "server_error"}};
    const char *type = "invalid_request_error";
    char number[24];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status)
            type = types[i].type;
    bl_text_puts(t, "{\"message\":");
    bl_text_quote(t, message, strlen(message));
    bl_text_puts(t, ",\"type\":\"");
    bl_text_puts(t, type);
    bl_text_puts(t, "\",\"param\":");
    if (param)
        bl_text_quote(t, param, strlen(param));
    else
        bl_text_puts(t, "null");
    bl_text_puts(t, ",\"code\":");
    snprintf(number, sizeof number, "%d", status);
    if (code)
        bl_text_quote(t, code, strlen(code));
    else
        bl_text_puts(t, number);
    bl_text_puts(t, "}");
}

static void write_error_body(bl_text *t, int status, const char *message, const char *param, const char *code)
{
    bl_text_puts(t, "{\"error\":");
    bl_api_write_error(t, status, message, param, code);
    bl_text_puts(t, "}\n");
}

void bl_api_fail(bl_exchange *x, int status, const char *message, const char *param, const char *code)
{
    bl_text body = {0};
    write_error_body(&body, status, message, param, code);
    bool again = status == 503;
    bl_exchange_answer(x, status, API_JSON, &body, again ? "Retry-After" : NULL, again ? "1" : NULL);
}

void bl_api_refusal(void *server, int status, const char *message, bl_text *body, const char **type)
{
    *type = API_JSON;
    write_error_body(body, status, message, NULL, NULL);
}

void bl_api_fail_status(bl_exchange *x, bl_status status, const bl_error *err)
{
    char line[2048];
    if (status == BL_E_NOMEM) {
        bl_api_fail(x, 503, "the server is out of memory", NULL, "out_of_memory");
    } else if (err && (status == BL_E_INPUT || status == BL_E_USAGE)) {
        bl_error shown = *err;
        if (strchr(shown.path, '/')) /* of our own files: not the client's to know */
            shown.path[0] = 0;
        bl_api_fail(x, 400, bl_error_line(&shown, line, sizeof line), shown.tensor[0] ? shown.tensor : NULL, NULL);
    } else {
        bl_api_fail(x, 500, "internal error", NULL, NULL); /* what went wrong inside is not the client's to know */
    }
}

bl_status bl_api_body(bl_server *s, bl_exchange *x, bl_json *root, bl_error *err)
{
    size_t n;
    const char *text = bl_exchange_body(x, &n);
    const bl_json_limits limits = {.max_bytes = s->options.max_body, .last_duplicate_wins = true};
    BL_TRY(bl_json_parse(text, n, &limits, "request body", root, err));
    if (root->kind != BL_JSON_OBJECT)
        return bl_fail(err, BL_E_INPUT, "request body", NULL, -1, "is not a JSON object");
    return BL_OK;
}

/* ---- who may ask */

/* Takes as long whatever the difference. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned difference = n != m;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)key[i] ^ (unsigned char)(m ? given[i % m] : 0);
    return difference == 0;
}

static bool authorized(const bl_server *s, bl_exchange *x)
{
    const char *h = bl_exchange_header(x, "Authorization");
    return !s->options.api_key || (h && strncasecmp(h, "Bearer ", 7) == 0 && same_key(h + 7, s->options.api_key));
}

static bool is_json(bl_exchange *x)
{
    const char *type = bl_exchange_header(x, "Content-Type");
    size_t n = strlen(API_JSON);
    return !type || (strncasecmp(type, API_JSON, n) == 0 && (!type[n] || type[n] == ';' || type[n] == ' '));
}

static void answer_options(bl_exchange *x, const struct route *r)
{
    bl_text none = {0};
    bl_exchange_answer(x, 204, NULL, &none, "Allow", strcmp(r->method, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
}

/* Status 0 = go on. */
static int check_state(bl_server *s, const struct route *r, const char **message)
{
    int state = atomic_load(&s->state);
    *message = state == API_LOADING ? "the model is being loaded" : "the server is shutting down";
    return state == API_READY || (r->flags & EARLY) ? 0 : 503;
}

void bl_api_head(void *server, bl_exchange *x)
{
    bl_server *s = server;
    const struct route *other, *r = find_route(x, &other);
    const char *message, *encoding = bl_exchange_header(x, "Content-Encoding");
    if (!r && other && strcmp(bl_exchange_method(x), "OPTIONS") == 0) {
        answer_options(x, other);
    } else if (!r && !other) {
        bl_api_fail(x, 404, "there is no such route", NULL, "not_found");
    } else if (!r) {
        bl_text body = {0};
        write_error_body(&body, 405, "the route does not take this method", NULL, "method_not_allowed");
        bl_exchange_answer(x, 405, API_JSON, &body, "Allow", other->method);
    } else if (!(r->flags & OPEN) && !authorized(s, x)) {
        bl_text body = {0};
        write_error_body(&body, 401, "a valid API key is needed (Authorization: Bearer KEY)", NULL, "invalid_api_key");
        bl_exchange_answer(x, 401, API_JSON, &body, "WWW-Authenticate", "Bearer");
    } else if (check_state(s, r, &message)) {
        bl_api_fail(x, 503, message, NULL, "unavailable");
    } else if (r->flags & QUICK) {
        r->run(s, x);
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        bl_api_fail(x, 415, "compressed request bodies are not supported", NULL, NULL);
    } else if (!is_json(x)) {
        bl_api_fail(x, 400, "the content type must be application/json", NULL, NULL);
    }
}

void bl_api_request(void *server, bl_exchange *x)
{
    bl_server *s = server;
    const struct route *other, *r = find_route(x, &other);
    r->run(s, x); /* bl_api_head lets nothing else through */
}
