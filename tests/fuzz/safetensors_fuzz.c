#include "tests/fuzz/fuzz.h"

#include "formats/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int memory_file = -1;

static bl_status read_bytes(bl_arena *arena, bl_st_header *h, bl_error *err)
{
    char path[64];
    bl_file *f;
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory_file);
    BL_MUST(bl_file_open(&f, path, NULL) == BL_OK);
    bl_status s = bl_st_read(f, 0, arena, h, err);
    bl_file_close(&f);
    return s;
}

/* What was accepted obeys the format's rules. */
static void check_header(const bl_st_header *h)
{
    uint64_t end = h->header_bytes, bytes;
    for (size_t i = 0; i < h->count; i++) {
        const bl_tensor *t = &h->tensors[i];
        BL_MUST(t->offset == end && t->ndim <= BL_MAX_DIMS && bl_tensor_name_ok(t->name, strlen(t->name)));
        BL_MUST(bl_tensor_size(t->dtype, t->shape, t->ndim, &bytes) && bytes == t->nbytes);
        end += t->nbytes;
    }
    BL_MUST(end == h->file_bytes);
}

/* Laid out anew it is accepted again. */
static void round_trip(bl_st_header *h, bl_arena *arena, int keep_order)
{
    bl_st_head head;
    char header[64];
    bl_st_header again;
    BL_MUST(bl_st_layout(h->tensors, h->count, h->metadata, 0, 64, keep_order, arena, &head, NULL) == BL_OK);
    BL_MUST(ftruncate(memory_file, 0) == 0 && ftruncate(memory_file, (off_t)head.file_bytes) == 0);
    for (uint64_t at = 0; at < head.header_bytes; at += sizeof header) {
        bl_st_head_copy(&head, at, sizeof header, header);
        BL_MUST(pwrite(memory_file, header, sizeof header, (off_t)at) == (ssize_t)sizeof header);
    }
    BL_MUST(read_bytes(arena, &again, NULL) == BL_OK && again.count == h->count);
    check_header(&again);
}

/* Byte 0 odd: the rest is a whole file. Even: bytes 1 and 2 are a number of data bytes, the rest a header. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_arena arena = {0};
    bl_st_header h;
    bl_error err = {0};
    if (size < 3) {
        return 0;
    }
    if (memory_file < 0) {
        memory_file = memfd_create("fuzz", 0);
        BL_MUST(memory_file >= 0);
    }
    BL_MUST(ftruncate(memory_file, 0) == 0);
    if (data[0] & 1) {
        BL_MUST(pwrite(memory_file, data + 1, size - 1, 0) == (ssize_t)size - 1);
    } else {
        uint64_t n = size - 3;
        off_t end = (off_t)(8 + n + data[1] + 256u * data[2]);
        BL_MUST(pwrite(memory_file, &n, 8, 0) == 8 && pwrite(memory_file, data + 3, n, 8) == (ssize_t)n);
        BL_MUST(ftruncate(memory_file, end) == 0);
    }
    if (read_bytes(&arena, &h, &err) == BL_OK) {
        check_header(&h);
        round_trip(&h, &arena, data[0] & 2);
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    BL_MUST(arena.total <= 64 * size + 65536);
    bl_arena_reset(&arena);
    return 0;
}
