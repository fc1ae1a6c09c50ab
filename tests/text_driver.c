/* Lets the python tests reach the text side of the runtime: one question per line of standard input, one answer per line.
 *
 *   text_driver encode TOKENIZER [plain]   JSON string -> ids, space separated ("plain": added tokens are text)
 *   text_driver decode TOKENIZER           ids -> the text as hexadecimal bytes
 *   text_driver classes TOKENIZER          (no input) the Engram class of every id
 *   text_driver chat                       {"messages", "thinking", "effort", "drop_thinking", ...} -> the prompt as a JSON string,
 *                                          or {"key", "message"} of the refusal
 *   text_driver parse TOKENIZER            "think 1 2 3" or "answer 1 2 3" (how the prompt ends, output ids) -> the message as JSON
 *   text_driver multipliers                "N LAYER CLASSES" -> N multipliers */
#include "formats/file.h"
#include "formats/json.h"
#include "runtime/chat.h"
#include "runtime/engram.h"
#include "runtime/parse.h"
#include "runtime/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const bl_error *err)
{
    char line[2048];
    fprintf(stderr, "text_driver: %s\n", bl_error_line(err, line, sizeof line));
    return bl_exit_code(err->code);
}

static int encode(const bl_tokenizer *t, char *line, size_t n, bool added, bl_error *err)
{
    bl_json v;
    if (bl_json_parse(line, n, NULL, "line", &v, err) != BL_OK)
        return fail(err);
    char *text = malloc(v.n + 1);
    size_t len = bl_json_string(v, text, v.n + 1);
    bl_ids ids = {0};
    bl_status s = bl_tokenizer_encode(t, text, len, added, &ids, err);
    for (size_t i = 0; s == BL_OK && i < ids.count; i++)
        printf("%s%d", i ? " " : "", (int)ids.ids[i]);
    putchar('\n');
    free(text);
    free(ids.ids);
    return s == BL_OK ? 0 : fail(err);
}

static int decode(const bl_tokenizer *t, char *line)
{
    bl_detok d = {0};
    char *buf = NULL;
    size_t len = 0, cap = 0;
    for (char *p = strtok(line, " "); p; p = strtok(NULL, " "))
        if (bl_detok_push(&d, t, atoi(p), &buf, &len, &cap) != BL_OK)
            return 4;
    if (bl_detok_finish(&d, &buf, &len, &cap) != BL_OK)
        return 4;
    for (size_t i = 0; i < len; i++)
        printf("%02x", (unsigned)(unsigned char)buf[i]);
    putchar('\n');
    free(buf);
    return 0;
}

/* Options are read as from a request, except that "format" is response_format and "images" true allows images. */
static int chat(const char *line, size_t n)
{
    static const bl_json_limits limits = {.last_duplicate_wins = true};
    bl_error err;
    bl_error_clear(&err);
    bl_json v;
    bl_chat_options o = bl_chat_defaults();
    char *prompt = NULL;
    size_t len;
    bl_text out = {0};
    bl_status s = bl_json_parse(line, n, &limits, "line", &v, &err);
    if (s == BL_OK)
        s = bl_chat_options_read(v, &o, &err);
    if (s == BL_OK) {
        o.response_format = bl_json_get(v, "format");
        bl_json_bool(bl_json_get(v, "images"), &o.images);
        s = bl_chat_encode(bl_json_get(v, "messages"), &o, &prompt, &len, NULL, &err);
    }
    if (s == BL_OK) {
        bl_text_quote(&out, prompt, len);
    } else {
        bl_text_puts(&out, "{\"key\": ");
        bl_text_quote(&out, err.tensor, strlen(err.tensor));
        bl_text_puts(&out, ", \"message\": ");
        bl_text_quote(&out, err.message, strlen(err.message));
        bl_text_puts(&out, "}");
    }
    printf("%.*s\n", (int)out.n, out.p);
    free(prompt);
    free(out.p);
    return 0;
}

typedef struct message {
    bl_text reasoning, content, calls;
} message;

