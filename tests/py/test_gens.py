"""Checkpoints of the generations before V4.1: told apart, cast to BF16 byte for byte, verified, and refused when in doubt."""
import json

import numpy as np
import pytest

import ckpt
import gens
import test_released


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made("v3") -> (folder, items), written once."""
    done = {}

    def make(kind):
        if kind not in done:
            items, config = gens.GENERATIONS[kind][0]()
            done[kind] = gens.write(tmp_path_factory.mktemp("gens") / "ckpt", items, config), items
        return done[kind]

    return make


@pytest.mark.parametrize("kind", gens.GENERATIONS)
@pytest.mark.parametrize("cpu", ["c", "native"])
def test_cast(baleen, made, tmp_path, kind, cpu):
    folder, items = made(kind)
    _, name, exact = gens.GENERATIONS[kind]
    r = baleen("convert", folder, tmp_path / "out", "--to", "bf16", "--cpu", cpu, "--shard-size", "1MB", "--json")
    assert r.rc == 0, r.err
    receipt = json.loads(r.out)
    assert receipt["generation"] == name and receipt["exact"] is exact
    f32 = [n for n in items if n.endswith(("weight_scale_inv", ".scale")) and items[n][0] == "F32"]
    assert receipt["float32_scales"]["weights"] == len(f32)
    assert receipt["float32_scales"]["scales"] == sum(len(items[n][2]) // 4 for n in f32)
    odd = [int(np.count_nonzero(np.frombuffer(items[n][2], np.uint32) & 0x7FFFFF)) for n in f32]
    assert receipt["float32_scales"]["rounded_scales"] == sum(odd)
    assert receipt["float32_scales"]["rounded_weights"] == sum(n > 0 for n in odd)
    have, want = ckpt.tensors(tmp_path / "out"), gens.cast(items)
    assert set(have) == set(want)
    for n in want:
        assert have[n] == want[n], n
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "out"))
    before.pop("quantization_config")
    before.pop("expert_dtype", None)
    assert before == after
    assert json.loads((tmp_path / "out" / "config.source.json").read_text())["quantization_config"]
    for path, other in ((folder, tmp_path / "out"), (tmp_path / "out", folder)):
        r = baleen("verify", path, "--against", other, "--json")
        assert r.rc == 0, r.err + r.out
        assert json.loads(r.out)["compared_equal"] == len(want)


@pytest.mark.parametrize("kind", ["v3", "v3.1", "v4"])
def test_text_says_whether_it_is_exact(baleen, made, tmp_path, kind):
    r = baleen("convert", made(kind)[0], tmp_path / "out", "--to", "bf16")
    assert r.rc == 0
    assert ("NOT exact" in r.out) == (kind == "v3")
    assert ("the cast is exact" in r.out) == (kind == "v3.1")


@pytest.mark.parametrize("kind", ["v3", "v4", "v4 base"])
def test_saved_scales(baleen, made, tmp_path, kind):
    folder, items = made(kind)
    assert baleen("convert", folder, tmp_path / "out", "--to", "bf16", "--save-scales").rc == 0
    assert ckpt.tensors(tmp_path / "out") == gens.cast(items)
    scales = {n: t for n, t in items.items() if n.endswith((".scale", ".weight_scale_inv"))}
    assert ckpt.tensors(tmp_path / "out" / "scales.source.st") == scales
    assert baleen("verify", tmp_path / "out", "--against", folder).rc == 0


def test_modules_travel(baleen, tmp_path):
    items, config = gens.v3()
    config["auto_map"] = {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}
    folder = gens.write(tmp_path / "c", items, config)
    for name in ("configuration_deepseek.py", "modeling_deepseek.py", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    assert baleen("convert", folder, tmp_path / "out", "--to", "bf16").rc == 0
    names = {f.name for f in (tmp_path / "out").iterdir()}
    assert {"configuration_deepseek.py", "modeling_deepseek.py", "tokenizer_config.json", "SHA256SUMS"} <= names
    assert baleen("verify", tmp_path / "out").rc == 0


def test_layers_of_a_part(baleen, made, tmp_path):
    folder, items = made("v3")
    assert baleen("convert", folder, tmp_path / "out", "--to", "bf16", "--layers", "1").rc == 0
    names = set(ckpt.tensors(tmp_path / "out"))
    gone = [n for n in gens.cast(items) if ".layers.0." in n or ".layers.2." in n]
    assert names == set(gens.cast(items)) - set(gone)
    assert baleen("verify", tmp_path / "out").rc == 0
    assert baleen("verify", tmp_path / "out", "--against", folder).rc == 0


@pytest.mark.parametrize("form", ["packed", "released"])
def test_other_forms_are_for_later_ones(baleen, made, tmp_path, form):
    for kind, name in (("v3", "DeepSeek-V3"), ("v3.2", "DeepSeek-V3.2"), ("v4", "DeepSeek-V4")):
        r = baleen("convert", made(kind)[0], tmp_path / "out", "--to", form)
        if form == "released" and kind == "v4":
            assert r.rc == 0
            continue
        assert r.rc == 3 and f"is a {name} checkpoint" in r.err and r.err.count("\n") == 1, r.err
        assert ("packed models are of DeepSeek-V4.1" if form == "packed" else "BF16 only, back to codes go DeepSeek-V4 and V4.1") in r.err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["v4", "v4 with prefix"])
def test_v4_and_back(baleen, made, tmp_path, kind):
    """Under the scales it had, kept beside the cast or read from the original, every byte returns."""
    folder, items = made(kind)
    cast = tmp_path / "cast"
    assert baleen("convert", folder, cast, "--to", "bf16", "--save-scales").rc == 0
    for name, more in (("kept", []), ("hints", ["--scale-hints", folder])):
        r = baleen("convert", cast, tmp_path / name, "--to", "released", "--shard-size", "1MB", "--json", *more)
        assert r.rc == 0, r.err
        receipt = json.loads(r.out)
        scales = [n for n in items if n.endswith(".scale")]
        assert receipt["generation"] == "DeepSeek-V4" and receipt["scale_hints"] == len(scales)
        assert sum(c["scales_new"] + c["blocks_inexact"] for c in receipt["encoded"]) == 0
        assert ckpt.tensors(tmp_path / name) == items
        assert (tmp_path / name / "config.json").read_bytes() == (folder / "config.json").read_bytes()
        assert baleen("verify", tmp_path / name, "--against", folder).rc == 0
        (cast / "scales.source.st").unlink(missing_ok=True)
    copied = tmp_path / "copied"
    assert baleen("convert", folder, copied, "--to", "released").rc == 0
    assert ckpt.tensors(copied) == items and (copied / "config.json").read_bytes() == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("cpu", ["c", "native"])
def test_v4_trained(baleen, made, tmp_path, cpu):
    """Weights that changed, with and without hints, against the encoder in numpy. 128x128 blocks, partial ones at the edges."""
    folder, items = made("v4")
    assert baleen("convert", folder, tmp_path / "cast", "--to", "bf16", "--save-scales").rc == 0
    cast, rng = ckpt.tensors(tmp_path / "cast"), np.random.default_rng(7)
    for name in ("layers.1.attn.wq_a.weight", "layers.0.ffn.experts.1.w2.weight", "mtp.0.e_proj.weight", "layers.1.attn.wo_b.weight"):
        x = test_released.bf16(cast, name)
        at = rng.integers(0, x.size, 5 if "wo_b" in name else x.size // 2)
        x.reshape(-1)[at] *= rng.uniform(0.5, 3, at.size)
        x *= np.exp2(rng.integers(-6, 3, x.shape[1]) if "proj" in name or "wq_a" in name else 0)  # 32 columns of a block say little of 128
        if "wq_a" in name:
            x[128:, :130] = 0
            x[0, 0] = -0.0
        cast[name] = ("BF16", x.shape, test_released.to_bf16(x))
    saved = ckpt.tensors(tmp_path / "cast" / "scales.source.st")
    ckpt.write_folder(tmp_path / "trained", cast, tmp_path / "cast")
    for hints in (None, saved):
        more = ["--scale-hints", tmp_path / "cast"] if hints else ["--scale-hints", "none"]
        out = tmp_path / ("hinted" if hints else "plain")
        r = baleen("convert", tmp_path / "trained", out, "--to", "released", "--cpu", cpu, "--json", *more)
        assert r.rc == 0, r.err
        have, kept, new = ckpt.tensors(out), 0, 0
        assert set(have) == set(items)
        for name, t in items.items():
            if t[0] not in ("I8", "F8_E4M3"):
                assert name.endswith(".scale") or have[name] == cast[name]
                continue
            scale, fp4 = name[:-len("weight")] + "scale", t[0] == "I8"
            hint = np.frombuffer(hints[scale][2], np.uint8).reshape(hints[scale][1]).astype(np.int64) if hints else None
            codes, s, k, _ = test_released.encode(test_released.bf16(cast, name), fp4, hint, edge=128)
            assert have[name] == (t[0], codes.shape, codes.tobytes()), name
            assert have[scale] == ("F8_E8M0", s.shape, s.tobytes()), scale
            kept, new = kept + int(k.sum()), new + int((~k).sum())
        encoded = json.loads(r.out)["encoded"]
        assert (sum(c["scales_kept"] for c in encoded), sum(c["scales_new"] for c in encoded)) == (kept, new)
        assert baleen("verify", out).rc == 0


def test_v4_without_its_config(baleen, made, tmp_path):
    """A trainer writes config.json alone: the keys of the release are put back."""
    folder, items = made("v4")
    assert baleen("convert", folder, tmp_path / "cast", "--to", "bf16", "--save-scales").rc == 0
    (tmp_path / "cast" / "config.source.json").unlink()
    assert baleen("convert", tmp_path / "cast", tmp_path / "out", "--to", "released").rc == 0
    assert ckpt.tensors(tmp_path / "out") == items
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
    assert baleen("convert", tmp_path / "cast", tmp_path / "part", "--to", "released", "--layers", "1").rc == 0
    assert set(ckpt.tensors(tmp_path / "part")) == {n for n in items if ".0." not in n.replace("experts.0", "") or n.startswith("mtp")}
    assert baleen("verify", tmp_path / "part", "--against", folder).rc == 0


def test_v4_refusals(baleen, made, tmp_path):
    def refused(src, rc, says, *more):
        r = baleen("convert", src, tmp_path / "out", "--to", "released", *more)
        assert r.rc == rc and says in r.err and r.err.count("\n") == 1 and not (tmp_path / "out").exists(), r.err
    for kind in ("v3", "v4 base", "v4"):
        assert baleen("convert", made(kind)[0], tmp_path / kind, "--to", "bf16", "--save-scales").rc == 0
    refused(tmp_path / "v3", 3, "back to codes go DeepSeek-V4 and V4.1")
    refused(tmp_path / "v4 base", 3, "fp8 experts and float32 scales")
    refused(tmp_path / "v4", 2, "--experts and --fp8-block are for DeepSeek-V4.1", "--experts", "fp8")
    refused(tmp_path / "v4", 2, "--experts and --fp8-block are for DeepSeek-V4.1", "--fp8-block", "1x32")
    saved = tmp_path / "v4" / "scales.source.st"
    scales = ckpt.tensors(saved)
    ckpt.write_file(saved, scales | {"layers.0.attn.gate.scale": scales["layers.0.attn.wkv.scale"]})
    refused(tmp_path / "v4", 3, "has 64 scales, but only 63 of them are of weights that DeepSeek-V4 has as codes")
    name, (dtype, shape, data) = "layers.0.attn.wkv.scale", scales["layers.0.attn.wkv.scale"]
    ckpt.write_file(saved, scales | {name: (dtype, (1, len(data)), data)} if shape != (1, len(data)) else scales | {name: (dtype, (1, 2), data[:2])})
    refused(tmp_path / "v4", 3, "another shape")


def test_not_served(baleen, made, tmp_path):
    r = baleen("logits", made("v4")[0], "--ids", "1,2", "--out", tmp_path / "l")
    assert r.rc == 3 and "only 'deepseek_v41' is supported" in r.err


@pytest.mark.parametrize("bit", [0, 3, 6])
def test_verify_sees_one_changed_code(baleen, made, tmp_path, bit):
    folder, items = made("v3")
    bad, name = dict(items), "model.layers.1.mlp.experts.2.up_proj.weight"
    dtype, shape, data = bad[name]
    data = bytearray(data)
    data[12345] ^= 1 << bit
    if data[12345] & 0x7F == 0x7F:
        data[12345] ^= 1
    bad[name] = dtype, shape, bytes(data)
    gens.write(tmp_path / "bad", bad, gens.v3()[1])
    r = baleen("verify", folder, "--against", tmp_path / "bad")
    assert r.rc == 1 and name in r.err and "values differ" in r.err
    assert sum("values differ" in line for line in r.err.splitlines()) == 1


# ---- refusals: (what to do to the tensors or the config, what the one line must say)

W, S = "model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"


def rename(old, new):
    def do(items, config):
        items[new] = items.pop(old)
    return do


def drop(*names):
    def do(items, config):
        for n in names:
            del items[n]
    return do


def put(name, dtype, shape, data=None):
    def do(items, config):
        size = {"F32": 4, "I32": 4, "I64": 8, "BF16": 2, "F16": 2}.get(dtype, 1)
        items[name] = (dtype, shape, bytes(int(np.prod(shape)) * size) if data is None else data)
    return do


def set_scale(name, at, value):
    def do(items, config):
        dtype, shape, data = items[name]
        x = np.frombuffer(data, np.float32 if dtype == "F32" else np.uint8).copy()
        x[at] = value
        items[name] = (dtype, shape, x.tobytes())
    return do


def setting(**kw):
    return lambda items, config: config.update(kw)


def quantization(**kw):
    return lambda items, config: config["quantization_config"].update(kw)


V3_REFUSED = {
    "weight without scale": (drop(S), [W, "without their scale", S, "up_proj.scale'"]),
    "scale without weight": (drop(W), [S, "orphan scale", W]),
    "scale of a bf16 weight": (put(W, "BF16", (160, 320)), [S, "orphan scale", W, "BF16"]),
    "two scales": (put(W[:-6] + "scale", "F32", (2, 3)), [W, "two scales", S, W[:-6] + "scale"]),
    "grid of another width": (put(S, "F32", (2, 4), np.ones(8, np.float32).tobytes()), [S, "[2, 4]", W, "[160, 320]", "128x128"]),
    "grid of 64x64 blocks": (put(S, "F32", (3, 5), np.ones(15, np.float32).tobytes()), [S, "[3, 5]", W, "128x128"]),
    "grid turned": (put(S, "F32", (3, 2), np.ones(6, np.float32).tobytes()), [S, "[3, 2]", W]),
    "grid as a vector": (put(S, "F32", (6,), np.ones(6, np.float32).tobytes()), [S, "[6]", W]),
    "scale in bf16": (put(S, "BF16", (2, 3)), [S, "dtype BF16", W, "F32 or F8_E8M0"]),
    "scale of another kind": (put(W[:-6] + "input_scale", "F32", (1,)), ["up_proj.input_scale", "of a kind"]),
    "scale of another kind for a missing one": (rename(S, W[:-6] + "weight_scale"), ["up_proj.weight_scale'", "of a kind"]),
    "fp8 vector": (put("model.norm.weight", "F8_E4M3", (320,)), ["model.norm.weight", "[320]", "a matrix"]),
    "unknown dtype": (put("model.norm.weight", "F16", (320,)), ["model.norm.weight", "F16"]),
    "three dimensions": (put("model.norm.weight", "BF16", (2, 2, 2)), ["model.norm.weight", "[2, 2, 2]"]),
    "empty tensor": (put("model.norm.weight", "BF16", (0,)), ["model.norm.weight", "[0]"]),
    "expert missing": (drop(W, S), [W, "is missing", "experts.1.up_proj.weight"]),
    "first expert missing": (drop(*(w.replace("experts.2", "experts.0") for w in (W, S))), [W.replace("experts.2", "experts.0"), "is missing"]),
    "last expert missing": (drop(*(w.replace("experts.2", "experts.3") for w in (W, S))), [W.replace("experts.2", "experts.3"), "is missing"]),
    "expert too many": (lambda i, c: c.update(n_routed_experts=3), ["experts.3", "n_routed_experts 3"]),
    "layer too many": (setting(num_nextn_predict_layers=0), ["model.layers.3.", "layer 3", "3 layers and 0 draft layers"]),
    "layer missing": (setting(num_hidden_layers=5), ["has no tensors of layer 4"]),
    "both namings": (put("norm.weight", "BF16", (320,)), ["'norm.weight'", "'model.norm.weight'"]),
    "codes of another method": (put("model.layers.0.self_attn.o_proj.qweight", "I32", (4, 2)), ["o_proj.qweight", "I32", "tid2eid"]),
    "zero scale": (set_scale(S, 1, 0), [S, "scale 0 at [0, 1]", W, "no sound weight"]),
    "negative scale": (set_scale(S, 4, -0.5), [S, "scale -0.5 at [1, 1]"]),
    "infinite scale": (set_scale(S, 0, np.inf), [S, "scale inf"]),
    "NaN scale": (set_scale(S, 0, np.nan), [S, "scale", "nan"]),
    "huge scale": (set_scale(S, 0, 2.0 ** 120), [S, "outside 2^-124..2^119"]),
    "tiny scale": (set_scale(S, 0, 2.0 ** -125), [S, "outside 2^-124..2^119"]),
    "scales called ue8m0": (quantization(scale_fmt="ue8m0"), ["weight_scale_inv", "no power of two", "scale_fmt is ue8m0"]),
    "unknown scale_fmt": (quantization(scale_fmt="e5m3"), ["quantization_config.scale_fmt", "e5m3"]),
    "declared block": (quantization(weight_block_size=[64, 64]), ["weight_block_size", "[64, 64]", "128x128"]),
    "declared block of three": (quantization(weight_block_size=[1, 2, 3]), ["weight_block_size", "two integers"]),
    "declared block of text": (quantization(weight_block_size="128"), ["weight_block_size", "two integers"]),
    "another method": (quantization(quant_method="awq"), ["quant_method", "awq"]),
    "another fmt": (quantization(fmt="e5m2"), ["quantization_config.fmt", "e5m2"]),
    "no quantization_config": (lambda i, c: c.pop("quantization_config"), ["quantization_config", "is absent"]),
    "fp4 said": (setting(expert_dtype="fp4"), ["expert_dtype", "is fp4, but no expert is"]),
    "no model_type": (lambda i, c: c.pop("model_type"), ["model_type", "is missing"]),
    "nested": (setting(text_config={}), ["text_config"]),
    "no layers": (lambda i, c: c.pop("num_hidden_layers"), ["num_hidden_layers", "is missing"]),
    "layers in words": (setting(num_hidden_layers="3"), ["num_hidden_layers", "integer"]),
    "V4.1 by name": (setting(model_type="deepseek_v41"), ["config.json"]),
    "NaN code": (lambda i, c: i.update({W: ("F8_E4M3", (160, 320), i[W][2][:-1] + b"\x7f")}), [W, "NaN codes"]),
}


def refuse(baleen, tmp_path, make, change, fragments):
    items, config = make()
    items = dict(items)
    change(items, config)
    folder = gens.write(tmp_path / "bad", items, config)
    r = baleen("convert", folder, tmp_path / "out", "--to", "bf16")
    assert r.rc == 3, r.err + r.out
    assert len(r.err.strip().splitlines()) == 1, r.err
    for f in fragments:
        assert f in r.err, (f, r.err)
    assert not (tmp_path / "out").exists()
    v = baleen("verify", folder)
    assert v.rc in (1, 3), v.out + v.err
    for f in fragments[:1]:
        assert f in v.out + v.err


@pytest.mark.parametrize("name", V3_REFUSED)
def test_v3_refused(baleen, tmp_path, name):
    refuse(baleen, tmp_path, gens.v3, *V3_REFUSED[name])


X, Y = "layers.1.ffn.experts.3.w2.weight", "layers.1.ffn.experts.3.w2.scale"
V4_REFUSED = {
    "fp4 without scale": (drop(Y), [X, "I8 codes without their scale", Y[:-5] + "weight_scale_inv"]),
    "fp4 with an F32 scale": (put(Y, "F32", (320, 5)), [Y, "dtype F32", X, "F8_E8M0"]),
    "fp4 with a grid of blocks": (put(Y, "F8_E8M0", (3, 2)), [Y, "[3, 2]", X, "[320, 80]"]),
    "draft projection without scale": (drop("mtp.0.e_proj.scale"), ["mtp.0.e_proj.weight", "mtp.0.e_proj.scale"]),
    "orphan": (drop("mtp.0.e_proj.weight"), ["mtp.0.e_proj.scale", "orphan", "mtp.0.e_proj.weight"]),
    "scale byte without exact values": (set_scale("mtp.0.e_proj.scale", 2, 255), ["mtp.0.e_proj.scale", "[0, 2]"]),
    "experts are not fp4": (lambda i, c: c.pop("expert_dtype"), ["expert_dtype", "packed fp4"]),
    "V4.1's tensors": (lambda i, c: [i.pop(n) for n in list(i) if "hc_head" in n or "tid2eid" in n or ".ape" in n],
                       ["model_type is 'deepseek_v4'", "those of DeepSeek-V4.1", "needs its own config.json"]),
    "no generation": (lambda i, c: [i.pop(n) for n in list(i) if "hc_" in n], ["model_type is 'deepseek_v4'", "not those of one DeepSeek"]),
    "two generations": (put("layers.0.attn.kv_a_proj_with_mqa.weight", "BF16", (2, 2)), ["not those of one DeepSeek", "latent attention", "streams"]),
    "layer missing": (lambda i, c: [i.pop(n) for n in list(i) if "layers.0." in n], ["has no tensors of layer 0"]),
}


@pytest.mark.parametrize("name", V4_REFUSED)
def test_v4_refused(baleen, tmp_path, name):
    refuse(baleen, tmp_path, gens.v4, *V4_REFUSED[name])


@pytest.mark.parametrize("model_type", ["deepseek_v32", "kimi_k2", "deepseek_v4", "anything"])
def test_model_type_has_no_say(baleen, tmp_path, model_type):
    items, config = gens.v3()
    config["model_type"] = model_type
    r = baleen("convert", gens.write(tmp_path / "c", items, config), tmp_path / "out", "--to", "bf16", "--json")
    assert r.rc == 0, r.err
    assert json.loads(r.out)["generation"] == "DeepSeek-V3"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == model_type


def test_some_scales_are_powers_of_two(baleen, tmp_path):
    """One odd scale among powers of two: that weight is rounded, and it is said."""
    items, config = gens.v3(scales="pow2")
    del config["quantization_config"]["scale_fmt"]
    set_scale(S, 3, 0.75)(items, config)
    folder = gens.write(tmp_path / "c", items, config)
    r = baleen("convert", folder, tmp_path / "out", "--to", "bf16", "--json")
    receipt = json.loads(r.out)
    assert receipt["exact"] is False
    assert receipt["float32_scales"]["rounded_scales"] == receipt["float32_scales"]["rounded_weights"] == 1
    have, want = ckpt.tensors(tmp_path / "out"), gens.cast(items)
    assert have == want


def test_edges_of_the_scales(baleen, tmp_path):
    """Every code at both ends of the range of powers of two, where results are subnormal or nearly too large."""
    items, config = gens.v3(scales="pow2")
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F] + [0, 128], np.uint8)
    items[W] = ("F8_E4M3", (160, 320), np.resize(codes, (160, 320)).tobytes())
    items[S] = ("F32", (2, 3), np.array([2.0 ** -124, 2.0 ** 119, 1, 2.0 ** -117, 2.0 ** -118, 2.0 ** 118], np.float32).tobytes())
    r = baleen("convert", gens.write(tmp_path / "c", items, config), tmp_path / "out", "--to", "bf16", "--json")
    assert r.rc == 0 and json.loads(r.out)["exact"] is True, r.err
    assert ckpt.tensors(tmp_path / "out")[W] == gens.cast(items)[W]


# ---- inspect

@pytest.mark.parametrize("kind", gens.GENERATIONS)
def test_inspect(baleen, made, kind):
    folder, items = made(kind)
    _, name, exact = gens.GENERATIONS[kind]
    r = baleen("inspect", folder, "--json")
    assert r.rc == 0, r.err
    j = json.loads(r.out)
    assert j["generation"] == name and j["problems"] == 0
    assert "128x128" in j["generation_why"]
    assert ("float32_scales" in j) == (name.startswith("DeepSeek-V3") or kind == "v4 base")
    if "float32_scales" in j:
        assert (j["float32_scales"]["rounded_scales"] == 0) is exact
    v4 = name == "DeepSeek-V4"
    assert j["layers"] == (["experts, hash-routed", "experts, compresses, selects", "draft layer, experts"] if v4 else
                           [w + (", selects" if kind == "v3.2" else "") for w in ("dense", "experts", "experts", "draft layer, experts")])
    classes = {c["class"]: c["tensors"] for c in j["classes"]}
    assert "other" not in classes and classes["embedding and head"] == 2
    draft = [n for n in items if "mtp.0." in n or ("layers.3." in n and not v4)]
    assert classes["draft layers"] == len(draft)
    assert classes["routed experts"] == sum(".experts." in n for n in set(items) - set(draft))
    text = baleen("inspect", folder).out
    assert f"generation: {name} (" in text
    assert ("no powers of two, as in V3" in text) == (not exact)


def test_inspect_names_v41(baleen):
    assert "generation: DeepSeek-V4.1 (residual streams" in baleen("inspect").out


def test_inspect_counts_problems(baleen, tmp_path):
    items, config = gens.v3()
    del items[S]
    r = baleen("inspect", gens.write(tmp_path / "c", items, config))
    assert r.rc == 0 and "1 problem: baleen verify" in r.out


@pytest.mark.parametrize("kind", ["v3", "v4", "v4 base"])
def test_statistics(baleen, made, kind):
    folder, items = made(kind)
    want = gens.cast(items)
    for name in [n for n in items if items[n][0] in ("F8_E4M3", "I8")][::7]:
        j = json.loads(baleen("inspect", folder, "--tensor", name, "--json").out)
        _, shape, data = want[name]
        x = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        assert j["elements"] == x.size and j["zeros"] == int((x == 0).sum())
        for key, value in (("min", x.min()), ("max", x.max()), ("mean", x.mean()), ("rms", np.sqrt((x * x).mean()))):
            assert abs(j[key] - value) <= 0.004 * np.abs(x).max(), (name, key)
        scale = gens.scale_name(items, name)
        assert j["scale"] == scale
        if items[scale][0] == "F32":
            s = np.frombuffer(items[scale][2], np.float32)
            assert j["scale_low"] == s.min() and j["scale_high"] == s.max()
            assert j["scale_odd"] == np.count_nonzero(s.view(np.uint32) & 0x7FFFFF)
        else:
            s = np.frombuffer(items[scale][2], np.uint8)
            assert j["scale_min"] == s.min() and j["scale_max"] == s.max()


# ---- anything at all: refused in one line, or cast as numpy casts it

def mutate(rng, items, config):
    name = list(items)[rng.integers(len(items))]
    dtype, shape, data = items[name]
    kind = rng.integers(9)
    same_size = {"F8_E4M3": ["I8", "U8", "F8_E8M0", "F8_E5M2", "BOOL"], "F8_E8M0": ["I8", "U8", "F8_E4M3"], "I8": ["F8_E4M3", "U8"],
                 "F32": ["I32", "U32"], "BF16": ["F16", "I16"], "I64": ["F64", "U64"]}
    if kind == 0:  # another dtype of the same size
        options = same_size[dtype]
        items[name] = (options[rng.integers(len(options))], shape, data)
    elif kind == 1:  # other dimensions, the same bytes
        items[name] = (dtype, shape[::-1] if len(shape) > 1 else (1, *shape), data)
    elif kind == 2 and len(shape) == 2 and shape[0] % 2 == 0:
        items[name] = (dtype, (shape[0] // 2, shape[1] * 2), data)
    elif kind == 3:
        del items[name]
    elif kind == 4:
        items[name[:-1] if rng.integers(2) else "x." + name] = items.pop(name)
    elif kind == 5:  # fewer rows
        rows = int(rng.integers(shape[0] + 1))
        items[name] = (dtype, (rows, *shape[1:]), data[:len(data) // shape[0] * rows])
    elif kind == 6:
        raw = bytearray(data)
        for at in rng.integers(0, len(raw), 4):
            raw[at] = rng.integers(256)
        items[name] = (dtype, shape, bytes(raw))
    elif kind == 7:
        key = ["num_hidden_layers", "n_routed_experts", "num_nextn_predict_layers", "model_type"][rng.integers(4)]
        config[key] = [0, 1, 2, 3, 4, 5, "deepseek_v4.1", None, [], 1e9][rng.integers(10)]
    else:
        config["quantization_config"][["scale_fmt", "weight_block_size", "quant_method", "fmt"][rng.integers(4)]] = \
            ["ue8m0", [128, 128], [32, 32], "fp8", "e4m3", None, 7, [0, 0], [128]][rng.integers(9)]


@pytest.mark.parametrize("seed", range(60))
def test_mutations(baleen, tmp_path, seed):
    rng = np.random.default_rng(seed)
    items, config = list(gens.GENERATIONS.values())[seed % len(gens.GENERATIONS)][0]()
    items = dict(items)
    for _ in range(1 + seed % 3):
        mutate(rng, items, config)
    folder = gens.write(tmp_path / "c", items, config)
    r = baleen("convert", folder, tmp_path / "out", "--to", "bf16")
    assert r.rc in (0, 3), (r.rc, r.err)
    v = baleen("verify", folder)
    if r.rc == 3:
        assert len(r.err.strip().splitlines()) == 1
        assert v.rc in (1, 3) and not (tmp_path / "out").exists()
    else:
        assert v.rc == 0, v.err
        assert ckpt.tensors(tmp_path / "out") == gens.cast(items)
        assert baleen("verify", tmp_path / "out", "--against", folder).rc == 0
    assert baleen("inspect", folder, "--json").rc in (0, 3)


@pytest.mark.parametrize("make", [gens.v3, gens.v4, lambda: gens.v3(scales="pow2")], ids=["v3", "v4", "v3.1"])
@pytest.mark.parametrize("rows, cols", [(1700, 7168), (300, 40001), (70000, 129), (3 << 20, 3)])
def test_tiles_within_blocks(baleen, tmp_path, make, rows, cols):
    """Weights of many tiles, which begin anywhere in a block."""
    items, config = make()
    v4 = config["model_type"] == "deepseek_v4"
    m = gens.Maker(rows, "e8m0" if v4 else "pow2" if "scale_fmt" in config["quantization_config"] else "f32",
                   ".scale" if v4 else ".weight_scale_inv")
    m.fp8("layers.1.wide.weight", rows, cols)
    if v4:
        m.fp4("layers.1.packed.weight", rows, cols // 32 * 32 or 32)
    items |= m.items
    folder = gens.write(tmp_path / "c", items, config)
    r = baleen("convert", folder, tmp_path / "out", "--to", "bf16", "--jobs", "3")
    assert r.rc == 0, r.err
    have, want = ckpt.tensors(tmp_path / "out"), gens.cast(items)
    for name in want:
        assert have[name] == want[name], name
    r = baleen("verify", folder, "--against", tmp_path / "out")
    assert r.rc == 0, r.err
