"""Files as other programs see them: Python's safetensors opens every file written, ml_dtypes reads the same numbers from the same bytes
as the oracle, coreutils checks SHA256SUMS."""
import json
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize, safe_open

import ckpt
from conftest import DEMO, run

TYPES = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F32": np.float32,
         "I8": np.uint8, "I32": np.int32, "I64": np.int64}


def load(folder):
    """{name: array} of every safetensors file below folder, read by safetensors and typed by ml_dtypes."""
    out = {}
    for path in sorted(folder.rglob("*.safetensors")) if folder.is_dir() else [folder]:
        with safe_open(path, framework="np") as f:
            lazy = {n: (f.get_slice(n).get_dtype(), list(f.get_slice(n).get_shape())) for n in f.keys()}
        for name, t in deserialize(path.read_bytes()):
            assert lazy.pop(name) == (t["dtype"], list(t["shape"])) and name not in out
            out[name] = np.frombuffer(t["data"], TYPES[t["dtype"]]).reshape(t["shape"])
        assert not lazy
    assert out
    return out


def in_blocks(scale, rows, cols, shape):
    """A scale for every element."""
    return np.repeat(np.repeat(scale.astype(np.float32), rows, 0), cols, 1)[:shape[0], :shape[1]]


def by_ml_dtypes(weight, scale):
    """bf16 values of a stored weight, in ml_dtypes' arithmetic."""
    if weight.dtype == ml_dtypes.bfloat16:
        return weight
    if weight.dtype == np.uint8:
        nibbles = np.stack([weight & 15, weight >> 4], -1).reshape(weight.shape[0], -1)
        values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        return (values * in_blocks(scale, 1, 32, values.shape)).astype(ml_dtypes.bfloat16)
    return (weight.astype(np.float32) * in_blocks(scale, 32, 32, weight.shape)).astype(ml_dtypes.bfloat16)


def by_oracle(numerics, weight, scale):
    if weight.dtype == ml_dtypes.bfloat16:
        return weight.view(np.uint16)
    decode = numerics.dequant_weight_fp4 if weight.dtype == np.uint8 else numerics.dequant_weight_fp8
    return numerics.bf16_bits(decode(weight.view(np.uint8), scale.view(np.uint8)))


def unstacked(tensors):
    """Single experts of a packed model, under the released names."""
    out = {}
    for name, t in tensors.items():
        head, mark, tail = name.partition(".ffn.experts.")
        out.update({f"{head}{mark}{e}.{tail}": t[e] for e in range(len(t))} if mark else {name: t})
    return out


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check_cast(source, cast, numerics):
    seen = set()
    for name, t in cast.items():
        w = source[name]
        if same(t, w):
            continue
        scale = source[name.removesuffix("weight") + "scale"]
        assert same(t, by_ml_dtypes(w, scale)), name
        if numerics:
            assert t.tobytes() == by_oracle(numerics, w, scale).tobytes(), name
        seen.add(w.dtype.name)
    assert {"uint8", "float8_e4m3fn"} <= seen


def check_sums(folder):
    done = subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()} - {"SHA256SUMS"}
    assert {line.removesuffix(": OK") for line in done.stdout.splitlines()} == files


@pytest.fixture(scope="module", params=["demo", "nano", "odd"])
def made(request, tmp_path_factory):
    d = tmp_path_factory.mktemp("interop")
    if request.param == "demo":
        (d / "hf").symlink_to(DEMO)
    else:
        over = ["hidden_size=224", "n_routed_experts=5", "q_lora_rank=96"] if request.param == "odd" else []
        r = run("baleen", "synth", d / "hf", "--preset", "tiny" if over else "nano", "--seed", "3", *over)
        assert r.rc == 0, r.err
    for to, *extra in (("bf16", "--keep", "dspark", "--shard-size", "300KB"), ("packed",)):
        r = run("baleen", "convert", d / "hf", d / to, "--to", to, *extra)
        assert r.rc == 0, r.err
    return d


def test_synth_and_packed_hold_the_same_bytes(made):
    source, packed = load(made / "hf"), unstacked(load(made / "packed"))
    assert source.keys() == packed.keys()
    assert all(same(source[n], packed[n]) for n in source)


def test_casts_are_what_ml_dtypes_makes_of_them(made):
    check_cast(load(made / "hf"), load(made / "bf16"), None)


def test_casts_are_what_the_oracle_makes_of_them(made, shared):
    import numerics

    check_cast(load(made / "hf"), load(made / "bf16"), numerics)


