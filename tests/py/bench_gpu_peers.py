"""What torch (eager and compiled), cuBLAS and triton make of the operations that `baleen bench device` measures.

    python tests/py/bench_gpu_peers.py [--baleen BUILD/tools/baleen] [--rounds N]

Needs a GPU, torch, and triton for its lines; what is missing is named. Operands are random, compiled functions are checked against
the eager ones before they are timed; times are those of CUDA events, median with 10th and 90th percentile of the rounds. The share is
of the same ceilings as in the program's lines: the copy rate for bytes read and written once, cuBLAS' bf16 product for arithmetic,
both measured here. With --baleen the program's own lines follow, from the same machine in the same minute.
"""
import argparse
import statistics
import subprocess
import sys

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


CEILINGS = {}  # median rates by unit: GB/s of a copy, TFLOP/s of a product


def show(name, times, work, unit, least=None):
    """least: what the floor counts, as (work, unit), where it is not the line's own work."""
    n = len(times)
    rate = [work / t for t in (statistics.median(times), times[n - 1 - n // 10], times[n // 10])]
    need, of = least or (work, unit)
    share = f"  {100 * need / CEILINGS[of] / statistics.median(times):.1f}% of its ceiling" if of in CEILINGS else ""
    print(f"  {name:<58} {rate[0]:>9.1f} {unit:<8} ({rate[1]:.1f}..{rate[2]:.1f})  {1e6 * statistics.median(times):.1f} us{share}", flush=True)
    return rate[0]


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
    CEILINGS["GB/s"] = show("copy", timed(lambda: copy.copy_(other), rounds), 2 * 1.073741824, "GB/s")
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
        rate = show(f"bf16 product {m} x {n} x {k}, cuBLAS through torch", timed(lambda: x @ w.T, rounds), 2e-12 * m * n * k, "TFLOP/s")
        CEILINGS.setdefault("TFLOP/s", rate)  # the first, square one
    for n, k in ((32768, 1280), (5120, 8192)):
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(1, k, device="cuda", dtype=torch.bfloat16)
        show(f"one token, {n} x {k} in bf16, cuBLAS through torch", timed(lambda: x @ w.T, rounds, 20), 2e-9 * n * k, "GB/s")


def select(rounds):
    scores = torch.randn(4, 131072, device="cuda")
    keys4 = (4e-9 * 131072 * 68, "GB/s")  # reading the packed keys
    show("512 of 131,072 scores that are there, 4 rows, torch.topk", timed(lambda: torch.topk(scores, 512), rounds, 20), 1, "step/s", keys4)
    keys = torch.randn(4, 131072, 128, device="cuda", dtype=torch.bfloat16)
    q, weight = torch.randn(4, 32, 128, device="cuda", dtype=torch.bfloat16), torch.randn(4, 32, 1, device="cuda", dtype=torch.bfloat16)

    def eager():
        return torch.topk((torch.relu(q @ keys.transpose(1, 2)) * weight).sum(1), 512)

    show("index scores of bf16 keys and 512 of 131,072, 4 rows, torch eager", timed(eager, rounds), 1, "step/s", keys4)
    compiled = torch.compile(eager)
    compiled()
    show("the same, torch.compile", timed(compiled, rounds), 1, "step/s", keys4)


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


def both(name, f, rounds, work, unit, check=True):
    want = f()
    show(f"{name}, torch eager", timed(f, rounds, 5), work, unit)
    compiled = torch.compile(f)
    got = compiled()
    if check:
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
    show(f"{name}, torch.compile", timed(compiled, rounds, 5), work, unit)


def mixing(rounds):
    """The streams of 8,192 tokens: coefficients (products, Sinkhorn), then expansion, collapse and norm, without the rounding to fp8."""
    tokens, hidden, s, eps = 8192, 5120, 4, 1e-6
    H = torch.randn(tokens, s, hidden, device="cuda", dtype=torch.bfloat16)
    fn = torch.randn(24, s * hidden, device="cuda") * 0.02
    scale, base = torch.randn(3, device="cuda"), torch.randn(24, device="cuda")
    partial, norm = torch.randn(tokens, hidden, device="cuda"), torch.randn(hidden, device="cuda", dtype=torch.bfloat16)

    def coefficients():
        x = H.flatten(1).float()
        m = x @ fn.T * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-20)
        pre = torch.sigmoid(m[:, :s] * scale[0] + base[:s]) + eps
        post = 2 * torch.sigmoid(m[:, s:2 * s] * scale[1] + base[s:2 * s])
        comb = torch.softmax((m[:, 2 * s:] * scale[2] + base[2 * s:]).view(-1, s, s), -1) + eps
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        for _ in range(19):
            comb = comb / (comb.sum(2, keepdim=True) + eps)
            comb = comb / (comb.sum(1, keepdim=True) + eps)
        return pre, post, comb

    pre, post, comb = coefficients()

    def step():
        y = partial.to(torch.bfloat16).float()
        out = (post[:, :, None] * y[:, None] + torch.einsum("tjk,tjd->tkd", comb, H.float())).to(torch.bfloat16)
        x = (pre[:, :, None] * out.float()).sum(1).to(torch.bfloat16).float()
        return out, (norm.float() * (x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-20))).to(torch.bfloat16)

    streams, row = 2 * tokens * s * hidden, 2 * tokens * hidden
    both("mixing: coefficients", coefficients, rounds, 1e-9 * (streams + 4 * 24 * s * hidden + 4 * 24 * tokens), "GB/s")
    both("mixing: expand, collapse, norm", step, rounds, 1e-9 * (2 * streams + 3 * row + 4 * 24 * tokens), "GB/s", check=False)


def gather(rounds):
    """Rows of an Engram table of 4 GB for 8,192 tokens."""
    rows, width, count = 16 << 20, 256, 8192 * 24
    codes = torch.randint(0, 256, (rows, width), device="cuda", dtype=torch.uint8) & 0xbf
    scale = torch.randint(110, 140, (rows, width // 32), device="cuda", dtype=torch.uint8)
    at = torch.randint(0, rows, (count,), device="cuda")

    def run():
        w = codes[at].view(torch.float8_e4m3fn).float().view(count, -1, 32)
        s = (scale[at].int() << 23).view(torch.float32)
        return (w * s[:, :, None]).to(torch.bfloat16).view(count, width)

    both("Engram rows of 8,192 tokens", run, rounds, 1e-9 * count * (3 * width + width // 32 + 8), "GB/s")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--baleen")
    a.add_argument("--rounds", type=int, default=21)
    o = a.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__ if triton else 'absent'}")
    failed = 0
    for f in (casts, products, select, attention, mixing, gather):
        try:
            f(o.rounds)
        except Exception as e:  # the others are measured all the same
            failed = 1
            print(f"  {f.__name__}: {type(e).__name__}: {e}")
        torch.cuda.empty_cache()
    if o.baleen:
        subprocess.run([o.baleen, "bench", "device", "--rounds", str(o.rounds)], check=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
