/* Lets the python tests reach the text side of the runtime: one question per line of standard input, one answer per line.
 *
 *   text_driver encode TOKENIZER [plain]   JSON string -> ids, space separated ("plain": added tokens are text)
 *   text_driver decode TOKENIZER           ids -> the text as hexadecimal bytes */
#include "formats/file.h"
#include "formats/json.h"
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

int main(int argc, char **argv)
{
    bl_error err;
    bl_error_clear(&err);
    bl_tokenizer *t = NULL;
    if (argc < 3 || (strcmp(argv[1], "encode") && strcmp(argv[1], "decode")))
        return 2;
    if (bl_tokenizer_open(&t, argv[2], &err) != BL_OK)
        return fail(&err);
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;
    while (rc == 0 && (n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[--n] = 0;
        rc = argv[1][0] == 'e' ? encode(t, line, (size_t)n, argc < 4, &err) : decode(t, line);
    }
    free(line);
    bl_tokenizer_close(&t);
    return rc;
}
