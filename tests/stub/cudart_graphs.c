/* Graphs: captured, instantiated, launched. */
#include "tests/stub/cudart_impl.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 65536 };

struct CUgraph_st {
    stub_node *nodes;
    long count;
};

static cudaGraph_t capture;

bool stub_capture(stub_node n)
{
    if (!capture) return false;
    if (capture->count == NODES) abort();
    capture->nodes[capture->count++] = n;
    return true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)s;
    (void)mode;
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter("cudaStreamBeginCapture");
    if (e == cudaSuccess) {
        capture = calloc(1, sizeof *capture);
        capture->nodes = calloc(NODES, sizeof *capture->nodes);
        stub_forget_kernels();
    }
    pthread_mutex_unlock(&stub_lock);
    return e;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    (void)s;
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter("cudaStreamEndCapture");
    *g = capture;
    capture = NULL;
    pthread_mutex_unlock(&stub_lock);
    if (e == cudaSuccess) return e;
    if (*g) cudaGraphDestroy(*g);
    *g = NULL;
    return e;
}

/* An instance takes over what is in the graph. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    const cudaError_t e = stub_call("cudaGraphInstantiate");
    if (e != cudaSuccess) return e;
    cudaGraph_t copy = malloc(sizeof *copy);
    *copy = *g;
    g->nodes = NULL;
    *x = (cudaGraphExec_t)copy;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *count)
{
    for (long i = 0; nodes && i < g->count; i++) nodes[i] = (cudaGraphNode_t)(void *)&g->nodes[i];
    *count = (size_t)g->count;
    return stub_call("cudaGraphGetNodes");
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, enum cudaGraphNodeType *type)
{
    *type = ((const stub_node *)(const void *)n)->kernel ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemcpy;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    if (g) free(g->nodes);
    free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    return cudaGraphDestroy((cudaGraph_t)x);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    const cudaGraph_t g = (cudaGraph_t)x;
    (void)s;
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter("cudaGraphLaunch");
    cuda_stub_seen.graph_launches += e == cudaSuccess;
    for (long i = 0; e == cudaSuccess && i < g->count; i++) {
        const stub_node *n = &g->nodes[i];
        if (n->kernel) cuda_stub_seen.kernels++;
        else memcpy(n->to, n->from, n->bytes);
    }
    pthread_mutex_unlock(&stub_lock);
    return e;
}
