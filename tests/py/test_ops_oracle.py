"""The model's operations against the numpy oracle, on random data: roundings byte for byte, the rest nearly always equal."""
import ctypes
import types

import numpy as np
import pytest

from conftest import driver

F32, U16, U8, I64 = np.float32, np.uint16, np.uint8, ctypes.c_int64
P = ctypes.c_void_p
NAMES = """name round_fp8 pack_window pack_latent pack_index unpack_window unpack_latent unpack_index to_bf16 rmsnorm rope mix
sum_squares collapse expand attention attention_scratch pool_pair index_scores route swiglu accumulate engram_gate
engram_gather""".split()
SIGNATURES = {
    "round_fp8": "ppi", "pack_window": "ppi", "pack_latent": "ppi", "pack_index": "ppi", "unpack_window": "ppi",
    "unpack_latent": "ppi", "unpack_index": "ppi", "to_bf16": "ppi", "rmsnorm": "pppiif", "rope": "piiipI",
    "mix": "ppppfippffI", "sum_squares": "pi", "collapse": "pppi", "expand": "pppppi", "attention": "ppppiifp",
    "attention_scratch": "ii", "pool_pair": "pppppi", "index_scores": "pppiipi", "route": "ppppiiIf", "swiglu": "pppffi",
    "accumulate": "ppi", "engram_gate": "ppppif", "engram_gather": "ppppii"}
TYPES = {"p": P, "i": I64, "I": ctypes.c_int, "f": ctypes.c_float}
RESULTS = {"sum_squares": ctypes.c_float, "attention_scratch": ctypes.c_size_t}


class Table(ctypes.Structure):
    _fields_ = [(n, P) for n in NAMES]


class Slots(ctypes.Structure):
    _fields_ = [("window", P), ("selected", P), ("window_slots", I64), ("selected_slots", I64)]


def load(cpu):
    lib = driver("ops_driver.so")
    lib.ops_table.restype = ctypes.POINTER(Table)
    lib.ops_select_top.restype = I64
    have = lib.ops_cpu()
    if cpu & ~have:
        pytest.skip("this CPU lacks the level")
    t = lib.ops_table(cpu).contents
    out = {"lib": lib}
    for name, sig in SIGNATURES.items():
        f = ctypes.CFUNCTYPE(RESULTS.get(name), *[TYPES[c] for c in sig])(getattr(t, name))
        out[name] = lambda *a, f=f: f(*[x.ctypes.data if isinstance(x, np.ndarray) else x for x in a])
    return types.SimpleNamespace(**out)


@pytest.fixture(params=[("c", 0), ("avx2", 1), ("avx512", 3)], ids=lambda p: p[0])
def ops(request):
    return load(request.param[1])


@pytest.fixture
def nx(shared):
    import numerics
    return numerics


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def bits(a):
    return (np.asarray(a, F32).copy().view(np.uint32) >> 16).astype(U16)


def value(b):
    return (b.astype(np.uint32) << 16).view(F32)


