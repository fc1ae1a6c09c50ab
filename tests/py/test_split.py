"""Cuts inside scale blocks on request: every byte against the rule in numpy, digests that add up, the way back, and refusals."""
import ctypes
import ctypes.util
import json
import re
import shutil

import numpy as np
import pytest

import ckpt
import ranks
from test_merge import same_checkpoint
from test_ranks import rewrite, tensor_of
from test_resume import half_done, resumed

SPLITS = ["pad", "expand1x32", "bf16"]
# at tp 4: shared experts have 120, 96 or 40 of 480, 384 or 160 rows on each rank, output groups 80 of 320
SHAPE = ["num_hidden_layers=4", "num_attention_heads=8", "o_groups=4", "o_lora_rank=80", "moe_intermediate_size=480",
         "n_routed_experts=4", "dspark_n_routed_experts=4", "vocab_size=1000", "head_dim=32"]


@pytest.fixture(scope="module")
def source(baleen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("split") / "source"
    assert baleen("synth", folder, "--preset", "nano", *SHAPE, "--seed", 21).rc == 0
    return folder


@pytest.fixture(scope="module")
def inner(baleen, tmp_path_factory):
    """Only shared experts are cut inside blocks: 160 of 32 * 4 rows; at tp 4 one rank of padding."""
    folder = tmp_path_factory.mktemp("split") / "inner"
    shape = [s for s in SHAPE if "o_lora" not in s and "moe" not in s] + ["o_lora_rank=32", "moe_intermediate_size=160"]
    assert baleen("synth", folder, "--preset", "nano", *shape, "--seed", 22).rc == 0
    return folder


def pack(baleen, src, out, layout, *more):
    r = baleen("convert", src, out, "--to", "packed", *layout.options(), *more)
    assert r.rc == 0, r.err
    return out


def layout_of(src, split, tp=4, **how):
    return ranks.Layout(src, tp=tp, split=split, pad_vocab=32, **how)


CASES = [("inner", "pad", 4), ("inner", "pad", 2), ("inner", "expand1x32", 4), ("source", "bf16", 4), ("source", "expand1x32", 2)]


@pytest.mark.parametrize("which, split, tp", CASES)
def test_every_rank_and_back(baleen, request, tmp_path, which, split, tp):
    src = request.getfixturevalue(which)
    layout = layout_of(src, split, tp, ep=2, pp=2)
    out = pack(baleen, src, tmp_path / "p", layout)
    want, kept = layout.treat(ckpt.tensors(src))
    assert len(want) < len(ckpt.tensors(src)) or split == "pad" or tp * 32 > 480
    for rank in range(layout.ranks()):
        assert ranks.held(out, rank) == layout.expected(want, rank), rank
    assert (ckpt.tensors(out / "scales.source.st") if (out / "scales.source.st").exists() else {}) == kept
    assert json.loads((out / "manifest.json").read_text())["layout"]["split"] == split
    r = baleen("verify", out, "--against", src)
    assert r.rc == 0, r.err
    r = baleen("verify", src, "--against", out)
    assert r.rc == 0, r.err
    assert f"(tp {tp}, ep 2, pp 2, split {split})" in baleen("inspect", out).out
    assert (f"{len(kept)} weights that packing decoded would get" in baleen("merge", out, tmp_path / "m", "--dry-run").out) == bool(kept)
    r = baleen("merge", out, tmp_path / "m", "--json")
    assert r.rc == 0 and json.loads(r.out)["scales_restored"] == len(kept), r.err
    same_checkpoint(src, tmp_path / "m")
    for target in ("bf16", "released"):
        r = baleen("convert", out, tmp_path / target, "--to", target)
        assert r.rc == 0, r.err
        r = baleen("verify", tmp_path / target, "--against", src)
        assert r.rc == 0, r.err
    assert ckpt.tensors(tmp_path / "released") == ckpt.tensors(src)
    for rank in range(layout.ranks()):
        if rank != 3:
            shutil.rmtree(out / f"rank-{rank:04d}")
    assert baleen("verify", out, "--rank", 3).rc == 0


def xxh3(data, seed):
    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    lib = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    lib.XXH3_128bits_withSeed.restype = Hash
    lib.XXH3_128bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    h = lib.XXH3_128bits_withSeed(data, len(data), seed)
    return h.high << 64 | h.low


def digest(values, unit):
    """The value digest of bf16 bits [rows, cols] with tiles of this unit."""
    h, w = unit
    values = np.where(values & 0x7FFF == 0, 0, values).astype(np.uint16)
    per_row, total = -(-values.shape[1] // w), 0
    for r in range(0, values.shape[0], h):
        for c in range(0, values.shape[1], w):
            total += xxh3(values[r:r + h, c:c + w].tobytes(), r // h * per_row + c // w)
    return total % 2 ** 128


@pytest.mark.parametrize("which, split, units", [("inner", "pad", {}), ("inner", "bf16", {"w1": (8, 32), "w2": (32, 8)}),
                                                 ("source", "expand1x32", {"w1": (8, 32), "w2": (32, 8), "wo_a": (16, 32)})])
def test_digests_add_up(baleen, request, tmp_path, which, split, units):
    src = request.getfixturevalue(which)
    out = pack(baleen, src, tmp_path / "p", layout_of(src, split))
    tensors, sums = ckpt.tensors(src), ranks.value_sums(out, 4)
    whole = ranks.value_sums(pack(baleen, src, tmp_path / "one", ranks.Layout(src)), 1)
    for name in (f"layers.2.{x}.weight" for x in ("ffn.shared_experts.w1", "ffn.shared_experts.w2", "attn.wo_a", "attn.wkv")):
        value = tensor_of(ranks.manifest(out, 1), name)["value"]
        unit = units.get(name.split(".")[-2], (32, 32))
        assert tuple(value.get("unit", (32, 32))) == unit, name
        rows, cols = tensors[name][1]
        bits = np.frombuffer(ckpt.decode(name, tensors), np.uint16).reshape(rows, cols)
        assert sums[name] == ("matrix", (rows, cols), digest(bits, unit)), name
        assert unit != (32, 32) or sums[name] == whole[name]


def test_models_of_other_splits_compare(baleen, inner, tmp_path):
    """Digests of other tiles are made to compare: of two packed models, and of their cast."""
    made = {s: pack(baleen, inner, tmp_path / s, layout_of(inner, s, tp)) for s, tp in (("pad", 4), ("expand1x32", 4), ("bf16", 2))}
    assert baleen("convert", inner, tmp_path / "cast", "--to", "bf16", "--keep", "dspark,vision").rc == 0
    made["cast"] = tmp_path / "cast"
    for a in made.values():
        for b in made.values():
            r = baleen("verify", a, "--against", b)
            assert r.rc == 0, r.err
    t = tensor_of(ranks.manifest(made["bf16"], 1), "layers.1.ffn.shared_experts.w2.weight")
    with open(made["bf16"] / "rank-0001/layer-01.safetensors", "r+b") as f:
        f.seek(t["offset"] + 2 * 3)
        f.write(b"\x11\x22")
    r = baleen("verify", made["pad"], "--against", made["bf16"])
    assert r.rc == 1 and r.err.count("\n") == 1 and "layers.1.ffn.shared_experts.w2.weight" in r.err and "values differ" in r.err
    r = baleen("verify", made["bf16"])
    assert r.rc == 1 and "layers.1.ffn.shared_experts.w2.weight" in r.err
    r = baleen("merge", made["bf16"], tmp_path / "m")
    assert r.rc == 3 and "layers.1.ffn.shared_experts.w2.weight" in r.err and "value digest" in r.err, r.err
    assert not (tmp_path / "m").exists()


def refused_as_split(r, split):
    assert r.rc == 2 and r.out == "" and r.err.count("\n") == 1 and f"was packed with --split {split}" in r.err and "'baleen merge'" in r.err


def test_as_hints(baleen, inner, tmp_path):
    """What such a model kept of the release's scales are those of some weights."""
    cast = tmp_path / "cast"
    assert baleen("convert", inner, cast, "--to", "bf16", "--keep", "dspark,vision").rc == 0
    for split in SPLITS:
        made = pack(baleen, inner, tmp_path / split, layout_of(inner, split))
        r = baleen("convert", cast, tmp_path / f"again-{split}", "--to", "released", "--scale-hints", made)
        if split == "pad":
            assert r.rc == 0 and re.search(r"scale hints for (\d+) of \1 weights", r.out)
            continue
        refused_as_split(r, split)
        r = baleen("convert", made, tmp_path / f"back-{split}", "--to", "released")
        counts = [int(n) for n in re.search(r"scale hints for (\d+) of (\d+) weights", r.out).groups()]
        kept = len(ckpt.tensors(made / "scales.source.st"))
        encoded = sum(int(n) for n in re.findall(r"^(?:attention|shared experts|draft|dense) +(\d+) ", r.out, re.M))
        assert r.rc == 0 and counts[0] == kept > 0 and counts[1] == encoded + (0 if split == "bf16" else 10)  # cut rows have their codes


def test_packed_again(baleen, inner, tmp_path):
    """From a model of one rank, whose digests have other tiles; damage in it is seen all the same."""
    one = pack(baleen, inner, tmp_path / "one", ranks.Layout(inner))
    for split in SPLITS:
        pack(baleen, one, tmp_path / split, layout_of(inner, split))
        direct = pack(baleen, inner, tmp_path / "direct", layout_of(inner, split))
        for f in sorted(direct.glob("rank-*/*")) + sorted(direct.glob("*.st")):
            assert f.read_bytes() == (tmp_path / split / f.relative_to(direct)).read_bytes()
        shutil.rmtree(direct)
    r = baleen("convert", tmp_path / "pad", tmp_path / "two", "--to", "packed", "--tp", 2, "--split", "bf16", "--pad-vocab", 32)
    assert r.rc == 0 and baleen("verify", tmp_path / "two", "--against", inner).rc == 0, r.err
    for split in ("expand1x32", "bf16"):
        for args in (["--to", "packed"], ["--to", "bf16", "--save-scales"]):
            refused_as_split(baleen("convert", tmp_path / split, tmp_path / "no", *args), split)
        refused_as_split(baleen("bucket", tmp_path / split, tmp_path / "no"), split)
        refused_as_split(baleen("bucket", tmp_path / split, tmp_path / "no", "--dry-run"), split)
    assert not list(tmp_path.glob("no*"))
    assert baleen("bucket", tmp_path / "pad", tmp_path / "buckets").rc == 0
    t = tensor_of(ranks.manifest(one, 0), "layers.1.ffn.shared_experts.w1.weight")
    with open(one / "rank-0000/layer-01.safetensors", "r+b") as f:
        f.seek(t["offset"] + 5)
        b = f.read(1)
        f.seek(t["offset"] + 5)
        f.write(bytes([b[0] ^ 1]))
    r = baleen("convert", one, tmp_path / "no", "--to", "packed", "--tp", 4, "--split", "bf16", "--pad-vocab", 32)
    assert r.rc == 3 and "value digest" in r.err and "w1.weight" in r.err and not (tmp_path / "no").exists()


def test_bf16_models_are_cut_too(baleen, source, tmp_path):
    cast = tmp_path / "cast"
    assert baleen("convert", source, cast, "--to", "bf16", "--keep", "dspark,vision").rc == 0
    for split in ("expand1x32", "bf16"):
        layout = layout_of(cast, split)
        out = pack(baleen, cast, tmp_path / split, layout)
        assert not (out / "scales.source.st").exists()
        for rank in range(layout.ranks()):
            assert ranks.held(out, rank) == layout.expected(ckpt.tensors(cast), rank)
        assert baleen("verify", out, "--against", source).rc == 0
        assert baleen("merge", out, tmp_path / ("m" + split)).rc == 0
        assert ckpt.tensors(tmp_path / ("m" + split)) == ckpt.tensors(cast)


def test_nothing_to_split(baleen, source, tmp_path):
    """Where no cut falls inside a block the option changes nothing."""
    pack(baleen, source, tmp_path / "a", ranks.Layout(source, tp=1, ep=2))
    pack(baleen, source, tmp_path / "b", ranks.Layout(source, tp=1, ep=2, split="bf16"))
    for f in sorted((tmp_path / "a").rglob("*")):
        assert f.is_dir() or f.read_bytes() == (tmp_path / "b" / f.relative_to(tmp_path / "a")).read_bytes()


def test_the_plan_says_so(baleen, inner, tmp_path):
    for split, what in (("pad", ["padded to whole blocks"]), ("expand1x32", ["with a scale for every row", "decoded to BF16"]),
                        ("bf16", ["decoded to BF16"])):
        options = layout_of(inner, split).options()
        r = baleen("convert", inner, tmp_path / "p", "--to", "packed", *options, "--dry-run", "--json")
        assert r.rc == 0, r.err
        receipt = json.loads(r.out)
        plan = receipt["plan"]
        assert plan["split"] == split and [x["what"] for x in plan["split_tensors"]] == what
        text = baleen("convert", inner, tmp_path / "p", "--to", "packed", *options, "--dry-run").out
        assert all(f"--split {split}" in text and w in text for w in what)
        out = pack(baleen, inner, tmp_path / split, layout_of(inner, split))
        held = [t for rank in range(4) for n, t in ranks.held(out, rank).items() if "shared_experts" in n]
        assert sum(x["bytes"] for x in plan["split_tensors"]) == sum(len(t[4]) for t in held)
        saved = out / "scales.source.st"
        assert receipt["scales_saved"] == (len(ckpt.tensors(saved)) if saved.exists() else 0)


def test_refusals(baleen, source, inner, tmp_path):
    def refused(src, *options):
        r = baleen("convert", src, tmp_path / "p", "--to", "packed", *options)
        assert r.rc == 2 and r.err.count("\n") == 1 and not (tmp_path / "p").exists(), r.err
        return r.err
    assert "--tp can be 1, or cut it with --split expand1x32 or bf16" in refused(source, "--tp", 4)
    assert "cut it with --split pad or expand1x32 or bf16" in refused(inner, "--tp", 4)
    assert "output group ends inside a block" in refused(source, "--tp", 4, "--split", "pad")
    assert "--pad-vocab 32" in refused(inner, "--tp", 4, "--split", "bf16")
    assert "--split takes pad" in refused(inner, "--tp", 4, "--split", "yes")
    assert "output groups cannot be dealt evenly" in refused(inner, "--tp", 8, "--split", "bf16")
    assert "--to packed" in baleen("convert", inner, tmp_path / "p", "--to", "bf16", "--split", "pad").err


def test_a_manifest_that_belies_the_layout(baleen, inner, tmp_path):
    out = pack(baleen, inner, tmp_path / "p", layout_of(inner, "bf16"))
    name = "layers.1.ffn.shared_experts.w2.weight"
    rewrite(out / "rank-0001/manifest.json", lambda m: tensor_of(m, name)["value"].update(unit=[32, 16]))
    r = baleen("verify", out)
    assert r.rc == 1 and name in r.err and "tiles of 32x16, the layout calls for 32x8" in r.err
    rewrite(out / "rank-0001/manifest.json", lambda m: tensor_of(m, name)["value"].update(unit=[32, 3]))
    assert "'unit' is not" in baleen("verify", out).err
    rewrite(out / "rank-0001/manifest.json", lambda m: tensor_of(m, name)["value"].update(unit=[32, 8]))
    assert baleen("verify", out).rc == 0
    rewrite(out / "manifest.json", lambda m: m["layout"].update(split="expand1x32"))
    r = baleen("verify", out)
    assert r.rc == 0 or "shared_experts" in r.err
    rewrite(out / "manifest.json", lambda m: m["layout"].update(split="half"))
    assert "'split' is not" in baleen("verify", out).err


def test_scales_that_were_kept(baleen, inner, tmp_path):
    out = pack(baleen, inner, tmp_path / "p", layout_of(inner, "bf16"))
    saved = out / "scales.source.st"
    whole = saved.read_bytes()
    saved.unlink()
    r = baleen("merge", out, tmp_path / "m")
    assert r.rc == 3 and "scales.source.st" in r.err and "listed in manifest.json" in r.err and not (tmp_path / "m").exists()
    assert baleen("verify", out).rc == 1
    saved.write_bytes(whole[:-1] + bytes([whole[-1] - 40]))
    assert baleen("verify", out).rc == 1
    r = baleen("merge", out, tmp_path / "m")
    assert r.rc == 3 and "not fit the values" in r.err and not (tmp_path / "m").exists(), r.err


def test_resumed_runs(baleen, inner, tmp_path):
    """What an earlier run finished is proven by digests of the same tiles."""
    layout = layout_of(inner, "expand1x32")
    half_done(inner, tmp_path, "packed", *layout.options())
    kept, _ = resumed(baleen("convert", inner, tmp_path / "out", "--to", "packed", *layout.options(), "--resume", "--json"))
    assert kept > 0
    direct = pack(baleen, inner, tmp_path / "direct", layout)
    for f in sorted(direct.rglob("*")):
        assert f.is_dir() or f.read_bytes() == (tmp_path / "out" / f.relative_to(direct)).read_bytes(), f
    (tmp_path / "again").mkdir()
    half_done(inner, tmp_path / "again", "packed", *layout.options())
    r = baleen("convert", inner, tmp_path / "again/out", "--to", "packed", *layout_of(inner, "bf16").options(), "--resume")
    assert r.rc == 2 and "other options" in r.err, r.err
