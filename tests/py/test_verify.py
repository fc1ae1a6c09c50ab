"""baleen verify: what holds holds, and whatever is damaged is found and named."""
import hashlib
import json
import os
import random
import re
import shutil

import numpy as np
import pytest

import ckpt
from conftest import DEMO, run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The demo model, its BF16 cast and its packed model."""
    d = tmp_path_factory.mktemp("made")
    for to in ("bf16", "packed"):
        r = run("baleen", "convert", DEMO, d / to, "--to", to)
        assert r.rc == 0, r.err
    return {"hf": DEMO, "bf16": d / "bf16", "packed": d / "packed"}


def holds(r):
    assert r.rc == 0 and r.err == "", r.err
    return r


def findings(r, *words):
    """Status 1, one line a finding; some line holds all words. Returns the lines."""
    assert r.rc == 1, (r.rc, r.out, r.err)
    lines = r.err.splitlines()
    assert all(line.startswith("baleen verify: ") for line in lines)
    assert any(all(w in line for w in words) for line in lines), (words, r.err)
    return lines


def copy(tmp_path, src):
    out = tmp_path / "copy"
    shutil.copytree(src, out)
    return out


def edit(path, change):
    j = json.loads(path.read_text())
    change(j)
    path.write_text(json.dumps(j))


@pytest.mark.parametrize("kind", ["hf", "bf16", "packed"])
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_holds(baleen, made, kind, level):
    r = holds(baleen("verify", made[kind], "--level", level, "--json", "--jobs", 1 + level))
    j = json.loads(r.out)
    assert j["ok"] and j["findings"] == [] and j["kind"] == ("packed" if kind == "packed" else "hf")
    if level == 3:
        files = sum(1 for f in made[kind].rglob("*") if f.is_file() and f.name != "SHA256SUMS")
        assert j["files_hashed"] == (0 if kind == "hf" else files)
        assert j["files_unproven"] == (2 if kind == "hf" else 0)
        assert (j["chunks"] > 0) == (kind == "packed")


def test_default_is_the_built_in_model(baleen):
    assert "holds" in holds(baleen("verify")).out


@pytest.mark.parametrize("a", ["hf", "bf16", "packed"])
@pytest.mark.parametrize("b", ["hf", "bf16", "packed"])
def test_equal_values_in_every_form(baleen, made, a, b):
    j = json.loads(holds(baleen("verify", made[a], "--level", "1", "--against", made[b], "--json")).out)
    n = {k: sum(1 for t in ckpt.tensors(DEMO) if not t.endswith(".scale") and (k == "all" or not t.startswith("mtp."))) for k in ("all", "some")}
    assert j["compared_equal"] == n["some" if "bf16" in (a, b) else "all"]


def test_random_checkpoints_compare_equal(baleen, make_checkpoint, tmp_path):
    src = make_checkpoint("tiny", 11, shards=4, hidden_size=224, n_routed_experts=5, q_lora_rank=96)
    for to in ("bf16", "packed"):
        assert baleen("convert", src, tmp_path / to, "--to", to).rc == 0
        holds(baleen("verify", tmp_path / to, "--against", src))
    other = make_checkpoint("tiny", 12, shards=4, hidden_size=224, n_routed_experts=5, q_lora_rank=96)
    r = baleen("verify", tmp_path / "packed", "--against", other)
    lines = findings(r, "layers.3.ffn.experts.4.w2.weight", "values differ")
    assert len(lines) > 300


def test_requantised_values_compare_equal(baleen, tmp_path):
    """Other codes, same values: all exponents of a block one lower, its scale one higher, and -0 for +0."""
    items = ckpt.tensors(DEMO)
    name = "layers.0.attn.wkv"
    dtype, shape, data = items[name + ".weight"]
    codes = np.frombuffer(data, np.uint8).reshape(shape).copy()
    ok = ((codes & 0x78) > 0x08) | ((codes & 0x7F) == 0)  # zero, or normal and still normal when halved
    block = np.zeros_like(codes)  # 1 where every code of the block can be halved exactly
    for r in range(0, shape[0], 32):
        for c in range(0, shape[1], 32):
            block[r:r + 32, c:c + 32] = ok[r:r + 32, c:c + 32].all()
    codes[:32, :32] = np.where(ok[:32, :32], codes[:32, :32], 0)  # one at least
    items[name + ".weight"] = (dtype, shape, codes.tobytes())
    block[:32, :32] = 1
    before = ckpt.write_folder(tmp_path / "a", items, DEMO)
    halved = np.where((block == 1) & ((codes & 0x7F) != 0), codes - 8, codes)
    zero = (codes & 0x7F) == 0
    halved = np.where(zero, codes ^ 0x80, halved).astype(np.uint8)
    sd, ss, sdata = items[name + ".scale"]
    scale = np.frombuffer(sdata, np.uint8).reshape(ss) + block[::32, ::32][:ss[0], :ss[1]]
    items[name + ".weight"] = (dtype, shape, halved.tobytes())
    items[name + ".scale"] = (sd, ss, scale.astype(np.uint8).tobytes())
    after = ckpt.write_folder(tmp_path / "b", items, DEMO)
    holds(baleen("verify", before, "--against", after))
    items[name + ".weight"] = (dtype, shape, bytes([halved.flat[0] ^ 1]) + halved.tobytes()[1:])
    worse = ckpt.write_folder(tmp_path / "c", items, DEMO)
    lines = findings(baleen("verify", before, "--against", worse), name + ".weight", "values differ")
    assert len(lines) == 1


def test_what_one_side_lacks(baleen, made, tmp_path):
    assert baleen("convert", DEMO, tmp_path / "part", "--to", "packed", "--drop", "dspark", "--layers", "0-2").rc == 0
    holds(baleen("verify", tmp_path / "part", "--against", DEMO))
    holds(baleen("verify", made["bf16"], "--against", tmp_path / "part"))
    edit(tmp_path / "part" / "config.json", lambda c: c.update(baleen_layers=[0, 1, 2, 3]))
    r = baleen("verify", tmp_path / "part", "--level", "1", "--against", DEMO)
    findings(r, "layers.3.attn.wkv.weight", "nothing records")
    findings(r, "layers.3.attn.wkv.weight", "missing")


# ---- any flipped bit of a packed model

def tensor_at(folder, file, offset):
    """(name, first byte, end) of the tensor of a payload file that holds a byte, None in the header."""
    h, base, _ = ckpt.header(folder / file)
    for name, t in h.items():
        a, b = t["data_offsets"]
        if base + a <= offset < base + b:
            return name, base + a, base + b
    return None


def check_flip(baleen, good, bad, file, offset, bit):
    path = bad / file
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    try:
        r = baleen("verify", bad)
        lines = findings(r, file)
        if file.endswith(".safetensors") and (at := tensor_at(good, file, offset)):
            hits = [re.search(r"chunk (\d+) of .*\(bytes (\d+)\.\.(\d+)\)$", line) for line in lines if f"'{at[0]}'" in line]
            assert any(m and int(m[2]) <= offset <= int(m[3]) and int(m[1]) == (offset - at[1]) >> 23 for m in hits), r.err
    finally:
        data[offset] ^= 1 << bit
        path.write_bytes(data)


def test_any_flipped_bit_is_found(baleen, made, tmp_path):
    good, bad, rng = made["packed"], copy(tmp_path, made["packed"]), random.Random(7)
    files = sorted(str(f.relative_to(good)) for f in good.rglob("*") if f.is_file())
    for file in files:
        size = (good / file).stat().st_size
        places = {0, 7, 8, size - 1} | {rng.randrange(size) for _ in range(4)}
        if file.endswith(".safetensors"):
            base = ckpt.header(good / file)[1]
            places |= {base - 1, base, rng.randrange(base)}
        for offset in sorted(places):
            check_flip(baleen, good, bad, file, offset, rng.randrange(8))
    for offset in range(0, (good / "SHA256SUMS").stat().st_size, 97):
        check_flip(baleen, good, bad, "SHA256SUMS", offset, 5)  # 'a' to 'A' and the like
    holds(baleen("verify", bad))


def test_random_flips_of_a_small_model(baleen, tmp_path):
    """Other places at every run; BL_SEED repeats one."""
    seed = int(os.environ.get("BL_SEED", random.randrange(1 << 32)))
    print("BL_SEED =", seed)
    rng = random.Random(seed)
    assert baleen("synth", tmp_path / "hf", "--preset", "nano", "--seed", seed % 1000).rc == 0
    good, bad = tmp_path / "good", tmp_path / "bad"
    assert baleen("convert", tmp_path / "hf", good, "--to", "packed", *rng.choice([[], ["--no-sha256"]])).rc == 0
    shutil.copytree(good, bad)
    small = [f for f in sorted(good.rglob("*")) if f.is_file() and f.suffix != ".safetensors"]
    large = sorted(good.rglob("*.safetensors"))
    assert len(small) >= 6
    for path in small + large + rng.choices(large, k=30):
        offset = rng.randrange(path.stat().st_size)
        check_flip(baleen, good, bad, str(path.relative_to(good)), offset, rng.randrange(8))
    holds(baleen("verify", bad))


def test_flips_without_payload_hashes(baleen, tmp_path):
    assert baleen("convert", DEMO, tmp_path / "good", "--to", "packed", "--no-sha256").rc == 0
    good, bad, rng = tmp_path / "good", copy(tmp_path, tmp_path / "good"), random.Random(8)
    holds(baleen("verify", bad))
    for file in ("rank-0000/layer-03.safetensors", "rank-0000/engram-01.safetensors", "rank-0000/rest.safetensors", "manifest.json",
                 "rank-0000/manifest.json", "config.json", "tokenizer.json"):
        size = (good / file).stat().st_size
        base = ckpt.header(good / file)[1] if file.endswith(".safetensors") else 0
        for offset in {base, size - 1, rng.randrange(base, size)}:
            check_flip(baleen, good, bad, file, offset, rng.randrange(8))


def test_chunks_are_numbered(baleen, tmp_path):
    """A tensor of several chunks: the damaged one is named."""
    assert baleen("synth", tmp_path / "s", "--preset", "nano", "engram_vocab_size=101009", "engram_layer_ids=[1]").rc == 0
    assert baleen("convert", tmp_path / "s", tmp_path / "p", "--to", "packed").rc == 0
    name = "layers.1.engram.embed.weight"
    file = "rank-0000/engram-01.safetensors"
    h, base, _ = ckpt.header(tmp_path / "p" / file)
    a, b = h[name]["data_offsets"]
    assert b - a > 2 << 23
    for at in (a + (8 << 20) - 1, a + (8 << 20), b - 1):
        with open(tmp_path / "p" / file, "r+b") as f:
            f.seek(base + at)
            byte = f.read(1)[0]
            f.seek(base + at)
            f.write(bytes([byte ^ 4]))
            f.flush()
            r = baleen("verify", tmp_path / "p")
            chunk = (at - a) >> 23
            first = base + a + (chunk << 23)
            findings(r, name, f"chunk {chunk} of 3", f"bytes {first}..{min(first + (8 << 20), base + b) - 1}")
            findings(r, file, "SHA-256")
            f.seek(base + at)
            f.write(bytes([byte]))
    holds(baleen("verify", tmp_path / "p"))


# ---- what each level finds

def test_packed_folder(baleen, made, tmp_path):
    bad = copy(tmp_path, made["packed"])
    (bad / "rank-0000" / "layer-05.safetensors").unlink()
    for level in (1, 3):
        findings(baleen("verify", bad, "--level", level), "layer-05.safetensors")
    shutil.copy(made["packed"] / "rank-0000" / "layer-05.safetensors", bad / "rank-0000")
    (bad / "notes.txt").write_text("x")
    findings(baleen("verify", bad), "notes.txt", "not listed")
    (bad / "notes.txt").unlink()
    shutil.copy(bad / "rank-0000" / "rest.safetensors", bad / "rank-0000" / "again.safetensors")
    findings(baleen("verify", bad, "--level", "0"), "again.safetensors")
    (bad / "rank-0000" / "again.safetensors").unlink()
    (bad / "SHA256SUMS").unlink()
    findings(baleen("verify", bad), "SHA256SUMS", "missing")
    holds(baleen("verify", bad, "--level", "2"))
    (bad / "manifest.json").unlink()
    assert baleen("verify", bad).rc in (1, 3)


def test_two_damages_are_both_found(baleen, made, tmp_path):
    bad = copy(tmp_path, made["packed"])
    for file, at in (("rank-0000/layer-00.safetensors", -5), ("rank-0000/layer-07.safetensors", -5), ("tokenizer.json", 100)):
        data = bytearray((bad / file).read_bytes())
        data[at] ^= 16
        (bad / file).write_bytes(data)
    r = baleen("verify", bad)
    for file in ("layer-00.safetensors", "layer-07.safetensors", "tokenizer.json"):
        findings(r, file)


def rewrite(tmp_path, change, edit_config=None):
    items = ckpt.tensors(DEMO)
    change(items)
    return ckpt.write_folder(tmp_path / "bad", items, DEMO, edit=edit_config)


def put(items, name, at, raw):
    dtype, shape, data = items[name]
    items[name] = (dtype, shape, data[:at] + raw + data[at + len(raw):])


def test_semantic_findings_all_at_once(baleen, tmp_path):
    def change(items):
        put(items, "layers.0.attn.wq_a.weight", 5, b"\x7f")
        put(items, "layers.1.attn.wkv.weight", 9, b"\xff\x7f")
        put(items, "layers.2.attn.wo_b.scale", 2, b"\xff")
        put(items, "layers.3.hc_attn_fn", 8, b"\x00\x00\x80\x7f")
        put(items, "norm.weight", 2, b"\xc0\xff")
        items["layers.4.attn.wkv.qweight"] = items["norm.weight"]
        del items["layers.5.attn.wkv.scale"], items["layers.6.ffn.experts.3.w1.weight"]
        items["layers.7.attn.kv_norm.weight"] = ("BF16", (63,), bytes(126))

    bad = rewrite(tmp_path, change)
    r = baleen("verify", bad, "--level", "2", "--json")
    h = {}
    for f in bad.glob("*.safetensors"):
        head, base, _ = ckpt.header(f)
        h.update({n: base + t["data_offsets"][0] for n, t in head.items()})
    at = lambda name, byte, n=1: f"(bytes {h[name] + byte}..{h[name] + byte + n - 1})"
    findings(r, "layers.0.attn.wq_a.weight", "1 NaN codes", at("layers.0.attn.wq_a.weight", 5))
    findings(r, "layers.1.attn.wkv.weight", "2 NaN codes", at("layers.1.attn.wkv.weight", 9, 2))
    findings(r, "layers.2.attn.wo_b.scale", "NaN scale", at("layers.2.attn.wo_b.scale", 2))
    findings(r, "layers.3.hc_attn_fn", "not finite", at("layers.3.hc_attn_fn", 8, 4))
    findings(r, "norm.weight", "not finite", at("norm.weight", 2, 2))
    findings(r, "layers.4.attn.wkv.qweight", "unknown")
    findings(r, "layers.5.attn.wkv.weight", "layers.5.attn.wkv.scale")
    findings(r, "layers.6.ffn.experts.3.w1.weight", "missing")
    findings(r, "layers.6.ffn.experts.3.w1.scale", "orphan")
    findings(r, "layers.7.attn.kv_norm.weight", "[63]", "[64]")
    j = json.loads(r.out)
    assert not j["ok"] and len(j["findings"]) == len(r.err.splitlines())
    assert {"level", "file", "message"} <= set(j["findings"][0])
    holds(baleen("verify", bad, "--level", "1"))


def test_config_against_tensors(baleen, made, tmp_path):
    bad = copy(tmp_path, made["bf16"])
    quant = json.loads((DEMO / "config.json").read_text())["quantization_config"]
    edit(bad / "config.json", lambda c: c.update(quantization_config=quant))
    findings(baleen("verify", bad, "--level", "2"), "quantization_config", "no weight is quantised")
    shutil.rmtree(bad)
    bad = copy(tmp_path, DEMO)
    edit(bad / "config.json", lambda c: c.pop("quantization_config"))
    findings(baleen("verify", bad, "--level", "2"), "quantization_config", "absent")


def test_names(baleen, tmp_path):
    bad = copy(tmp_path, DEMO)
    first = bad / "model-00001-of-00002.safetensors"
    shutil.copy(first, bad / "extra.safetensors")
    edit(bad / "model.safetensors.index.json", lambda i: (i["weight_map"].pop("norm.weight"), i["metadata"].update(total_size=5)))
    r = baleen("verify", bad, "--level", "0")
    findings(r, "extra.safetensors")
    findings(r, "norm.weight")
    findings(r, "total_size")
    first.unlink()
    findings(baleen("verify", bad, "--level", "1"), first.name)


def test_sums_of_a_cast(baleen, made, tmp_path):
    bad = copy(tmp_path, made["bf16"])
    shard = next(bad.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    findings(baleen("verify", bad), shard.name, "SHA-256")
    shutil.copy(made["bf16"] / shard.name, bad)
    (bad / "tokenizer.json").unlink()
    findings(baleen("verify", bad), "tokenizer.json", "not there")


def hub_folder(tmp_path):
    """A snapshot as Hugging Face's cache has it: links to objects named by SHA-256 or git's SHA-1."""
    blobs, snap = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    blobs.mkdir(), snap.mkdir(parents=True)
    for f in DEMO.iterdir():
        data = f.read_bytes()
        oid = hashlib.sha256(data).hexdigest() if f.suffix == ".safetensors" else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        (blobs / oid).write_bytes(data)
        (snap / f.name).symlink_to(os.path.relpath(blobs / oid, snap))
    return snap


def test_hub_cache(baleen, tmp_path):
    snap = hub_folder(tmp_path)
    j = json.loads(holds(baleen("verify", snap, "--json")).out)
    assert j["files_hashed"] == len(list(DEMO.iterdir())) and j["files_unproven"] == 0
    for name in ("model-00002-of-00002.safetensors", "tokenizer.json"):
        blob = (snap / name).resolve()
        data = bytearray(blob.read_bytes())
        data[-2] ^= 2
        blob.write_bytes(data)
        findings(baleen("verify", snap), name, "Hugging Face")
        data[-2] ^= 2
        blob.write_bytes(data)


def test_hub_download_into_a_folder(baleen, tmp_path):
    d = copy(tmp_path, DEMO)
    meta = d / ".cache" / "huggingface" / "download"
    meta.mkdir(parents=True)
    for f in d.glob("*.safetensors"):
        (meta / (f.name + ".metadata")).write_text(f"revision\n{hashlib.sha256(f.read_bytes()).hexdigest()}\n1700000000.0\n")
    assert json.loads(holds(baleen("verify", d, "--json")).out)["files_hashed"] == 2
    (meta / "model-00001-of-00002.safetensors.metadata").write_text("revision\n" + "0" * 64 + "\n1\n")
    findings(baleen("verify", d), "model-00001-of-00002.safetensors", "Hugging Face")


def test_hub_says_what_it_compared(baleen, tmp_path):
    snap = hub_folder(tmp_path)
    (snap / "notes.txt").write_text("mine")
    (snap / "inference").mkdir()
    (snap / "inference" / "model.py").write_text("x = 1")
    r = holds(baleen("verify", snap, "--hub", "--json"))
    j = json.loads(r.out)
    assert j["hub"]["files_proven"] == len(list(DEMO.iterdir())) and j["hub"]["no_record"] == ["inference/model.py", "notes.txt"]
    text = holds(baleen("verify", snap, "--hub")).out
    assert "no record of 2 files" in text and "no record: notes.txt" in text


def test_hub_beside_sums(baleen, tmp_path):
    """SHA256SUMS is the folder's own word; the hub's is another's."""
    d = copy(tmp_path, DEMO)
    meta = d / ".cache" / "huggingface" / "download"
    meta.mkdir(parents=True)
    shard, small = d / "model-00001-of-00002.safetensors", d / "tokenizer.json"
    data = small.read_bytes()
    (meta / (shard.name + ".metadata")).write_text(f"revision\n{hashlib.sha256(shard.read_bytes()).hexdigest()}\n1.0\n")
    (meta / (small.name + ".metadata")).write_text(f"revision\n{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}\n1.0\n")
    small.write_bytes(data + b" ")
    sums = "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(d.iterdir()) if f.is_file())
    (d / "SHA256SUMS").write_text(sums)
    assert json.loads(holds(baleen("verify", d, "--json")).out)["files_unproven"] == 0
    lines = findings(baleen("verify", d, "--hub"), "tokenizer.json", "content differs", "Hugging Face")
    assert len(lines) == 1
    small.write_bytes(data)
    findings(baleen("verify", d, "--hub"), "tokenizer.json", "SHA256SUMS")
    (d / "SHA256SUMS").unlink()
    j = json.loads(holds(baleen("verify", d, "--hub", "--json")).out)
    assert j["hub"]["files_proven"] == 2 and "model-00002-of-00002.safetensors" in j["hub"]["no_record"] and j["files_unproven"] == 1


