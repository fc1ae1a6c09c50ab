/* A program of others: opens a checkpoint through the installed library and casts the first rows of a fp8 weight to bf16. Prints the
 * tensor's first 32 columns of 2 rows as hexadecimal bf16. Compiled by py/test_install.py with what pkg-config says, nothing else. */
#include <baleen/formats/checkpoint.h>
#include <baleen/kernels/cast.h>
#include <baleen/kernels/cpu.h>

#include <stdio.h>
#include <string.h>

enum { ROWS = 2, COLS = 32 };

static bl_status cast_tile(const bl_checkpoint *c, const char *weight, const char *scale, bl_error *err)
{
    const bl_tensor *w = bl_checkpoint_find(c, weight), *s = bl_checkpoint_find(c, scale);
    if (!w || !s || w->dtype != BL_DT_F8_E4M3 || w->ndim != 2)
        return bl_fail(err, BL_E_INPUT, c->path, weight, -1, "is no fp8 matrix with a scale");
    uint8_t codes[COLS], scale_byte;
    uint16_t out[COLS];
    bl_cast_kernels k;
    bl_cast_init(&k, bl_cpu_detect());
    BL_TRY(bl_file_read(bl_checkpoint_file(c, s)->file, &scale_byte, 1, s->offset, err));
    for (int r = 0; r < ROWS; r++) {
        BL_TRY(bl_file_read(bl_checkpoint_file(c, w)->file, codes, COLS, w->offset + (uint64_t)r * w->shape[1], err));
        k.fp8_row(out, codes, &scale_byte, COLS);
        for (int i = 0; i < COLS; i++) printf("%04x%c", (unsigned)out[i], i + 1 < COLS ? ' ' : '\n');
    }
    return BL_OK;
}

int main(int argc, char **argv)
{
    bl_checkpoint *c = NULL;
    bl_error err;
    char line[2048];
    if (argc != 4) return 2;
    bl_error_clear(&err);
    bl_status s = bl_checkpoint_open(&c, argv[1], NULL, &err);
    if (s == BL_OK) s = cast_tile(c, argv[2], argv[3], &err);
    if (s != BL_OK) fprintf(stderr, "%s\n", bl_error_line(&err, line, sizeof line));
    bl_checkpoint_close(&c);
    return bl_exit_code(s);
}
