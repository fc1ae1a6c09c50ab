/* Passes that come again: the second time a shape is seen its operations are recorded as a graph, from then on one launch repeats
 * them. What differs between passes of a shape lies in tables in device memory. */
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum {
    GRAPH_TOKENS = 64, /* passes of more are not recorded: their shapes seldom return, and launching is a small part of them */
    GRAPH_COUNT = 128  /* kept; beyond that all are forgotten */
};

struct cuda_graph {
    cuda_graph *next;
    int64_t tokens, wanted, longest;
    cudaGraphExec_t exec; /* NULL: seen once */
};

static cuda_graph *find(const bl_cuda *c, const bl_pass *p)
{
    cuda_graph *g = c->graphs;
    while (g && (g->tokens != p->tokens || g->wanted != p->wanted_count || g->longest != c->longest)) g = g->next;
    return g;
}

void bl_cuda_forget_graphs(bl_cuda *c)
{
    while (c->graphs) {
        cuda_graph *next = c->graphs->next;
        if (c->graphs->exec) cudaGraphExecDestroy(c->graphs->exec);
        free(c->graphs);
        c->graphs = next;
    }
    c->graph_count = 0;
    c->graph = NULL;
}

/* Failing to remember costs speed, no more. */
static void remember(bl_cuda *c, const bl_pass *p)
{
    if (c->graph_count == GRAPH_COUNT) bl_cuda_forget_graphs(c);
    cuda_graph *g = calloc(1, sizeof *g);
    if (!g) return;
    *g = (cuda_graph){.next = c->graphs, .tokens = p->tokens, .wanted = p->wanted_count, .longest = c->longest};
    c->graphs = g;
    c->graph_count++;
}

bl_status bl_cuda_graph_begin(bl_cuda *c, const bl_pass *p, bool *recorded, bl_error *err)
{
    *recorded = false;
    c->graph = NULL;
    if (!p->plain || p->tokens > GRAPH_TOKENS) return BL_OK;
    cuda_graph *g = find(c, p);
    if (!g) {
        remember(c, p);
        return BL_OK;
    }
    c->graph = g;
    *recorded = g->exec != NULL;
    if (*recorded) return BL_OK;
    /* other threads may allocate meanwhile */
    return bl_cuda_check(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording a pass", err);
}

bl_status bl_cuda_graph_end(bl_cuda *c, bl_error *err)
{
    cuda_graph *g = c->graph;
    cudaGraph_t graph = NULL;
    c->graph = NULL;
    if (!g) return BL_OK;
    if (!g->exec) {
        BL_TRY(bl_cuda_check(cudaStreamEndCapture(c->stream, &graph), "recording a pass", err));
        const cudaError_t e = cudaGraphInstantiate(&g->exec, graph, 0);
        cudaGraphDestroy(graph);
        BL_TRY(bl_cuda_check(e, "recording a pass", err));
    }
    return bl_cuda_check(cudaGraphLaunch(g->exec, c->stream), "a recorded pass", err);
}
