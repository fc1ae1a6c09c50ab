"""baleen verify on weight-sync buckets: every kind of damage is named, and metadata that lie are refused."""
import hashlib
import json
import shutil
import subprocess

import pytest

import buckets
from conftest import DEMO


@pytest.fixture(scope="module")
def made(baleen, tmp_path_factory):
    out = tmp_path_factory.mktemp("buckets") / "made"
    assert baleen("bucket", DEMO, out, "--size", "1MiB").rc == 0
    return out


@pytest.fixture()
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def resum(folder):
    """SHA256SUMS anew, as somebody would who wants to hide a change."""
    names = sorted(f.name for f in folder.iterdir() if not f.name.startswith("SHA256SUMS"))
    (folder / "SHA256SUMS").write_text("".join(f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names))


def edit(folder, change):
    about = buckets.read(folder)
    change(about)
    (folder / "buckets.json").write_text(json.dumps(about))
    resum(folder)


def findings(baleen, folder, *options):
    r = baleen("verify", folder, "--json", *options)
    assert r.rc == 1, r.err
    receipt = json.loads(r.out)
    assert not receipt["ok"] and receipt["kind"] == "buckets"
    return receipt["findings"]


def flip(path, at, mask=1):
    raw = bytearray(path.read_bytes())
    raw[at] ^= mask
    path.write_bytes(raw)


def test_holds(baleen, made):
    r = baleen("verify", made, "--json")
    assert r.rc == 0, r.err
    receipt = json.loads(r.out)
    about = buckets.read(made)
    assert receipt["kind"] == "buckets" and receipt["findings"] == []
    assert receipt["files"] == len(about["buckets"]) and receipt["files_hashed"] == len(list(made.iterdir())) - 1
    assert receipt["chunks"] == receipt["tensors"] == sum(len(b["tensors"]) for b in about["buckets"])
    for level in "012":
        assert baleen("verify", made, "--level", level).rc == 0
    for more in (["--against", DEMO], ["--rank", "0"], ["--hub"], ["--cache", made.parent / "cache"]):
        r = baleen("verify", made, *more)
        assert r.rc == 2 and "for weight sync" in r.err


def test_signed(baleen, copy, tmp_path):
    """The signature covers buckets as it does a checkpoint: a description that was rewritten with its sums is refused first."""
    for args in (["genpkey", "-algorithm", "ed25519", "-out", tmp_path / "key"],
                 ["pkey", "-in", tmp_path / "key", "-pubout", "-out", tmp_path / "pub"]):
        subprocess.run(["openssl", *args], check=True, capture_output=True)
    r = baleen("verify", copy, "--sign", tmp_path / "key")
    assert r.rc == 0, r.err
    r = baleen("verify", copy, "--key", tmp_path / "pub", "--json")
    assert r.rc == 0 and json.loads(r.out)["level"] == 4, r.err
    edit(copy, lambda a: a["host_owned"][1]["value"].update(digest="0" * 32))
    assert baleen("verify", copy).rc == 0  # all agrees with all: only the signature tells
    found = findings(baleen, copy, "--key", tmp_path / "pub")
    assert [f["level"] for f in found] == [4]


def test_one_bit(baleen, copy):
    b = buckets.read(copy)["buckets"][2]
    t = b["tensors"][5]
    flip(copy / b["name"], b["data_offset"] + t["offset"] + t["nbytes"] - 1)
    found = findings(baleen, copy)
    assert sorted(f.get("tensor", "") for f in found) == ["", "", t["name"]]  # also the bucket's XXH3-128 and the file's SHA-256
    named = next(f for f in found if f.get("tensor"))
    assert named["begin"] == b["data_offset"] + t["offset"] and named["end"] == named["begin"] + t["nbytes"]
    assert baleen("verify", copy, "--level", "1").rc == 0


def test_padding_is_proven_too(baleen, copy):
    b = buckets.read(copy)["buckets"][0]
    ends = [(t["offset"] + t["nbytes"], u["offset"]) for t, u in zip(b["tensors"], b["tensors"][1:])]
    at = next(end for end, begin in ends if end != begin)
    flip(copy / b["name"], b["data_offset"] + at)
    resum(copy)
    found = findings(baleen, copy)
    assert len(found) == 1 and "XXH3" in found[0]["message"] and found[0]["file"].endswith(b["name"])


def test_without_sha256(baleen, tmp_path):
    assert baleen("bucket", DEMO, tmp_path / "out", "--size", "1MiB", "--no-sha256").rc == 0
    r = baleen("verify", tmp_path / "out", "--json")
    assert r.rc == 0 and json.loads(r.out)["files_hashed"] == 4, r.err
    b = buckets.read(tmp_path / "out")["buckets"][0]
    flip(tmp_path / "out" / b["name"], b["data_offset"])
    assert any("XXH3" in f["message"] for f in findings(baleen, tmp_path / "out"))


def test_values(baleen, copy):
    b = buckets.read(copy)["buckets"][0]
    t = next(t for t in b["tensors"] if t["dtype"] == "F8_E4M3")
    path = copy / b["name"]
    raw = bytearray(path.read_bytes())
    raw[b["data_offset"] + t["offset"] + 7] = 0x7F
    path.write_bytes(raw)
    found = findings(baleen, copy, "--level", "2")
    assert len(found) == 1 and found[0]["tensor"] == t["name"] and "NaN" in found[0]["message"]
    assert found[0]["begin"] == b["data_offset"] + t["offset"] + 7


