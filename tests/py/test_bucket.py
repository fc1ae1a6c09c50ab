"""baleen bucket: every byte of every bucket, read three ways by an independent receiver; what travels together; what is refused."""
import json
import random
import re
import shutil
import tarfile

import pytest

import buckets
import ckpt
import gens
import ranks
from conftest import DEMO, peak_memory
from test_convert import check_sums, sparse_table
from test_merge import SMALL


def is_table(name):
    return ".engram.embed." in name


def make(baleen, src, dst, *options):
    r = baleen("bucket", src, dst, "--json", *options)
    assert r.rc == 0, r.err
    return json.loads(r.out)


def check(src, dst, host=is_table):
    """The buckets are the source's tensors, by name and in both flattened forms."""
    want = {n: t for n, t in (src if isinstance(src, dict) else ckpt.tensors(src)).items() if not host(n)}
    for have in (buckets.by_name(dst), buckets.flattened(dst, "bytes"), buckets.flattened(dst, "elements")):
        assert set(have) == set(want)
        for n in want:
            assert have[n] == want[n], n
    buckets.check_groups(dst)
    check_sums(dst)


def test_the_demo_model(baleen, tmp_path):
    r = make(baleen, DEMO, tmp_path / "out", "--size", "1MiB")
    check(DEMO, tmp_path / "out")
    about = buckets.read(tmp_path / "out")
    sizes = [b["nbytes"] for b in about["buckets"]]
    assert max(sizes) == r["largest_bucket"] <= 1 << 20 and len(sizes) == r["buckets"]
    assert r["groups"] == 1 + max(t["group"] for b in about["buckets"] for t in b["tensors"])
    assert r["tensor_bytes"] + r["padding_bytes"] == sum(sizes)
    assert (tmp_path / "out" / "config.json").read_bytes() == (DEMO / "config.json").read_bytes()
    assert r["oversize_buckets"] == r["sliced_tensors"] == 0
    # greedy: a bucket is closed only for a group that it has no room for
    for b, after in zip(about["buckets"], about["buckets"][1:]):
        first = min(t["group"] for t in after["tensors"])
        room = sum(-t["nbytes"] // 256 * -256 for t in after["tensors"] if t["group"] == first)
        assert sum(-t["nbytes"] // 256 * -256 for t in b["tensors"]) + room > 1 << 20


def test_host_owned_digests_are_those_of_a_packed_model(baleen, demo_packed, tmp_path):
    want = {n: v for n, v in ranks.value_sums(demo_packed, 1).items() if is_table(n)}
    for src in (DEMO, demo_packed):
        r = make(baleen, src, tmp_path / src.name, "--size", "1MiB")
        host = buckets.read(tmp_path / src.name)["host_owned"]
        assert [h["name"] for h in host] == sorted(n for n in ckpt.tensors(DEMO) if is_table(n))
        have = {h["name"]: (h["value"]["class"], tuple(h["value"]["shape"]), int(h["value"]["digest"], 16)) for h in host if h["value"]}
        assert have == want and r["host_owned_digests"] == len(want) > 0
        assert r["host_owned_tensors"] == 2 * len(want)
    make(baleen, DEMO, tmp_path / "none", "--no-host-digests")
    assert all(h["value"] is None for h in buckets.read(tmp_path / "none")["host_owned"])
    # a changed table has another digest
    items = ckpt.tensors(DEMO)
    name = min(want)
    dtype, shape, data = items[name]
    items[name] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
    src = ckpt.write_folder(tmp_path / "changed", items, DEMO)
    make(baleen, src, tmp_path / "other")
    digest = {h["name"]: h["value"] for h in buckets.read(tmp_path / "other")["host_owned"]}
    assert int(digest[name]["digest"], 16) != want[name][2]
    assert int(digest[max(want)]["digest"], 16) == want[max(want)][2]


def same(a, b):
    names = {f.name for f in a.iterdir()}
    assert names == {f.name for f in b.iterdir()}
    for n in names:
        assert (a / n).read_bytes() == (b / n).read_bytes(), n


def test_every_form_of_a_model_gives_the_same_buckets(baleen, demo_packed, tmp_path):
    make(baleen, DEMO, tmp_path / "a", "--size", "700KB")
    make(baleen, demo_packed, tmp_path / "b", "--size", "700KB", "--jobs", "1")
    same(tmp_path / "a", tmp_path / "b")
    src = tmp_path / "source"
    assert baleen("synth", src, "--preset", "nano", *SMALL, "--seed", 11).rc == 0
    assert baleen("convert", src, tmp_path / "ranks", "--to", "packed", "--tp", "2", "--ep", "4", "--pp", "2", "--pad-vocab", "64").rc == 0
    for how in ("alone", "slice"):
        make(baleen, src, tmp_path / f"c-{how}", "--size", "300KB", "--oversize", how)
        make(baleen, tmp_path / "ranks", tmp_path / f"d-{how}", "--size", "300KB", "--oversize", how)
        same(tmp_path / f"c-{how}", tmp_path / f"d-{how}")


def test_bf16(baleen, tmp_path):
    assert baleen("convert", DEMO, tmp_path / "bf16", "--to", "bf16").rc == 0
    make(baleen, tmp_path / "bf16", tmp_path / "out", "--size", "2MB")
    check(tmp_path / "bf16", tmp_path / "out")
    assert not any(t["name"].endswith(".scale") for b in buckets.read(tmp_path / "out")["buckets"] for t in b["tensors"])


@pytest.mark.parametrize("kind", ["v3", "v4", "v4 with prefix"])
def test_earlier_generations(baleen, tmp_path, kind):
    src = gens.write(tmp_path / "src", *gens.GENERATIONS[kind][0]())
    for how in ("alone", "slice"):
        make(baleen, src, tmp_path / how, "--size", "400KB", "--oversize", how)
        check(src, tmp_path / how)


@pytest.mark.parametrize("options", [[], ["--spill", "0"]])
def test_out_of_a_compressed_archive(baleen, tmp_path, options):
    """Also where weights come in the archive's order, in a second reading."""
    with tarfile.open(tmp_path / "demo.tar.gz", "w:gz") as t:
        t.add(DEMO, "demo")
    make(baleen, DEMO, tmp_path / "a", "--size", "500KB", "--oversize", "slice")
    make(baleen, tmp_path / "demo.tar.gz", tmp_path / "b", "--size", "500KB", "--oversize", "slice", *options)
    same(tmp_path / "a", tmp_path / "b")


def test_what_travels_together(baleen, tmp_path):
    """Groups by the names of the three generations, also those whose parts are far apart in the model."""
    make(baleen, DEMO, tmp_path / "out", "--size", "200KB")
    number = {t["name"]: t["group"] for b in buckets.read(tmp_path / "out")["buckets"] for t in b["tensors"]}
    assert number["layers.0.attn.wq_a.weight"] == number["layers.0.attn.wkv.scale"] != number["layers.0.attn.wq_b.weight"]
    gates = [n for n in number if n.endswith("compressor.wgate.weight")]
    assert gates and all(number[n] == number[n.replace("wgate", "wkv")] for n in gates)
    src = gens.write(tmp_path / "v4", *gens.v4())
    make(baleen, src, tmp_path / "v4out", "--size", "200KB")
    number = {t["name"]: t["group"] for b in buckets.read(tmp_path / "v4out")["buckets"] for t in b["tensors"]}
    inside = {}
    for n, g in number.items():
        if ".indexer.compressor." in n:
            inside.setdefault(n.split(".indexer.")[0], set()).add(g)
    assert inside and all(len(g) == 1 for g in inside.values())


@pytest.mark.parametrize("seed", range(6))
def test_random_sizes(baleen, demo_packed, tmp_path, seed):
    rng = random.Random(seed)
    size, align, how = int(2 ** rng.uniform(12, 22)), 2 ** rng.randrange(0, 13), rng.choice(["alone", "slice"])
    host = rng.choice(["none", "engram", "engram,dspark", "dspark"])
    src = rng.choice([DEMO, demo_packed])
    options = ["--size", str(size), "--align", str(align), "--host-owned", host]
    r = baleen("bucket", src, tmp_path / "out", *options, "--oversize", how, "--json")
    if r.rc == 2 and how == "slice":
        assert re.search(r"several weights must travel together|a vector is not cut|rows that share a scale", r.err), r.err
        assert not (tmp_path / "out").exists()
        r = baleen("bucket", src, tmp_path / "out", *options, "--oversize", "alone", "--json")
    assert r.rc == 0, r.err
    kept = lambda n: ("engram" in host and is_table(n)) or ("dspark" in host and n.startswith("mtp."))  # noqa: E731
    check(DEMO, tmp_path / "out", kept)
    receipt = json.loads(r.out)
    for b in buckets.read(tmp_path / "out")["buckets"]:
        assert b["nbytes"] <= size or len({t["group"] for t in b["tensors"]}) == 1
    assert (receipt["oversize_buckets"] == 0) or receipt["oversize"] == "alone"


def test_slices(baleen, tmp_path):
    """A table of rows with its scale, and weights in blocks, in buckets smaller than they are."""
    r = make(baleen, DEMO, tmp_path / "out", "--size", "260KiB", "--oversize", "slice", "--host-owned", "none")
    check(DEMO, tmp_path / "out", lambda n: False)
    cut = {t["slice"]["of"] for b in buckets.read(tmp_path / "out")["buckets"] for t in b["tensors"] if "slice" in t}
    assert {"layers.1.engram.embed.weight", "layers.1.engram.embed.scale"} <= cut and len(cut) == r["sliced_tensors"]
    assert r["oversize_buckets"] == 0 and r["largest_bucket"] <= 260 << 10


def test_alone(baleen, tmp_path):
    r = make(baleen, DEMO, tmp_path / "out", "--size", "100KiB")
    check(DEMO, tmp_path / "out")
    large = [b for b in buckets.read(tmp_path / "out")["buckets"] if b["nbytes"] > 100 << 10]
    assert len(large) == r["oversize_buckets"] > 0
    assert all(len({t["group"] for t in b["tensors"]}) == 1 for b in large)


def test_dry_run(baleen, tmp_path):
    out = tmp_path / "out"
    r = make(baleen, DEMO, out, "--size", "1MiB", "--dry-run")
    assert not out.exists() and r["dry_run"]
    plan = r["plan"]
    done = make(baleen, DEMO, out, "--size", "1MiB")
    assert [(p["name"], p["nbytes"]) for p in plan] == [(b["name"], b["nbytes"]) for b in buckets.read(out)["buckets"]]
    assert {k: v for k, v in done.items() if k not in ("seconds", "dry_run", "copy_bytes_per_second", "copy_threads")} == \
        {k: v for k, v in r.items() if k not in ("seconds", "dry_run", "plan")}
    text = baleen("bucket", DEMO, tmp_path / "other", "--size", "1MiB", "--dry-run")
    assert text.rc == 0 and "bucket-00001.safetensors" in text.out and "kept by the receiver" in text.out


@pytest.mark.parametrize("args, words", [
    (["--size", "0"], "--size"), (["--size", "3e9"], "--size"), (["--align", "3"], "--align"), (["--align", "8192"], "--align"),
    (["--oversize", "cut"], "--oversize"), (["--host-owned", "engram,,vision"], "--host-owned"), (["--host-owned", ""], "--host-owned"),
    (["--jobs", "-1"], "--jobs"), (["--size", "20", "--oversize", "slice"], "--oversize alone")])
def test_usage(baleen, tmp_path, args, words):
    r = baleen("bucket", DEMO, tmp_path / "out", *args)
    assert r.rc == 2 and words in r.err and r.err.count("\n") == 1
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_refusals(baleen, demo_packed, tmp_path):
    r = baleen("bucket", DEMO / "model-00001-of-00002.safetensors", tmp_path / "out")
    assert r.rc == 3 and ("single file" in r.err or "No such" in r.err)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert baleen("bucket", DEMO, tmp_path / "full").rc == 2
    items = ckpt.tensors(DEMO)
    del items["layers.0.attn.wkv.scale"]
    r = baleen("bucket", ckpt.write_folder(tmp_path / "orphan", items, DEMO), tmp_path / "out")
    assert r.rc == 3 and "layers.0.attn.wkv" in r.err
    del items["layers.0.attn.wkv.weight"]
    r = baleen("bucket", ckpt.write_folder(tmp_path / "hole", items, DEMO), tmp_path / "out")
    assert r.rc == 3 and "layers.0.attn.wkv" in r.err and not (tmp_path / "out").exists()
    # damage in a packed model does not travel on
    shutil.copytree(demo_packed, tmp_path / "damaged")
    file = tmp_path / "damaged" / "rank-0000" / "layer-02.safetensors"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    r = baleen("bucket", tmp_path / "damaged", tmp_path / "out")
    assert r.rc == 3 and "damaged" in r.err and "layers.2." in r.err and not (tmp_path / "out").exists()


def test_the_rate_stands_beside_that_of_copying(baleen, tmp_path):
    """Measured in the run, with the share of it that the printed rates have."""
    r = baleen("bucket", DEMO, tmp_path / "a", "--jobs", 1)
    m = re.search(r" ([\d.]+) GB/s, ([\d.]+)% of what 1 thread copies in memory \(([\d.]+) GB/s\)$", r.out, re.M)
    assert r.rc == 0 and m, r.out
    rate, share, copy = map(float, m.groups())
    assert copy > 0.05 and abs(rate - share / 100 * copy) < 0.005 + 0.001 * copy + 0.0001 * share, r.out
    j = make(baleen, DEMO, tmp_path / "b", "--jobs", "3")
    assert j["copy_bytes_per_second"] > 5e7 and 1 <= j["copy_threads"] <= 3
    r = baleen("bucket", DEMO, tmp_path / "c", "--dry-run")
    assert r.rc == 0 and "in memory" not in r.out and "copy_bytes_per_second" not in make(baleen, DEMO, tmp_path / "c", "--dry-run")
    assert baleen("bucket", DEMO, tmp_path / "d", "--base", tmp_path / "a").rc == 0
    r = baleen("bucket", "--apply", tmp_path / "d", tmp_path / "a", tmp_path / "e")
    assert r.rc == 0 and "in memory" in r.out


def test_memory_does_not_grow_with_tensors(tmp_path):
    """A tensor larger than the limit, sent alone and in slices."""
    src = sparse_table(tmp_path, rows=(320 << 20) // 32)
    for how in ("alone", "slice"):
        peak = peak_memory("bucket", src, tmp_path / "out", "--host-owned", "none", "--oversize", how, "--no-sha256")
        assert 0 < peak <= 256 << 10
        shutil.rmtree(tmp_path / "out")