def test_hub_without_records(baleen, made, tmp_path):
    wide = copy(tmp_path, DEMO)
    for i in range(30):
        (wide / f"{i * 7 % 30:02d}.txt").write_text("x")
    unknown = json.loads(baleen("verify", wide, "--hub", "--json").out)["hub"]["no_record"]
    assert unknown == sorted(f.name for f in wide.iterdir()), "not in order"
    assert len(findings(baleen("verify", DEMO, "--hub"), "no records")) == 1
    findings(baleen("verify", made["packed"], "--hub"), "no records")


DAMAGE = {"cut": (lambda t: t[:-5], "three lines"), "empty": (lambda t: "", "three lines"),
          "one line": (lambda t: t.split("\n")[0], "three lines"),
          "more": (lambda t: t + "more", "three lines"), "short": (lambda t: t.replace("\n", "\n0", 1), "second line"),
          "digits": (lambda t: t.replace(t.split("\n")[1], "g" * 64), "second line"),
          "swapped": (lambda t: "\n".join(t.split("\n")[1::-1] + ["1", ""]), "second line"),
          "revision": (lambda t: t[8:], "names no revision"),
          "time": (lambda t: t.replace("1.0", "1.0x"), "no time"), "huge": (lambda t: t * 99, ""),
          "zeros": (lambda t: "\0" * len(t), "no text"), "json": (lambda t: '{"etag": "' + t + '"}', "")}