static void take(void *arg, const bl_event *e)
{
    message *m = arg;
    switch (e->kind) {
    case BL_EVENT_REASONING:
        bl_text_add(&m->reasoning, e->text, e->n);
        break;
    case BL_EVENT_ANSWER:
        bl_text_add(&m->content, e->text, e->n);
        break;
    case BL_EVENT_CALL_BEGIN:
        bl_text_puts(&m->calls, e->call ? ", [" : "[");
        bl_text_quote(&m->calls, e->text, e->n);
        bl_text_puts(&m->calls, ", ");
        break;
    case BL_EVENT_CALL_ARGUMENTS:
        bl_text_add(&m->calls, e->text, e->n);
        break;
    case BL_EVENT_CALL_END:
        bl_text_puts(&m->calls, "]");
        break;
    }
}

static int parse(const bl_tokenizer *t, char *line)
{
    message m = {{0}, {0}, {0}};
    bl_text out = {0};
    bl_parser *p;
    char *word = strtok(line, " ");
    bl_parser_options o = {.tokenizer = t,
                           .start = word && !strcmp(word, "think") ? BL_SECTION_REASONING : BL_SECTION_ANSWER,
                           .calls = BL_CALLS_PARSE,
                           .event = take,
                           .arg = &m};
    if (bl_parser_create(&p, &o, NULL) != BL_OK)
        return 4;
    while ((word = strtok(NULL, " ")))
        bl_parser_push(p, atoi(word));
    bl_parser_finish(p);
    bl_parser_destroy(&p);
    bl_text_puts(&out, "{\"reasoning\": ");
    bl_text_quote(&out, m.reasoning.p, m.reasoning.n);
    bl_text_puts(&out, ", \"content\": ");
    bl_text_quote(&out, m.content.p, m.content.n);
    bl_text_puts(&out, ", \"calls\": [");
    bl_text_add(&out, m.calls.p, m.calls.n);
    bl_text_puts(&out, "]}");
    printf("%.*s\n", (int)out.n, out.p);
    free(m.reasoning.p);
    free(m.content.p);
    free(m.calls.p);
    free(out.p);
    return 0;
}

static int classes(const bl_tokenizer *t, bl_error *err)
{
    int32_t *map;
    int count;
    if (bl_engram_token_map(t, &map, &count, err) != BL_OK)
        return fail(err);
    for (int i = 0; i < bl_tokenizer_size(t); i++)
        printf("%d ", (int)map[i]);
    printf("\n%d\n", count);
    free(map);
    return 0;
}

static int multipliers(const char *line)
{
    int64_t m[64];
    int n, layer, count;
    if (sscanf(line, "%d %d %d", &n, &layer, &count) != 3 || n > 64)
        return 2;
    bl_engram_multipliers(m, n, layer, count);
    for (int i = 0; i < n; i++)
        printf("%lld ", (long long)m[i]);
    putchar('\n');
    return 0;
}

/* Answer every line of standard input. */
static int serve(const char *what, const bl_tokenizer *t, bool added, bl_error *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;
    while (rc == 0 && (n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[--n] = 0;
        if (!strcmp(what, "encode"))
            rc = encode(t, line, (size_t)n, added, err);
        else if (!strcmp(what, "decode"))
            rc = decode(t, line);
        else if (!strcmp(what, "parse"))
            rc = parse(t, line);
        else if (!strcmp(what, "chat"))
            rc = chat(line, (size_t)n);
        else
            rc = multipliers(line);
    }
    free(line);
    return rc;
}

int main(int argc, char **argv)
{
    bl_error err;
    bl_error_clear(&err);
    if (argc < 2)
        return 2;
    bl_tokenizer *t = NULL;
    if (argc > 2 && bl_tokenizer_open(&t, argv[2], &err) != BL_OK)
        return fail(&err);
    int rc = strcmp(argv[1], "classes") ? serve(argv[1], t, argc < 4, &err) : classes(t, &err);
    bl_tokenizer_close(&t);
    return rc;
}