@pytest.mark.parametrize("what, words, tensor", [
    ("gone", "No such file", None), ("short", "truncated", None), ("stray", "not among the files", None),
    ("config", "No such file", None), ("bytes", "follows from", None), ("elements", "No such file", None), ("sums", "is missing", None),
    ("unlisted", "not listed", None), ("renamed", "header", "layers.0.hc_attn_fn")])
def test_files(baleen, copy, what, words, tensor):
    first = copy / "bucket-00001.safetensors"
    if what == "gone":
        first.unlink()
    elif what == "short":
        first.write_bytes(first.read_bytes()[:-5])
    elif what == "stray":
        shutil.copy(first, copy / "model.safetensors")
    elif what == "config":
        (copy / "config.json").unlink()
    elif what == "bytes":
        path = copy / "flattened.bytes.json"
        path.write_text(path.read_text().replace('"start_idx": 256', '"start_idx": 512', 1))
    elif what == "elements":
        (copy / "flattened.elements.json").unlink()
    elif what == "sums":
        (copy / "SHA256SUMS").unlink()
    elif what == "unlisted":
        (copy / "note").write_text("x")
    elif what == "renamed":
        first.write_bytes(first.read_bytes().replace(b"layers.0.hc_attn_fn", b"layers.9.hc_attn_fn", 1))
    found = findings(baleen, copy)
    assert any(words in f["message"] and (not tensor or f.get("tensor") == tensor) for f in found), found


def test_coverage(baleen, copy):
    """What nobody sends and nobody keeps is named, even in a folder whose files and sums agree."""
    name = "layers.1.engram.embed.weight"

    def forget(about):
        about["host_owned"] = [h for h in about["host_owned"] if h["name"] != name]

    edit(copy, forget)
    found = findings(baleen, copy)
    assert any(f.get("tensor") == name and "nobody keeps it" in f["message"] for f in found)
    assert any("digest of their names" in f["message"] for f in found)


def test_coverage_of_a_scale(baleen, copy):
    def forget(about):
        about["host_owned"] = [h for h in about["host_owned"] if not h["name"].endswith("1.engram.embed.scale")]

    edit(copy, forget)
    assert any(f.get("tensor") == "layers.1.engram.embed.weight" and "its scale" in f["message"] for f in findings(baleen, copy))


def tensor(about, i=0, b=0):
    return about["buckets"][b]["tensors"][i]


LIES = {
    "another format": (lambda a: a.update(format="baleen-packed"), "format"),
    "a newer version": (lambda a: a.update(version=2), "version"),
    "an unknown key": (lambda a: a.update(extra=1), "unknown key"),
    "a missing key": (lambda a: a.pop("names"), "lacks"),
    "align": (lambda a: a.update(align=24), "power of two"),
    "align 0": (lambda a: a.update(align=0), "power of two"),
    "oversize": (lambda a: a.update(oversize="maybe"), "oversize"),
    "digest": (lambda a: tensor(a).update(xxh3="12"), "hexadecimal"),
    "name": (lambda a: a["buckets"][0].update(name="../../etc/passwd"), "named for its place"),
    "order": (lambda a: a["buckets"].reverse(), "named for its place"),
    "dtype": (lambda a: tensor(a).update(dtype="F7"), "size"),
    "sub-byte": (lambda a: tensor(a).update(dtype="F4"), "size"),
    "shape": (lambda a: tensor(a).update(shape=[1 << 62, 8]), "size"),
    "nbytes": (lambda a: tensor(a).update(nbytes=12), "nbytes"),
    "offset": (lambda a: tensor(a, 1).update(offset=tensor(a, 1)["offset"] + 256), "offset"),
    "overlap": (lambda a: tensor(a, 1).update(offset=0), "offset"),
    "huge offset": (lambda a: tensor(a, 1).update(offset=1 << 63), "offset"),
    "data offset": (lambda a: a["buckets"][0].update(data_offset=a["buckets"][0]["data_offset"] + 8), "4096"),
    "bucket bytes": (lambda a: a["buckets"][0].update(nbytes=a["buckets"][0]["nbytes"] + 1), "last tensor ends"),
    "parted group": (lambda a: tensor(a, 0, 1).update(group=0), "group"),
    "padding": (lambda a: tensor(a).update(name="__pad__.0"), "legal"),
    "control": (lambda a: tensor(a).update(name="a\nb"), "control"),
    "twice": (lambda a: tensor(a, 0, 1).update(name=tensor(a)["name"]), "twice"),
    "sent and kept": (lambda a: a["host_owned"][0].update(name=min(t["name"] for b in a["buckets"] for t in b["tensors"])), "twice"),
    "host order": (lambda a: a["host_owned"].reverse(), "sorted"),
    "value class": (lambda a: a["host_owned"][1]["value"].update({"class": "sum"}), "value class"),
    "empty bucket": (lambda a: a["buckets"][0].update(tensors=[]), "empty"),
    "a slice alone": (lambda a: tensor(a).update(name="x[0:4]", slice={"of": "x", "row": 0, "rows": 8}), "slices"),
    "a slice misnamed": (lambda a: tensor(a).update(slice={"of": "x", "row": 0, "rows": 4}), "named for its rows"),
    "a slice too long": (lambda a: tensor(a).update(slice={"of": "x", "row": 2, "rows": 4}), "past the rows"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies(baleen, copy, lie):
    change, words = LIES[lie]
    edit(copy, change)
    found = findings(baleen, copy)
    assert len(found) == 1 and words in found[0]["message"] and found[0]["file"].endswith("buckets.json"), found


def test_a_folder_of_buckets_is_no_checkpoint(baleen, made, tmp_path):
    r = baleen("convert", made, tmp_path / "out", "--to", "bf16")
    assert r.rc == 3 and not (tmp_path / "out").exists()