@pytest.mark.parametrize("how", DAMAGE)
def test_hub_record_that_is_damaged(baleen, tmp_path, how):
    d = copy(tmp_path, DEMO)
    record = d / ".cache" / "huggingface" / "download" / "tokenizer.json.metadata"
    record.parent.mkdir(parents=True)
    data = (d / "tokenizer.json").read_bytes()
    text = f"revision\n{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}\n1.0\n"
    record.write_text(text.replace("\n", "\r\n"))
    holds(baleen("verify", d, "--hub"))
    change, says = DAMAGE[how]
    record.write_text(change(text))
    for more in ([], ["--hub"]):
        assert len(findings(baleen("verify", d, *more), "tokenizer.json.metadata", "damaged record", says)) == 1


def test_hub_records_that_cannot_be_read_or_are_none(baleen, tmp_path):
    d = copy(tmp_path, DEMO)
    record = d / ".cache" / "huggingface" / "download" / "tokenizer.json.metadata"
    record.mkdir(parents=True)
    findings(baleen("verify", d), "tokenizer.json.metadata", "damaged record")
    record.rmdir()
    record.symlink_to("nothing")
    findings(baleen("verify", d), "tokenizer.json.metadata", "damaged record")
    shutil.rmtree(d / ".cache")
    snap = hub_folder(tmp_path)
    link = snap / "tokenizer.json"
    blob = link.resolve()
    link.unlink()
    blob.rename(blob.with_name(blob.name[:-2]))
    link.symlink_to(os.path.relpath(blob.with_name(blob.name[:-2]), snap))
    lines = findings(baleen("verify", snap), "tokenizer.json", "damaged record", "links to a blob")
    assert len(lines) == 1
    link.unlink()
    (tmp_path / "other").mkdir()
    shutil.copy(DEMO / "tokenizer.json", tmp_path / "other")
    link.symlink_to(tmp_path / "other" / "tokenizer.json")  # somebody's own
    holds(baleen("verify", snap))


