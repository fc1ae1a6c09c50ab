"""Files and folders made to hurt, through the commands: one line that names the culprit, status 3, bounded time and memory, no crash,
nothing left behind. verify lists what it finds instead, with status 1, where the folder is a checkpoint at all."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import time

import pytest

import ckpt
from conftest import BUILD, run, without_privilege

SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"
SECONDS = 30  # far above what any of these takes, on a busy machine under sanitizers
MEMORY = 1 << 30
SANITIZED = b"__asan_init" in (BUILD / "tools" / "baleen").read_bytes()  # reserves terabytes of address space: no limit there


def limit_memory(memory=MEMORY):
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def limited(*args, memory=MEMORY, **kw):
    r = run("baleen", *args, timeout=SECONDS, preexec_fn=lambda: limit_memory(memory), errors="replace", **kw)
    assert r.rc in (0, 1, 2, 3, 4), f"{args}: died with status {r.rc}: {r.err[-2000:]}"
    return r


def one_line(r, *words):
    assert (r.rc, r.out) == (3, ""), (r.rc, r.out, r.err)
    assert r.err.count("\n") == 1 and r.err.endswith("\n"), r.err
    assert r.err.startswith("baleen ") and len(r.err) < 4096 and r.err[:-1].isprintable(), r.err
    for w in words:
        assert w in r.err, (w, r.err)


def found(r, *words):
    assert r.rc == 1, (r.rc, r.out, r.err)
    lines = r.err.splitlines()
    assert all(line.startswith("baleen verify: ") and line.isprintable() for line in lines), r.err[:2000]
    assert any(all(w in line for w in words) for line in lines), (words, r.err[:2000])


def refuses_to_convert(src, tmp_path, *words):
    for to in ("bf16", "packed"):
        one_line(limited("convert", src, tmp_path / "out", "--to", to), *words)
        assert not list(tmp_path.glob("out*")), "something was left behind"


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    """A sound checkpoint in one shard."""
    out = tmp_path_factory.mktemp("hostile") / "nano"
    r = run("baleen", "synth", out, "--preset", "nano", "--shards", "1")
    assert r.rc == 0, r.err
    return out


# ---- one file

def st(header, data=b"", n=None):
    """A safetensors file; n: a length field that lies."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if n is None else n) + text + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def one(**kw):
    return st({"a": entry(**kw)}, b"1234")


def two(a, b, size=8):
    return st({"a": entry(offsets=a), "b": entry(offsets=b)}, bytes(size))


