#include "tools/bench.h"

static bl_status none(bl_error *err)
{
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "this build has no CUDA backend");
}

bl_status bench_find_gpu(bench *b, bl_error *err)
{
    (void)b;
    return none(err);
}

bl_status bench_device_product_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    (void)b;
    (void)s;
    return none(err);
}

bl_status bench_device_copy_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    (void)b;
    (void)s;
    return none(err);
}

bl_status bench_upload_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    (void)b;
    (void)s;
    return none(err);
}

bl_status bench_device_kernels(bench *b, bl_error *err)
{
    (void)b;
    return none(err);
}