def test_hub_of_a_packed_model(baleen, made, tmp_path):
    """As it comes back from a repository of one's own."""
    d = copy(tmp_path, made["packed"])
    names = [p.relative_to(d) for p in d.rglob("*") if p.is_file()]
    for name in names:
        record = d / ".cache" / "huggingface" / "download" / f"{name}.metadata"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(f"revision\n{hashlib.sha256((d / name).read_bytes()).hexdigest()}\n1.0\n")
    j = json.loads(holds(baleen("verify", d, "--hub", "--json")).out)
    assert j["hub"] == {"files_proven": len(names) - 1, "no_record": []}  # SHA256SUMS itself is not looked at
    record = d / ".cache" / "huggingface" / "download" / "rank-0000" / "rest.safetensors.metadata"
    record.write_text("revision\n" + "0" * 64 + "\n1.0\n")
    findings(baleen("verify", d, "--hub"), "rank-0000/rest.safetensors", "Hugging Face")


# ---- what is no checkpoint

@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("hello"),
                                  lambda p: (p.mkdir(), (p / "readme.txt").write_text("x")), lambda p: p.write_bytes(b"")])
def test_not_a_checkpoint(baleen, tmp_path, make):
    make(tmp_path / "x")
    r = baleen("verify", tmp_path / "x")
    assert r.rc == 3 and r.err.count("\n") == 1 and r.out == ""


@pytest.mark.parametrize("args", [["--level", "4"], ["--level", "-1"], ["--jobs", "-1"], ["--cpu", "z80"], ["a", "b"],
                                  ["--rank", "-1"], ["--key", ""], ["--cache", ""], ["--sign="], ["--against", ""]])
def test_usage(baleen, args):
    r = baleen("verify", *args)
    assert r.rc == 2 and r.err.count("\n") == 1


def test_other_side_is_no_checkpoint(baleen, tmp_path):
    r = baleen("verify", DEMO, "--level", "1", "--against", tmp_path)
    assert r.rc == 3 and r.err.count("\n") == 1
