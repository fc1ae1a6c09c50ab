"""Baleen's casts and matrix products beside numpy, ml_dtypes and torch on the CPU, in one process on the same arrays.

    python tests/py/bench_peers.py --build BUILD [--threads N] [--rounds N] [--only casts|products]

Every result is compared before anything is timed: casts by bytes, products with a float64 product. Then all take turns; the
median of the rounds is shown with its 10th to 90th percentile and the best. Peers that are not installed are named as absent.
"warm" peers write to arrays made beforehand, a stripe of rows at a time; "plain" ones are the code one would write first, new
arrays included. torch comes small from Debian (python3-torch, CPU only); any newer one is used as it is.
"""
import argparse
import ctypes
import os
import pathlib
import statistics
import time

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None

NUMPY_STRIPE, TORCH_STRIPE = 64, 512  # rows of a warm peer's step: intermediates in cache; torch wakes threads for each
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
W_BF16, W_FP8, W_FP4 = 1, 2, 3


def e4m3_table():
    c = np.arange(256)
    e, m = (c >> 3) & 15, c & 7
    v = np.where(e == 0, m * 2.0 ** -9, (1 + m / 8) * 2.0 ** (e - 7.0))
    v[127] = v[255] = np.nan
    return np.where(c < 128, v, -v).astype(np.float32)


E4M3 = e4m3_table()
PAIRS = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], -1)


def scale_f32(s):
    return (s.astype(np.uint32) << 23).view(np.float32)  # bytes 1..254 only, which is all that is drawn here


def bits(f32):
    """bf16 codes of float32 values that are exact in bf16."""
    return (f32.view(np.uint32) >> 16).astype(np.uint16)


class Baleen:
    def __init__(self, build, threads):
        self.lib = ctypes.CDLL(str(pathlib.Path(build) / "tests" / "peers_driver.so"))
        self.lib.peers_level.restype = ctypes.c_char_p
        if self.lib.peers_open(threads):
            raise SystemExit("peers_open failed")
        self.level = self.lib.peers_level().decode()

    @staticmethod
    def ptr(a):
        return ctypes.c_void_p(a.ctypes.data if a is not None else None)

    def copy(self, dst, src):
        self.lib.peers_copy(self.ptr(dst), self.ptr(src), ctypes.c_int64(src.nbytes))

    def cast(self, out, codes, scale, scale_rows, fp4):
        rows, cols = out.shape
        self.lib.peers_cast(self.ptr(out), self.ptr(codes), self.ptr(scale), ctypes.c_int64(rows), ctypes.c_int64(cols), scale_rows,
                            int(fp4))

    def linear(self, y, x, codes, scale, cols, kind):
        if self.lib.peers_linear(self.ptr(y), self.ptr(x), ctypes.c_int64(x.shape[0]), self.ptr(codes), self.ptr(scale),
                                 ctypes.c_int64(y.shape[1]), ctypes.c_int64(cols), kind):
            raise SystemExit("peers_linear failed")


def take_turns(subjects, rounds):
    """subjects: name -> function. Returns name -> sorted seconds."""
    times = {name: [] for name in subjects}
    names = list(subjects)
    for r in range(-1, rounds):
        for i in range(len(names)):
            name = names[(r + i) % len(names)]
            t = time.perf_counter()
            subjects[name]()
            if r >= 0:
                times[name].append(time.perf_counter() - t)
    return {name: sorted(t) for name, t in times.items()}


def print_table(title, times, work, unit, ours):
    load = open("/proc/loadavg").read().split()[:3]
    print(f"\n{title}; load {' '.join(load)}\n  {'':34} {'median':>9} {unit:7} {'p10..p90':17} {'best':>8}   time / ours")
    base = statistics.median(times[ours])
    for name, t in times.items():
        n, mid = len(t), statistics.median(t)
        w = work[name]
        span = f"{w / t[n - 1 - (n - 1) // 10]:.4g}..{w / t[(n - 1) // 10]:.4g}"
        print(f"  {name:34} {w / mid:9.4g} {unit:7} {span:17} {w / t[0]:8.4g}   {mid / base:6.2f}")


# ---- casts

