"""baleen inspect --scales and the histogram of --tensor, against numpy."""
import json

import numpy as np
import pytest

import ckpt
import gens
from conftest import DEMO


def scales(baleen, path):
    r = baleen("inspect", path, "--scales", "--json")
    assert r.rc == 0, r.err
    return {c["class"]: c for c in json.loads(r.out)["scales"]}


def histogram(exponents):
    values, counts = np.unique(exponents, return_counts=True)
    return {str(v): int(n) for v, n in zip(values, counts)}


def expected(items):
    """{class: [exponents]} of e8m0 scales in V4.1's names."""
    out = {}
    for name, (dtype, shape, data) in items.items():
        if dtype == "F8_E8M0":
            form = "Engram 1x32" if ".engram.embed." in name else "fp4 1x32" if ".experts." in name else "fp8 32x32"
            out.setdefault(form, []).append(np.frombuffer(data, np.uint8).astype(int) - 127)
    return out


def test_classes_of_the_demo_model(baleen):
    have, want = scales(baleen, DEMO), expected(ckpt.tensors(DEMO))
    assert list(have) == ["fp8 32x32", "fp4 1x32", "Engram 1x32"]
    for name, parts in want.items():
        assert have[name]["exponents"] == histogram(np.concatenate(parts)) and have[name]["weights"] == len(parts)
        assert have[name]["scales"] == sum(p.size for p in parts) and have[name]["powers_of_two"]
    r = baleen("inspect", DEMO, "--scales")
    assert r.rc == 0 and f"fp8 32x32: {len(want['fp8 32x32'])} weights" in r.out and "####" in r.out


def test_packed_ranks_count_once(baleen, tmp_path):
    assert baleen("synth", tmp_path / "m", "--preset", "tiny").rc == 0
    assert baleen("convert", tmp_path / "m", tmp_path / "p", "--to", "packed", "--tp", 2, "--ep", 4).rc == 0
    one, two = scales(baleen, tmp_path / "m"), scales(baleen, tmp_path / "p")
    for name in ("fp8 32x32", "fp4 1x32"):
        assert one[name]["exponents"] == two[name]["exponents"]
    assert baleen("convert", tmp_path / "m", tmp_path / "b", "--to", "bf16").rc == 0
    assert list(scales(baleen, tmp_path / "b")) == ["Engram 1x32"]


@pytest.mark.parametrize("kind", ["f32", "pow2"])
def test_float32_scales(baleen, tmp_path, kind):
    items, config = gens.v3(scales=kind)
    folder = ckpt.write_folder(tmp_path / "v3", items, DEMO)
    (folder / "config.json").write_text(json.dumps(config))
    s = np.concatenate([np.frombuffer(d, np.float32) for n, (_, _, d) in items.items() if n.endswith("_scale_inv")])
    have = scales(baleen, folder)["fp8 128x128, float32 scales"]
    assert have["exponents"] == histogram(np.frexp(s)[1] - 1) and have["scales"] == s.size
    assert have["no_powers_of_two"] == (np.frexp(s)[0] != 0.5).sum() and have["powers_of_two"] == (kind == "pow2")
    out = baleen("inspect", folder, "--scales").out
    assert ("all powers of two" in out) == (kind == "pow2")


def test_what_is_not_finite_or_zero(baleen, tmp_path):
    m = gens.Maker(1, "pow2", ".weight_scale_inv")
    m.fp8("a.weight", 256, 256)
    dtype, shape, _ = m.items["a.weight_scale_inv"]
    m.items["a.weight_scale_inv"] = (dtype, shape, np.array([[0, np.inf], [-0.25, np.nan]], np.float32).tobytes())
    ckpt.write_file(tmp_path / "m.safetensors", m.items)
    have = scales(baleen, tmp_path / "m.safetensors")["fp8 128x128, float32 scales"]
    assert have["exponents"] == {"zero": 1, "nan": 2, "-2": 1} and not have["powers_of_two"]


def test_of_one_tensor(baleen, tmp_path):
    """Each scale once, although the rows that share it are read in two pieces (4 MiB at a time)."""
    m = gens.Maker(5, "f32", ".weight_scale_inv")
    m.fp8("a.weight", 9000, 1000)
    ckpt.write_file(tmp_path / "m.safetensors", m.items)
    s = np.frombuffer(m.items["a.weight_scale_inv"][2], np.float32)
    j = json.loads(baleen("inspect", tmp_path / "m.safetensors", "--tensor", "a.weight", "--json").out)
    assert j["scale_exponents"] == histogram(np.frexp(s)[1] - 1) and j["scale_odd"] == (np.frexp(s)[0] != 0.5).sum()
    name = "layers.3.ffn.experts.0.w1"
    want = histogram(np.frombuffer(ckpt.tensors(DEMO)[name + ".scale"][2], np.uint8).astype(int) - 127)
    for tensor in (name + ".weight", name + ".scale"):
        assert json.loads(baleen("inspect", DEMO, "--tensor", tensor, "--json").out)["scale_exponents"] == want
    assert "2^-5 " in baleen("inspect", DEMO, "--tensor", name + ".weight").out
    assert "scale_exponents" not in json.loads(baleen("inspect", DEMO, "--tensor", "norm.weight", "--json").out)