def sparse(size):
    def make(path):
        header = json.dumps({"a": entry("U8", [size], [0, size])}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        os.truncate(path, 8 + len(header) + size - 1)
    return make


def many_keys(count, closed):
    def make(path):
        body = b",".join(b'"%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(count))
        path.write_bytes(st(b"{" + body + (b"}" if closed else b',"last":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')))
    return make


E = b'{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
FILES = {
    "empty": (b"", "empty"),
    "seven bytes": (b"\2\0\0\0\0\0\0", "7 bytes"),
    "length alone": (b"\2\0\0\0\0\0\0\0", "truncated"),
    "length of zero": (st(b"", n=0) + b"{}", "header is empty"),
    "length of 2^63": (st(b"{}", n=1 << 63), "9223372036854775808"),
    "length of 2^64-1": (st(b"{}", n=(1 << 64) - 1), "18446744073709551615"),
    "length above the cap": (st(b"{}", n=100000001), "100000001"),
    "length past the end": (st(b"{}", n=3), "truncated"),
    "length beyond a sparse file": (lambda p: (p.write_bytes(st(b"{}", n=90000000)), os.truncate(p, 90000000)), "truncated"),
    "header that is a hole": (lambda p: (p.write_bytes(st(b"{", n=90000000)), os.truncate(p, 100000000)), "at byte"),
    "length one short": (st({"a": entry()}, b"1234", n=len(json.dumps({"a": entry()})) - 1), "at byte"),
    "length one long": (st({"a": entry()}, b"1234", n=len(json.dumps({"a": entry()})) + 1), "something follows"),
    "big-endian length": (struct.pack(">Q", 60) + b'{"a":' + E + b"}      1234", "header length"),
    "space before the header": (st(b' {"a":' + E + b"}", b"1234"), "'{'"),
    "array as header": (st(b"[1, 2]"), "'{'"),
    "tab as padding": (st(b'{"a":' + E + b"}\t", b"1234"), "padding"),
    "NUL as padding": (st(b'{"a":' + E + b"}\0\0", b"1234"), "something follows"),
    "two objects": (st(b'{"a":' + E + b"}{}", b"1234"), "something follows"),
    "open object": (st(b'{"a":' + E, b"1234"), "at byte"),
    "comma at the end": (st(b'{"a":' + E + b",}", b"1234"), "at byte"),
    "not UTF-8": (st(b'{"a\xff":' + E + b"}", b"1234"), "UTF-8"),
    "lone surrogate": (st(b'{"a\\ud800":' + E + b"}", b"1234"), "surrogate"),
    "NUL in a name": (st(b'{"a\\u0000b":' + E + b"}", b"1234"), "NUL"),
    "newline in a name": (st(b'{"a\\nb":' + E + b"}", b"1234"), "control"),
    "name of 2 MB": (st({"n" * 2000000: entry()}, b"1234"), "name of 2000000 bytes"),
    "duplicate name": (st(b'{"a":' + E + b',"a":' + E + b"}", b"1234"), "duplicate"),
    "duplicate name, escaped": (st(b'{"a":' + E + b',"\\u0061":' + E + b"}", b"1234"), "duplicate"),
    "duplicate dtype": (st(b'{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}', b"1234"), "duplicate"),
    "nested a million deep": (st(b'{"a":' + b"[" * 1000000 + b"]" * 1000000 + b"}"), "deep"),
    "entry is a list": (st(b'{"a":[]}'), "not an object"),
    "entry is null": (st(b'{"a":null}'), "not an object"),
    "no dtype": (st(b'{"a":{"shape":[4],"data_offsets":[0,4]}}', b"1234"), "'dtype' is missing"),
    "no shape": (st(b'{"a":{"dtype":"U8","data_offsets":[0,4]}}', b"1234"), "'shape' is missing"),
    "no offsets": (st(b'{"a":{"dtype":"U8","shape":[4]}}', b"1234"), "'data_offsets' is missing"),
    "unknown dtype": (one(dtype="F8_E9M9"), "unknown dtype"),
    "dtype of 1 MB": (one(dtype="U" * 1000000), "unknown dtype"),
    "dtype in lower case": (one(dtype="u8"), "unknown dtype"),
    "negative dimension": (one(shape=[-4]), "not an integer"),
    "float dimension": (one(shape=[4.0]), "not an integer"),
    "dimension as exponent": (st(b'{"a":{"dtype":"U8","shape":[4e0],"data_offsets":[0,4]}}', b"1234"), "not an integer"),
    "dimension of 2^64": (one(shape=[1 << 64]), "not an integer"),
    "dimension as text": (one(shape=["4"]), "not an integer"),
    "33 dimensions": (one(shape=[1] * 32 + [4]), "33 dimensions"),
    "a million dimensions": (one(shape=[1] * 1000000), "1000000 dimensions"),
    "product of 2^64": (one(shape=[1 << 62, 4]), "whole number of bytes"),
    "product of 2^64 + 4": (one(shape=[(1 << 64) // 3 * 3 + 0, 3]), "whole number of bytes"),
    "product that wraps to 4": (one(shape=[(1 << 62) + 1, 4]), "whole number of bytes"),
    "overflow beside a zero": (one(shape=[1 << 62, 4, 0], offsets=[0, 0]), "whole number of bytes"),
    "half a byte": (one(dtype="F4", shape=[3], offsets=[0, 2]), "whole number of bytes"),
    "end before begin": (one(offsets=[4, 0]), "before it begins"),
    "span of another size": (one(dtype="F32"), "need 16"),
    "negative offset": (one(offsets=[-4, 0]), "not an integer"),
    "three offsets": (st(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}}', b"1234"), "two integers"),
    "end past the file": (one(shape=[5], offsets=[0, 5]), "truncated"),
    "offsets near 2^64": (one(offsets=[(1 << 64) - 5, (1 << 64) - 1]), "hole"),
    "hole at the start": (one(shape=[3], offsets=[1, 4]), "hole"),
    "hole between": (two([0, 4], [6, 10], 10), "hole"),
    "overlap": (two([0, 4], [2, 6], 6), "overlaps"),
    "two names for the same bytes": (two([0, 4], [0, 4], 4), "overlaps"),
    "trailing byte": (one() + b"5", "1 byte follows the last tensor"),
    "last byte missing": (one()[:-1], "truncated"),
    "header without data": (st({"a": entry("U8", [1 << 40], [0, 1 << 40])}), "truncated"),
    "1 TB of hole, one byte short": (sparse(1 << 40), "truncated"),
    "metadata is a list": (st(b'{"__metadata__":[],"a":' + E + b"}", b"1234"), "__metadata__"),
    "metadata holds a number": (st(b'{"__metadata__":{"x":1},"a":' + E + b"}", b"1234"), "__metadata__"),
    "many names, one past the end": (many_keys(200000, False), "truncated"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 5368709120\n", "git-lfs pointer"),
    "HTML page": (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n", "HTML page"),
    "XML error": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
    "JSON error": (b'{"error":"Repository not found"}', "JSON text"),
    "ZIP": (b"PK\3\4" + bytes(100), "ZIP"),
    "GGUF": (b"GGUF\3\0\0\0" + bytes(100), "GGUF"),
    "zeros": (bytes(4096), "zero bytes"),
    "folder": (lambda p: p.mkdir(), "folder"),
    "FIFO": (lambda p: os.mkfifo(p), "FIFO"),
    "link to nothing": (lambda p: p.symlink_to("nowhere"), ""),
    "link to itself": (lambda p: p.symlink_to(p.name), "symbolic links"),
    "link to a device": (lambda p: p.symlink_to("/dev/zero"), "a device"),
    "link to memory": (lambda p: p.symlink_to("/proc/self/mem"), ""),
    "link to a file of size 0 that is not empty": (lambda p: p.symlink_to("/proc/self/maps"), "empty"),
}


def folder_around(nano, tmp_path, make):
    """A checkpoint whose only shard is the file that make writes."""
    d = tmp_path / "ckpt"
    d.mkdir()
    for f in nano.iterdir():
        if f.suffix == ".json":
            shutil.copy(f, d)
    make(d / SHARD)
    return d


@pytest.mark.parametrize("kind", FILES)
def test_hostile_file(nano, tmp_path, kind):
    content, word = FILES[kind]
    make = content if callable(content) else lambda p: p.write_bytes(content)
    d = folder_around(nano, tmp_path, make)
    start = time.monotonic()
    if kind != "folder":  # a folder is looked into: see test_hostile_folder
        one_line(limited("inspect", d / SHARD), SHARD, word)
        one_line(limited("inspect", d / SHARD, "--tensor", "a", "--json"), SHARD, word)
        one_line(limited("verify", d / SHARD), SHARD, word)
    one_line(limited("inspect", d), SHARD, word)
    found(limited("verify", d), SHARD, word.replace("at byte", "(bytes "))  # there it is a range
    refuses_to_convert(d, tmp_path, SHARD, word)
    assert time.monotonic() - start < SECONDS


def test_names_are_shown_in_one_line(nano, tmp_path):
    """Names that a terminal would act on."""
    for i, name in enumerate(["new\nline", "\x1b[2Jred", "\x07bell", "bad\udcff", "n" * 200]):
        d = tmp_path / f"f{i}"
        d.mkdir()
        path = d / f"{name}.safetensors"
        path.write_bytes(b"")
        one_line(limited("inspect", path), "empty")
        (d / "config.json").write_bytes((nano / "config.json").read_bytes())
        one_line(limited("convert", d, tmp_path / "out", "--to", "bf16"), "empty")
        found(limited("verify", d), "empty")
        r = limited("verify", d, "--json")
        assert any("empty" in f["message"] for f in json.loads(r.out)["findings"])
    found(limited("verify", folder_around(nano, tmp_path, lambda p: p.write_bytes(st({"\u202e\u2028x": entry("F32")}, b"1234")))), "need 16")


def test_json_receipts_survive_any_path(nano, tmp_path):
    """A receipt is printed whatever bytes the path is made of, and is JSON."""
    src = tmp_path / "bad\udcff\udcc3"
    shutil.copytree(nano, src)
    for args in (["verify", src], ["inspect", src], ["convert", src, tmp_path / "out\udcff", "--to", "bf16"], ["synth", tmp_path / "s\udcff"],
                 ["verify", nano, "--against", src], ["inspect", src, "--tensor", "norm.weight"],
                 ["inspect", src / "tokenizer.json", "--token-map"]):
        r = limited(*args, "--json")
        assert r.rc == 0 and json.loads(r.out), (args, r.out, r.err)
    (src / SHARD).rename(src / "sh\udcffrd.safetensors")
    (src / INDEX).unlink()
    j = json.loads(limited("inspect", src, "--tensor", "norm.weight", "--json").out)
    assert "safetensors" in j["file"]
    (src / "sh\udcffrd.safetensors").write_bytes(b"")
    j = json.loads(limited("verify", src, "--json").out)
    assert j["findings"] and not j["ok"]


def test_files_that_are_legal_but_odd(tmp_path):
    """What the format allows is read, fast."""
    f = tmp_path / "x.safetensors"
    many_keys(1000000, True)(f)
    assert limited("inspect", f).out.count("1000000 tensors") == 1
    f.write_bytes(st(b"{}"))
    assert "tensors: 0" in limited("inspect", f).out
    f.write_bytes(st({"a": entry("F64", [0, 1 << 50], [0, 0]), "b": entry("BOOL", [], [0, 1])}, b"1"))
    assert limited("inspect", f).rc == 0 and limited("verify", f).rc == 0
    for name in "ab":
        r = limited("inspect", f, "--tensor", name)
        assert (r.rc == 0 or "dtype" in r.err) and r.err.count("\n") <= 1
    header = json.dumps({"a": entry("F8_E4M3", [1 << 32, 256], [0, 1 << 40])}).encode()
    f.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(f, 8 + len(header) + (1 << 40))
    assert "1.100 TB" in limited("inspect", f).out
    assert limited("verify", f, "--level", "1").rc == 0


def test_statistics_of_odd_tensors(tmp_path):
    """inspect --tensor: one wide row, scales that do not fit, empty tensors, and each dtype."""
    f = tmp_path / "x.safetensors"
    wide = 400 << 20  # one row beyond the limit
    header = json.dumps({"w": entry("F64", [1, wide // 8], [0, wide])}).encode()
    f.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(f, 8 + len(header) + wide)
    with open(f, "r+b") as data:
        data.seek(-8, 2)
        data.write(struct.pack("<d", 1e300))
    r = limited("inspect", f, "--tensor", "w", "--json", memory=256 << 20)
    assert r.rc == 0, r.err
    j = json.loads(r.out)
    assert j["elements"] == wide // 8 == j["zeros"] + 1 and j["max"] == 1e300 and j["rms"] is None and j["zero_rows"] == 0
    for scale in ([0, 0], [1], [1, 1, 1], [2, 1], [4, 0], []):
        n = 1
        for d in scale:
            n *= d
        f.write_bytes(st({"w.weight": entry("F8_E4M3", [2, 2], [0, 4]), "w.scale": entry("F8_E8M0", scale, [4, 4 + n])}, b"1234" + b"x" * n))
        r = limited("inspect", f, "--tensor", "w.weight")
        assert r.rc in (0, 3) and r.err.count("\n") == (r.rc == 3), (scale, r.err)
    for dtype, bits in (("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6), ("F8_E5M2", 8), ("I64", 64), ("C64", 64), ("BOOL", 8), ("F16", 16), ("U16", 16)):
        for shape in ([], [0], [8], [0, 8], [8, 0], [2, 2, 2, 2]):
            n = 1
            for d in shape:
                n *= d
            if n * bits % 8:
                continue
            f.write_bytes(st({"w": entry(dtype, shape, [0, n * bits // 8])}, b"\xff" * (n * bits // 8)))
            r = limited("inspect", f, "--tensor", "w")
            assert r.rc in (0, 3) and r.err.count("\n") == (r.rc == 3), (dtype, shape, r.err)


# ---- folders

@pytest.fixture(scope="module")
def items(nano):
    return ckpt.tensors(nano)


def change_index(d, change):
    j = json.loads((d / INDEX).read_text())
    change(j["weight_map"])
    (d / INDEX).write_text(json.dumps(j))


def text_config(**values):
    """Change keys of text_config; a value of None removes the key."""
    def make(d):
        j = json.loads((d / "config.json").read_text())
        for k, v in values.items():
            if v is None:
                del j["text_config"][k]
            else:
                j["text_config"][k] = v
        (d / "config.json").write_text(json.dumps(j))
    return make


def config_text(old, new):
    def make(d):
        text = (d / "config.json").read_text()
        assert old in text
        (d / "config.json").write_text(text.replace(old, new, 1))
    return make


def big_file(name, size, head=b"{"):
    def make(d):
        (d / name).write_bytes(head)
        os.truncate(d / name, size)
    return make


def replace(name, how):
    def make(d):
        (d / name).unlink()
        how(d / name)
    return make


def stray(d):
    shutil.copy(d / SHARD, d / "model.safetensors")


def doubled(d):
    (d / "model-00001-of-00002.safetensors").write_bytes((d / SHARD).read_bytes())
    (d / SHARD).rename(d / "model-00002-of-00002.safetensors")
    change_index(d, lambda m: m.update({n: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, n in enumerate(m)}))


def many_shards(d):
    """An index that invents a hundred thousand shards."""
    (d / INDEX).write_text(json.dumps({"weight_map": {f"t{i}": f"s{i}.safetensors" for i in range(100000)}}))


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 1234\n"
HTML = "<!DOCTYPE html><html><body>Sign in</body></html>"
CONFIG = "config.json"
FOLDERS = {
    "no config": (lambda d: (d / CONFIG).unlink(), CONFIG, ""),
    "config is empty": (lambda d: (d / CONFIG).write_text(""), CONFIG, ""),
    "config is an array": (lambda d: (d / CONFIG).write_text("[]"), CONFIG, "object"),
    "config is no JSON": (lambda d: (d / CONFIG).write_text("hidden_size: 128"), CONFIG, ""),
    "config is a pointer": (lambda d: (d / CONFIG).write_text(LFS), CONFIG, "git-lfs pointer"),
    "config is a page": (lambda d: (d / CONFIG).write_text(HTML), CONFIG, "HTML page"),
    "config of 100 MB": (big_file(CONFIG, 100000000), CONFIG, "limit"),
    "config of 1 TB": (big_file(CONFIG, 1 << 40), CONFIG, "limit"),
    "config of 16 MB of brackets": (lambda d: (d / CONFIG).write_bytes(b"[" * (16 << 20)), CONFIG, "deep"),
    "config is a FIFO": (replace(CONFIG, os.mkfifo), CONFIG, "FIFO"),
    "config is a folder": (replace(CONFIG, os.mkdir), CONFIG, "folder"),
    "config is a loop": (replace(CONFIG, lambda p: p.symlink_to(CONFIG)), CONFIG, "symbolic links"),
    "config is a link to nothing": (replace(CONFIG, lambda p: p.symlink_to("gone")), CONFIG, ""),
    "config is a device": (replace(CONFIG, lambda p: p.symlink_to("/dev/zero")), CONFIG, "device"),
    "config has a key twice": (config_text('"hidden_size"', '"hidden_size": 64, "hidden_size"'), CONFIG, "duplicate"),
    "config ends early": (lambda d: os.truncate(d / CONFIG, 500), CONFIG, "at byte"),
    "config of another model": (config_text('"deepseek_v41"', '"llama"'), CONFIG, "model_type"),
    "text_config is a list": (config_text('"text_config": {', '"text_config": [], "x": {'), CONFIG, "text_config"),
    "hidden_size missing": (text_config(hidden_size=None), CONFIG, "'hidden_size': is missing"),
    "hidden_size wrong": (text_config(hidden_size=160), SHARD, "[512, 128]"),
    "hidden_size negative": (text_config(hidden_size=-128), CONFIG, "hidden_size"),
    "hidden_size zero": (text_config(hidden_size=0), CONFIG, "hidden_size"),
    "hidden_size a fraction": (text_config(hidden_size=128.5), CONFIG, "must be an integer"),
    "hidden_size as text": (text_config(hidden_size="128"), CONFIG, "must be an integer"),
    "hidden_size huge": (text_config(hidden_size=1 << 62), CONFIG, "hidden_size"),
    "hidden_size beyond 64 bits": (text_config(hidden_size=1 << 70), CONFIG, "hidden_size"),
    "hidden_size 1e400": (config_text('"hidden_size": 128', '"hidden_size": 1e400'), CONFIG, "hidden_size"),
    "hidden_size NaN": (config_text('"hidden_size": 128', '"hidden_size": NaN'), CONFIG, ""),
    "a layer less": (text_config(num_hidden_layers=6), CONFIG, "compress_ratios"),
    "a layer less, in full": (text_config(num_hidden_layers=6, compress_ratios=[0, 0, 2, 2, 1, 1, 0], index_source_layer_ids=[2, 3, 4, 5],
                                          dspark_target_layer_ids=[4, 5]),
                              SHARD, "layers.6."),
    "layers beyond the cap": (text_config(num_hidden_layers=1 << 30), CONFIG, "num_hidden_layers"),
    "draft layers negative": (text_config(num_nextn_predict_layers=-1), CONFIG, "num_nextn_predict_layers"),
    "460,000 experts": (text_config(n_routed_experts=65536), CONFIG, "n_routed_experts"),
    "140,000 experts": (text_config(n_routed_experts=20000), SHARD, "[20000, 128]"),
    "Engram rows of 2^40": (text_config(engram_num_embeddings=[1 << 40, 606]), SHARD, "engram.embed.weight"),
    "Engram rows of 2^63": (text_config(engram_num_embeddings=[1 << 63, 606]), CONFIG, "engram_num_embeddings"),
    "heads that overflow": (text_config(num_attention_heads=1 << 20, head_dim=1 << 20), CONFIG, "head_dim"),
    "layer list out of range": (text_config(engram_layer_ids=[1, 99]), CONFIG, "engram_layer_ids"),
    "layer list of a million": (text_config(kv_source_layer_ids=list(range(1000000))), CONFIG, "kv_source_layer_ids"),
    "layer list of lists": (text_config(kv_source_layer_ids=[[2], [4]]), CONFIG, "kv_source_layer_ids"),
    "rope_theta negative": (text_config(rope_theta=-1), CONFIG, "rope_theta"),
    "activation unknown": (text_config(hidden_act="gelu" * 1000), CONFIG, "hidden_act"),
    "scales of another kind": (config_text('"ue8m0"', '"float"'), CONFIG, "scale_fmt"),
    "blocks of 128": (config_text('"weight_block_size": [32, 32]', '"weight_block_size": [128, 128]'), CONFIG, "weight_block_size"),
    "shard missing": (lambda d: (d / SHARD).unlink(), SHARD, "missing"),
    "shard stray": (stray, "model.safetensors", "stray"),
    "shards doubled": (doubled, "model-0000", "also in"),
    "index is a page": (lambda d: (d / INDEX).write_text(HTML), INDEX, "HTML page"),
    "index is a pointer": (lambda d: (d / INDEX).write_text(LFS), INDEX, "git-lfs pointer"),
    "index climbs out": (lambda d: change_index(d, lambda m: m.update({"norm.weight": "../x.safetensors"})), INDEX, "'../x.safetensors' may not"),
    "index of an absolute path": (lambda d: change_index(d, lambda m: m.update({"norm.weight": "/etc/passwd"})), INDEX, "may not"),
    "index with a NUL": (lambda d: change_index(d, lambda m: m.update({"norm.weight": SHARD + "\0x"})), INDEX, "may not"),
    "index of a folder name": (lambda d: change_index(d, lambda m: m.update({"norm.weight": ".."})), INDEX, "may not"),
    "index lacks a tensor": (lambda d: change_index(d, lambda m: m.pop("norm.weight")), "norm.weight", "not in the index"),
    "index invents a tensor": (lambda d: change_index(d, lambda m: m.update(ghost=SHARD)), "ghost", "missing"),
    "index invents shards": (many_shards, "safetensors", ""),
    "index nested deep": (lambda d: (d / INDEX).write_bytes(b'{"weight_map":' * 500000), INDEX, "deep"),
    "index of 2 TB": (big_file(INDEX, 1 << 41), INDEX, "limit"),
    "index is a FIFO": (replace(INDEX, os.mkfifo), INDEX, "FIFO"),
    "index is a link to nothing": (replace(INDEX, lambda p: p.symlink_to("gone")), INDEX, ""),
    "tokenizer is a pointer": (lambda d: (d / "tokenizer.json").write_text(LFS), "tokenizer.json", "git-lfs pointer"),
    "tokenizer is a page": (lambda d: (d / "tokenizer_config.json").write_text(HTML), "tokenizer_config.json", "HTML page"),
    "tokenizer is a FIFO": (replace("tokenizer.json", os.mkfifo), "tokenizer.json", "FIFO"),
    "tokenizer is a folder": (replace("tokenizer.json", os.mkdir), "tokenizer.json", "folder"),
    "tokenizer is a link to nothing": (replace("tokenizer.json", lambda p: p.symlink_to("gone")), "tokenizer.json", ""),
    "tokenizer of 1 TB": (big_file("tokenizer.json", 1 << 40), "tokenizer.json", "limit"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_hostile_folder(nano, tmp_path, kind):
    make, where, word = FOLDERS[kind]
    d = tmp_path / "ckpt"
    shutil.copytree(nano, d)
    make(d)
    start = time.monotonic()
    if not where.startswith("tokenizer") and where != SHARD:  # what a folder holds is shown without judging it by the config
        r = limited("inspect", d)
        if r.rc != 0 or "experts" not in kind:
            one_line(r, where, word)
    found(limited("verify", d), where, word.replace("at byte", "(bytes "))
    refuses_to_convert(d, tmp_path, where, word)
    assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("what", [SHARD, INDEX, CONFIG, "tokenizer.json", "."])
def test_unreadable(nano, tmp_path, what):
    d = tmp_path / "ckpt"
    shutil.copytree(nano, d)
    assert without_privilege("inspect", d).rc == 0
    (d / what).chmod(0)
    name = "ckpt" if what == "." else what
    one_line(without_privilege("convert", d, tmp_path / "out", "--to", "bf16"), name, "Permission denied")
    if what != "tokenizer.json":
        one_line(without_privilege("inspect", d), name, "Permission denied")
    if what == ".":
        one_line(without_privilege("verify", d), name, "Permission denied")
    else:
        found(without_privilege("verify", d), name, "Permission denied")
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt"]
    d.chmod(0o755)


# ---- what is in the tensors

def put(name, at, raw):
    def change(t):
        dtype, shape, data = t[name]
        t[name] = (dtype, shape, data[:at] + raw + data[at + len(raw):])
    return change


def retype(name, dtype, width):
    def change(t):
        shape = t[name][1]
        n = width
        for d in shape:
            n *= d
        t[name] = (dtype, shape, bytes(n))
    return change


W, X, T = "layers.0.attn.wq_a", "layers.2.ffn.experts.3.w2", "layers.1.engram.embed"
TENSORS = {
    "fp8 NaN": (put(W + ".weight", 5, b"\x7f"), W + ".weight", "NaN code"),
    "fp8 -NaN": (put(W + ".weight", 8191, b"\xff"), W + ".weight", "NaN code"),
    "fp8 scale NaN": (put(W + ".scale", 3, b"\xff"), W + ".scale", ""),
    "fp8 scale too small": (put(W + ".scale", 0, b"\x02"), W + ".scale", "3..246"),
    "fp8 scale too large": (put(W + ".scale", 0, b"\xf7"), W + ".scale", "3..246"),
    "fp4 scale NaN": (put(X + ".scale", 7, b"\xff"), X + ".scale", ""),
    "fp4 scale too large": (put(X + ".scale", 7, b"\xfd"), X + ".scale", "0..252"),
    "Engram NaN": (put(T + ".weight", 100, b"\xff"), T + ".weight", "NaN code"),
    "Engram scale NaN": (put(T + ".scale", 10, b"\xff"), T + ".scale", "NaN"),
    "BF16 infinite": (put("norm.weight", 4, b"\x80\x7f"), "norm.weight", "not finite"),
    "BF16 NaN": (put("embed.weight", 131070, b"\xc0\xff"), "embed.weight", "not finite"),
    "F32 infinite": (put("layers.0.attn.attn_sink", 4, b"\x00\x00\x80\xff"), "layers.0.attn.attn_sink", "not finite"),
    "F32 NaN": (put("layers.6.hc_ffn_fn", 8, b"\x01\x00\x80\x7f"), "layers.6.hc_ffn_fn", "not finite"),
    "F32 for BF16": (retype("norm.weight", "F32", 4), "norm.weight", "F32"),
    "BF16 for F32": (retype("layers.0.attn.attn_sink", "BF16", 2), "layers.0.attn.attn_sink", "BF16"),
    "F16 for fp8": (retype(W + ".weight", "F16", 2), W + ".weight", "F16"),
    "E5M2 for E4M3": (retype(W + ".weight", "F8_E5M2", 1), W + ".weight", "F8_E5M2"),
    "BF16 Engram": (retype(T + ".weight", "BF16", 2), T + ".weight", "BF16"),
    "BF16 with a scale": (retype(W + ".weight", "BF16", 2), W + ".scale", "orphan"),
    "fp4 in U8": (retype(X + ".weight", "U8", 1), X + ".weight", "U8"),
    "scale in F32": (retype(W + ".scale", "F32", 4), W + ".scale", "F32"),
    "scale missing": (lambda t: t.pop(W + ".scale"), W + ".weight", W + ".scale"),
    "scale alone": (lambda t: t.pop(W + ".weight"), W + ".weight", "missing"),
    "scale of 1x32": (lambda t: t.update({W + ".scale": ("F8_E8M0", (64, 4), bytes([120]) * 256)}), W + ".scale", "[2, 4]"),
    "scale grid turned": (lambda t: t.update({W + ".scale": ("F8_E8M0", (4, 2), t[W + ".scale"][2])}), W + ".scale", "[4, 2]"),
    "weight turned": (lambda t: t.update({W + ".weight": ("F8_E4M3", (128, 64), t[W + ".weight"][2])}), W + ".weight", "[128, 64]"),
    "weight flat": (lambda t: t.update({W + ".weight": ("F8_E4M3", (8192,), t[W + ".weight"][2])}), W + ".weight", "[8192]"),
    "unknown tensor": (lambda t: t.update({"layers.0.attn.wq_c.weight": t["norm.weight"]}), "layers.0.attn.wq_c.weight", "unknown"),
    "another suffix": (lambda t: t.update({W + ".weight_scale_inv": t.pop(W + ".scale")}), W, ""),
    "expert beyond": (lambda t: t.update({"layers.2.ffn.experts.4.w2.weight": t[X + ".weight"]}), "experts.4", "unknown"),
    "empty expert": (lambda t: t.update({X + ".weight": ("I8", (0, 32), b"")}), X + ".weight", "[0, 32]"),
    "scalar": (lambda t: t.update({"norm.weight": ("BF16", (), bytes(2))}), "norm.weight", "[]"),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_hostile_tensor(nano, items, tmp_path, kind):
    change, name, word = TENSORS[kind]
    bad = dict(items)
    change(bad)
    d = ckpt.write_folder(tmp_path / "ckpt", bad, nano, shards=2)
    found(limited("verify", d), "model-0000" if "missing" not in word else "ckpt", name, word)
    refuses_to_convert(d, tmp_path, name, word)


def test_config_that_contradicts_the_tensors(nano, items, tmp_path):
    quant = json.loads((nano / CONFIG).read_text())["quantization_config"]
    assert run("baleen", "convert", nano, tmp_path / "bf16", "--to", "bf16").rc == 0
    cast = tmp_path / "bf16"
    for i, (source, edit, word) in enumerate([
            (cast, lambda c: c.update(quantization_config=quant), "no weight is quantised"),
            (nano, lambda c: c.pop("quantization_config"), "is absent"),
            (nano, lambda c: c["quantization_config"].pop("expert_dtype"), "is not fp4")]):
        d = ckpt.write_folder(tmp_path / f"c{i}", ckpt.tensors(source), source, edit=edit)
        found(limited("verify", d), CONFIG, "quantization_config", word)
        refuses_to_convert(d, tmp_path, CONFIG, "quantization_config", word)


def test_one_fault_is_one_finding(nano, items, tmp_path):
    """A shard that cannot be read is said so once, not once more for everything it would have held."""
    for i, damage in enumerate([lambda p: p.unlink(), lambda p: os.truncate(p, 5000), lambda p: p.write_text(LFS)]):
        d = ckpt.write_folder(tmp_path / f"d{i}", items, nano, shards=3)
        damage(d / "model-00002-of-00003.safetensors")
        r = limited("verify", d)
        found(r, "model-00002-of-00003.safetensors")
        assert r.err.count("\n") == 1, r.err[:2000]
        r = limited("verify", d, "--against", nano)
        found(r, "model-00002-of-00003.safetensors")
        assert r.err.count("\n") == 1, r.err[:2000]
    assert run("baleen", "convert", nano, tmp_path / "p", "--to", "packed").rc == 0
    os.truncate(tmp_path / "p" / "rank-0000" / "layer-03.safetensors", 300000)
    r = limited("verify", tmp_path / "p", "--level", "2")
    found(r, "layer-03.safetensors")
    assert r.err.count("\n") <= 2, r.err[:2000]  # of the header's and the manifest's view


# ---- packed models

MANIFEST = "manifest.json"
RANK = "rank-0000/manifest.json"
PACKED = {
    "manifest empty": (lambda d: (d / MANIFEST).write_text(""), MANIFEST, ""),
    "manifest is a page": (lambda d: (d / MANIFEST).write_text(HTML), MANIFEST, "HTML page"),
    "manifest of 1 TB": (big_file(MANIFEST, 1 << 40), MANIFEST, "limit"),
    "config of 1 TB": (big_file(CONFIG, 1 << 40), CONFIG, "limit"),
    "rank manifest of 1 TB": (big_file(RANK, 1 << 40), RANK, "limit"),
    "manifest a FIFO": (replace(MANIFEST, os.mkfifo), MANIFEST, "FIFO"),
    "rank manifest gone": (lambda d: (d / RANK).unlink(), RANK, ""),
    "rank manifest a pointer": (lambda d: (d / RANK).write_text(LFS), RANK, "git-lfs pointer"),
    "rank manifest a loop": (replace(RANK, lambda p: p.symlink_to("manifest.json")), RANK, "symbolic links"),
    "rank folder gone": (lambda d: shutil.rmtree(d / "rank-0000"), "rank-0000", ""),
    "payload gone": (lambda d: (d / "rank-0000/layer-02.safetensors").unlink(), "layer-02", ""),
    "payload a FIFO": (replace("rank-0000/layer-02.safetensors", os.mkfifo), "layer-02", "FIFO"),
    "payload swapped": (lambda d: ((d / "rank-0000/layer-05.safetensors").rename(d / "x"),
                                   (d / "rank-0000/layer-06.safetensors").rename(d / "rank-0000/layer-05.safetensors"),
                                   (d / "x").rename(d / "rank-0000/layer-06.safetensors")), "layer-05", ""),
    "payload stray": (lambda d: shutil.copy(d / "rank-0000/rest.safetensors", d / "rank-0000/rest2.safetensors"), "rest2", "stray"),
    "huge numbers": (lambda d: edit_text(d / RANK, r'"offset": \d+', '"offset": 9223372036854775807'), RANK, ""),
    "negative numbers": (lambda d: edit_text(d / RANK, r'"file": \d+', '"file": -1'), RANK, ""),
    "file name climbs": (lambda d: edit_text(d / RANK, '"layer-02.safetensors"', '"../../x.safetensors"'), RANK, "may not"),
    "file name absolute": (lambda d: edit_text(d / MANIFEST, '"config.json"', '"/etc/passwd"'), MANIFEST, "may not"),
    "unknown key": (lambda d: edit_text(d / MANIFEST, '"writer"', '"author"'), MANIFEST, "author"),
    "newer version": (lambda d: edit_text(d / MANIFEST, r'"version": 1', '"version": 2'), MANIFEST, ""),
}


def edit_text(path, old, new):
    text, n = re.subn(old, new, path.read_text(), count=1)
    assert n, (path, old)
    path.write_text(text)


@pytest.fixture(scope="module")
def packed(nano, tmp_path_factory):
    out = tmp_path_factory.mktemp("hostile") / "packed"
    assert run("baleen", "convert", nano, out, "--to", "packed").rc == 0
    return out


@pytest.mark.parametrize("kind", PACKED)
def test_hostile_packed_model(packed, tmp_path, kind):
    make, where, word = PACKED[kind]
    d = tmp_path / "ckpt"
    shutil.copytree(packed, d)
    make(d)
    start = time.monotonic()
    one_line(limited("inspect", d), where, word)
    found(limited("verify", d), where, word)
    refuses_to_convert(d, tmp_path, where, word)
    assert time.monotonic() - start < SECONDS


# ---- holes of a terabyte: a file that a lower level refuses already must not be read to its end

def holes(d, names, check):
    for name in names:
        before = (d / name).stat().st_size
        os.truncate(d / name, 1 << 40)
        check(name)
        os.truncate(d / name, before)


def listed(d):
    return [line.split("  ", 1)[1] for line in (d / "SHA256SUMS").read_text().splitlines()]


@pytest.mark.parametrize("to", [["bf16", "--save-scales"], ["packed"]], ids=lambda to: to[0])
def test_holes_are_not_hashed(nano, tmp_path, to):
    d = tmp_path / "ckpt"
    assert run("baleen", "convert", nano, d, "--to", *to).rc == 0
    assert ("scales.source.st" in listed(d)) == (to[0] == "bf16")
    holes(d, listed(d), lambda name: found(limited("verify", d), name))
    assert limited("verify", d).rc == 0


def test_holes_that_no_manifest_knows_are_not_hashed(nano, tmp_path):
    d = tmp_path / "ckpt"
    assert run("baleen", "convert", nano, d, "--to", "packed").rc == 0
    manifest = json.loads((d / "manifest.json").read_text())
    manifest["files"] = [f for f in manifest["files"] if f["name"] != "rank-0000/rest.safetensors"]
    (d / "manifest.json").write_text(json.dumps(manifest))
    holes(d, ["rank-0000/rest.safetensors"], lambda name: found(limited("verify", d), name))


def test_holes_are_not_signed(nano, tmp_path):
    """Without SHA256SUMS every file is to be hashed."""
    key = tmp_path / "key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
    d = shutil.copytree(nano, tmp_path / "ckpt")
    holes(d, [f.name for f in nano.iterdir()], lambda name: found(limited("verify", d, "--sign", key), name))
    assert not list(d.glob("SHA256SUMS*"))
    assert limited("verify", d, "--sign", key).rc == 0


def test_holes_in_what_weight_sync_made(nano, tmp_path):
    b, n, delta = tmp_path / "b", tmp_path / "n", tmp_path / "delta"
    changed = shutil.copytree(nano, tmp_path / "changed")
    flip_last_byte(next(changed.glob("*.safetensors")))
    for args in ([nano, b, "--size", "64KiB"], [changed, n, "--size", "64KiB"], [changed, delta, "--base", b]):
        assert run("baleen", "bucket", *args).rc == 0

    def refused(name):
        r = limited("bucket", "--apply", delta, b, tmp_path / "out")
        one_line(r, name)
        assert not list(tmp_path.glob("out*"))

    for d in (b, delta):
        holes(d, [f for f in listed(d) if not f.startswith("bucket-")], lambda name: found(limited("verify", d), name))
        assert limited("verify", d).rc == 0
    holes(delta, listed(delta), refused)
    assert limited("bucket", "--apply", delta, b, tmp_path / "out").rc == 0


def test_weight_sync_without_its_description(nano, tmp_path):
    """One line, and not one for each tensor that a checkpoint would have."""
    b, delta = tmp_path / "b", tmp_path / "delta"
    assert run("baleen", "bucket", nano, b).rc == 0 and run("baleen", "bucket", nano, delta, "--base", b).rc == 0
    for d, name in ((b, "buckets.json"), (delta, "delta.json")):
        (d / name).unlink()
        for command in ("verify", "inspect"):
            r = limited(command, d)
            assert r.rc == (1 if command == "verify" else 3) and r.err.count("\n") == 1 and f"{name} is missing" in r.err, r.err
        r = limited("bucket", "--apply", delta, b, tmp_path / "out")
        assert r.rc == 3 and r.err.count("\n") == 1 and "is missing" in r.err, r.err
    # A checkpoint by its index is one, whatever lies beside.
    d = shutil.copytree(nano, tmp_path / "ckpt")
    for name in ("target.json", "flattened.bytes.json"):
        (d / name).write_text("{}")
    assert limited("verify", d).rc == 0


def flip_last_byte(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
