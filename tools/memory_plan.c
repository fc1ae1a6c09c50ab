#include "tools/memory_plan.h"

#include "tools/cli.h"

#include <stdio.h>

static const char *const places[BL_MEMORY_PLACES] = {"device", "pinned", "shared", "host", "mapped"};

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

void plan_print(const bl_memory_plan *p, const char *model)
{
    printf("memory of %s on %s, in GiB\n", model, p->device == BL_DEVICE_CUDA ? "the GPU" : "the CPU");
    for (int place = 0; place < BL_MEMORY_PLACES; place++) {
        for (int i = 0; i < p->count; i++)
            if (p->lines[i].place == (bl_memory_place)place)
                printf("  %-8s %-16s %10.3f\n", places[p->lines[i].place], p->lines[i].what, gib(p->lines[i].bytes));
        if (p->total[place]) printf("  %-8s %-16s %10.3f\n", places[place], "in all", gib(p->total[place]));
    }
    if (p->sequences)
        printf("cache: %lld token%s in %d sequence%s of at most %lld\n", (long long)p->tokens, bl_plural((uint64_t)p->tokens), p->sequences,
               bl_plural((uint64_t)p->sequences), (long long)p->context);
    else
        printf("cache: grows on demand\n");
    if (p->device == BL_DEVICE_CUDA && p->engram) printf("Engram tables: %s: %s\n", cli_engram_places[p->engram], p->engram_why);
    if (p->reserve) printf("kept free for recorded passes: %.3f\n", gib(p->reserve));
    if ((p->engram == BL_ENGRAM_HOST || p->engram == BL_ENGRAM_SHARED) && p->host_memory)
        printf("available on the host: %.3f: pinned memory %s\n", gib(p->host_memory), bl_memory_plan_host_fits(p) ? "fits" : "does not fit");
    if (p->engram == BL_ENGRAM_SHARED)
        printf("shared memory: %.3f there already, %.3f free in " BL_SHARED_FOLDER ": it %s\n", gib(p->shared.there), gib(p->shared.free),
               bl_memory_plan_shared_fits(p) ? "fits" : "does not fit");
    if (p->memory)
        printf("free on the device: %.3f: it %s\n", gib(p->memory), bl_memory_plan_device_fits(p) ? "fits" : "does not fit");
}

void plan_print_json(const bl_memory_plan *p)
{
    printf("{\"device\":\"%s\",\"lines\":[", p->device == BL_DEVICE_CUDA ? "cuda" : "cpu");
    for (int i = 0; i < p->count; i++)
        printf("%s{\"place\":\"%s\",\"what\":\"%s\",\"bytes\":%llu}", i ? "," : "", places[p->lines[i].place], p->lines[i].what,
               (unsigned long long)p->lines[i].bytes);
    printf("],\"total\":{");
    for (int place = 0; place < BL_MEMORY_PLACES; place++)
        printf("%s\"%s\":%llu", place ? "," : "", places[place], (unsigned long long)p->total[place]);
    printf("},\"reserve\":%llu,\"cache\":{\"sequences\":%d,\"context\":%lld,\"tokens\":%lld,\"bytes\":%llu}",
           (unsigned long long)p->reserve, p->sequences, (long long)p->context, (long long)p->tokens, (unsigned long long)p->cache_bytes);
    if (p->engram) printf(",\"engram\":{\"place\":\"%s\",\"why\":\"%s\"}", cli_engram_places[p->engram], p->engram_why);
    if (p->engram == BL_ENGRAM_SHARED)
        printf(",\"shared\":{\"there\":%llu,\"free\":%llu}", (unsigned long long)p->shared.there, (unsigned long long)p->shared.free);
    if (p->host_memory) printf(",\"host_memory\":%llu", (unsigned long long)p->host_memory);
    if (p->memory)
        printf(",\"memory\":%llu,\"fits\":%s", (unsigned long long)p->memory,
               bl_memory_plan_fits(p) ? "true" : "false");
    printf("}\n");
}
