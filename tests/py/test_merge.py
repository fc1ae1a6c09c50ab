"""baleen merge: every tensor of the source byte for byte, from every layout of ranks, and what it must refuse."""
import json
import os
import random
import shutil

import pytest

import ckpt
import ranks
from conftest import DEMO
from test_convert import check_sums

DEGREES = [1, 2, 4, 8]
SMALL = ["num_hidden_layers=8", "num_attention_heads=8", "o_groups=8", "o_lora_rank=32", "moe_intermediate_size=256",
         "n_routed_experts=8", "dspark_n_routed_experts=8", "vocab_size=768", "head_dim=32"]


def same_checkpoint(source, merged):
    want, have = ckpt.tensors(source), ckpt.tensors(merged)
    assert set(want) == set(have)
    for name, t in want.items():
        assert have[name] == t, name
    index = json.loads((merged / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(want)
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in want.values())
    for f in source.iterdir():
        if f.suffix in (".json", ".jinja") and "index" not in f.name:
            assert (merged / f.name).read_bytes() == f.read_bytes(), f.name
    assert {f.name for f in merged.iterdir()} - {f.name for f in source.iterdir() if f.suffix == ".json"} == {
        "SHA256SUMS", *set(index["weight_map"].values())}
    check_sums(merged)


@pytest.fixture(scope="module")
def source(baleen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merge") / "source"
    assert baleen("synth", folder, "--preset", "nano", *SMALL, "--seed", 11).rc == 0
    return folder


def round_trip(baleen, src, layout, where, *more):
    packed, merged = where / "packed", where / "merged"
    r = baleen("convert", src, packed, "--to", "packed", *layout.options(), *more)
    assert r.rc == 0, r.err
    assert baleen("verify", packed).rc == 0
    r = baleen("merge", packed, merged)
    assert r.rc == 0, r.err
    shutil.rmtree(packed)
    return merged


# Every two degrees meet with two of the third; stages and ranks within them are cut apart from each other.
LAYOUTS = [(tp, ep, pp) for i, tp in enumerate(DEGREES) for j, ep in enumerate(DEGREES) for k, pp in enumerate(DEGREES) if (i + j + k) % 2 == 0]


@pytest.mark.parametrize("tp,ep,pp", LAYOUTS)
def test_every_layout(baleen, source, tmp_path, tp, ep, pp):
    layout = ranks.Layout(source, tp=tp, ep=ep, pp=pp, shared=(tp + ep + pp) % 4 < 2)
    merged = round_trip(baleen, source, layout, tmp_path)
    same_checkpoint(source, merged)
    shutil.rmtree(merged)


def draw(rng):
    """A random shape, and a layout that it allows."""
    tp, ep, pp = rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2, 3])
    if max(tp, ep) % min(tp, ep):
        ep = 1
    layers = rng.randrange(4, 8)
    heads = tp * rng.choice([1, 2])
    shape = dict(num_hidden_layers=layers, num_attention_heads=heads, o_groups=rng.choice([g for g in (tp, heads) if heads % g == 0]),
                 o_lora_rank=rng.choice([32, 64]), head_dim=rng.choice([32, 64]), hidden_size=rng.choice([64, 96, 160]),
                 moe_intermediate_size=32 * tp * rng.choice([1, 2, 3]), n_routed_experts=ep * rng.choice([2, 3]),
                 dspark_n_routed_experts=ep * 2, vocab_size=rng.randrange(500, 1100), q_lora_rank=rng.choice([32, 96]))
    cuts = sorted(rng.sample(range(1, layers), pp - 1))
    stages = [b - a for a, b in zip([0, *cuts], [*cuts, layers])]
    return shape, dict(tp=tp, ep=ep, pp=pp, pp_layers=stages, pad_vocab=rng.choice([32, 64, 128]), shared=rng.random() < .5)


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_and_layouts(baleen, tmp_path, seed):
    shape, how = draw(random.Random(seed))
    src = tmp_path / "source"
    r = baleen("synth", src, "--preset", "nano", *[f"{k}={v}" for k, v in shape.items()], "--seed", seed)
    assert r.rc == 0, r.err
    layout = ranks.Layout(src, **how)
    packed = tmp_path / "packed"
    r = baleen("convert", src, packed, "--to", "packed", *layout.options())
    assert r.rc == 0, (shape, how, r.err)
    r = baleen("verify", packed, "--against", src)
    assert r.rc == 0, r.err
    want = ckpt.tensors(src)
    for rank in range(layout.ranks()):
        assert ranks.held(packed, rank) == layout.expected(want, rank)
    assert baleen("merge", packed, tmp_path / "merged").rc == 0
    same_checkpoint(src, tmp_path / "merged")