@pytest.fixture(scope="module")
def transformers():
    t = pytest.importorskip("transformers", reason="transformers is not installed: it does NOT read the configs")

    class Config(t.PretrainedConfig):
        """As a trainer has one: with the keys that transformers itself wants to know."""
        model_type = "deepseek_v41"

        def __init__(self, max_position_embeddings=None, rope_theta=None, rope_scaling=None, rope_parameters=None, **more):
            self.max_position_embeddings = max_position_embeddings
            self.rope_parameters = rope_parameters or {"rope_theta": rope_theta, **(rope_scaling or {"rope_type": "default"})}
            super().__init__(**more)

    t.AutoConfig.register("deepseek_v41", Config, exist_ok=True)
    return t


@pytest.mark.parametrize("form", ["hf", "bf16", "packed"])
def test_transformers_keeps_every_key_of_a_config(made, transformers, form):
    """Nested as released, and flattened."""
    raw = json.loads((made / form / "config.json").read_text())
    assert ("text_config" in raw) == (form != "bf16")
    read, _ = transformers.PretrainedConfig.get_config_dict(made / form)
    assert {k: read[k] for k in raw} == raw
    config = transformers.AutoConfig.from_pretrained(made / form)
    assert type(config).__name__ == "Config"
    text, want = (config.to_dict(), raw) if form == "bf16" else (config.text_config, raw["text_config"])
    for key in ("hidden_size", "num_hidden_layers", "n_routed_experts", "compress_ratios", "engram_layer_ids"):
        assert text[key] == want[key], key


def test_a_config_that_transformers_saved_is_read_again(made, transformers, baleen, tmp_path):
    """It adds keys, orders them anew, and moves the rotation into rope_parameters."""
    trained = shutil.copytree(made / "bf16", tmp_path / "trained")
    transformers.AutoConfig.from_pretrained(trained).save_pretrained(trained)
    saved = json.loads((trained / "config.json").read_text())
    assert "rope_parameters" in saved and "rope_scaling" not in saved
    r = baleen("verify", trained, "--level", "2")
    assert r.rc == 0, r.err
    r = baleen("convert", trained, tmp_path / "new", "--to", "released", "--scale-hints", made / "hf")
    assert r.rc == 0, r.err
    r = baleen("verify", tmp_path / "new", "--against", trained)
    assert r.rc == 0, r.err
    saved["rope_parameters"]["rope_theta"] = 12345
    (trained / "config.json").write_text(json.dumps(saved))
    r = baleen("convert", trained, tmp_path / "other", "--to", "released", "--scale-hints", made / "hf")
    assert r.rc == 3 and "'rope_parameters': says something else than config.source.json" in r.err


@pytest.mark.parametrize("to", ["bf16", "packed"])
def test_coreutils_check_the_sums(made, to):
    check_sums(made / to)


def test_every_code_under_every_scale(baleen, tmp_path):
    """ml_dtypes and the tables of formats agree on all codes; a cast holds the products."""
    codes, scales = np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8)
    e4m3, e8m0 = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32), scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(e4m3, ckpt.E4M3, equal_nan=True) and np.array_equal(np.signbit(e4m3[:127]), np.signbit(ckpt.E4M3[:127]))
    assert np.array_equal(e8m0, ckpt.E8M0, equal_nan=True)
    assert np.array_equal(np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32), ckpt.E2M1)
    items = ckpt.tensors(DEMO)
    legal = codes[(codes & 127) != 127]
    for name, use, lo, hi in (("layers.0.attn.wq_b", legal, 3, 246), ("layers.3.ffn.experts.2.w1", codes, 0, 252)):
        dtype, shape, _ = items[name + ".weight"]
        items[name + ".weight"] = (dtype, shape, np.resize(use, shape).tobytes())
        grid = items[name + ".scale"][1]
        items[name + ".scale"] = ("F8_E8M0", grid, np.resize(scales[lo:hi + 1], grid).tobytes())
    src = ckpt.write_folder(tmp_path / "src", items, DEMO)
    r = baleen("convert", src, tmp_path / "out", "--to", "bf16")
    assert r.rc == 0, r.err
    check_cast(load(src), load(tmp_path / "out"), None)


def test_logits_and_traces(baleen, tmp_path):
    out, trace = tmp_path / "out.safetensors", tmp_path / "trace.safetensors"
    r = baleen("logits", DEMO, "--ids", "5,6,7,8", "--out", out, "--trace", trace)
    assert r.rc == 0, r.err
    logits = load(out)["logits"]
    assert logits.dtype == np.float32 and logits.shape[0] == 4 and np.isfinite(logits).all()
    traced = load(trace)
    assert len(traced) > 20
    assert {t.dtype for t in traced.values()} <= {np.dtype(t) for t in TYPES.values()}
    r = baleen("logits", DEMO, "--ids", "5,6,7,8", "--ids", "9", "--out", out)
    assert r.rc == 0, r.err
    many = load(out)
    assert many.keys() == {"logits.0", "logits.1"} and same(many["logits.0"], logits)
