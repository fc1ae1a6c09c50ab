#include "convert/synth_tokenizer.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char corpus[] =
    "A whale is not a fish. It breathes air, sings, and carries its young for a year. The largest one weighs as much as thirty "
    "elephants, and its heart is the size of a small car. Sailors wrote about it long before anyone could measure it.\n"
    "Every checkpoint holds weights, scales and tables. A weight is a number; a scale says how large the numbers around it are; a "
    "table answers a question without thinking. When you copy them, count them: what went in must come out.\n"
    "The user asks and the assistant answers. What is 12 plus 30? It is 42. What is 7 times 8? It is 56. Which of these is larger, "
    "3.14 or 2.72? The first one is larger. Is water wet? That depends on what you mean by wet.\n"
    "for (int i = 0; i < 10; i++) { total += values[i] * values[i]; }\nreturn total > limit ? limit : total;\n"
    "def mean(values):\n    return sum(values) / len(values)\n"
    "{\"name\": \"north\", \"count\": 100, \"open\": true, \"items\": [1, 2, 3]}\n"
    "In the morning the ships left the harbour. In the evening they came back with salt, rope, paper and stories. The harbour "
    "master wrote down the time, the name and the load of each, and at the end of the month he added everything up twice.\n"
    "The first thing to do with a measurement is to do it again. The second thing is to ask what else could have made the same "
    "number. The third is to write down what you did, so that someone else can do it without you.\n"
    "2024-01-31 10:15:00 started, 2024-02-29 23:59:59 finished. THE END. The end, the end; then then this that with from have "
    "more some other than into when would there their which about could people after where thing before right think still.\n";

/* Tokens by their bytes. */
typedef struct token {
    const char *bytes; /* in words' text or a merge's own copy */
    int n;
} token;

typedef struct word {
    int *ids;
    int n, count;
} word;

#define FIRST_BYTE 3
#define MAX_WORDS 1024
#define MAX_MERGES 8192

typedef struct trainer {
    token tokens[FIRST_BYTE + 256 + MAX_MERGES];
    int token_count;
    int merges[MAX_MERGES][2];
    int merge_count;
    word words[MAX_WORDS];
    int word_count;
    unsigned char bytes[256];
    int ids[sizeof corpus]; /* of all words */
    char text[8 * sizeof corpus];
    size_t text_used;
} trainer;

/* Length of the piece at p: up to three digits, an optional blank and letters, an optional blank and signs, or blanks. */
static int piece(const char *p)
{
    int n = 0;
    if (isdigit((unsigned char)*p)) {
        while (n < 3 && isdigit((unsigned char)p[n])) {
            n++;
        }
        return n;
    }
    int skip = *p == ' ';
    if (isalpha((unsigned char)p[skip])) {
        for (n = skip; isalpha((unsigned char)p[n]); n++) {
        }
        return n;
    }
    if (ispunct((unsigned char)p[skip])) {
        for (n = skip; ispunct((unsigned char)p[n]); n++) {
        }
        return n;
    }
    while (isspace((unsigned char)p[n])) {
        n++;
    }
    return n;
}

static void collect_words(trainer *t)
{
    int used = 0;
    const char *starts[MAX_WORDS];
    for (const char *p = corpus; *p;) {
        int n = piece(p), i = 0;
        while (i < t->word_count && !(t->words[i].n == n && !memcmp(starts[i], p, (size_t)n))) {
            i++;
        }
        if (i == t->word_count && i < MAX_WORDS) {
            starts[i] = p;
            t->words[i] = (word){.ids = t->ids + used, .n = n};
            for (int k = 0; k < n; k++) {
                t->ids[used++] = FIRST_BYTE + (unsigned char)p[k];
            }
            t->word_count++;
        }
        if (i < MAX_WORDS) {
            t->words[i].count++;
        }
        p += n;
    }
}

typedef struct pair {
    int a, b, count;
} pair;

static int by_pair(const void *x, const void *y)
{
    const pair *p = x, *q = y;
    return p->a != q->a ? (p->a < q->a ? -1 : 1) : p->b != q->b ? (p->b < q->b ? -1 : 1) : 0;
}