def test_oracle_checkpoints(baleen, make_checkpoint, tmp_path):
    """Checkpoints of the reference's own generator: vision, Engram, draft layers."""
    src = make_checkpoint("tiny")
    layout = ranks.Layout(src, ep=2, pp=2)
    same_checkpoint(src, round_trip(baleen, src, layout, tmp_path))


def test_other_ways_lead_there_too(baleen, source, tmp_path):
    """Packed anew from ranks, cast from ranks, dropped classes, a part of the layers."""
    layout = ranks.Layout(source, tp=4, ep=2, pp=2)
    packed = tmp_path / "packed"
    assert baleen("convert", source, packed, "--to", "packed", *layout.options()).rc == 0
    assert baleen("convert", packed, tmp_path / "again", "--to", "packed", "--tp", 2, "--ep", 8).rc == 0
    assert baleen("merge", tmp_path / "again", tmp_path / "merged").rc == 0
    same_checkpoint(source, tmp_path / "merged")
    assert baleen("convert", packed, tmp_path / "cast", "--to", "bf16").rc == 0
    assert baleen("convert", source, tmp_path / "direct", "--to", "bf16").rc == 0
    assert ckpt.tensors(tmp_path / "cast") == ckpt.tensors(tmp_path / "direct")
    assert baleen("convert", source, tmp_path / "less", "--to", "packed", "--tp", 2, "--drop", "dspark", "--layers", "0-2,5").rc == 0
    assert baleen("merge", tmp_path / "less", tmp_path / "part").rc == 0
    want = {n: t for n, t in ckpt.tensors(source).items()
            if not n.startswith("mtp.") and not n.startswith(tuple(f"layers.{i}." for i in (3, 4, 6, 7)))}
    assert ckpt.tensors(tmp_path / "part") == want
    assert baleen("verify", tmp_path / "part", "--against", source).rc == 0  # the config says what is not there


def test_bf16_models_stay_bf16(baleen, source, tmp_path):
    assert baleen("convert", source, tmp_path / "cast", "--to", "bf16", "--keep", "dspark,vision").rc == 0
    layout = ranks.Layout(tmp_path / "cast", tp=2, pp=2)
    assert baleen("convert", tmp_path / "cast", tmp_path / "p", "--to", "packed", *layout.options()).rc == 0
    assert baleen("merge", tmp_path / "p", tmp_path / "m").rc == 0
    assert ckpt.tensors(tmp_path / "m") == ckpt.tensors(tmp_path / "cast")
    for name in ("config.json", "config.source.json"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "cast" / name).read_bytes()


def test_receipt_and_shards(baleen, source, tmp_path):
    assert baleen("convert", source, tmp_path / "p", "--to", "packed", "--tp", 2).rc == 0
    r = baleen("merge", tmp_path / "p", tmp_path / "m", "--shard-size", "1MB", "--json")
    j = json.loads(r.out)
    assert r.rc == 0 and j["ranks"] == 2 and j["tensors"] == len(ckpt.tensors(source))
    assert j["files"] == len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    r = baleen("merge", tmp_path / "p", tmp_path / "n", "--dry-run")
    assert r.rc == 0 and r.out.startswith("would write") and not (tmp_path / "n").exists()


def test_refusals(baleen, source, tmp_path):
    r = baleen("merge", source, tmp_path / "m")
    assert r.rc == 3 and "nothing to merge" in r.err
    assert baleen("convert", source, tmp_path / "p", "--to", "packed", "--tp", 2, "--pp", 2).rc == 0
    shutil.rmtree(tmp_path / "p" / "rank-0003")
    r = baleen("merge", tmp_path / "p", tmp_path / "m")
    assert r.rc == 3 and "rank-0003" in r.err and r.err.count("\n") == 1
    assert not (tmp_path / "m").exists()
    assert baleen("merge", DEMO).rc == 2


def test_damage_is_not_merged(baleen, source, tmp_path):
    """A NaN code in a rank's part: named where it is."""
    assert baleen("convert", source, tmp_path / "p", "--to", "packed", "--tp", 2).rc == 0
    t = next(t for t in ranks.manifest(tmp_path / "p", 1)["tensors"] if t["name"] == "layers.3.attn.wo_b.weight")
    with open(tmp_path / "p/rank-0001/layer-03.safetensors", "r+b") as f:
        f.seek(t["offset"] + 5)
        f.write(b"\x7f")
    r = baleen("merge", tmp_path / "p", tmp_path / "m")
    assert r.rc == 3 and "rank-0001/layer-03.safetensors" in r.err and "layers.3.attn.wo_b.weight" in r.err
    assert f"offset {t['offset'] + 5}" in r.err or str(t["offset"] + 5) in r.err