def grid(scale, rows, cols, scale_rows):
    """Scale bytes as float32, one for each row and block of 32."""
    return np.repeat(scale_f32(scale), scale_rows, 0)[:rows].reshape(rows, cols // 32, 1)


def stripes(rows, step):
    return [slice(r, min(r + step, rows)) for r in range(0, rows, step)]


def cast_peers(codes, scale, out, scale_rows, fp4):
    rows, cols = out.shape
    s = grid(scale, rows, cols, scale_rows)
    table = PAIRS if fp4 else E4M3
    step = stripes(rows, NUMPY_STRIPE)
    peers = {}

    def numpy_plain():
        return bits((table[codes].reshape(rows, cols // 32, 32) * s).reshape(rows, cols))

    flat = np.empty((NUMPY_STRIPE, codes.shape[1]) + ((2,) if fp4 else ()), np.float32)

    def numpy_warm():
        for r in step:
            n = r.stop - r.start
            f = flat[:n]
            np.take(table, codes[r], axis=0, out=f, mode="clip")
            g = f.reshape(n, cols // 32, 32)
            np.multiply(g, s[r], out=g)
            np.right_shift(g.view(np.uint32).reshape(n, cols), 16, out=out[r], casting="unsafe")
        return out

    peers["numpy, plain"], peers["numpy, warm"] = numpy_plain, numpy_warm
    if ml_dtypes and not fp4:
        sb = s.astype(ml_dtypes.bfloat16)

        def with_ml_dtypes():
            v = codes.view(ml_dtypes.float8_e4m3fn).astype(ml_dtypes.bfloat16).reshape(rows, cols // 32, 32)
            return (v * sb).reshape(rows, cols).view(np.uint16)

        peers["ml_dtypes"] = with_ml_dtypes
    if torch:
        peers.update(torch_casts(codes, s, out, table, fp4))
    return peers


def torch_casts(codes, s, out, table, fp4):
    rows, cols = out.shape
    step = stripes(rows, TORCH_STRIPE)
    t_table, t_scale, t_codes = torch.from_numpy(table).bfloat16(), torch.from_numpy(s).bfloat16(), torch.from_numpy(codes)
    t_out = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)

    def decode(c, scale):
        if not fp4 and hasattr(torch, "float8_e4m3fn"):
            v = c.view(torch.float8_e4m3fn).to(torch.bfloat16)
        else:
            v = t_table.index_select(0, c.reshape(-1).int())
        return v.reshape(c.shape[0], cols // 32, 32) * scale

    def plain():
        return decode(t_codes, t_scale).reshape(rows, cols).view(torch.int16).numpy().view(np.uint16)

    def warm():
        for r in step:
            t_out[r].copy_(decode(t_codes[r], t_scale[r]).reshape(-1, cols))
        return out

    return {"torch, plain": plain, "torch, warm": warm}


def bench_casts(baleen, rounds, mib):
    rng = np.random.default_rng(1)
    cols = 5120
    rows = mib * 2 ** 20 // 2 // cols // 32 * 32
    for name, fp4, scale_rows in (("fp4 1x32", True, 1), ("fp8 32x32", False, 32), ("fp8 1x32", False, 1)):
        codes = rng.integers(0, 256, (rows, cols // 2 if fp4 else cols), np.uint8)
        if not fp4:
            codes[(codes & 127) == 127] ^= 1
        scale = rng.integers(100, 140, (rows // scale_rows, cols // 32), np.uint8)
        want, out, ours = np.empty((rows, cols), np.uint16), np.empty((rows, cols), np.uint16), "baleen " + baleen.level
        baleen.cast(want, codes, scale, scale_rows, fp4)
        subjects = {ours: lambda: baleen.cast(out, codes, scale, scale_rows, fp4)}
        for peer, run in cast_peers(codes, scale, out, scale_rows, fp4).items():
            out[:] = 0
            if not np.array_equal(run(), want):
                raise SystemExit(f"{name}: {peer} and baleen differ")
            subjects[peer] = run
        moved = codes.nbytes + scale.nbytes + out.nbytes
        half = moved // 2 // 4096 * 4096
        a, b = np.ones(half, np.uint8), np.ones(half, np.uint8)
        subjects["copy of as many bytes"] = lambda: baleen.copy(a, b)
        work = {n: 1e-9 * moved for n in subjects}
        print_table(f"cast {name} -> bf16, {mib} MiB out, all equal byte for byte, bytes read + written",
                    take_turns(subjects, rounds), work, "GB/s", ours)


# ---- products

def error(y, want, size):
    """Largest difference from the float64 product, relative to the sum of the terms' magnitudes."""
    return float(np.max(np.abs(y - want) / size))


def product_peers(x, w):
    """Functions from nothing to y, on weights decoded beforehand."""
    peers = {"numpy float32, decoded": lambda: x @ w.T}
    if torch:
        tx, tw = torch.from_numpy(x), torch.from_numpy(w)
        bx, bw = tx.bfloat16(), tw.bfloat16()
        peers["torch float32, decoded"] = lambda: torch.nn.functional.linear(tx, tw).numpy()
        peers["torch bfloat16, decoded"] = lambda: torch.nn.functional.linear(bx, bw).float().numpy()
    return peers


def bench_products(baleen, rounds, tokens_list):
    rng = np.random.default_rng(2)
    rows, cols = 2304, 5120
    packed = rng.integers(0, 256, (rows, cols // 2), np.uint8)
    scale = rng.integers(115, 120, (rows, cols // 32), np.uint8)
    w = (PAIRS[packed].reshape(rows, cols // 32, 32) * scale_f32(scale)[..., None]).reshape(rows, cols)
    w16 = bits(w)
    for tokens in tokens_list:
        x16 = bits(rng.standard_normal((tokens, cols)).astype(np.float32))
        x = (x16.astype(np.uint32) << 16).view(np.float32)
        want, size = x.astype(np.float64) @ w.T.astype(np.float64), np.abs(x).astype(np.float64) @ np.abs(w).T
        y = np.empty((tokens, rows), np.float32)
        ours = f"baleen fp4 {baleen.level}"
        subjects = {ours: lambda: baleen.linear(y, x16, packed, scale, cols, W_FP4),
                    f"baleen bf16 {baleen.level}": lambda: baleen.linear(y, x16, w16, None, cols, W_BF16)}
        print(f"\nx [{tokens}, {cols}] times W [{rows}, {cols}] transposed: error relative to the sum of |terms|")
        for name, run in subjects.items():
            y[:] = 0
            run()
            report_error(name, error(y, want, size), 2.0 ** -20)
        for name, run in product_peers(x, w).items():
            report_error(name, error(run(), want, size), 2.0 ** -8)
            subjects[name] = run
        flop = 2e-9 * tokens * rows * cols
        print_table(f"{tokens} tokens", take_turns(subjects, rounds), {n: flop for n in subjects}, "GFLOP/s", ours)


def report_error(name, e, bound):
    print(f"  {name:34} {e:.2e}")
    if not e < bound:
        raise SystemExit(f"{name}: error {e:.2e} exceeds {bound:.2e}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True, help="meson build folder")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--mib", type=int, default=64, help="size of a cast's output")
    p.add_argument("--tokens", type=int, nargs="*", default=[1, 16, 128])
    p.add_argument("--only", choices=["casts", "products"])
    a = p.parse_args()
    baleen = Baleen(a.build, a.threads)
    if torch:
        torch.set_num_threads(a.threads)
    absent = [n for n, m in (("ml_dtypes", ml_dtypes), ("torch", torch)) if m is None]
    print(f"{a.threads} threads, baleen level {baleen.level}, numpy {np.__version__}"
          + (f", ml_dtypes {ml_dtypes.__version__}" if ml_dtypes else "") + (f", torch {torch.__version__}" if torch else "")
          + (f"; absent: {', '.join(absent)}" if absent else ""))
    if "OPENBLAS_CORETYPE" in os.environ:
        print("OPENBLAS_CORETYPE is set: OpenBLAS does not choose its kernels freely; unset it for a fair product")
    if a.only != "products":
        bench_casts(baleen, a.rounds, a.mib)
    if a.only != "casts":
        bench_products(baleen, a.rounds, a.tokens)


if __name__ == "__main__":
    main()