/* The most frequent pair, the smallest ids among equals; false when there is none. */
static bool best_pair(const trainer *t, int *a, int *b)
{
    static const int room = (int)sizeof corpus;
    pair *pairs = malloc((size_t)room * sizeof *pairs);
    int n = 0, best = -1;
    for (int w = 0; pairs && w < t->word_count; w++) {
        for (int i = 0; i + 1 < t->words[w].n; i++) {
            pairs[n++] = (pair){t->words[w].ids[i], t->words[w].ids[i + 1], t->words[w].count};
        }
    }
    if (n) {
        qsort(pairs, (size_t)n, sizeof *pairs, by_pair);
    }
    for (int i = 0, first = 0; i < n; i++) {
        if (by_pair(&pairs[first], &pairs[i]) != 0) {
            first = i;
        } else if (i != first) {
            pairs[first].count += pairs[i].count;
        }
        if (best < 0 || pairs[first].count > pairs[best].count) {
            best = first;
        }
    }
    if (best >= 0) {
        *a = pairs[best].a;
        *b = pairs[best].b;
    }
    free(pairs);
    return best >= 0;
}

static void apply(trainer *t, int a, int b, int id)
{
    for (int w = 0; w < t->word_count; w++) {
        word *x = &t->words[w];
        int n = 0;
        for (int i = 0; i < x->n; i++) {
            bool join = i + 1 < x->n && x->ids[i] == a && x->ids[i + 1] == b;
            x->ids[n++] = join ? id : x->ids[i];
            i += join;
        }
        x->n = n;
    }
}

/* The token of these bytes; -1 when there is none. Two merges may lead to one token. */
static int find_token(const trainer *t, const char *bytes, int n)
{
    for (int i = FIRST_BYTE; i < t->token_count; i++) {
        if (t->tokens[i].n == n && !memcmp(t->tokens[i].bytes, bytes, (size_t)n)) {
            return i;
        }
    }
    return -1;
}

static void train(trainer *t, int most)
{
    int a, b;
    for (int i = 0; i < 256; i++) {
        t->bytes[i] = (unsigned char)i;
        t->tokens[FIRST_BYTE + i] = (token){(const char *)&t->bytes[i], 1};
    }
    t->token_count = FIRST_BYTE + 256;
    collect_words(t);
    while (t->token_count < most && t->merge_count < MAX_MERGES && best_pair(t, &a, &b)) {
        token x = t->tokens[a], y = t->tokens[b];
        int n = x.n + y.n;
        char *bytes = t->text + t->text_used;
        if (t->text_used + (size_t)n > sizeof t->text) {
            break;
        }
        memcpy(bytes, x.bytes, (size_t)x.n);
        memcpy(bytes + x.n, y.bytes, (size_t)y.n);
        int id = find_token(t, bytes, n);
        if (id < 0) {
            id = t->token_count++;
            t->tokens[id] = (token){bytes, n};
            t->text_used += (size_t)n;
        }
        t->merges[t->merge_count][0] = a;
        t->merges[t->merge_count++][1] = b;
        apply(t, a, b, id);
    }
}

/* ---- the file */

static const char *const first_tokens[FIRST_BYTE] = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"};
static const char *const last_tokens[] = {"<｜System｜>", "<｜User｜>",           "<｜Assistant｜>",       "<think>",      "</think>",
                                          "｜DSML｜",     "<｜latest_reminder｜>", "<｜deepseek_image｜>", "<｜noise｜>"};
#define LAST_COUNT ((int)(sizeof last_tokens / sizeof *last_tokens))
#define IMAGE_AT 7
#define NOISE_AT 8

static void put_code_point(FILE *f, unsigned c)
{
    if (c == '"' || c == '\\') {
        fputc('\\', f);
    }
    if (c < 0x80) {
        fputc((int)c, f);
    } else {
        fputc((int)(0xC0 | c >> 6), f);
        fputc((int)(0x80 | (c & 63)), f);
    }
}

