"""baleen convert --to released: the way back from BF16, against an independent encoder, and what it refuses."""
import json
import pathlib
import re
import shutil
import struct

import numpy as np
import pytest

import ckpt
from conftest import DEMO, peak_memory
from test_convert import check_sums, ok, opens, vision_tensors

MID4 = np.array([.25, .75, 1.25, 1.75, 2.5, 3.5, 5.0])
MID8 = (ckpt.E4M3[:126].astype(np.float64) + ckpt.E4M3[1:127]) / 2


def bf16(items, name):
    """Values of a BF16 tensor as float64."""
    _, shape, data = items[name]
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape).astype(np.float64)


def to_bf16(x):
    """Nearest even, as bytes."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def codes_of(y, mids, ties):
    """Nearest code of |y| by counting the midpoints below; a tie goes to the even code or down."""
    a = np.abs(y)
    n = np.searchsorted(mids, a, "left")  # a midpoint itself is not below a
    if ties == "even":
        tie = n < len(mids)
        tie[tie] = mids[n[tie]] == a[tie]
        n = n + (tie & (n % 2 == 1))
    return n.astype(np.uint8), np.signbit(y)


def blocks(x, fp4, edge=32):
    """[rows of blocks, cols of blocks, values]: padded with zeros. edge: of fp8 blocks."""
    h, w = (1, 32) if fp4 else (edge, edge)
    p = np.zeros((-(-x.shape[0] // h) * h, -(-x.shape[1] // w) * w))
    p[:x.shape[0], :x.shape[1]] = x
    return p.reshape(p.shape[0] // h, h, -1, w).transpose(0, 2, 1, 3)


def spread(scale, shape, fp4, edge=32):
    return np.repeat(np.repeat(scale, 1 if fp4 else edge, 0), 32 if fp4 else edge, 1)[:shape[0], :shape[1]]


def encode(x, fp4, hint=None, ties="even", canonical=False, edge=32):
    """(codes as stored, scale, kept mask, decoded) of values x, by the stated rules."""
    most, lo, hi, zero = (6, 0, 252, 1) if fp4 else (448, 3, 246, 105)
    amax = np.abs(blocks(x, fp4, edge)).max((2, 3))
    with np.errstate(divide="ignore"):
        e = np.ceil(np.log2(amax / most)).astype(np.float64)
    e[amax == 0] = 0
    e = e.astype(np.int64)
    e += np.ldexp(float(most), e) < amax  # log2 may round
    e -= np.ldexp(float(most), e - 1) >= amax
    scale = np.where(amax == 0, zero, np.clip(e + 127, lo, hi))

    def under(s):
        y = x / np.ldexp(1.0, spread(s, x.shape, fp4, edge) - 127)
        n, sign = codes_of(y, MID4 if fp4 else MID8, ties if fp4 else "even")
        value = (ckpt.E2M1 if fp4 else ckpt.E4M3).astype(np.float64)[n] * np.ldexp(1.0, spread(s, x.shape, fp4, edge) - 127)
        value = np.where(sign, -value, value)
        if canonical:
            sign = sign & (n != 0)
        return n | (sign.astype(np.uint8) << (3 if fp4 else 7)), value

    kept = np.zeros(scale.shape, bool)
    if hint is not None:
        usable = (hint >= lo) & (hint <= hi)
        _, value = under(np.where(usable, hint, scale))
        kept = usable & ~blocks(value != x, fp4, edge).any((2, 3))
        scale = np.where(kept, hint, scale)
    codes, value = under(scale)
    if fp4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return codes.astype(np.uint8), scale.astype(np.uint8), kept, value


def kind(name):
    if name.startswith("mtp."):
        return "draft"
    for mark, k in ((".ffn.experts.", "experts"), (".shared_experts.", "shared experts"), (".engram.", "engram")):
        if mark in name:
            return k
    return "attention"


def check_released(cast, out, shapes, receipt, hints=None, **rules):
    """Every tensor of out, made from the BF16 folder cast. shapes: items of the original: which tensors are encoded, and how."""
    have, source = ckpt.tensors(out), ckpt.tensors(cast)
    totals, expected = {}, {}
    for name, t in source.items():
        scale = name[:-len("weight")] + "scale"
        form = shapes[name][0] if name in shapes else None
        if form not in ("I8", "F8_E4M3") or ".engram.embed." in name:
            expected[name] = t
            continue
        x, fp4 = bf16(source, name), form == "I8"
        hint = np.frombuffer(hints[scale][2], np.uint8).reshape(hints[scale][1]).astype(np.int64) if hints else None
        codes, s, kept, value = encode(x, fp4, hint, **rules)
        expected[name] = (form, codes.shape, codes.tobytes())
        expected[scale] = ("F8_E8M0", s.shape, s.tobytes())
        c = totals.setdefault(kind(name), dict(weights=0, values=0, scales=0, scales_kept=0, error=0., e2=0., v2=0., inexact=0))
        c["weights"] += 1
        c["values"] += x.size
        c["scales"] += s.size
        c["scales_kept"] += int(kept.sum())
        c["inexact"] += int(blocks(value != x, fp4).any((2, 3)).sum())
        c["error"] = max(c["error"], np.abs(x - value).max())
        c["e2"] += ((x - value) ** 2).sum()
        c["v2"] += (x ** 2).sum()
    assert set(have) == set(expected)
    for name, t in expected.items():
        assert have[name] == t, name
    index = json.loads((pathlib.Path(out) / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(have)
    for name, file in index["weight_map"].items():
        assert name in ckpt.header(pathlib.Path(out) / file)[0]
        if name.endswith(".scale"):
            assert ".engram.embed." in name or index["weight_map"][name[:-5] + "weight"] == file
    check_sums(out)
    assert len(opens(out)) == len(have)
    assert {c["class"] for c in receipt["encoded"]} == set(totals)
    for c in receipt["encoded"]:
        t = totals[c["class"]]
        assert (c["weights"], c["values"], c["scales"], c["scales_kept"], c["blocks_inexact"]) == (
            t["weights"], t["values"], t["scales"], t["scales_kept"], t["inexact"])
        assert c["scales_new"] == c["scales"] - c["scales_kept"]
        assert c["max_error"] == pytest.approx(t["error"], rel=1e-6)
        assert c["rms_error"] == pytest.approx((t["e2"] / t["values"]) ** .5, rel=1e-4)
        assert c["relative_error"] == pytest.approx((t["e2"] / t["v2"]) ** .5, rel=1e-4)


def released(baleen, src, out, *extra):
    return json.loads(ok(baleen("convert", src, out, "--to", "released", "--json", *extra)).out)


@pytest.fixture(scope="module")
def demo_cast(baleen, tmp_path_factory):
    out = tmp_path_factory.mktemp("cast") / "bf16"
    ok(baleen("convert", DEMO, out, "--to", "bf16", "--keep", "dspark,vision"))
    return out


def trained(cast, out, part=0.3, size=2.0 ** -9, seed=1, change=None):
    """A copy of a BF16 folder in which some rows of some weights have moved."""
    rng, items = np.random.default_rng(seed), ckpt.tensors(cast)
    for name, (dtype, shape, data) in items.items():
        if dtype == "BF16" and len(shape) == 2 and rng.random() < part:
            x = bf16(items, name)
            rows = rng.random(shape[0]) < part
            x[rows] += rng.normal(0, size, (rows.sum(), shape[1])) * np.abs(x[rows]).max(initial=0)
            items[name] = (dtype, shape, to_bf16(x))
    if change:
        change(items)
    return ckpt.write_folder(out, items, cast)


# ---- an untouched checkpoint comes back

def same_tensors(a, b):
    a, b = ckpt.tensors(a), ckpt.tensors(b)
    assert set(a) == set(b)
    for name in a:
        assert a[name] == b[name], name


@pytest.mark.parametrize("extra", [[], ["--shard-size", "1MB", "--jobs", "3"], ["--jobs", "1", "--cpu", "c"], ["--canonical-zero"]])
def test_untouched_returns_byte_for_byte(baleen, demo_cast, tmp_path, extra):
    r = released(baleen, demo_cast, tmp_path / "out", "--scale-hints", DEMO, *extra)
    if "--canonical-zero" not in extra:
        same_tensors(tmp_path / "out", DEMO)
    assert (tmp_path / "out" / "config.json").read_bytes() == (DEMO / "config.json").read_bytes()
    assert not (tmp_path / "out" / "config.source.json").exists()
    assert r["scale_hints"] == r["actions"]["encode"]
    assert all(c["scales_new"] == 0 and c["max_error"] == 0 for c in r["encoded"])
    ok(baleen("verify", tmp_path / "out", "--against", DEMO))


@pytest.mark.parametrize("preset,seed,over", [
    ("tiny", 3, {}), ("tiny", 7, dict(n_routed_experts=5, num_experts_per_tok=3, hidden_size=224)),
    ("nano", 6, dict(num_nextn_predict_layers=0)), ("nano", 8, dict(engram_layer_ids=[])),
    ("tiny", 9, dict(moe_intermediate_size=96, q_lora_rank=96, o_lora_rank=32))])
def test_random_checkpoints_return(baleen, make_checkpoint, tmp_path, preset, seed, over):
    src = make_checkpoint(preset, seed, shards=1 + seed % 4, **over)
    cast, back = tmp_path / "b", tmp_path / "r"
    ok(baleen("convert", src, cast, "--to", "bf16", "--keep", "dspark"))
    released(baleen, cast, back, "--scale-hints", src)
    same_tensors(back, src)
    ok(baleen("verify", back, "--against", src))
    r = released(baleen, cast, tmp_path / "n", "--shard-size", "700KB")
    check_released(cast, tmp_path / "n", ckpt.tensors(src), r)
    assert all(c["max_error"] == 0 for c in r["encoded"])
    ok(baleen("verify", tmp_path / "n", "--against", src))


def test_random_shapes_of_synth_return(baleen, tmp_path):
    """Edges that are no multiples of 32 among them: 24 mixing rows aside, heads of 40 rows make partial blocks."""
    src = tmp_path / "src"
    ok(baleen("synth", src, "--preset", "nano", "--seed", "4", "q_lora_rank=96", "n_routed_experts=3", "num_experts_per_tok=2"))
    ok(baleen("convert", src, tmp_path / "b", "--to", "bf16", "--keep", "dspark"))
    released(baleen, tmp_path / "b", tmp_path / "r", "--scale-hints", src)
    same_tensors(tmp_path / "r", src)


def test_by_way_of_a_packed_model(baleen, demo_cast, tmp_path):
    """Hints may be packed, and so may the BF16 model."""
    ok(baleen("convert", DEMO, tmp_path / "hints", "--to", "packed"))
    ok(baleen("convert", demo_cast, tmp_path / "p", "--to", "packed"))
    released(baleen, tmp_path / "p", tmp_path / "r", "--scale-hints", tmp_path / "hints")
    same_tensors(tmp_path / "r", DEMO)
    assert (tmp_path / "r" / "config.json").read_bytes() == (DEMO / "config.json").read_bytes()
    released(baleen, tmp_path / "hints", tmp_path / "q")  # codes already: copied
    same_tensors(tmp_path / "q", DEMO)


# ---- a trained one changes where it must

@pytest.mark.parametrize("hinted,rules", [(True, {}), (False, {}), (True, dict(ties="down", canonical=True)), (False, dict(ties="down")),
                                          (False, dict(canonical=True))])
def test_trained(baleen, demo_cast, tmp_path, rules, hinted):
    shapes = ckpt.tensors(DEMO)
    src = trained(demo_cast, tmp_path / "t", seed=1 + len(rules))
    flags = (["--fp4-ties", "down"] if "ties" in rules else []) + (["--canonical-zero"] if "canonical" in rules else [])
    r = released(baleen, src, tmp_path / "r", *flags, *(["--scale-hints", DEMO] if hinted else []))
    check_released(src, tmp_path / "r", shapes, r, shapes if hinted else None, **rules)
    if hinted:
        assert all(0 < c["scales_kept"] < c["scales"] for c in r["encoded"] if c["class"] != "engram")
    ok(baleen("verify", tmp_path / "r"))
    # idempotent: what was encoded once returns byte for byte
    ok(baleen("convert", tmp_path / "r", tmp_path / "b", "--to", "bf16", "--keep", "dspark"))
    released(baleen, tmp_path / "b", tmp_path / "rr", "--scale-hints", tmp_path / "r")
    same_tensors(tmp_path / "r", tmp_path / "rr")
    ok(baleen("convert", tmp_path / "b", tmp_path / "again", "--to", "released"))
    ok(baleen("verify", tmp_path / "again", "--against", tmp_path / "r"))


def test_values_of_every_size(baleen, demo_cast, tmp_path):
    """Every finite bf16, zeros of both signs, blocks of zeros, ties, under every level."""
    def change(items):
        rng = np.random.default_rng(5)
        every = rng.permutation(np.concatenate([np.arange(0x7F80), np.arange(0x8000, 0xFF80)]).astype(np.uint16))
        for name in ("layers.0.attn.wq_b.weight", "layers.3.ffn.experts.2.w1.weight", "layers.1.engram.wkv.weight"):
            shape = items[name][1]
            bits = np.resize(every, shape).copy()
            bits[:64, :32] = 0
            bits[64:96, :64] &= 0x8000
            items[name] = ("BF16", shape, bits.tobytes())
    shapes = ckpt.tensors(DEMO)
    src = trained(demo_cast, tmp_path / "t", part=0, change=change)
    r = released(baleen, src, tmp_path / "r")
    check_released(src, tmp_path / "r", shapes, r)
    ok(baleen("verify", tmp_path / "r"))
    for cpu in ("c", "avx2"):
        released(baleen, src, tmp_path / cpu, "--cpu", cpu, "--scale-hints", DEMO)
    same_tensors(tmp_path / "c", tmp_path / "avx2")
    check_released(src, tmp_path / "c", shapes, released(baleen, src, tmp_path / "h", "--scale-hints", DEMO), shapes)


def test_known_answers(baleen, demo_cast, tmp_path):
    """Whether a scale byte returns without hints depends on the block's largest code alone."""
    fp8 = {0x76: 1, 0x77: 0, 0x7E: 0, 0x70: 1, 0x6E: 2}
    fp4 = {1: 3, 2: 2, 3: 2, 4: 1, 5: 1, 6: 0, 7: 0}

    def change(items):
        for name, known, table in (("layers.0.attn.wq_b.weight", fp8, ckpt.E4M3), ("layers.3.ffn.experts.2.w1.weight", fp4, ckpt.E2M1)):
            shape, x = items[name][1], np.zeros(items[name][1])
            for i, code in enumerate(known):
                x[32 * (i // 3), 32 * (i % 3)] = table[code] * 2.0 ** -7
            items[name] = ("BF16", shape, to_bf16(x))
    src = trained(demo_cast, tmp_path / "t", part=0, change=change)
    released(baleen, src, tmp_path / "r")
    out = ckpt.tensors(tmp_path / "r")
    for name, known, high, zero in (("layers.0.attn.wq_b.scale", fp8, 32, 105), ("layers.3.ffn.experts.2.w1.scale", fp4, 1, 1)):
        s = np.frombuffer(out[name][2], np.uint8).reshape(out[name][1])
        assert [120 - int(s[32 * (i // 3) // high, i % 3]) for i in range(len(known))] == list(known.values())
        assert s[-1, -1] == zero


# ---- hints

def test_hints_that_do_not_fit(baleen, demo_cast, tmp_path, make_checkpoint):
    other = make_checkpoint("tiny", 3)
    assert_refused(baleen, demo_cast, tmp_path, "--scale-hints", other, words=["hint", ".scale"])
    assert_refused(baleen, demo_cast, tmp_path, "--scale-hints", demo_cast, words=[str(demo_cast), "no scale"])
    assert_refused(baleen, demo_cast, tmp_path, "--scale-hints", tmp_path / "absent", words=["absent"])
    shard = DEMO / "model-00001-of-00002.safetensors"
    r = released(baleen, demo_cast, tmp_path / "part", "--scale-hints", shard)  # one file of several: what it has
    assert 0 < r["scale_hints"] < r["actions"]["encode"]
    ok(baleen("verify", tmp_path / "part", "--against", DEMO))


def test_hints_for_nothing(baleen, tmp_path):
    """Codes stay as they are: hints that were asked for, and are not even looked at, are not passed over in silence."""
    r = baleen("convert", DEMO, tmp_path / "out", "--to", "released", "--scale-hints", tmp_path / "nowhere")
    assert r.rc == 0 and r.err.count("\n") == 1 and "no weights to encode" in r.err and "hints are not used" in r.err


def test_wrong_hints_cost_scales_not_values(baleen, demo_cast, tmp_path):
    """Scales of another model of the same shape, some outside the exact range."""
    items = ckpt.tensors(DEMO)
    rng = np.random.default_rng(3)
    for name, (dtype, shape, data) in items.items():
        if dtype == "F8_E8M0" and ".engram.embed." not in name:
            items[name] = (dtype, shape, rng.integers(110, 130, shape, np.uint8).tobytes())
    name = "layers.0.attn.wq_a.scale"
    items[name] = ("F8_E8M0", items[name][1], bytes([0, 255, 2, 247] + [130] * (int(np.prod(items[name][1])) - 4)))
    file = tmp_path / "hints.st"
    ckpt.write_file(file, {n: t for n, t in items.items() if t[0] == "F8_E8M0"})
    r = released(baleen, demo_cast, tmp_path / "r", "--scale-hints", file)
    check_released(demo_cast, tmp_path / "r", ckpt.tensors(DEMO), r, items)
    ok(baleen("verify", tmp_path / "r", "--against", DEMO))


# ---- config

def test_what_is_left_out_is_said(baleen, tmp_path):
    """Without draft layers and vision: config.json as released, less what goes with them."""
    items = ckpt.tensors(DEMO)
    config = {}
    items.update(vision_tensors(config, 192))
    src = ckpt.write_folder(tmp_path / "src", items, DEMO, edit=lambda c: c.update(config))
    ok(baleen("convert", src, tmp_path / "b", "--to", "bf16"))
    r = released(baleen, tmp_path / "b", tmp_path / "r", "--scale-hints", src)
    assert r["dropped"] == ["dspark", "vision"]
    want = json.loads((src / "config.json").read_text())
    text = want["text_config"]
    text.update(num_nextn_predict_layers=0, compress_ratios=text["compress_ratios"][:8])
    want["text_config"] = {k: v for k, v in text.items() if not k.startswith("dspark_")}
    del want["vision_config"], want["image_token_id"]
    assert json.loads((tmp_path / "r" / "config.json").read_text()) == want
    ok(baleen("verify", tmp_path / "r", "--against", src))
    back, released_items = ckpt.tensors(tmp_path / "r"), ckpt.tensors(src)
    assert set(back) == {n for n in released_items if not n.startswith(("mtp.", "vision.", "aligner.", "image_"))}
    assert all(back[n] == released_items[n] for n in back)


def test_without_the_original_config(baleen, demo_cast, tmp_path):
    src = tmp_path / "b"
    shutil.copytree(demo_cast, src)
    (src / "config.source.json").unlink()
    released(baleen, src, tmp_path / "r", "--scale-hints", DEMO)
    have, want = (json.loads((p / "config.json").read_text()) for p in (tmp_path / "r", DEMO))
    assert have == want
    assert '"rms_norm_eps": 1e-20' in (tmp_path / "r" / "config.json").read_text()
    ok(baleen("verify", tmp_path / "r", "--against", DEMO))


def edit_config(folder, **keys):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(keys)
    path.write_text(json.dumps(config))


def test_configs_that_disagree(baleen, demo_cast, tmp_path):
    src = tmp_path / "b"
    shutil.copytree(demo_cast, src)
    edit_config(src, architectures=["Trainer"], transformers_version="9", torch_dtype="bfloat16", rope_theta=10000.0, note="new")
    released(baleen, src, tmp_path / "r")
    assert (tmp_path / "r" / "config.json").read_bytes() == (DEMO / "config.json").read_bytes()
    edit_config(src, rope_theta=20000)
    assert_refused(baleen, src, tmp_path, words=["rope_theta", "20000", "10000", "config.source.json"])
    edit_config(src, rope_theta=10000, rope_scaling=dict(json.loads((src / "config.json").read_text())["rope_scaling"], factor=8))
    assert_refused(baleen, src, tmp_path, words=["rope_scaling", "config.source.json"])
    (src / "config.source.json").unlink()
    released(baleen, src, tmp_path / "own")
    assert json.loads((tmp_path / "own" / "config.json").read_text())["text_config"]["rope_scaling"]["factor"] == 8
    (src / "config.source.json").write_text("{}")
    assert_refused(baleen, src, tmp_path, words=["config.source.json"])


def test_layers(baleen, demo_cast, tmp_path):
    released(baleen, demo_cast, tmp_path / "r", "--layers", "0-1,5", "--scale-hints", DEMO)
    have, want = ckpt.tensors(tmp_path / "r"), ckpt.tensors(DEMO)
    assert {int(n.split(".")[1]) for n in have if n.startswith("layers.")} == {0, 1, 5}
    assert all(have[n] == want[n] for n in have)
    assert json.loads((tmp_path / "r" / "config.json").read_text())["baleen_layers"] == [0, 1, 5]
    ok(baleen("verify", tmp_path / "r", "--against", DEMO))
    ok(baleen("convert", tmp_path / "r", tmp_path / "b", "--to", "bf16"))
    released(baleen, tmp_path / "b", tmp_path / "rr", "--scale-hints", tmp_path / "r")
    assert json.loads((tmp_path / "rr" / "config.json").read_text())["baleen_layers"] == [0, 1, 5]


# ---- refusals

def assert_refused(baleen, src, tmp_path, *args, words, rc=3):
    out = tmp_path / "refused"
    r = baleen("convert", src, out, "--to", "released", *args)
    assert r.rc == rc, (r.rc, r.err)
    assert r.err.count("\n") == 1 and r.out == ""
    for w in words:
        assert w in r.err, (w, r.err)
    assert not list(tmp_path.glob("refused*")), "something was left behind"


@pytest.mark.parametrize("bits,what", [(0x7FC0, "NaN"), (0xFF81, "NaN"), (0x7F80, "infinite"), (0xFF80, "infinite")])
@pytest.mark.parametrize("name,place", [("layers.0.attn.wq_b.weight", (200, 95)), ("layers.3.ffn.experts.2.w1.weight", (0, 0)),
                                        ("layers.7.attn.wo_b.weight", (191, 127)), ("mtp.1.ffn.experts.3.w2.weight", (100, 33))])
def test_no_code_for_it(baleen, demo_cast, tmp_path, bits, what, name, place):
    def change(items):
        dtype, shape, data = items[name]
        b = bytearray(data)
        struct.pack_into("<H", b, 2 * (place[0] * shape[1] + place[1]), bits)
        items[name] = (dtype, shape, bytes(b))
    src = trained(demo_cast, tmp_path / "t", part=0, change=change)
    file = next(f for f in src.glob("*.safetensors") if name in ckpt.header(f)[0])
    h, base, _ = ckpt.header(file)
    at = base + h[name]["data_offsets"][0] + 2 * (place[0] * h[name]["shape"][1] + place[1])
    words = [name, what, f"[{place[0]}, {place[1]}]", f"0x{bits:04x}", file.name, f"byte {at}"]
    assert_refused(baleen, src, tmp_path, words=words)
    assert_refused(baleen, src, tmp_path, "--scale-hints", DEMO, words=words)


def test_tensors_at_odd_offsets(baleen, demo_cast, tmp_path):
    """safetensors promises no alignment: a one-byte tensor before everything moves the rest to odd places."""
    items = ckpt.tensors(demo_cast)
    odd = "layers.1.engram.embed.scale"
    dtype, shape, data = items.pop(odd)

    def edit(c):
        c["engram_num_embeddings"][0] += 1
    shape = (shape[0] + 1, shape[1])
    w = items.pop("layers.1.engram.embed.weight")
    items = {odd: (dtype, shape, data + bytes(shape[1])), "layers.1.engram.embed.weight": (w[0], (shape[0], w[1][1]), w[2] + bytes(w[1][1])), **items}
    src = ckpt.write_folder(tmp_path / "t", items, demo_cast, shards=1, edit=edit)
    (src / "config.source.json").unlink()
    file = src / "model-00001-of-00001.safetensors"
    raw = file.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    file.write_bytes(struct.pack("<Q", n + 1) + raw[8:8 + n] + b" " + raw[8 + n:])
    r = released(baleen, src, tmp_path / "r", "--scale-hints", DEMO)
    have, want = ckpt.tensors(tmp_path / "r"), ckpt.tensors(DEMO)
    assert all(have[n] == want[n] for n in want if "layers.1.engram.embed" not in n)
    assert r["actions"]["encode"] == sum(t[0] in ("I8", "F8_E4M3") for n, t in want.items() if ".engram.embed." not in n)


@pytest.mark.parametrize("args", [["--to", "bf16", "--scale-hints", DEMO], ["--to", "packed", "--fp4-ties", "even"],
                                  ["--to", "released", "--fp4-ties", "up"], ["--to", "bf16", "--canonical-zero"],
                                  ["--to", "released", "--keep", "dspark"], ["--to", "released", "--save-scales"],
                                  ["--to", "released", "--experts", "bf16"], ["--to", "packed", "--experts", "fp8"],
                                  ["--to", "released", "--fp8-block", "16x16"], ["--to", "bf16", "--fp8-block", "1x32"]])
def test_usage(baleen, tmp_path, args):
    r = baleen("convert", DEMO, tmp_path / "out", *args)
    assert r.rc == 2 and r.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_dry_run(baleen, demo_cast, tmp_path):
    plan = released(baleen, demo_cast, tmp_path / "out", "--dry-run", "--scale-hints", DEMO)
    assert not (tmp_path / "out").exists()
    done = released(baleen, demo_cast, tmp_path / "out", "--scale-hints", DEMO)
    for key in ("tensors", "files", "file_bytes", "tensor_bytes", "actions", "dropped", "scale_hints"):
        assert plan[key] == done[key]


# ---- memory

def wide_model(demo_cast, folder):
    """Layer 0 of the demo model with 2^17 heads, holes for weights: wq_b has 1.6 GB of BF16, and more scale bytes than wait in
    memory; wo_a has the widest rows there may be. None when the file system has no holes."""
    heads, dim, groups, lora = 1 << 17, 64, 64, 32
    items = {n: t for n, t in ckpt.tensors(demo_cast).items() if not n.startswith(("layers.", "mtp.")) or n.startswith("layers.0.")}
    shapes = {"layers.0.attn.wq_b.weight": [heads * dim, 96], "layers.0.attn.wo_a.weight": [groups * lora, heads * dim // groups],
              "layers.0.attn.wo_b.weight": [192, groups * lora]}
    items["layers.0.attn.attn_sink"] = ("F32", (heads,), bytes(4 * heads))
    for n in shapes:
        del items[n]

    def edit(c):
        c.update(num_attention_heads=heads, o_groups=groups, o_lora_rank=lora, baleen_layers=[0], num_nextn_predict_layers=0,
                 compress_ratios=c["compress_ratios"][:8])
    src = ckpt.write_folder(folder, items, demo_cast, shards=1, edit=edit)
    (src / "config.source.json").unlink()
    h, at = {}, 0
    for n, s in shapes.items():
        h[n] = {"dtype": "BF16", "shape": s, "data_offsets": [at, at := at + 2 * s[0] * s[1]]}
    text = json.dumps(h).encode()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    (src / "model-00001-of-00001.safetensors").rename(src / names[0])
    (src / names[1]).write_bytes(struct.pack("<Q", len(text)) + text)
    with open(src / names[1], "r+b") as f:
        f.truncate(8 + len(text) + at)
    where = {n: names[0] for n in items} | {n: names[1] for n in h}
    (src / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return src if (src / names[1]).stat().st_blocks * 512 < 1 << 20 else None


def test_memory_does_not_grow_with_tensors(demo_cast, tmp_path):
    src = wide_model(demo_cast, tmp_path / "src")
    if src is None:
        pytest.skip("the file system has no holes: the memory of the way back is NOT measured")
    assert 0 < peak_memory("convert", src, tmp_path / "out", "--to", "released", "--no-sha256") <= 256 << 10
    for f in (tmp_path / "out").glob("*.safetensors"):
        h, base, _ = ckpt.header(f)
        for n in set(h) & {"layers.0.attn.wq_b.scale", "layers.0.attn.wo_a.scale"}:
            with open(f, "rb") as data:
                data.seek(base + h[n]["data_offsets"][0])
                assert set(data.read(h[n]["data_offsets"][1] - h[n]["data_offsets"][0])) == {105}
    shutil.rmtree(tmp_path / "out")


# ---- scales kept with the cast

@pytest.mark.parametrize("extra", [[], ["--shard-size", "1MB"], ["--keep", "dspark"]])
def test_save_scales(baleen, tmp_path, extra):
    plain, cast = tmp_path / "plain", tmp_path / "b"
    ok(baleen("convert", DEMO, plain, "--to", "bf16", *extra))
    r = json.loads(ok(baleen("convert", DEMO, cast, "--to", "bf16", "--save-scales", "--json", *extra)).out)
    for f in plain.iterdir():
        if f.name != "SHA256SUMS":
            assert (cast / f.name).read_bytes() == f.read_bytes(), f.name
    assert {f.name for f in cast.iterdir()} - {f.name for f in plain.iterdir()} == {"scales.source.st"}
    check_sums(cast)
    ok(baleen("verify", cast, "--against", DEMO))
    want = {n: t for n, t in ckpt.tensors(DEMO).items()
            if t[0] == "F8_E8M0" and ".engram.embed." not in n and (extra == ["--keep", "dspark"] or not n.startswith("mtp."))}
    assert ckpt.tensors(cast / "scales.source.st") == want and r["scales_saved"] == len(want)
    assert r["tensors"] == len(ckpt.tensors(cast)) and r["files"] == len(list(cast.glob("*.safetensors")))

    # the way back needs nothing else
    back = released(baleen, cast, tmp_path / "r")
    assert back["scale_hints"] == len(want)
    have, original = ckpt.tensors(tmp_path / "r"), ckpt.tensors(DEMO)
    assert all(have[n] == original[n] for n in have)
    assert released(baleen, cast, tmp_path / "n", "--scale-hints", "none")["scale_hints"] is None
    # nor does a trainer's folder, with the cast's
    (tmp_path / "trained").mkdir()
    for f in plain.iterdir():
        if f.name != "SHA256SUMS":
            shutil.copy(f, tmp_path / "trained")
    for i, hints in enumerate((cast, cast / "scales.source.st")):
        released(baleen, tmp_path / "trained", tmp_path / f"t{i}", "--scale-hints", hints)
        same_tensors(tmp_path / f"t{i}", tmp_path / "r")
    # a flipped bit in it is found
    file = cast / "scales.source.st"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert baleen("verify", cast).rc == 1


def test_save_scales_from_a_packed_model(baleen, tmp_path):
    ok(baleen("convert", DEMO, tmp_path / "p", "--to", "packed"))
    ok(baleen("convert", tmp_path / "p", tmp_path / "a", "--to", "bf16", "--save-scales"))
    ok(baleen("convert", DEMO, tmp_path / "b", "--to", "bf16", "--save-scales"))
    assert (tmp_path / "a" / "scales.source.st").read_bytes() == (tmp_path / "b" / "scales.source.st").read_bytes()
    r = json.loads(ok(baleen("convert", tmp_path / "b", tmp_path / "c", "--to", "bf16", "--save-scales", "--json")).out)
    assert r["scales_saved"] == 0 and not (tmp_path / "c" / "scales.source.st").exists()


def test_kept_scales_that_are_damaged(baleen, tmp_path):
    ok(baleen("convert", DEMO, tmp_path / "b", "--to", "bf16", "--save-scales"))
    file = tmp_path / "b" / "scales.source.st"
    raw = file.read_bytes()
    for bad in (raw[:len(raw) // 2], b"", raw + b"x", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 7\n"):
        file.write_bytes(bad)
        assert_refused(baleen, tmp_path / "b", tmp_path, words=["scales.source.st"])
    file.unlink()
    file.mkdir()
    assert_refused(baleen, tmp_path / "b", tmp_path, words=["scales.source.st"])


# ---- experts in fp8

EXPERT = re.compile(r"\.ffn\.experts\.\d+\.w\d\.")


def fp8_experts(items):
    """What the release's converter makes of fp4 experts: the largest scale of a 32x32 block less 6, codes moved by the difference."""
    out = dict(items)
    for name, (dtype, shape, data) in items.items():
        if dtype != "I8":
            continue
        sname = name[:-len("weight")] + "scale"
        s = np.frombuffer(items[sname][2], np.uint8).reshape(items[sname][1]).astype(np.int64)
        rows = -(-shape[0] // 32)
        p = np.zeros((rows * 32, s.shape[1]), np.int64)
        p[:shape[0]] = s
        new = p.reshape(rows, 32, -1).max(1) - 6
        x = ((np.frombuffer(ckpt.decode(name, items), np.uint16).astype(np.uint32)) << 16).view(np.float32).reshape(shape[0], -1)
        y = x.astype(np.float64) / np.ldexp(1.0, spread(new, x.shape, False) - 127)
        n, sign = codes_of(y, MID8, "even")
        assert (ckpt.E4M3[n] == np.abs(y)).all()
        out[name] = ("F8_E4M3", x.shape, (n | sign.astype(np.uint8) << 7).tobytes())
        out[sname] = ("F8_E8M0", new.shape, new.astype(np.uint8).tobytes())
    return out


def narrow(items, reach, seed=7):
    """Scales of experts within reach binades of each other in every block."""
    rng, out = np.random.default_rng(seed), dict(items)
    for name, (dtype, shape, data) in items.items():
        if dtype == "F8_E8M0" and EXPERT.search(name):
            out[name] = (dtype, shape, rng.integers(120 - reach, 121, shape, np.uint8).tobytes())
    return out


def test_experts_to_fp8_and_back(baleen, tmp_path):
    src = ckpt.write_folder(tmp_path / "src", narrow(ckpt.tensors(DEMO), 14), DEMO)
    r = released(baleen, src, tmp_path / "f8", "--experts", "fp8")
    have, want = ckpt.tensors(tmp_path / "f8"), fp8_experts(ckpt.tensors(src))
    assert have == want
    assert r["actions"]["recast"] == 2 * sum(t[0] == "I8" for t in ckpt.tensors(src).values()) and r["encoded"] == []
    config, original = (json.loads((p / "config.json").read_text()) for p in (tmp_path / "f8", src))
    del original["quantization_config"]["expert_dtype"]
    assert config == original
    ok(baleen("verify", tmp_path / "f8", "--against", src))
    released(baleen, tmp_path / "f8", tmp_path / "same")  # as they are
    same_tensors(tmp_path / "same", tmp_path / "f8")
    # and back: by value always, by byte with the scales
    released(baleen, tmp_path / "f8", tmp_path / "back", "--experts", "fp4", "--scale-hints", src)
    same_tensors(tmp_path / "back", src)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads((src / "config.json").read_text())
    released(baleen, tmp_path / "f8", tmp_path / "values", "--experts", "fp4")
    ok(baleen("verify", tmp_path / "values", "--against", src))
    # from a packed model, and with hints that know experts as fp4 only
    ok(baleen("convert", src, tmp_path / "p", "--to", "packed"))
    released(baleen, tmp_path / "p", tmp_path / "pf8", "--experts", "fp8", "--scale-hints", src)
    same_tensors(tmp_path / "pf8", tmp_path / "f8")


def test_experts_of_a_cast_to_fp8(baleen, tmp_path):
    """From BF16 the usual rule holds, with kept fp4 scales of no use to experts."""
    src = ckpt.write_folder(tmp_path / "src", narrow(ckpt.tensors(DEMO), 3), DEMO)
    ok(baleen("convert", src, tmp_path / "b", "--to", "bf16", "--save-scales"))
    r = released(baleen, tmp_path / "b", tmp_path / "r", "--experts", "fp8")
    assert 0 < r["scale_hints"] < r["actions"]["encode"]
    assert all(c["max_error"] == 0 for c in r["encoded"])
    ok(baleen("verify", tmp_path / "r", "--against", src))


def test_recasts_that_lose_are_refused(baleen, tmp_path):
    name = "layers.5.ffn.experts.6.w2"
    items = narrow(ckpt.tensors(DEMO), 3)
    dtype, shape, data = items[name + ".scale"]
    s = np.frombuffer(data, np.uint8).reshape(shape).copy()
    codes = np.frombuffer(items[name + ".weight"][2], np.uint8).reshape(items[name + ".weight"][1]).copy()
    s[64:96, 1], codes[64:96, 16:32] = 120, 0x77  # 6 under the largest scale, and the smallest code 15 binades below: 2^18 apart
    s[70, 1], codes[70, 16:32] = 105, 0x11
    items[name + ".scale"] = (dtype, shape, s.tobytes())
    items[name + ".weight"] = ("I8", codes.shape, codes.tobytes())
    src = ckpt.write_folder(tmp_path / "src", items, DEMO)
    file = next(f for f in src.glob("*.safetensors") if name + ".weight" in ckpt.header(f)[0])
    h, base, _ = ckpt.header(file)
    at = base + h[name + ".weight"]["data_offsets"][0] + 64 * codes.shape[1] + 16
    assert_refused(baleen, src, tmp_path, "--experts", "fp8", words=[name + ".weight", "[2, 1]", file.name, f"byte {at}", "fp8"])
    # a row of zeros may have any scale, and a block whose largest scale is idle uses the next one
    codes[70, 16:32] = 0
    items[name + ".weight"] = ("I8", codes.shape, codes.tobytes())
    good = ckpt.write_folder(tmp_path / "good", items, DEMO)
    released(baleen, good, tmp_path / "r", "--experts", "fp8")
    ok(baleen("verify", tmp_path / "r", "--against", good))
    s[64:96, 1], codes[64:96, 16:32] = 105, 0x11
    s[70, 1], codes[70, 16:32] = 120, 0
    items[name + ".scale"], items[name + ".weight"] = (dtype, shape, s.tobytes()), ("I8", codes.shape, codes.tobytes())
    idle = ckpt.write_folder(tmp_path / "idle", items, DEMO)
    released(baleen, idle, tmp_path / "i", "--experts", "fp8")
    ok(baleen("verify", tmp_path / "i", "--against", idle))
    # fp8 codes with four significant bits have no fp4 code; a NaN code has none at all
    full = ckpt.tensors(tmp_path / "r")
    dtype, shape, data = full[name + ".weight"]
    for code, words in ((0x3F, ["[33, 2]", "fp4"]), (0x7F, ["NaN", "[33, 70]"])):
        b = bytearray(data)
        b[33 * shape[1] + 70] = code
        full[name + ".weight"] = (dtype, shape, bytes(b))
        bad = ckpt.write_folder(tmp_path / f"bad{code}", full, tmp_path / "r")
        assert_refused(baleen, bad, tmp_path, "--experts", "fp4", words=[name + ".weight", *words])


# ---- fp8 scales for other blocks

def one_row_blocks(items):
    """Every fp8 scale of a 32x32 block repeated for its rows; codes as they are."""
    out = dict(items)
    for name, (dtype, shape, data) in items.items():
        if dtype == "F8_E4M3" and ".engram.embed." not in name:
            sname = name[:-len("weight")] + "scale"
            s = np.frombuffer(items[sname][2], np.uint8).reshape(items[sname][1])
            out[sname] = ("F8_E8M0", (shape[0], s.shape[1]), np.repeat(s, 32, 0)[:shape[0]].tobytes())
    return out


def block_size(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]["weight_block_size"]


def test_one_row_blocks_and_back(baleen, tmp_path):
    r = released(baleen, DEMO, tmp_path / "rows", "--fp8-block", "1x32")
    assert ckpt.tensors(tmp_path / "rows") == one_row_blocks(ckpt.tensors(DEMO))
    assert block_size(tmp_path / "rows") == [1, 32] and r["encoded"] == []
    ok(baleen("verify", tmp_path / "rows", "--against", DEMO))
    released(baleen, tmp_path / "rows", tmp_path / "same")
    same_tensors(tmp_path / "same", tmp_path / "rows")
    assert (tmp_path / "same" / "config.json").read_bytes() == (tmp_path / "rows" / "config.json").read_bytes()
    released(baleen, tmp_path / "rows", tmp_path / "back", "--fp8-block", "32x32")
    same_tensors(tmp_path / "back", DEMO)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads((DEMO / "config.json").read_text())
    # a cast remembers the blocks, and packing keeps them
    ok(baleen("convert", tmp_path / "rows", tmp_path / "b", "--to", "bf16", "--keep", "dspark,vision", "--save-scales"))
    ok(baleen("verify", tmp_path / "b", "--against", DEMO))
    released(baleen, tmp_path / "b", tmp_path / "r")
    same_tensors(tmp_path / "r", tmp_path / "rows")
    ok(baleen("convert", tmp_path / "rows", tmp_path / "p", "--to", "packed"))
    ok(baleen("verify", tmp_path / "p", "--against", DEMO))
    r = baleen("logits", tmp_path / "rows", "--ids", "1,2,3", "--out", tmp_path / "x")
    assert r.rc == 3 and "[1, 32]" in r.err and r.err.count("\n") == 1


def test_bf16_to_one_row_blocks(baleen, demo_cast, tmp_path):
    src = trained(demo_cast, tmp_path / "t")
    released(baleen, src, tmp_path / "rows", "--fp8-block", "1x32", "--experts", "fp8", "--scale-hints", DEMO)
    released(baleen, src, tmp_path / "blocks", "--experts", "fp8")
    ok(baleen("verify", tmp_path / "rows"))
    items, values = ckpt.tensors(tmp_path / "rows"), ckpt.tensors(src)
    for name, (dtype, shape, data) in items.items():
        if dtype == "F8_E4M3" and ".engram.embed." not in name:
            x = bf16(values, name)
            amax = np.abs(np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(x.shape[0], -1, 32)).max(2)
            s = np.frombuffer(items[name[:-len("weight")] + "scale"][2], np.uint8).reshape(amax.shape).astype(int)
            assert (np.ldexp(448.0, s - 127) >= amax).all() and (np.ldexp(448.0, s - 128) < amax)[amax > 0].all()


def test_rows_that_do_not_share_a_scale_are_refused(baleen, tmp_path):
    released(baleen, DEMO, tmp_path / "rows", "--fp8-block", "1x32")
    items, name = ckpt.tensors(tmp_path / "rows"), "layers.4.attn.wo_b"
    dtype, shape, data = items[name + ".scale"]
    s = np.frombuffer(data, np.uint8).reshape(shape).copy()
    s[70, 2] -= 8  # its codes would be subnormal, and lose bits
    items[name + ".scale"] = (dtype, shape, s.tobytes())
    src = ckpt.write_folder(tmp_path / "src", items, tmp_path / "rows")
    assert_refused(baleen, src, tmp_path, "--fp8-block", "32x32", words=[name + ".weight", "[2, 2]", "fp8"])
    released(baleen, src, tmp_path / "kept")
    # declared otherwise than the grids are
    bad = tmp_path / "bad"
    shutil.copytree(src, bad)
    config = json.loads((bad / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [32, 32]
    (bad / "config.json").write_text(json.dumps(config))
    assert_refused(baleen, bad, tmp_path, words=[".scale", ".weight"])
