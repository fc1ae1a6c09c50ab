/* Passes that come again: the second time a shape is seen its operations are recorded as a graph, from then on one launch repeats
 * them. What differs between passes of a shape lies in tables in device memory. */
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum {
    GRAPH_TOKENS = 64 /* of passes with prompts: shapes of more seldom return, and launching is a small part of them */
};

struct cuda_graph {
    cuda_graph *next;
    int64_t tokens, wanted, longest;
    bool draws;
    int64_t kernels;
    cudaGraphExec_t exec; /* NULL: seen once */
};

static cuda_graph *find(const bl_cuda *c, const bl_pass *p)
{
    cuda_graph *g = c->graphs;
    while (g && (g->tokens != p->tokens || g->wanted != p->wanted_count || g->longest != c->longest || g->draws != (p->draws != NULL)))
        g = g->next;
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
    if (c->graph_count == CUDA_GRAPHS) bl_cuda_forget_graphs(c);
    cuda_graph *g = calloc(1, sizeof *g);
    if (!g) return;
    *g = (cuda_graph){.next = c->graphs, .tokens = p->tokens, .wanted = p->wanted_count, .longest = c->longest,
                      .draws = p->draws != NULL};
    c->graphs = g;
    c->graph_count++;
}

bl_status bl_cuda_graph_begin(bl_cuda *c, const bl_pass *p, bool *recorded, bl_error *err)
{
    *recorded = false;
    c->graph = NULL;
    const bool decodes = p->span_count == p->delivered && p->tokens == p->wanted_count; /* a token of each sequence, and padding */
    if (!p->plain || p->tokens > (decodes ? CUDA_STEP : GRAPH_TOKENS)) return BL_OK;
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

/* Nothing depends on the number: failing to count is no failure of the pass. */
static int64_t count_kernels(cudaGraph_t graph)
{
    size_t n = 0;
    int64_t kernels = 0;
    cudaError_t e = cudaGraphGetNodes(graph, NULL, &n);
    cudaGraphNode_t *nodes = e == cudaSuccess ? malloc((n + 1) * sizeof(cudaGraphNode_t)) : NULL;
    if (nodes) e = cudaGraphGetNodes(graph, nodes, &n);
    for (size_t i = 0; nodes && e == cudaSuccess && i < n; i++) {
        enum cudaGraphNodeType type;
        e = cudaGraphNodeGetType(nodes[i], &type);
        kernels += e == cudaSuccess && type == cudaGraphNodeTypeKernel;
    }
    if (e != cudaSuccess) (void)cudaGetLastError();
    free(nodes);
    return kernels;
}

/* After running out of device memory: is it worth another try without the passes other than g, which are recorded anew when they
 * return? */
static bool made_room(bl_cuda *c, const cuda_graph *g, cudaError_t e)
{
    bool made = false;
    if (e != cudaErrorMemoryAllocation) return false;
    (void)cudaGetLastError(); /* no fault that lasts */
    for (cuda_graph *other = c->graphs; other; other = other->next) {
        if (other == g || !other->exec) continue;
        cudaGraphExecDestroy(other->exec);
        other->exec = NULL;
        made = true;
    }
    return made;
}

bl_status bl_cuda_graph_end(bl_cuda *c, bl_error *err)
{
    cuda_graph *g = c->graph;
    cudaGraph_t graph = NULL;
    c->graph = NULL;
    if (!g) return BL_OK;
    if (!g->exec) {
        cudaError_t e = cudaPeekAtLastError(); /* an operation that failed is not in the graph */
        const cudaError_t ended = cudaStreamEndCapture(c->stream, &graph);
        if (e == cudaSuccess) e = ended;
        g->kernels = graph ? count_kernels(graph) : 0;
        if (e == cudaSuccess) {
            e = cudaGraphInstantiate(&g->exec, graph, 0);
            if (made_room(c, g, e)) e = cudaGraphInstantiate(&g->exec, graph, 0);
        }
        if (graph) cudaGraphDestroy(graph);
        BL_TRY(bl_cuda_check(e, "recording a pass", err));
    }
    c->launches.recorded = true;
    c->launches.kernels = g->kernels;
    cudaError_t e = cudaGraphLaunch(g->exec, c->stream);
    if (made_room(c, g, e)) e = cudaGraphLaunch(g->exec, c->stream);
    return bl_cuda_check(e, "a recorded pass", err);
}