@pytest.mark.parametrize("layout", [[], ["--tp", "2", "--pp", "2"]])
def test_damage_gets_no_new_digests(baleen, source, tmp_path, layout):
    """A flipped bit of a packed model must not come out of merge or convert with digests that fit it."""
    packed = tmp_path / "packed"
    assert baleen("convert", source, packed, "--to", "packed", *layout).rc == 0
    files = sorted(packed.glob("rank-*/layer-*.safetensors"))
    assert files
    for path in (files[0], files[-1]):
        whole = path.read_bytes()
        header = 8 + int.from_bytes(whole[:8], "little")
        at = header + (len(whole) - header) // 3
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for args in (["merge"], ["convert", "--to", "bf16"], ["convert", "--to", "packed"], ["convert", "--to", "packed", "--tp", "2"]):
            r = baleen(args[0], packed, tmp_path / "out", *args[1:])
            if r.rc == 0 and path != files[0] and layout:  # a copy that is not read
                assert baleen("verify", tmp_path / "out", "--against", source).rc == 0
                shutil.rmtree(tmp_path / "out")
                continue
            assert r.rc == 3 and r.err.count("\n") == 1 and "value digest" in r.err and "layers." in r.err, (args, r.rc, r.err)
            assert not (tmp_path / "out").exists()
        path.write_bytes(whole)
    for args in (["merge"], ["convert", "--to", "bf16"], ["convert", "--to", "packed", "--tp", "2"]):
        out = tmp_path / ("out" + args[-1])
        assert baleen(args[0], packed, out, *args[1:]).rc == 0


@pytest.mark.parametrize("form, options", [("bf16", []), ("codes", ["--experts", "fp8", "--scale-hints", "none"])])
@pytest.mark.parametrize("layout", [[], ["--tp", "2", "--ep", "2"]])
def test_damage_is_not_encoded(baleen, source, tmp_path, form, options, layout):
    """What --to released encodes or recasts has other values afterwards: it is held as it is read."""
    src = source
    if form == "bf16":
        src = tmp_path / "cast"
        assert baleen("convert", source, src, "--to", "bf16", "--keep", "dspark,vision").rc == 0
    packed, out = tmp_path / "packed", tmp_path / "out"
    assert baleen("convert", src, packed, "--to", "packed", *layout).rc == 0
    want = ["convert", packed, out, "--to", "released", *options]
    assert baleen(*want).rc == 0
    shutil.rmtree(out)
    name = "layers.2.ffn.experts.w2.weight"
    last = 1 if layout else 0
    for name in [name, "layers.2.attn.wo_b.weight"] if form == "bf16" else [name]:
        t = next(t for t in ranks.manifest(packed, last)["tensors"] if t["name"] == name)
        path = packed / f"rank-{last:04d}/layer-02.safetensors"
        whole = path.read_bytes()
        at = t["offset"] + 2 * (t["shape"][-1] * t["shape"][-2] // 4)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        r = baleen(*want)
        member = name.replace(".w2.", f".{t['start'][0]}.w2.") if len(t["shape"]) == 3 else name
        assert r.rc == 3 and r.err.count("\n") == 1 and "value digest" in r.err and member in r.err, (r.rc, r.err)
        assert not out.exists()
        path.write_bytes(whole)
    assert baleen(*want).rc == 0


def test_damage_is_not_encoded_in_two_runs(baleen, source, tmp_path):
    """What an interrupted run has encoded was held when it was: the next one need not see it again."""
    cast, packed, out = tmp_path / "cast", tmp_path / "packed", tmp_path / "out"
    assert baleen("convert", source, cast, "--to", "bf16", "--keep", "dspark,vision").rc == 0
    assert baleen("convert", cast, packed, "--to", "packed").rc == 0
    path = packed / "rank-0000/layer-07.safetensors"
    t = next(t for t in ranks.manifest(packed, 0)["tensors"] if t["name"] == "layers.7.attn.wo_b.weight")
    whole = path.read_bytes()
    path.write_bytes(whole[:t["offset"]] + bytes([whole[t["offset"]] ^ 1]) + whole[t["offset"] + 1:])
    times = path.stat()
    want = ["convert", packed, out, "--to", "released", "--shard-size", "200KB", "--jobs", 1, "--resume", "--json"]
    for _ in range(2):
        r = baleen(*want)
        assert r.rc == 3 and "layers.7.attn.wo_b.weight" in r.err and not out.exists(), r.err
    assert "\nfile " in (tmp_path / "out.partial" / "journal").read_text()
    path.write_bytes(whole)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    r = baleen(*want)
    assert r.rc == 0 and json.loads(r.out)["kept_files"] > 0, r.err
    assert baleen("verify", out, "--against", source).rc == 0
