"""baleen convert: every byte of its output against an independent decoder, and everything it must refuse."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
from safetensors import safe_open

import ckpt
from conftest import BUILD, DEMO, peak_memory


def source_tensors(folder):
    return ckpt.tensors(folder)


def check_sums(folder):
    """SHA256SUMS names every other file of the folder, rightly."""
    folder = pathlib.Path(folder)
    seen = {}
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ", 1)
        seen[name] = digest
    files = {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()} - {"SHA256SUMS"}
    assert set(seen) == files
    for name, digest in seen.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def opens(folder):
    """Python's safetensors reads every file; returns the names."""
    names = []
    for f in pathlib.Path(folder).rglob("*.safetensors"):
        with safe_open(f, framework="np") as s:
            names += list(s.keys())
    return names


def is_table(name):
    return ".engram.embed." in name


def check_bf16(src, out, keep=()):
    have, want = ckpt.tensors(out), source_tensors(src)
    expected = {}
    for name, (dtype, shape, data) in want.items():
        if name.startswith("mtp.") and "dspark" not in keep:
            continue
        if name.startswith(("vision.", "aligner.", "image_")) and "vision" not in keep:
            continue
        if is_table(name) or dtype in ("F32", "BF16"):
            expected[name] = (dtype, shape, data)
        elif not name.endswith(".scale"):
            full = (shape[0], shape[1] * 2) if dtype == "I8" else shape
            expected[name] = ("BF16", full, ckpt.decode(name, want))
    assert set(have) == set(expected)
    for name, t in expected.items():
        assert have[name] == t, name
    index = json.loads((pathlib.Path(out) / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(have)
    assert index["metadata"]["total_size"] == sum(len(d) for _, _, d in have.values())
    for name, file in index["weight_map"].items():
        assert name in ckpt.header(pathlib.Path(out) / file)[0]
    check_sums(out)
    assert len(opens(out)) == len(have)


def check_packed(src, out, drop=()):
    """Released names and bytes come back from the stacked form."""
    out, want = pathlib.Path(out), source_tensors(src)
    back = {}
    for f in sorted((out / "rank-0000").glob("*.safetensors")):
        h, base, meta = ckpt.header(f)
        data = f.read_bytes()
        assert base % (2 << 20 if f.name.startswith("engram") else 4096) == 0
        assert meta == {"format": "pt"}
        for name, t in h.items():
            a, b = t["data_offsets"]
            raw, shape = data[base + a:base + b], tuple(t["shape"])
            head, _, tail = name.partition(".ffn.experts.")
            if tail:
                each = len(raw) // shape[0]
                for e in range(shape[0]):
                    back[f"{head}.ffn.experts.{e}.{tail}"] = (t["dtype"], shape[1:], raw[e * each:(e + 1) * each])
            else:
                back[name] = (t["dtype"], shape, raw)
    if "dspark" in drop:
        want = {n: t for n, t in want.items() if not n.startswith("mtp.")}
    assert back.keys() == want.keys()
    for name in want:
        assert back[name] == want[name], name
    check_sums(out)
    opens(out / "rank-0000")


def ok(r):
    assert r.rc == 0, r.err
    assert r.err == ""
    return r


@pytest.mark.parametrize("extra", [[], ["--keep", "dspark"], ["--keep", "dspark,vision", "--shard-size", "1MB", "--jobs", "3"]])
def test_bf16_of_the_demo_model(baleen, tmp_path, extra):
    ok(baleen("convert", DEMO, tmp_path / "out", "--to", "bf16", *extra))
    check_bf16(DEMO, tmp_path / "out", extra[1] if extra else ())
    shards = sorted(f.name for f in (tmp_path / "out").glob("*.safetensors"))
    assert shards == [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    if "--shard-size" in extra:
        for f in (tmp_path / "out").glob("*.safetensors"):
            h, base, _ = ckpt.header(f)
            assert f.stat().st_size - base <= 1000000 or len(h) == 1


@pytest.mark.parametrize("extra", [[], ["--drop", "dspark"], ["--no-sha256", "--jobs", "1"]])
def test_packed_demo_model(baleen, tmp_path, extra):
    ok(baleen("convert", DEMO, tmp_path / "out", "--to", "packed", *extra))
    if "--no-sha256" in extra:
        names = {line.split("  ", 1)[1] for line in (tmp_path / "out" / "SHA256SUMS").read_text().splitlines()}
        assert "manifest.json" in names and not any(n.endswith(".safetensors") for n in names)
        return
    check_packed(DEMO, tmp_path / "out", ["dspark"] if extra else ())
    m = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert m["dropped"] == (["dspark"] if extra else [])
    if not extra:
        assert (tmp_path / "out" / "config.json").read_bytes() == (DEMO / "config.json").read_bytes()


def test_every_path_gives_the_same_bytes(baleen, tmp_path):
    """released -> packed -> bf16 is released -> bf16; bf16 -> packed -> bf16 is the identity; packed -> packed too."""
    at = lambda n: tmp_path / n
    ok(baleen("convert", DEMO, at("bf16"), "--to", "bf16"))
    ok(baleen("convert", DEMO, at("packed"), "--to", "packed"))
    ok(baleen("convert", at("packed"), at("bf16b"), "--to", "bf16"))
    ok(baleen("convert", at("packed"), at("packed2"), "--to", "packed"))
    ok(baleen("convert", at("bf16"), at("packed3"), "--to", "packed"))
    ok(baleen("convert", at("packed3"), at("bf16c"), "--to", "bf16"))
    for a, b in (("bf16", "bf16b"), ("bf16", "bf16c"), ("packed", "packed2")):
        names = {str(f.relative_to(at(a))) for f in at(a).rglob("*") if f.is_file()}
        assert names == {str(f.relative_to(at(b))) for f in at(b).rglob("*") if f.is_file()}
        for n in names - {"manifest.json", "SHA256SUMS"}:  # the source's identity differs
            assert (at(a) / n).read_bytes() == (at(b) / n).read_bytes(), n
    assert (at("bf16c") / "config.source.json").read_bytes() == (DEMO / "config.json").read_bytes()


def test_flattened_config(baleen, tmp_path):
    ok(baleen("convert", DEMO, tmp_path / "out", "--to", "bf16"))
    source = json.loads((DEMO / "config.json").read_text())
    flat = json.loads((tmp_path / "out" / "config.json").read_text())
    text = source.pop("text_config")
    want = {**source, **{k: v for k, v in text.items() if not k.startswith("dspark_")}}
    del want["quantization_config"], want["image_token_id"]
    want.update(model_type="deepseek_v41", num_nextn_predict_layers=0,
                compress_ratios=text["compress_ratios"][:text["num_hidden_layers"]],
                engram_quant={"dtype": "float8_e4m3fn", "scale_dtype": "float8_e8m0fnu", "block": [1, 32]})
    assert flat == want
    assert '"rms_norm_eps": 1e-20' in (tmp_path / "out" / "config.json").read_text()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (DEMO / name).read_bytes()
    ok(baleen("convert", DEMO, tmp_path / "kept", "--to", "bf16", "--keep", "dspark,vision"))
    kept = json.loads((tmp_path / "kept" / "config.json").read_text())
    assert kept["num_nextn_predict_layers"] == 2 and kept["compress_ratios"] == text["compress_ratios"]
    assert kept["dspark_block_size"] == text["dspark_block_size"] and "image_token_id" in kept


@pytest.mark.parametrize("preset,seed,over", [
    ("tiny", 3, {}), ("small", 2, {}), ("tiny", 7, dict(n_routed_experts=5, num_experts_per_tok=3, hidden_size=224)),
    ("nano", 5, dict(engram_layer_ids=[2])), ("nano", 6, dict(num_nextn_predict_layers=0)),
    ("nano", 8, dict(engram_layer_ids=[])), ("tiny", 9, dict(moe_intermediate_size=96, q_lora_rank=96, o_lora_rank=32))])
def test_random_checkpoints(baleen, make_checkpoint, tmp_path, preset, seed, over):
    src = make_checkpoint(preset, seed, shards=1 + seed % 4, **over)
    ok(baleen("convert", src, tmp_path / "b", "--to", "bf16", "--keep", "dspark"))
    check_bf16(src, tmp_path / "b", ("dspark",))
    ok(baleen("convert", src, tmp_path / "p", "--to", "packed"))
    check_packed(src, tmp_path / "p")


def test_layers(baleen, tmp_path):
    ok(baleen("convert", DEMO, tmp_path / "out", "--to", "bf16", "--layers", "0-1,5"))
    have = ckpt.tensors(tmp_path / "out")
    assert {int(n.split(".")[1]) for n in have if n.startswith("layers.")} == {0, 1, 5}
    assert {"embed.weight", "norm.weight", "head.weight"} <= set(have)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["baleen_layers"] == [0, 1, 5]
    ok(baleen("convert", tmp_path / "out", tmp_path / "again", "--to", "packed", "--layers", "1-5"))
    assert json.loads((tmp_path / "again" / "config.json").read_text())["baleen_layers"] == [1, 5]
    assert baleen("convert", tmp_path / "out", tmp_path / "none", "--to", "packed", "--layers", "2").rc == 2
    assert baleen("convert", DEMO, tmp_path / "none", "--to", "packed", "--layers", "8").rc == 2


@pytest.mark.parametrize("bare", [("head.",), ()])
def test_names_behind_model(baleen, tmp_path, bare):
    """Some trainers write the release's names behind "model.": what comes out has those of the release, and all bytes."""
    items = source_tensors(DEMO)
    named = {n if n.startswith(bare or "-") else "model." + n: t for n, t in items.items()}
    src = ckpt.write_folder(tmp_path / "src", named, DEMO)
    ok(baleen("verify", src, "--against", DEMO))
    for to, check in (("bf16", check_bf16), ("packed", check_packed)):
        ok(baleen("convert", src, tmp_path / to, "--to", to))
        check(DEMO, tmp_path / to)
    ok(baleen("convert", tmp_path / "bf16", tmp_path / "back", "--to", "released", "--scale-hints", src))
    back = source_tensors(tmp_path / "back")
    assert all(items[n] == t for n, t in back.items())
    for extra in ("norm.weight", "embed.weight"):  # which of both is meant is not guessed
        both = ckpt.write_folder(tmp_path / extra, {**named, extra: items[extra]}, DEMO)
        r = baleen("convert", both, tmp_path / "out", "--to", "bf16")
        assert r.rc == 3 and r.err.count("\n") == 1 and (extra[0] == "e" or "'norm.weight': is also in" in r.err), r.err
        assert baleen("verify", both).rc == 1


def vision_tensors(config, hidden):
    v = dict(num_hidden_layers=2, hidden_size=64, intermediate_size=96, patch_size=14, downsample_ratio=3)
    config["vision_config"] = v
    h, shapes = v["hidden_size"], {"vision.patch_embed.proj.weight": (64, 588), "vision.patch_embed.proj.bias": (64,)}
    for i in range(2):
        b = f"vision.blocks.{i}."
        shapes.update({b + "attn.wqkv.weight": (3 * h, h), b + "attn.wqkv.bias": (3 * h,), b + "attn.wo.weight": (h, h),
                       b + "attn.wo.bias": (h,), b + "mlp.w1.weight": (192, h), b + "mlp.w2.weight": (h, 96),
                       b + "norm1.weight": (h,), b + "norm2.weight": (h,)})
    shapes.update({"vision.norm.weight": (h,), "aligner.w1.weight": (hidden, 9 * h), "aligner.w1.bias": (hidden,),
                   "aligner.w2.weight": (hidden, hidden), "aligner.w2.bias": (hidden,), "image_start": (hidden,),
                   "image_end": (hidden,), "image_newline": (hidden,)})
    rng = np.random.default_rng(1)
    return {n: ("BF16", s, rng.integers(0, 0x4000, int(np.prod(s)), np.uint16).tobytes()) for n, s in shapes.items()}


def test_vision_is_dropped_or_kept(baleen, tmp_path):
    items = source_tensors(DEMO)
    config = {}
    items.update(vision_tensors(config, 192))
    src = ckpt.write_folder(tmp_path / "src", items, DEMO, edit=lambda c: c.update(config))
    ok(baleen("convert", src, tmp_path / "d", "--to", "bf16"))
    check_bf16(src, tmp_path / "d")
    assert "vision_config" not in json.loads((tmp_path / "d" / "config.json").read_text())
    ok(baleen("convert", src, tmp_path / "k", "--to", "bf16", "--keep", "vision"))
    check_bf16(src, tmp_path / "k", ("vision",))
    ok(baleen("convert", src, tmp_path / "p", "--to", "packed"))
    check_packed(src, tmp_path / "p")
    manifest = tmp_path / "p" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"dropped": []', '"dropped": ["vision"]'))
    r = baleen("verify", tmp_path / "p", "--level", "2")
    assert r.rc == 1 and "lists vision as dropped, but config.json has it" in r.err, r.err


def test_all_codes_and_scales(baleen, tmp_path):
    """Every fp8 code (NaN aside) under every scale byte 3..246, every fp4 code under 0..252."""
    items = source_tensors(DEMO)
    codes = np.array([c for c in range(256) if c & 127 != 127] + [0, 128], np.uint8)
    for name, lo, hi in (("layers.0.attn.wq_b", 3, 246), ("layers.3.ffn.experts.2.w1", 0, 252)):
        dtype, shape, data = items[name + ".weight"]
        _, grid, sdata = items[name + ".scale"]
        all_codes = np.arange(256, dtype=np.uint8) if dtype == "I8" else codes
        items[name + ".weight"] = (dtype, shape, np.resize(all_codes, shape).tobytes())
        items[name + ".scale"] = ("F8_E8M0", grid, np.resize(np.arange(lo, hi + 1, dtype=np.uint8), grid).tobytes())
    src = ckpt.write_folder(tmp_path / "src", items, DEMO)
    for cpu in ("c", "native"):
        ok(baleen("convert", src, tmp_path / cpu, "--to", "bf16", "--cpu", cpu))
        check_bf16(src, tmp_path / cpu)


# ---- refusals: one line naming file and tensor, status 3, nothing left behind

def refused(baleen, src, tmp_path, *words, to="bf16", rc=3):
    out = tmp_path / "refused"
    r = baleen("convert", src, out, "--to", to)
    assert r.rc == rc, (r.rc, r.err)
    assert r.err.count("\n") == 1 and r.out == ""
    for w in words:
        assert w in r.err, (w, r.err)
    assert not out.exists() and not list(tmp_path.glob("refused*")), "something was left behind"


def with_items(tmp_path, change, edit=None):
    items = source_tensors(DEMO)
    change(items)
    return ckpt.write_folder(tmp_path / "bad", items, DEMO, edit=edit)


def set_scale(name, at, byte):
    def change(items):
        dtype, shape, data = items[name]
        b = bytearray(data)
        b[at] = byte
        items[name] = (dtype, shape, bytes(b))
    return change


@pytest.mark.parametrize("name,at,byte,place", [
    ("layers.0.attn.wq_a.scale", 7, 255, "[1, 1]"), ("layers.0.attn.wq_a.scale", 0, 2, "[0, 0]"),
    ("layers.7.attn.wo_b.scale", 11, 247, "[2, 3]"), ("layers.2.ffn.experts.3.w2.scale", 575, 253, "[191, 2]")])
@pytest.mark.parametrize("to", ["bf16", "packed"])
def test_scales_that_are_not_exact(baleen, tmp_path, name, at, byte, place, to):
    src = with_items(tmp_path, set_scale(name, at, byte))
    refused(baleen, src, tmp_path, name, place, str(byte), to=to)


def test_edges_of_the_exact_range(baleen, tmp_path):
    items = source_tensors(DEMO)
    for name, lo, hi in (("layers.0.attn.wq_a.scale", 3, 246), ("layers.2.ffn.experts.3.w2.scale", 0, 252)):
        dtype, shape, data = items[name]
        items[name] = (dtype, shape, bytes([lo, hi]) + data[2:])
    src = ckpt.write_folder(tmp_path / "edge", items, DEMO)
    ok(baleen("convert", src, tmp_path / "out", "--to", "bf16"))
    check_bf16(src, tmp_path / "out")


BAD = {
    "missing tensor": (lambda t: t.pop("layers.4.attn.kv_norm.weight"), ["layers.4.attn.kv_norm.weight", "missing"]),
    "missing expert": (lambda t: t.pop("layers.4.ffn.experts.7.w3.weight"), ["layers.4.ffn.experts.7.w3.weight"]),
    "unknown tensor": (lambda t: t.update({"layers.4.attn.wkv.qweight": t["norm.weight"]}), ["layers.4.attn.wkv.qweight", "unknown"]),
    "layer beyond": (lambda t: t.update({"layers.8.attn_norm.weight": t["norm.weight"]}), ["layers.8.attn_norm.weight"]),
    "missing scale": (lambda t: t.pop("layers.1.attn.wkv.scale"), ["layers.1.attn.wkv.weight", "layers.1.attn.wkv.scale"]),
    "orphan scale": (lambda t: t.update({"layers.2.attn.compressor.wkv.scale": t["layers.1.attn.wkv.scale"]}),
                     ["layers.2.attn.compressor.wkv.scale", "orphan"]),
    "wrong grid": (lambda t: t.update({"layers.1.attn.wkv.scale": ("F8_E8M0", (64, 6), bytes([120]) * 384)}),
                   ["layers.1.attn.wkv.scale", "layers.1.attn.wkv.weight", "[64, 6]", "[2, 6]"]),
    "scale of another type": (lambda t: t.update({"layers.1.attn.wkv.scale": ("F32", (2, 6), bytes(48))}),
                              ["layers.1.attn.wkv.scale", "F32"]),
    "wrong shape": (lambda t: t.update({"norm.weight": ("BF16", (191,), bytes(382))}), ["norm.weight", "[191]", "[192]"]),
    "wrong dtype": (lambda t: t.update({"norm.weight": ("F32", (192,), bytes(768))}), ["norm.weight", "F32"]),
    "fp8 without scale as bf16": (lambda t: (t.pop("layers.1.attn.wkv.scale"), t.update(
        {"layers.1.attn.wkv.weight": ("I8", (64, 192), bytes(64 * 192))})), ["layers.1.attn.wkv.weight", "I8"]),
    "stacked and single": (lambda t: t.update({"layers.0.ffn.experts.w1.weight": ("I8", (8, 96, 96), bytes(8 * 96 * 96))}),
                           ["layers.0.ffn.experts.w1.weight"]),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("to", ["bf16", "packed"])
def test_bad_checkpoints(baleen, tmp_path, what, to):
    change, words = BAD[what]
    refused(baleen, with_items(tmp_path, change), tmp_path, *words, to=to)


def damage(tmp_path, how):
    bad = tmp_path / "bad"
    shutil.copytree(DEMO, bad)
    shard = bad / "model-00001-of-00002.safetensors"
    index = bad / "model.safetensors.index.json"
    how(bad, shard, index)
    return bad


def edit_index(index, change):
    j = json.loads(index.read_text())
    change(j["weight_map"])
    index.write_text(json.dumps(j))


FOLDERS = {
    "no config": (lambda b, s, i: (b / "config.json").unlink(), "config.json"),
    "broken config": (lambda b, s, i: (b / "config.json").write_text("{"), "config.json"),
    "missing shard": (lambda b, s, i: s.unlink(), s_name := "model-00001-of-00002.safetensors"),
    "cut shard": (lambda b, s, i: os.truncate(s, 100000), s_name),
    "empty shard": (lambda b, s, i: os.truncate(s, 0), s_name),
    "lfs pointer": (lambda b, s, i: s.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 7\n"), s_name),
    "stray file": (lambda b, s, i: shutil.copy(s, b / "stray.safetensors"), "stray.safetensors"),
    "index lacks a tensor": (lambda b, s, i: edit_index(i, lambda m: m.pop("norm.weight")), "norm.weight"),
    "index invents a tensor": (lambda b, s, i: edit_index(i, lambda m: m.update(ghost=s_name)), "ghost"),
    "index swaps shards": (lambda b, s, i: edit_index(i, lambda m: m.update(
        {"norm.weight": "model-00001-of-00002.safetensors" if m["norm.weight"].startswith("model-00002") else "model-00002-of-00002.safetensors"})), "norm.weight"),
    "index leaves the folder": (lambda b, s, i: edit_index(i, lambda m: m.update({"norm.weight": "../x.safetensors"})), "index.json"),
    "index is no object": (lambda b, s, i: i.write_text("[]"), "index.json"),
    "shard is a folder": (lambda b, s, i: (s.unlink(), s.mkdir()), s_name),
    "shard is a fifo": (lambda b, s, i: (s.unlink(), os.mkfifo(s)), s_name),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_bad_folders(baleen, tmp_path, what):
    how, word = FOLDERS[what]
    refused(baleen, damage(tmp_path, how), tmp_path, word)


def test_symbolic_links_are_followed(baleen, tmp_path):
    (tmp_path / "blobs").mkdir()
    src = tmp_path / "src"
    src.mkdir()
    for f in DEMO.iterdir():
        blob = tmp_path / "blobs" / hashlib.sha256(f.name.encode()).hexdigest()
        shutil.copy(f, blob)
        (src / f.name).symlink_to(blob)
    ok(baleen("convert", src, tmp_path / "out", "--to", "bf16"))
    check_bf16(DEMO, tmp_path / "out")


def test_destination_is_not_touched(baleen, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    r = baleen("convert", DEMO, out, "--to", "bf16")
    assert r.rc != 0 and r.err.count("\n") == 1
    assert [f.name for f in tmp_path.iterdir()] == ["out"] and [f.name for f in out.iterdir()] == ["precious"]
    empty = tmp_path / "empty"
    empty.mkdir()
    ok(baleen("convert", DEMO, empty, "--to", "packed"))


@pytest.mark.parametrize("args", [[], ["--to", "fp4"], ["--to", "bf16", "--drop", "dspark"], ["--to", "packed", "--keep", "vision"],
                                  ["--to", "bf16", "--keep", "engram"], ["--to", "bf16", "--layers", "3-1"],
                                  ["--to", "bf16", "--layers", ""], ["--to", "bf16", "--jobs", "-1"],
                                  ["--to", "bf16", "--shard-size", "0"], ["--to", "bf16", "--cpu", "z80"]])
def test_usage(baleen, tmp_path, args):
    r = baleen("convert", DEMO, tmp_path / "out", *args)
    assert r.rc == 2 and r.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_dry_run_and_receipt(baleen, tmp_path):
    r = ok(baleen("convert", DEMO, tmp_path / "out", "--to", "bf16", "--dry-run", "--json"))
    plan = json.loads(r.out)
    assert not (tmp_path / "out").exists()
    done = json.loads(ok(baleen("convert", DEMO, tmp_path / "out", "--to", "bf16", "--json")).out)
    for key in ("tensors", "files", "file_bytes", "tensor_bytes", "actions", "dropped"):
        assert plan[key] == done[key]
    assert done["file_bytes"] == sum(f.stat().st_size for f in (tmp_path / "out").glob("*.safetensors"))
    assert sum(done["actions"].values()) == done["source_tensors"]


def test_a_full_disk_is_found_before_the_work(baleen, tmp_path):
    """The largest hole a shard may have: a sparse Engram table that no disk here can take."""
    src = sparse_table(tmp_path, rows=1 << 38)
    if src is None:
        pytest.skip("the file system has no files of this size: the free-space check is NOT run")
    refused(baleen, src, tmp_path, "free", rc=4)


def sparse_table(tmp_path, rows):
    """The demo model with an Engram table of rows rows, as a hole."""
    items = source_tensors(DEMO)
    dim = items["layers.1.engram.embed.weight"][1][1]
    for n in ("layers.1.engram.embed.weight", "layers.1.engram.embed.scale"):
        del items[n]

    def edit(c):
        c["text_config"]["engram_num_embeddings"][0] = rows

    src = ckpt.write_folder(tmp_path / "sparse", items, DEMO, shards=1, edit=edit)
    h = {"layers.1.engram.embed.weight": {"dtype": "F8_E4M3", "shape": [rows, dim], "data_offsets": [0, rows * dim]},
         "layers.1.engram.embed.scale": {"dtype": "F8_E8M0", "shape": [rows, dim // 32],
                                         "data_offsets": [rows * dim, rows * (dim + dim // 32)]}}
    text = json.dumps(h).encode()
    (src / "model-00001-of-00001.safetensors").rename(src / "model-00001-of-00002.safetensors")
    table = src / "model-00002-of-00002.safetensors"
    table.write_bytes(struct.pack("<Q", len(text)) + text)
    try:
        os.truncate(table, 8 + len(text) + rows * (dim + dim // 32))
    except OSError:
        return None
    index = json.loads((src / "model.safetensors.index.json").read_text())
    where = {n: "model-00001-of-00002.safetensors" for n in items} | {n: table.name for n in h}
    (src / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return src


@pytest.mark.parametrize("to", ["bf16", "packed"])
def test_memory_does_not_grow_with_tensors(tmp_path, to):
    """A tensor larger than the limit goes through: resident memory stays under 256 MiB."""
    src = sparse_table(tmp_path, rows=(1 << 29) // 32)  # half a GiB of codes
    assert 0 < peak_memory("convert", src, tmp_path / "out", "--to", to, "--no-sha256") <= 256 << 10
    shutil.rmtree(tmp_path / "out")


def test_memory_of_verify_does_not_grow_with_tensors(tmp_path):
    """The same for verify, through a hole of 8 GiB, and with the values of half a GiB compared."""
    src = sparse_table(tmp_path / "large", rows=(8 << 30) // 32)
    assert 0 < peak_memory("verify", src) <= 256 << 10
    src = sparse_table(tmp_path / "small", rows=(1 << 29) // 32)
    assert 0 < peak_memory("verify", src, "--level", "1", "--against", src) <= 256 << 10


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path, sig):
    src = sparse_table(tmp_path, rows=(8 << 30) // 32)
    child = subprocess.Popen([BUILD / "tools" / "baleen", "convert", src, tmp_path / "out", "--to", "bf16"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while not list(tmp_path.glob("out*/files/.model-*")) and time.time() < deadline:
        time.sleep(0.01)
    child.send_signal(sig)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 4 and err.count("\n") == 1
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("where", ["in", "rank-0000/in", "../pk/in"])
def test_a_destination_in_the_source_is_refused(baleen, tmp_path, where):
    """A proven model must not come to hold what its SHA256SUMS does not list."""
    packed = tmp_path / "pk"
    assert baleen("convert", DEMO, packed, "--to", "packed").rc == 0
    for args in (["convert", packed, packed / where, "--to", "bf16"], ["merge", packed, packed / where]):
        r = baleen(*args)
        assert r.rc == 2 and r.err.count("\n") == 1 and "lies in the source" in r.err, (r.rc, r.err)
    assert baleen("verify", packed).rc == 0