/* Byte-level BPE writes each byte as a printable character: itself where it is one, else from U+0100 on, in order. */
static unsigned alphabet(unsigned byte)
{
    unsigned below = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) {
            return printable ? b : 256 + below;
        }
        below += !printable;
    }
    return 0;
}

static void put_token(FILE *f, const token *t)
{
    fputc('"', f);
    for (int i = 0; i < t->n; i++) {
        put_code_point(f, alphabet((unsigned char)t->bytes[i]));
    }
    fputc('"', f);
}

static void put_added(FILE *f, int id, const char *content, bool special, bool first)
{
    fprintf(f,
            "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
            "\"special\": %s}",
            first ? "" : ", ", id, content, special ? "true" : "false");
}

static void put_file(FILE *f, const trainer *t, int size)
{
    fputs("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [", f);
    for (int i = 0; i < FIRST_BYTE; i++) {
        put_added(f, i, first_tokens[i], true, i == 0);
    }
    for (int id = t->token_count; id < size - LAST_COUNT; id++) {
        char name[64];
        snprintf(name, sizeof name, "<｜place▁holder▁no▁%d｜>", id);
        put_added(f, id, name, true, false);
    }
    for (int i = 0; i < LAST_COUNT; i++) {
        bool plain = !strcmp(last_tokens[i], "<think>") || !strcmp(last_tokens[i], "</think>") || !strcmp(last_tokens[i], "｜DSML｜");
        put_added(f, size - LAST_COUNT + i, last_tokens[i], !plain, false);
    }
    fputs("], \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
          "\"pretokenizers\": [",
          f);
    static const char *const patterns[] = {
        "\\\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
        ("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| "
        "?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        fprintf(f, "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\", \"invert\": false}, ",
                patterns[i]);
    }
    fputs("{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}, "
          "\"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, \"use_regex\": true}, "
          "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}, "
          "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
          "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {",
          f);
    for (int i = 0; i < FIRST_BYTE; i++) {
        fprintf(f, "%s\"%s\": %d", i ? ", " : "", first_tokens[i], i);
    }
    for (int id = FIRST_BYTE; id < t->token_count; id++) {
        fputs(", ", f);
        put_token(f, &t->tokens[id]);
        fprintf(f, ": %d", id);
    }
    fputs("}, \"merges\": [", f);
    for (int i = 0; i < t->merge_count; i++) {
        fputs(i ? ", [" : "[", f);
        put_token(f, &t->tokens[t->merges[i][0]]);
        fputs(", ", f);
        put_token(f, &t->tokens[t->merges[i][1]]);
        fputc(']', f);
    }
    fputs("]}}", f);
}

bl_status bl_synth_tokenizer(int size, char **text, size_t *n, int *noise, int *image, bl_error *err)
{
    *text = NULL;
    if (size < FIRST_BYTE + 256 + LAST_COUNT || size > 1 << 22) {
        return bl_fail(err, BL_E_USAGE, NULL, "vocab_size", -1, "must be from %d to %d", FIRST_BYTE + 256 + LAST_COUNT, 1 << 22);
    }
    trainer *t = calloc(1, sizeof *t);
    FILE *f = t ? open_memstream(text, n) : NULL;
    if (!f) {
        free(t);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    train(t, size - LAST_COUNT);
    put_file(f, t, size);
    *noise = size - LAST_COUNT + NOISE_AT;
    *image = size - LAST_COUNT + IMAGE_AT;
    free(t);
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    return bad ? bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory") : BL_OK;
}

const char *bl_synth_tokenizer_config(void)
{
    return "{\"add_bos_token\": false, \"add_eos_token\": false, \"bos_token\": \"<｜begin▁of▁sentence｜>\", \"eos_token\": "
           "\"<｜end▁of▁sentence｜>\", \"pad_token\": \"<｜▁pad▁｜>\", \"tokenizer_class\": \"PreTrainedTokenizerFast\", "
           "\"model_max_length\": 1048576}\n";
}
