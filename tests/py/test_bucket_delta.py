"""Deltas of weight-sync buckets: made, read by an independent program, applied; and everything that must stop one from being applied."""
import ctypes
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
from safetensors import deserialize

import buckets
import ckpt
from conftest import BUILD, DEMO, peak_memory
from test_bucket import make, same
from test_bucket_verify import flip, resum
from test_convert import sparse_table

ZSTD = ctypes.CDLL("libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ZSTD.ZSTD_isError.restype = ctypes.c_size_t
ZSTD.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
ZSTD.ZSTD_isError.argtypes = [ctypes.c_size_t]


def unpack(stream, n):
    out = ctypes.create_string_buffer(n + 1)
    got = ZSTD.ZSTD_decompress(out, n + 1, stream, len(stream))
    assert not ZSTD.ZSTD_isError(got) and got == n
    return out.raw[:n]


def train(items, seed):
    """Another state of a model: single values, whole rows, first and last bytes, and tensors that stay."""
    rng, out = random.Random(seed), dict(items)
    for name in rng.sample(sorted(items), len(items) // 3):
        dtype, shape, data = items[name]
        if dtype not in ("BF16", "F8_E4M3", "I8", "F32") or ".engram.embed." in name:
            continue
        new = np.frombuffer(data, np.uint8).copy()
        width = {"BF16": 2, "F32": 4}.get(dtype, 1)
        row = len(data) // shape[0]
        where = rng.choice(["values", "rows", "ends"])
        if where == "values":
            at = [rng.randrange(len(data) // width) for _ in range(5)]
        elif where == "ends":
            at = [0, len(data) // width - 1]
        else:
            at = [i for r in rng.sample(range(shape[0]), min(2, shape[0])) for i in range(r * row // width, (r + 1) * row // width)]
        for i in at:
            new[i * width] = 0x21 if new[i * width] != 0x21 else 0x22  # low byte of BF16 and F32; no NaN in any dtype
        out[name] = (dtype, shape, new.tobytes())
    return out


@pytest.fixture(scope="module")
def states(baleen, tmp_path_factory):
    """Two states: checkpoints, buckets, and deltas between them in every encoding."""
    root = tmp_path_factory.mktemp("delta")
    ckpt.write_folder(root / "new", train(ckpt.tensors(DEMO), 5), DEMO)
    for how, options in (("alone", []), ("slice", ["--oversize", "slice"])):
        size = ["--size", "1MiB"] if how == "alone" else ["--size", "300KB"]
        make(baleen, DEMO, root / f"a-{how}", *size, *options)
        make(baleen, root / "new", root / f"b-{how}", *size, *options)
        for encoding in ("xor", "ranges", "auto"):
            make(baleen, root / "new", root / f"{encoding}-{how}", "--base", root / f"a-{how}", "--encoding", encoding)
    return root


def apply(baleen, delta, base, dst, *options):
    r = baleen("bucket", "--apply", delta, base, dst, "--json", *options)
    assert r.rc == 0, r.err
    return json.loads(r.out)


@pytest.mark.parametrize("how", ["alone", "slice"])
@pytest.mark.parametrize("encoding", ["xor", "ranges", "auto"])
def test_round_trip(baleen, states, tmp_path, encoding, how):
    delta, base, want = states / f"{encoding}-{how}", states / f"a-{how}", states / f"b-{how}"
    r = apply(baleen, delta, base, tmp_path / "out")
    same(tmp_path / "out", want)  # SHA256SUMS too: the very folder that the new checkpoint gives
    assert baleen("verify", delta).rc == 0 and baleen("verify", tmp_path / "out").rc == 0
    before, after = buckets.by_name(base), buckets.by_name(want)
    changed = {n for n in after if before[n] != after[n]}
    assert changed and len(changed) < len(after)
    about = json.loads((delta / "delta.json").read_text())
    names = {t["name"].split("[")[0] for f in about["files"] for t in f["tensors"]}
    assert names == changed
    assert r["changed_tensors"] == sum(len(f["tensors"]) for f in about["files"])


@pytest.mark.parametrize("encoding", ["xor", "ranges", "auto"])
def test_streams_mean_what_the_format_says(states, encoding):
    delta = states / f"{encoding}-alone"
    before, after = buckets.by_name(states / "a-alone"), buckets.by_name(states / "b-alone")
    about = json.loads((delta / "delta.json").read_text())
    assert about["encoding"] == encoding
    assert about["base"] == buckets.xxh3((states / "a-alone" / "buckets.json").read_bytes())
    assert about["target"] == buckets.xxh3((states / "b-alone" / "buckets.json").read_bytes())
    assert (delta / "target.json").read_bytes() == (states / "b-alone" / "buckets.json").read_bytes()
    seen = 0
    for f in about["files"]:
        raw = (delta / f["name"]).read_bytes()
        streams = {n: bytes(t["data"]) for n, t in deserialize(raw)}
        assert buckets.xxh3(raw[f["data_offset"]:]) == f["xxh3"] and len(raw) == f["data_offset"] + f["nbytes"]
        assert set(streams) == {t["name"] for t in f["tensors"]} and f["name"] == f"delta-{f['bucket'] + 1:05d}.safetensors"
        for t in f["tensors"]:
            old, new = before[t["name"]][2], after[t["name"]][2]
            data = unpack(streams[t["name"]], t["bytes"])
            assert streams[t["name"]] == raw[f["data_offset"] + t["offset"]:][:t["nbytes"]]
            assert (buckets.xxh3(old), buckets.xxh3(new)) == (t["base"], t["target"])
            assert ("encoding" in t) == (encoding == "auto")
            if t.get("encoding", encoding) == "xor":
                have = (np.frombuffer(old, np.uint8) ^ np.frombuffer(data, np.uint8)).tobytes()
            else:
                have, at, end, row = bytearray(old), 0, 0, len(old) // before[t["name"]][1][0]
                while at < len(data):
                    begin, n = struct.unpack_from("<QQ", data, at)
                    assert begin >= end and (len(before[t["name"]][1]) < 2 or begin % row == n % row == 0)
                    have[begin:begin + n] = data[at + 16:at + 16 + n]
                    at, end = at + 16 + n, begin + n
            assert bytes(have) == new, t["name"]
            seen += 1
    assert seen > 20


def streams(delta):
    about = json.loads((delta / "delta.json").read_text())
    return {(f["bucket"], t["name"]): (t["nbytes"], t["xxh3"], t.get("encoding")) for f in about["files"] for t in f["tensors"]}


@pytest.mark.parametrize("how", ["alone", "slice"])
def test_auto_takes_the_shorter_stream(baleen, states, how):
    xor, ranges, auto = (streams(states / f"{e}-{how}") for e in ("xor", "ranges", "auto"))
    assert set(auto) == set(xor) == set(ranges) and {e for _, _, e in auto.values()} == {"xor", "ranges"}
    for key, (n, digest, encoding) in auto.items():
        want, other = (xor, ranges) if encoding == "xor" else (ranges, xor)
        assert (n, digest) == want[key][:2] and n <= other[key][0]
    ranges = sum(e == "ranges" for _, _, e in auto.values())
    assert f"buckets, auto: xor for {len(auto) - ranges}, ranges for {ranges}\n" in baleen("inspect", states / f"auto-{how}").out
    assert json.loads(baleen("inspect", states / f"auto-{how}", "--json").out)["ranges_tensors"] == ranges


def test_what_the_receiver_keeps_has_changed(baleen, states, tmp_path):
    """An Engram table is in no delta; that it differs is said."""
    items = ckpt.tensors(DEMO)
    name = next(n for n in items if n.endswith(".engram.embed.weight"))
    dtype, shape, data = items[name]
    items[name] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
    src = ckpt.write_folder(tmp_path / "table", items, DEMO)
    r = make(baleen, src, tmp_path / "delta", "--base", states / "a-alone")
    assert r["changed_tensors"] == 0 and r["changed_host_tensors"] == 1
    r = baleen("bucket", src, tmp_path / "again", "--base", states / "a-alone")
    assert r.rc == 0 and "1 of the tensors kept by the receiver" in r.out


def test_nothing_changed(baleen, states, tmp_path):
    r = make(baleen, DEMO, tmp_path / "none", "--base", states / "a-alone")
    assert r["changed_tensors"] == r["changed_buckets"] == r["delta_bytes"] == r["changed_host_tensors"] == 0
    apply(baleen, tmp_path / "none", states / "a-alone", tmp_path / "out")
    same(tmp_path / "out", states / "a-alone")


def test_from_a_packed_model(baleen, states, tmp_path):
    """The new state in another form gives the same delta."""
    assert baleen("convert", states / "new", tmp_path / "packed", "--to", "packed").rc == 0
    make(baleen, tmp_path / "packed", tmp_path / "delta", "--base", states / "a-alone")
    same(tmp_path / "delta", states / "xor-alone")


def test_links(baleen, states, tmp_path):
    """Buckets that stay the same cost no room, and are proven like the others."""
    shutil.copytree(states / "a-alone", tmp_path / "base")
    r = apply(baleen, states / "xor-alone", tmp_path / "base", tmp_path / "plain")
    assert r["linked_buckets"] == 0
    items = ckpt.tensors(DEMO)
    dtype, shape, data = items["layers.0.attn_norm.weight"]
    items["layers.0.attn_norm.weight"] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
    make(baleen, ckpt.write_folder(tmp_path / "one", items, DEMO), tmp_path / "delta", "--base", tmp_path / "base")
    r = apply(baleen, tmp_path / "delta", tmp_path / "base", tmp_path / "out", "--link")
    assert r["changed_buckets"] == r["changed_tensors"] == 1 and r["linked_buckets"] == r["buckets"] - 1
    linked = [os.path.samefile(f, tmp_path / "base" / f.name) for f in sorted((tmp_path / "out").glob("*.safetensors"))]
    assert linked.count(True) == r["linked_buckets"] and not linked[0]
    assert baleen("verify", tmp_path / "out").rc == 0
    bucket = tmp_path / "base" / "bucket-00004.safetensors"
    whole = bucket.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    pad = next(v for k, v in json.loads(whole[8:8 + header]).items() if k.startswith("__pad__"))["data_offsets"][0]
    for at, word in ((len(whole) - 9, "differs"), (50, "header"), (8 + header + pad, "padding")):
        bucket.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        r = baleen("bucket", "--apply", tmp_path / "delta", tmp_path / "base", tmp_path / "bad", "--link")
        assert r.rc == 3 and "damaged" in r.err and word in r.err and r.err.count("\n") == 1, r.err
        assert not (tmp_path / "bad").exists() and not (tmp_path / "bad.partial").exists()


def refused(baleen, tmp_path, delta, base, *words, rc=3):
    r = baleen("bucket", "--apply", delta, base, tmp_path / "bad")
    assert r.rc == rc and all(w in r.err for w in words) and r.err.count("\n") == 1, r.err
    assert not (tmp_path / "bad").exists() and not (tmp_path / "bad.partial").exists()


def test_another_base(baleen, states, tmp_path):
    """Also the state that the delta has led to: an exclusive or would lead back."""
    refused(baleen, tmp_path, states / "xor-alone", states / "b-alone", "is not the state")
    refused(baleen, tmp_path, states / "xor-slice", states / "a-alone", "is not the state")
    refused(baleen, tmp_path, states / "xor-alone", DEMO, "holds no weight-sync buckets")
    refused(baleen, tmp_path, states / "a-alone", states / "a-alone", "holds no delta")


@pytest.mark.parametrize("changed", [True, False])
def test_a_damaged_base(baleen, states, tmp_path, changed):
    """By the digests of the tensors, whether the delta touches them or not; making a delta notices too."""
    base = shutil.copytree(states / "a-alone", tmp_path / "base")
    names = {t["name"] for f in json.loads((states / "xor-alone" / "delta.json").read_text())["files"] for t in f["tensors"]}
    b, t = next((b, t) for b in buckets.read(base)["buckets"] for t in b["tensors"] if (t["name"] in names) == changed)
    flip(base / b["name"], b["data_offset"] + t["offset"])
    for encoding in ("xor", "ranges"):
        refused(baleen, tmp_path, states / f"{encoding}-alone", base, t["name"], "base is damaged")
    r = baleen("bucket", states / "new", tmp_path / "bad", "--base", base)
    assert r.rc == 3 and t["name"] in r.err and "base is damaged" in r.err and not (tmp_path / "bad").exists()


def delta_copy(states, tmp_path, encoding="xor"):
    return shutil.copytree(states / f"{encoding}-alone", tmp_path / "delta")


@pytest.mark.parametrize("encoding", ["xor", "ranges"])
def test_damaged_streams(baleen, states, tmp_path, encoding):
    delta = delta_copy(states, tmp_path, encoding)
    f = json.loads((delta / "delta.json").read_text())["files"][0]
    whole = (delta / f["name"]).read_bytes()
    rng = random.Random(3)
    for _ in range(12):
        flip(delta / f["name"], f["data_offset"] + rng.randrange(f["nbytes"]), 1 << rng.randrange(8))
        refused(baleen, tmp_path, delta, states / "a-alone", "")
        assert any(x["level"] == 3 for x in findings_of_delta(baleen, delta))
        (delta / f["name"]).write_bytes(whole)
    (delta / f["name"]).write_bytes(whole[:-1])
    refused(baleen, tmp_path, delta, states / "a-alone", f["name"])


def findings_of_delta(baleen, folder, *options):
    r = baleen("verify", folder, "--json", *options)
    assert r.rc == 1 and json.loads(r.out)["kind"] == "delta", r.err
    return json.loads(r.out)["findings"]


def rewrite(delta, change):
    about = json.loads((delta / "delta.json").read_text())
    change(about)
    (delta / "delta.json").write_text(json.dumps(about))
    resum(delta)


LIES = {
    "encoding": (lambda a: a.update(encoding="sum"), "encoding"),
    "auto without encodings": (lambda a: a.update(encoding="auto"), "encoding"),
    "an encoding of its own": (lambda a: a["files"][0]["tensors"][0].update(encoding="xor"), "encoding"),
    "auto of auto": (lambda a: (a.update(encoding="auto"), [t.update(encoding="auto") for f in a["files"] for t in f["tensors"]]), "encoding"),
    "version": (lambda a: a.update(version=2), "version"),
    "key": (lambda a: a.update(extra=1), "unknown key"),
    "target": (lambda a: a.update(target="0" * 32), "state"),
    "file name": (lambda a: a["files"][0].update(name="../x"), "named for its bucket"),
    "order": (lambda a: a["files"].reverse(), "out of order"),
    "gap": (lambda a: a["files"][0]["tensors"][1].update(offset=a["files"][0]["tensors"][1]["offset"] + 1), "follow each other"),
    "unchanged": (lambda a: a["files"][0]["tensors"][0].update(base=a["files"][0]["tensors"][0]["target"]), "not changed"),
    "stranger": (lambda a: a["files"][0]["tensors"][0].update(name="x"), ""),
    "new digest": (lambda a: a["files"][0]["tensors"][0].update(target="1" * 32), ""),
    "bytes": (lambda a: a["files"][0].update(nbytes=1), "last stream ends"),
    "no bucket": (lambda a: a["files"][-1].update(bucket=99, name="delta-00100.safetensors"), ""),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies(baleen, states, tmp_path, lie):
    delta = delta_copy(states, tmp_path)
    change, words = LIES[lie]
    rewrite(delta, change)
    refused(baleen, tmp_path, delta, states / "a-alone", words)
    assert any(words in f["message"] + f.get("tensor", "") for f in findings_of_delta(baleen, delta))


def test_the_other_encoding(baleen, states, tmp_path):
    """Whose streams mean something else, or nothing, is found by what comes out."""
    delta = delta_copy(states, tmp_path, "auto")
    rewrite(delta, lambda a: [t.update(encoding="ranges") for f in a["files"] for t in f["tensors"]])
    refused(baleen, tmp_path, delta, states / "a-alone", "")


def test_claims_about_a_stream(baleen, states, tmp_path):
    """What only applying finds out: the length, and the old digest."""
    for key, value in (("bytes", 5), ("base", "2" * 32)):
        delta = delta_copy(states, tmp_path)
        rewrite(delta, lambda a: a["files"][0]["tensors"][0].update({key: value}))
        refused(baleen, tmp_path, delta, states / "a-alone", "")
        shutil.rmtree(delta)


@pytest.mark.parametrize("name", ["delta.json", "target.json", "config.json", "SHA256SUMS"])
def test_small_files_of_a_delta(baleen, states, tmp_path, name):
    delta = delta_copy(states, tmp_path)
    flip(delta / name, -2)
    refused(baleen, tmp_path, delta, states / "a-alone", "")
    assert findings_of_delta(baleen, delta)


def test_other_shapes(baleen, states, tmp_path):
    """A delta is between states of one model."""
    src = tmp_path / "src"
    assert baleen("synth", src, "--preset", "nano").rc == 0
    r = baleen("bucket", src, tmp_path / "bad", "--base", states / "a-alone")
    assert r.rc == 3 and "do not have the same tensors" in r.err and not (tmp_path / "bad").exists()


@pytest.mark.parametrize("args", [["--size", "1MiB"], ["--align", "64"], ["--oversize", "slice"], ["--host-owned", "none"]])
def test_the_layout_is_that_of_the_base(baleen, states, tmp_path, args):
    r = baleen("bucket", DEMO, tmp_path / "bad", "--base", states / "a-alone", *args)
    assert r.rc == 2 and "--base" in r.err


@pytest.mark.parametrize("args", [["--encoding", "xor"], ["--level", "3"], ["--link"], ["--base", "X", "--encoding", "sum"],
                                  ["--base", "X", "--level", "0"], ["--base", "X", "--level", "20"], ["--base", ""],
                                  ["--apply", "X", "--size", "1MiB"], ["--apply", "X", "--dry-run"]])
def test_usage(baleen, tmp_path, args):
    r = baleen("bucket", DEMO, tmp_path / "bad", *args)
    assert r.rc == 2 and r.err.count("\n") == 1


def test_destinations(baleen, states, tmp_path):
    base = shutil.copytree(states / "a-alone", tmp_path / "base")
    delta = delta_copy(states, tmp_path)
    for dst in (base / "out", delta / "out"):
        r = baleen("bucket", "--apply", delta, base, dst)
        assert r.rc == 2 and "lies in the source" in r.err
    assert baleen("bucket", "--apply", delta, base, base).rc == 2
    same(base, states / "a-alone")


def test_killed_while_applying(baleen, states, tmp_path):
    """At any moment: the old state is whole, the new one is not there or whole; the next run needs no help."""
    base = shutil.copytree(states / "a-alone", tmp_path / "base")
    rng, out, died = random.Random(7), tmp_path / "out", 0
    for i in range(12):
        p = subprocess.Popen([BUILD / "tools" / "baleen", "bucket", "--apply", states / "xor-alone", base, out, "--jobs", "1"],
                             stdout=subprocess.DEVNULL)
        time.sleep(rng.random() * 0.06)
        p.send_signal(signal.SIGKILL)
        p.wait()
        if out.exists():
            same(out, states / "b-alone")
            shutil.rmtree(out)
        else:
            died += 1
    same(base, states / "a-alone")
    assert died
    apply(baleen, states / "xor-alone", base, out)
    same(out, states / "b-alone")
    assert not (tmp_path / "out.partial").exists()


def test_signed_delta(baleen, states, tmp_path):
    delta = delta_copy(states, tmp_path)
    for args in (["genpkey", "-algorithm", "ed25519", "-out", tmp_path / "key"],
                 ["pkey", "-in", tmp_path / "key", "-pubout", "-out", tmp_path / "pub"]):
        subprocess.run(["openssl", *args], check=True, capture_output=True)
    assert baleen("verify", delta, "--sign", tmp_path / "key").rc == 0
    assert baleen("verify", delta, "--key", tmp_path / "pub").rc == 0
    apply(baleen, delta, states / "a-alone", tmp_path / "out")


def test_memory_does_not_grow_with_tensors(baleen, tmp_path):
    src = sparse_table(tmp_path, rows=(320 << 20) // 32)
    make(baleen, src, tmp_path / "base", "--host-owned", "none", "--no-sha256")
    with open(src / "model-00002-of-00002.safetensors", "r+b") as f:
        f.seek(-(200 << 20), os.SEEK_END)
        f.write(b"\x38")
    assert 0 < peak_memory("bucket", src, tmp_path / "delta", "--base", tmp_path / "base", "--no-sha256") <= 256 << 10
    assert 0 < peak_memory("bucket", "--apply", tmp_path / "delta", tmp_path / "base", tmp_path / "out", "--no-sha256") <= 256 << 10
    about = json.loads((tmp_path / "delta" / "delta.json").read_text())
    assert [t["name"] for f in about["files"] for t in f["tensors"]] == ["layers.1.engram.embed.weight"]
