/* A program of others that runs a model: prints the likeliest token after the given ids. Compiled by py/test_install.py. */
#include <baleen/runtime/forward.h>

#include <stdio.h>
#include <stdlib.h>

static bl_status likeliest(bl_model *m, const int32_t *ids, int64_t n, bl_error *err)
{
    int vocab = bl_model_config(m)->vocab_size, best = 0;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    bl_sequence *sequence = NULL;
    bl_status s = logits ? bl_sequence_create(&sequence, m, err) : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    if (s == BL_OK) s = bl_forward(m, &(bl_span){sequence, ids, n, n - 1}, 1, logits, NULL, err);
    for (int i = 0; s == BL_OK && i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    if (s == BL_OK) printf("%d\n", best);
    bl_sequence_destroy(&sequence);
    free(logits);
    return s;
}

int main(int argc, char **argv)
{
    int32_t ids[16];
    bl_model *m = NULL;
    bl_error err;
    char line[2048];
    if (argc < 3 || argc > 18) return 2;
    for (int i = 2; i < argc; i++) ids[i - 2] = atoi(argv[i]);
    bl_error_clear(&err);
    bl_status s = bl_model_open(&m, argv[1], &(bl_model_options){.cpu = ~0u}, &err);
    if (s == BL_OK) s = likeliest(m, ids, argc - 2, &err);
    if (s != BL_OK) fprintf(stderr, "%s\n", bl_error_line(&err, line, sizeof line));
    bl_model_close(&m);
    return bl_exit_code(s);
}
