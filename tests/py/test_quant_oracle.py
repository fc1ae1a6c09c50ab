"""The encoders of each CPU level against the numpy oracle and, where it is installed, ml_dtypes."""
import ctypes

import numpy as np
import pytest

from conftest import driver

LEVELS = {"c": 0, "avx2": 1, "avx512": 3, "neon": 256}  # masks of kernels/cpu.h


@pytest.fixture(scope="module")
def lib():
    return driver("quant_driver.so")


@pytest.fixture(params=LEVELS)
def cpu(request, lib):
    mask = LEVELS[request.param]
    if mask & ~lib.quant_cpu():
        pytest.skip(f"this CPU has no {request.param}")
    return mask


def ptr(a):
    return a.ctypes.data_as(ctypes.c_void_p)


def fp8(lib, x, cpu):
    """bf16 bits [rows, cols] -> codes, scale of 32x32 blocks."""
    rows, cols = x.shape
    codes, scale = np.zeros((rows, cols), np.uint8), np.zeros((-(-rows // 32), -(-cols // 32)), np.uint8)
    for r in range(0, rows, 32):
        part, out, s = np.ascontiguousarray(x[r:r + 32]), np.zeros((min(32, rows - r), cols), np.uint8), np.zeros(scale.shape[1], np.uint8)
        lib.quant_fp8(ptr(out), ptr(s), ptr(part), ctypes.c_int64(len(part)), ctypes.c_int64(cols), ctypes.c_uint(cpu))
        codes[r:r + 32], scale[r // 32] = out, s
    return codes, scale


def fp4(lib, x, cpu, ties=0):
    rows, cols = x.shape
    packed, scale = np.zeros((rows, cols // 2), np.uint8), np.zeros((rows, cols // 32), np.uint8)
    lib.quant_fp4(ptr(packed), ptr(scale), ptr(x), ctypes.c_int64(rows), ctypes.c_int64(cols), ctypes.c_int(ties), ctypes.c_uint(cpu))
    return packed, scale


def values(kind, rows, cols, seed=1):
    """bf16 bits: as weights have them; or every finite bf16, shuffled; or blocks of very different sizes."""
    rng = np.random.default_rng(seed)
    if kind == "every":
        bits = np.concatenate([np.arange(0x7F80), np.arange(0x8000, 0xFF80)]).astype(np.uint16)
        return np.resize(rng.permutation(bits), (rows, cols))
    x = rng.normal(0, 0.02, (rows, cols)).astype(np.float32)
    if kind == "sizes":
        x = np.ldexp(x, rng.integers(-115, 120, (rows // 32, cols // 32)).repeat(32, 0).repeat(32, 1))
        x[:32, :32] = 0
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def blocks_amax(f, rows):
    r = f.shape[0] if rows == 1 else f.shape[0] // 32
    return np.abs(f.reshape(r, rows, -1, 32)).max((1, 3))


@pytest.mark.parametrize("kind", ["weights", "every", "sizes"])
def test_fp8_as_the_oracle(lib, shared, cpu, kind):
    import numerics as nu
    x = values(kind, 64, 1024)
    f = nu.from_bf16_bits(x)
    codes, scale = fp8(lib, x, cpu)
    amax = blocks_amax(f, 32)
    want = np.clip(nu.pow2_ceil_exp(amax * np.float32(1 / 448)), 3, 246)
    want[amax == 0] = 105
    assert (scale == want).all()
    s = nu.E8M0[scale].repeat(32, 0).repeat(32, 1)
    with np.errstate(under="ignore", over="ignore"):
        y = f.astype(np.float64) / s
    assert (codes == nu.e4m3_encode(np.clip(y, -1e30, 1e30).astype(np.float32))).all()


@pytest.mark.parametrize("kind", ["weights", "every", "sizes"])
@pytest.mark.parametrize("ties", [0, 1])
def test_fp4_as_the_oracle(lib, shared, cpu, kind, ties):
    import numerics as nu
    x = values(kind, 64, 1024, 2)
    f = nu.from_bf16_bits(x)
    packed, scale = fp4(lib, x, cpu, ties)
    amax = blocks_amax(f, 1)
    want = np.clip(nu.pow2_ceil_exp(amax * np.float32(1 / 6)), 0, 252)
    want[amax == 0] = 1
    normal = (amax > 2.0 ** -120) | (amax == 0)  # the product's bits say less where it is subnormal
    assert (scale[normal] == want[normal]).all()
    y = np.clip(f.astype(np.float64) / nu.E8M0[scale].repeat(32, 1), -1e30, 1e30).astype(np.float32)
    codes = nu.e2m1_encode(y)
    if ties:  # strict comparisons, as some quantisers do
        codes = (np.abs(y)[..., None] > nu.E2M1_MID).sum(-1).astype(np.uint8) | (np.signbit(y).astype(np.uint8) << 3)
    assert (packed == nu.pack_fp4(codes)).all()


def test_as_ml_dtypes(lib, cpu):
    ml = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: the encoders are NOT checked against it")
    x = values("weights", 96, 2048, 3)
    f = x.view(ml.bfloat16).astype(np.float32)
    codes, scale = fp8(lib, x, cpu)
    s = scale.view(ml.float8_e8m0fnu).astype(np.float32).repeat(32, 0).repeat(32, 1)
    assert (codes == (f / s).astype(ml.float8_e4m3fn).view(np.uint8)).all()
    packed, scale = fp4(lib, x, cpu)
    s = scale.view(ml.float8_e8m0fnu).astype(np.float32).repeat(32, 1)
    want = (f / s).astype(ml.float4_e2m1fn).view(np.uint8)
    assert (packed == (want[:, 0::2] | want[:, 1::2] << 4)).all()
