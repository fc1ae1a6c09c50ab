"""What torch (eager and compiled), cuBLAS and triton make of the operations that `baleen bench device` and `bench prefill` measure.

    python tests/py/bench_gpu_peers.py [--baleen BUILD/tools/baleen] [--rounds N]

Needs a GPU, torch, and triton for its lines; what is missing is named. Operands are random, compiled functions are checked against
the eager ones before they are timed; times are those of CUDA events, median with 10th and 90th percentile of the rounds. With
--baleen the program's own lines follow, from the same machine in the same minute.
"""
import argparse
import statistics
import subprocess

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

ROWS, COLS, SIDE = 65536, 5120, 8192


def timed(f, rounds, inner=1):
    for _ in range(3):
        f()
    times = []
    for _ in range(rounds):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(inner):
            f()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / 1e3 / inner)
    return sorted(times)


def show(name, times, work, unit):
    n = len(times)
    rate = [work / t for t in (statistics.median(times), times[n - 1 - n // 10], times[n // 10])]
    print(f"  {name:<58} {rate[0]:>9.1f} {unit:<8} ({rate[1]:.1f}..{rate[2]:.1f})  {1e6 * statistics.median(times):.1f} us", flush=True)


E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6]


def fp8_eager(codes, scale):
    """fp8 weights with a scale for each 32 x 32 to bf16."""
    w = codes.to(torch.float32).view(codes.shape[0] // 32, 32, -1, 32)
    s = (scale.to(torch.int32) << 23).view(torch.float32)
    return (w * s[:, None, :, None]).to(torch.bfloat16).view(codes.shape)


def fp4_eager(packed, scale, table):
    """fp4 weights, two a byte, with a scale for each 32 of a row to bf16."""
    rows = packed.shape[0]
    w = torch.stack([table[(packed & 15).int()], table[(packed >> 4).int()]], -1).view(rows, -1, 32)
    s = (scale.to(torch.int32) << 23).view(torch.float32)
    return (w * s[:, :, None]).to(torch.bfloat16).view(rows, -1)


if triton:

    @triton.jit
    def fp8_kernel(y, codes, scale, cols, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = at < cols
        w = tl.load(codes + row * cols + at, mask=there).to(tl.float32)
        s = tl.load(scale + row // 32 * (cols // 32) + at // 32, mask=there).to(tl.int32) << 23
        tl.store(y + row * cols + at, (w * s.to(tl.float32, bitcast=True)).to(tl.bfloat16), mask=there)


def casts(rounds):
    rows = ROWS // 4  # eager needs float32 copies of everything
    n = rows * COLS
    codes = (torch.randint(0, 256, (rows, COLS), device="cuda", dtype=torch.uint8) & 0xbf).view(torch.float8_e4m3fn)
    packed = torch.randint(0, 256, (rows, COLS // 2), device="cuda", dtype=torch.uint8)
    scale8 = torch.randint(110, 140, (rows // 32, COLS // 32), device="cuda", dtype=torch.uint8)
    scale4 = torch.randint(110, 140, (rows, COLS // 32), device="cuda", dtype=torch.uint8)
    table = torch.tensor(E2M1, device="cuda")
    gb8, gb4 = 1e-9 * (3 * n + n / 1024), 1e-9 * (2.5 * n + n / 32)
    copy = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    other = torch.randint(0, 256, (1 << 30,), device="cuda", dtype=torch.uint8)
    show("copy", timed(lambda: copy.copy_(other), rounds), 2 * 1.073741824, "GB/s")
    want8, want4 = fp8_eager(codes, scale8), fp4_eager(packed, scale4, table)
    show("fp8 to bf16, torch eager", timed(lambda: fp8_eager(codes, scale8), rounds), gb8, "GB/s")
    show("fp4 to bf16, torch eager", timed(lambda: fp4_eager(packed, scale4, table), rounds), gb4, "GB/s")
    c8, c4 = torch.compile(fp8_eager), torch.compile(fp4_eager)
    assert torch.equal(c8(codes, scale8), want8) and torch.equal(c4(packed, scale4, table), want4)
    show("fp8 to bf16, torch.compile", timed(lambda: c8(codes, scale8), rounds), gb8, "GB/s")
    show("fp4 to bf16, torch.compile", timed(lambda: c4(packed, scale4, table), rounds), gb4, "GB/s")
    if not triton:
        print("  triton is not installed")
        return
    y = torch.empty((rows, COLS), device="cuda", dtype=torch.bfloat16)
    run = lambda: fp8_kernel[(rows, triton.cdiv(COLS, 1024))](y, codes, scale8, COLS, BLOCK=1024)  # noqa: E731
    run()
    assert torch.equal(y, want8)
    show("fp8 to bf16, triton", timed(run, rounds), gb8, "GB/s")


def products(rounds):
    for m, n, k in ((SIDE, SIDE, SIDE), (SIDE, 32768, 1280), (SIDE, 5120, 8192), (SIDE, 2304, 5120)):
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        show(f"bf16 product {m} x {n} x {k}, cuBLAS through torch", timed(lambda: x @ w.T, rounds), 2e-12 * m * n * k, "TFLOP/s")
    for n, k in ((32768, 1280), (5120, 8192)):
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(1, k, device="cuda", dtype=torch.bfloat16)
        show(f"one token, {n} x {k} in bf16, cuBLAS through torch", timed(lambda: x @ w.T, rounds, 20), 2e-9 * n * k, "GB/s")


def select(rounds):
    scores = torch.randn(4, 131072, device="cuda")
    show("512 of 131,072 scores that are there, 4 rows, torch.topk", timed(lambda: torch.topk(scores, 512), rounds, 20), 1, "step/s")
    keys = torch.randn(4, 131072, 128, device="cuda", dtype=torch.bfloat16)
    q, weight = torch.randn(4, 32, 128, device="cuda", dtype=torch.bfloat16), torch.randn(4, 32, 1, device="cuda", dtype=torch.bfloat16)

    def eager():
        return torch.topk((torch.relu(q @ keys.transpose(1, 2)) * weight).sum(1), 512)

    show("index scores of bf16 keys and 512 of 131,072, 4 rows, torch eager", timed(eager, rounds), 1, "step/s")
    compiled = torch.compile(eager)
    compiled()
    show("the same, torch.compile", timed(compiled, rounds), 1, "step/s")


def attention(rounds):
    tokens, heads, slots, d = 64, 64, 640, 512
    latents = torch.randn(tokens, 8192, d, device="cuda", dtype=torch.bfloat16)
    index = torch.randint(0, 8192, (tokens, slots), device="cuda")
    q = torch.randn(tokens, heads, d, device="cuda", dtype=torch.bfloat16)

    def eager():
        kv = torch.gather(latents, 1, index[:, :, None].expand(-1, -1, d))
        p = torch.softmax((q @ kv.transpose(1, 2)).float() * d ** -0.5, -1)
        return p.to(torch.bfloat16) @ kv

    work = 4e-12 * tokens * heads * slots * d
    show("sparse attention of 64 tokens on bf16 latents, torch eager", timed(eager, rounds, 5), work, "TFLOP/s")
    compiled = torch.compile(eager)
    torch.testing.assert_close(compiled(), eager(), rtol=0.05, atol=0.05)
    show("the same, torch.compile", timed(compiled, rounds, 5), work, "TFLOP/s")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--baleen")
    a.add_argument("--rounds", type=int, default=21)
    o = a.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__ if triton else 'absent'}")
    for f in (casts, products, select, attention):
        f(o.rounds)
        torch.cuda.empty_cache()
    if o.baleen:
        subprocess.run([o.baleen, "bench", "device", "--rounds", str(o.rounds)], check=True)


if __name__ == "__main__":
    main()
