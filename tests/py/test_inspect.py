"""baleen inspect: classes and layer roles, and tensor statistics held against numpy."""
import json
import struct

import numpy as np
import pytest

from conftest import DEMO


def raw(folder, name):
    """Bytes, dtype and shape of a tensor, by hand."""
    files = json.load(open(folder / "model.safetensors.index.json"))["weight_map"]
    with open(folder / files[name], "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        t = json.loads(f.read(n))[name]
        f.seek(8 + n + t["data_offsets"][0])
        return np.frombuffer(f.read(t["data_offsets"][1] - t["data_offsets"][0]), np.uint8), t["dtype"], t["shape"]


def test_default_is_the_demo_model(baleen):
    r = baleen("inspect", "--json")
    j = json.loads(r.out)
    assert r.rc == 0 and j["tensors"] == 775 and len(j["layers"]) == 8
    assert sum(c["bytes"] for c in j["classes"]) == j["tensor_bytes"] == 8427590
    assert "other" not in [c["class"] for c in j["classes"]]
    assert "publishes candidates" in j["layers"][5] and "Engram" in j["layers"][1]


def test_fp4_statistics(baleen):
    name = "layers.3.ffn.experts.0.w1.weight"
    j = json.loads(baleen("inspect", DEMO, "--tensor", name, "--json").out)
    codes, _, (rows, half) = raw(DEMO, name)
    scale, _, _ = raw(DEMO, name.replace("weight", "scale"))
    values = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([values, -values])
    c = codes.reshape(rows, half)
    w = np.stack([table[c & 15], table[c >> 4]], -1).reshape(rows, 2 * half // 32, 32) * 2.0 ** (scale.reshape(rows, -1)[..., None] - 127.0)
    assert (j["elements"], j["min"], j["max"]) == (w.size, w.min(), w.max())
    assert j["zeros"] == (w == 0).sum() and j["negative_zeros"] == (np.signbit(w) & (w == 0)).sum()
    assert j["rms"] == pytest.approx(np.sqrt((w * w).mean()), rel=1e-9)
    assert (j["scale_min"], j["scale_max"]) == (scale.min(), scale.max())


def test_f32_statistics(baleen):
    j = json.loads(baleen("inspect", DEMO, "--tensor", "layers.0.hc_attn_fn", "--json").out)
    data, _, shape = raw(DEMO, "layers.0.hc_attn_fn")
    w = data.view(np.float32)
    assert j["shape"] == shape and j["min"] == w.min() and j["max"] == w.max()
    assert j["mean"] == pytest.approx(w.mean(dtype=np.float64), rel=1e-9, abs=1e-12)


def test_token_map_of_the_demo(baleen):
    j = json.loads(baleen("inspect", "--token-map", DEMO / "tokenizer.json", "--json").out)
    assert j["classes"] == 1259 and j["tokens"] == 1536


def test_token_map_of_the_released_vocabulary(baleen, shared):
    r = baleen("inspect", "--token-map", shared / "data" / "tokenizer.reconstructed.json", "--json")
    j = json.loads(r.out)
    assert j["classes"] == 99092
    assert j["map_sha256"] == "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"


@pytest.mark.parametrize("args,rc", [(["/nope"], 3), (["--tensor", "no.such"], 3), (["--token-map"], 2), (["a", "b"], 2),
                                     (["--token-map", str(DEMO / "config.json")], 3), (["/dev/null"], 3),
                                     (["--rank", "-1"], 2), (["--rank", "1"], 2), (["--check", "--rank", "0"], 2)])
def test_errors_are_one_line(baleen, args, rc):
    r = baleen("inspect", *args)
    assert r.rc == rc and r.out == "" and r.err.count("\n") == 1