def random_bf16(nx, rng, shape, spread=4.0):
    """bf16 values whose groups differ in size, with zeros, ties and extremes among them."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-spread * 4, spread * 4, (*shape[:-1], 1)).astype(F32))
    x = np.where(rng.random(shape) < .05, 0, x)
    x = np.where(rng.random(shape) < .2, np.round(x * 4) / 4, x)
    x = np.where(rng.random(shape) < .02, -x * 64, x)
    return nx.bf16(x.astype(F32))


def close(got, want, ulps=1, share=0.99):
    """got, want bf16 bits: nearly all equal, none further than `ulps` apart."""
    order = lambda b: np.where(b & 0x8000, -(b & 0x7fff).astype(np.int64), (b & 0x7fff).astype(np.int64))
    away = np.abs(order(got) - order(want))
    assert away.max() <= ulps, f"{away.max()} ulps at {np.argmax(away)}"
    assert (away == 0).mean() >= share, f"only {(away == 0).mean():.4f} equal"


# ---- roundings


def rounding_inputs(nx, rng):
    yield random_bf16(nx, rng, (200, 512))
    yield np.zeros((1, 512), F32)
    yield nx.bf16(np.full((1, 512), -1e-30, F32))
    # every amax mantissa at a few exponents, so that the ceiling of the scale is hit from both sides
    yield nx.from_bf16_bits(np.repeat(np.arange(0x0080, 0x7f00, 3, dtype=U16)[:, None], 512, 1)) * rng.choice([-1, 1], 512).astype(F32)
    # every value beside a fixed amax
    for amax in (6.0, 448.0, 1.0, 3.0):
        v = nx.from_bf16_bits(rng.integers(0, int(bits(F32(amax))[()]) + 1, (64, 512)).astype(U16))
        v[:, ::16] = amax
        yield v * rng.choice([-1, 1], v.shape).astype(F32)


@pytest.mark.parametrize("kind", ["window", "latent", "index"])
def test_roundings_are_the_oracles(ops, nx, rng, kind):
    fake = {"window": nx.fp8_fake, "latent": nx.fp4_fake_e4m3, "index": nx.fp4_fake_e8m0}[kind]
    size = {"window": 512 + 16, "latent": 256 + 32, "index": 256 + 16}[kind]
    pack, unpack = getattr(ops, "pack_" + kind), getattr(ops, "unpack_" + kind)
    for x in rounding_inputs(nx, rng):
        with np.errstate(over="ignore"):
            want = bits(fake(x))
        xb, row, back = bits(x), np.zeros(size, U8), np.zeros(512, U16)
        for i in range(len(x)):
            pack(row, xb[i].copy(), 512)
            unpack(back, row, 512)
            assert (back == want[i]).all(), (kind, i, np.nonzero(back != want[i])[0][:4])
            if kind == "window":
                y = np.zeros(512, U16)
                ops.round_fp8(y, xb[i].copy(), 512)
                assert (y == want[i]).all()


def test_packed_codes_and_scales(ops, nx, rng):
    x = random_bf16(nx, rng, (50, 512))
    c, s = nx.fp8_quant(x)
    row = np.zeros(528, U8)
    for i in range(len(x)):
        ops.pack_window(row, bits(x[i]), 512)
        assert (row[:512] == c[i]).all() and (row[512:] == s[i]).all()


def test_groups_that_are_not_finite_become_nan(ops, rng):
    for bad in (0x7f80, 0xff80, 0x7fc1, 0xffff):
        x = np.full(64, 0x40c0, U16)  # 6: on every grid
        x[40] = bad
        for kind, group in (("window", 32), ("latent", 16), ("index", 32)):
            row, back = np.zeros(128, U8), np.zeros(64, U16)
            getattr(ops, "pack_" + kind)(row, x, 64)
            getattr(ops, "unpack_" + kind)(back, row, 64)
            lost = np.zeros(64, bool)
            lost[40 // group * group:40 // group * group + group] = True
            assert (back[lost] == 0x7fc0).all() and (back[~lost] == 0x40c0).all(), kind


def test_to_bf16(ops, nx, rng):
    x = rng.integers(0, 1 << 32, 4099, dtype=np.uint64).astype(np.uint32).view(F32)
    x = x[~np.isnan(x)]
    y = np.zeros(len(x), U16)
    ops.to_bf16(y, x, len(x))
    with np.errstate(over="ignore"):
        assert (y == nx.bf16_bits(nx.bf16(x))).all()


# ---- norms, positions, streams


def test_rmsnorm(ops, nx, shared, rng):
    import model
    for n in (32, 512, 5120):
        x, w = random_bf16(nx, rng, (9, n), 1), nx.bf16(rng.standard_normal(n).astype(F32))
        y = np.zeros((9, n), U16)
        ops.rmsnorm(y, bits(x), bits(w), 9, n, 1e-20)
        close(y, bits(model.rmsnorm(x, w, F32(1e-20))))


@pytest.mark.parametrize("inverse", [0, 1])
def test_rope(ops, nx, shared, rng, inverse):
    import model
    for heads, d, R in ((3, 128, 64), (1, 512, 64), (5, 32, 32)):
        x, a = nx.bf16(rng.standard_normal((heads, d)).astype(F32)), rng.random(R // 2) * 9
        table = (np.cos(a) + 1j * np.sin(a)).astype(np.complex64)
        got = bits(x)
        ops.rope(got, heads, d, R, table.view(F32).copy(), inverse)
        close(got, bits(model.rope(x[None], table[None], R, bool(inverse))[0]), 1, .98)


def test_mix(ops, nx, shared, rng):
    import model
    D = 128
    for seed in range(20):
        x = nx.bf16(rng.standard_normal((1, 4, D)).astype(F32))
        fn, scale, base = (rng.standard_normal(s).astype(F32) * k for s, k in (((24, 4 * D), .2), (3, 1), (24, 1)))
        w = {"p_fn": fn, "p_scale": scale, "p_base": base}
        m = types.SimpleNamespace(cfg=types.SimpleNamespace(eps=F32(1e-20), hc=4, hc_eps=F32(1e-6), sinkhorn=20),
                                  w=types.SimpleNamespace(plain=lambda n: w[n]))
        want = [a[0] for a in model.Model.mixes(m, x, "p")]
        flat = x.reshape(-1)
        pre, post, comb = np.zeros(4, F32), np.zeros(4, F32), np.zeros((4, 4), F32)
        ops.mix(pre, post, comb, (fn @ flat).astype(F32), ops.sum_squares(bits(flat), 4 * D), 4 * D, scale, base, 1e-20, 1e-6, 20)
        for got, ref in zip((pre, post, comb), want):
            assert np.allclose(got, ref, rtol=2e-5, atol=1e-6), (got, ref)


def test_collapse_and_expand(ops, nx, shared, rng):
    import model
    for D in (32, 5120):
        x, y = nx.bf16(rng.standard_normal((4, D)).astype(F32)), nx.bf16(rng.standard_normal(D).astype(F32))
        pre, post, comb = rng.random(4).astype(F32), rng.random(4).astype(F32), rng.random((4, 4)).astype(F32)
        out = np.zeros(D, U16)
        ops.collapse(out, bits(x), pre, D)
        close(out, bits(model.Model.collapse(x[None], pre[None])[0]), 2)
        H = bits(x)
        ops.expand(H, bits(y), H, post, comb, D)
        close(H, bits(model.Model.expand(y[None], x[None], post[None], comb[None])[0]), 2)


# ---- attention


def aligned(n):
    a = np.zeros(n + 64, U8)
    return a[-a.ctypes.data % 64:]


@pytest.mark.parametrize("heads,d,window,selected,holes", [
    (4, 64, 128, 512, 0), (3, 32, 16, 0, .3), (1, 96, 130, 70, .5), (64, 512, 128, 512, .1), (5, 64, 64, 64, 1.0),
    (7, 128, 5, 3, 0), (16, 64, 1, 0, 0), (9, 32, 128, 512, .9)])
def test_attention(ops, nx, shared, rng, heads, d, window, selected, holes):
    import model
    q = nx.bf16(rng.standard_normal((heads, d)).astype(F32) * 2)
    win, sel = nx.bf16(rng.standard_normal((window, d)).astype(F32)), nx.bf16(rng.standard_normal((selected, d)).astype(F32))
    sink = rng.standard_normal(heads).astype(F32)
    store = np.concatenate([nx.fp8_fake(win), nx.fp4_fake_e4m3(sel) if selected else sel])
    kept = rng.random(window + selected) >= holes
    idx = np.where(kept, np.arange(window + selected), -1)
    want = model.sparse_attention(q[None], store, idx[None], sink, d ** -0.5)[0]
    rows = np.zeros((window + selected, d + d // 16), U8)
    for i, x in enumerate(win):
        ops.pack_window(rows[i], bits(x), d)
    for i, x in enumerate(sel):
        ops.pack_latent(rows[window + i], bits(x), d)
    pointers = np.array([rows[i].ctypes.data if kept[i] else 0 for i in range(len(kept))], np.uint64)
    slots = Slots(pointers.ctypes.data, pointers.ctypes.data + 8 * window, window, selected)
    o, scratch = np.zeros((heads, d), U16), aligned(ops.attention_scratch(heads, d))
    ops.attention(o, bits(q), ctypes.addressof(slots), sink, heads, d, d ** -0.5, scratch)
    if not kept.any():
        assert (o == 0).all()
        return
    # the order of the dots moves probabilities over a bf16 boundary now and then: errors are relative to the row's size
    err = np.abs(value(o) - want) / np.abs(want).max(1, keepdims=True)
    assert err.max() < 0.01 and (o == bits(want)).mean() > .85, (err.max(), (o == bits(want)).mean())


# ---- compressor and indexer


def test_pool_pair(ops, nx, rng):
    kv, z = rng.standard_normal((2, 512)).astype(F32), rng.standard_normal((2, 512)).astype(F32) * 5
    e = np.exp(z - z.max(0))
    want = bits(nx.bf16((kv * (e / e.sum(0))).sum(0, dtype=F32)))
    y = np.zeros(512, U16)
    ops.pool_pair(y, kv[0], z[0], kv[1], z[1], 512)
    close(y, want, 2)


@pytest.mark.parametrize("heads,d,n", [(32, 128, 100), (3, 64, 17), (5, 32, 1), (1, 128, 33)])
def test_index_scores(ops, nx, rng, heads, d, n):
    q, k = nx.bf16(rng.standard_normal((heads, d)).astype(F32)), nx.bf16(rng.standard_normal((n, d)).astype(F32))
    w = nx.bf16(rng.standard_normal(heads).astype(F32))
    size = d // 2 + d // 32
    qp, kp = np.zeros((heads, size), U8), np.zeros((n, size), U8)
    for src, dst in ((q, qp), (k, kp)):
        for i, x in enumerate(src):
            ops.pack_index(dst[i], bits(x), d)
    got = np.zeros(n, F32)
    ops.index_scores(got, qp, w, heads, d, kp, n)
    s = np.einsum("hd,nd->hn", nx.fp4_fake_e8m0(q).astype(np.float64), nx.fp4_fake_e8m0(k).astype(np.float64))
    want = (np.maximum(s, 0) * w[:, None]).sum(0)
    assert np.allclose(got, want, rtol=1e-5, atol=1e-4 * np.abs(s).max())


# ---- selection


def test_select_top(ops, shared, rng):
    import model
    for case in range(200):
        n, k = int(rng.integers(1, 3000)), int(rng.integers(1, 700))
        s = rng.standard_normal(n).astype(F32) * F32(10.0 ** rng.integers(-30, 30))
        if case % 3 == 0:
            s = np.round(s / np.abs(s).max() * 5).astype(F32) * F32(-1 if case % 2 else 1)  # many ties, both zeros
        s[rng.random(n) < .2 * (case % 4)] = -np.inf
        if case % 5 == 0:
            s[rng.random(n) < .1] = np.nan
        index, scratch = np.full(k, -7, np.int32), np.zeros(n, F32)
        got = ops.lib.ops_select_top(P(index.ctypes.data), P(s.ctypes.data), I64(n), I64(k), P(scratch.ctypes.data))
        want = model.top_indices(np.where(np.isfinite(s), s, -np.inf), k, n)
        assert got == len(want) and (index[:got] == want).all() and (index[got:] == -7).all(), case


def test_select_candidates(ops, shared, rng):
    import model
    for case in range(200):
        n, size, blocks = int(rng.integers(1, 2000)), int(rng.integers(1, 17)), int(rng.integers(1, 60))
        visible = int(rng.integers(0, n + 1))
        s = np.round(rng.standard_normal(n) * (2 if case % 2 else 100)).astype(F32)
        s[visible:] = -np.inf
        cfg = types.SimpleNamespace(cfg=types.SimpleNamespace(cand_size=size, cand_blocks=blocks))
        want = model.Model.candidate_mask(cfg, s, visible)
        keep, scratch = np.full(n + 1, 9, U8), np.zeros(2 * n, F32)
        ops.lib.ops_select_candidates(P(keep.ctypes.data), P(s.ctypes.data), I64(n), I64(visible), I64(blocks), I64(size),
                                      P(scratch.ctypes.data))
        assert (keep[:n] == want).all() and keep[n] == 9, case


# ---- router, experts, Engram


@pytest.mark.parametrize("E,k,norm", [(384, 6, 1), (16, 2, 1), (8, 1, 1), (128, 3, 0)])
def test_route(ops, rng, E, k, norm):
    for case in range(30):
        logits, bias = rng.standard_normal(E).astype(F32) * 4, rng.standard_normal(E).astype(F32)
        if case % 2:
            logits, bias = np.round(logits), np.round(bias)  # ties
        score = np.sqrt(np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0)).astype(F32)
        pick = np.argsort(-(score + bias), kind="stable")[:k]
        g = score[pick]
        if norm and k > 1:
            g = g / (g.sum(dtype=F32) + F32(1e-20))
        ids, gates = np.zeros(k, np.int32), np.zeros(k, F32)
        ops.route(ids, gates, logits, bias, E, k, norm, 1.5)
        assert (ids == pick).all() and np.allclose(gates, g * F32(1.5), rtol=1e-6)


def test_swiglu(ops, nx, rng):
    def sigmoid(v):
        return F32(1) / (F32(1) + np.exp(-v))
    for limit in (0.0, 10.0):
        g, u = random_bf16(nx, rng, (1, 2304), 1)[0], random_bf16(nx, rng, (1, 2304), 1)[0]
        a, b = (np.minimum(g, F32(limit)), np.clip(u, -F32(limit), F32(limit))) if limit else (g, u)
        with np.errstate(over="ignore"):
            want = bits(nx.bf16(F32(.7) * (a * sigmoid(a) * b)))
        y = np.zeros(2304, U16)
        ops.swiglu(y, bits(g), bits(u), .7, limit, 2304)
        close(y, want)


def test_accumulate(ops, nx, rng):
    acc, x = rng.standard_normal(515).astype(F32), nx.bf16(rng.standard_normal(515).astype(F32))
    want = acc + x
    ops.accumulate(acc, bits(x), 515)
    assert (acc == want).all()


def test_engram(ops, nx, rng):
    D = 5120
    H, key, value_ = (nx.bf16(rng.standard_normal(s).astype(F32)) for s in ((4, D), (4, D), (D,)))
    qk = rng.standard_normal((4, D)).astype(F32)
    rstd = (F32(1) / np.sqrt((H * H).mean(-1, dtype=F32) + F32(1e-20))) * (F32(1) / np.sqrt((key * key).mean(-1, dtype=F32) + F32(1e-20)))
    dot = (H * qk * key).sum(-1, dtype=F32) * rstd * F32(D ** -0.5)
    gate = F32(1) / (F32(1) + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(dot), F32(1e-6))), dot)))
    want = bits(nx.bf16(H + gate[:, None] * value_))
    got = bits(H)
    ops.engram_gate(got, bits(key), bits(value_), qk, D, 1e-20)
    close(got, want, 8)
    codes, scale = rng.integers(0, 256, (50, 256)).astype(U8), rng.integers(0, 256, (50, 8)).astype(U8)
    rows, y = rng.integers(0, 50, 24), np.zeros((24, 256), U16)
    ops.engram_gather(y, codes, scale, rows, 24, 256)
    with np.errstate(over="ignore", invalid="ignore"):
        ref = nx.bf16(nx.fp8_dequant(codes[rows], scale[rows]))
    nan = np.isnan(ref)
    assert (y[~nan] == bits(ref)[~nan]).all() and np.isnan(value(y.ravel()).reshape(y.shape)[nan]).all()


def test_transcendentals(ops, rng):
    x = np.concatenate([rng.standard_normal(200000) * 20, np.linspace(-87, 88.7, 100001)]).astype(F32)
    x = np.clip(x, -87, 88.7)
    out = [np.zeros(len(x), F32) for _ in range(3)]
    ops.lib.ops_math(*[P(a.ctypes.data) for a in (*out, x)], I64(len(x)))
    d = x.astype(np.float64)
    for got, want, ulps in zip(out, (np.exp(d), 1 / (1 + np.exp(-d)), np.sqrt(np.logaddexp(0, d))), (1, 2.5, 2)):
        err = np.abs(got - want) / np.spacing(want.astype(F32))
        assert err.max() <= ulps, (err.max(), x[np.argmax(err)])
