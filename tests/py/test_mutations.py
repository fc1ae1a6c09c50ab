"""The layer checks see what end-to-end distances cannot: with any single rounding, the attention sink or the candidate filter left out,
they fail. Roundings of activations are left out by storing a matrix in bf16 (same values, unrounded input); the sink, the filter and
other parts by editing the checkpoint; what is inside operations by tests/parity_driver."""
import re
import subprocess

import numpy as np
import pytest

import ckpt
import golden
from conftest import BUILD
from test_golden import NANO, id_list, nano, nano_golden  # noqa: F401 (fixtures)

CHECKPOINT = NANO / "checkpoint"


def failures(case, folder, tmp_path):
    trace, out = tmp_path / "trace.safetensors", tmp_path / "out.safetensors"
    r = case.baleen("logits", folder, "--ids", id_list(case.ids), "--inject", case.path, "--trace", trace, "--out", out)
    assert r.rc == 0, r.err
    return golden.layer_failures(golden.read(trace), case.golden)


def rewrite(tmp_path, change=lambda items: None, edit=None):
    items = ckpt.tensors(CHECKPOINT)
    change(items)
    return ckpt.write_folder(tmp_path / "model", items, CHECKPOINT, edit=lambda c: edit(c["text_config"]) if edit else None)


def test_nothing_left_out(nano, tmp_path):  # noqa: F811
    assert failures(nano, rewrite(tmp_path), tmp_path) == []


# Not engram.wkv: its input was read from a table of the same fp8 groups, so rounding changes nothing.
@pytest.mark.parametrize("matrix, part", [
    ("attn.wq_a", "attn.out"), ("attn.wkv", "attn.out"), ("attn.wq_b", "attn.out"), ("attn.wo_b", "attn.out"),
    ("attn.indexer.wq_b", "selected"), ("ffn.experts.[0-9]+.w[13]", "ffn.out"),
    ("ffn.experts.[0-9]+.w2", "ffn.out"), ("ffn.shared_experts.w[13]", "ffn.out"), ("ffn.shared_experts.w2", "ffn.out")])
def test_activation_rounding(nano, tmp_path, matrix, part):  # noqa: F811
    def change(items):
        for name in [n for n in items if re.fullmatch(r"layers\.[0-9]+\." + matrix + r"\.weight", n)]:
            shape = list(items[name][1])
            if items[name][0] == "I8":
                shape[1] *= 2
            items[name] = ("BF16", shape, ckpt.decode(name, items))
            del items[name[:-len("weight")] + "scale"]
    assert any(n.endswith(part) for n in failures(nano, rewrite(tmp_path, change), tmp_path))


def test_sink(nano, tmp_path):  # noqa: F811
    def change(items):
        for name in [n for n in items if n.endswith("attn_sink")]:
            items[name] = ("F32", items[name][1], np.full(items[name][1], -1e30, np.float32).tobytes())
    bad = failures(nano, rewrite(tmp_path, change), tmp_path)
    assert bad and all(n.endswith("attn.out") for n in bad)


def test_candidate_filter(nano, tmp_path):  # noqa: F811
    bad = failures(nano, rewrite(tmp_path, edit=lambda c: c.update(candidate_topk_blocks=1000)), tmp_path)
    assert bad and all(n.endswith("selected") for n in bad)


@pytest.mark.parametrize("key, value, part", [
    ("norm_topk_prob", False, "ffn.gates"), ("routed_scaling_factor", 1.25, "ffn.gates"), ("rms_norm_eps", 1e-2, "ffn.in"),
    ("hc_sinkhorn_iters", 1, ".out"), ("hc_eps", 1e-2, "pre_out"), ("compress_rope_theta", 10000, "attn.out"),
    ("sliding_window", 7, "attn.out"), ("index_topk", 5, "selected")])
def test_config_values_are_used(nano, tmp_path, key, value, part):  # noqa: F811
    """index_topk: one entry fewer is seen; the file's own lists would not fit, so nothing is injected."""
    folder = rewrite(tmp_path, edit=lambda c: c.update({key: value}))
    if key == "index_topk":
        trace, out = tmp_path / "trace.safetensors", tmp_path / "out.safetensors"
        r = nano.baleen("logits", folder, "--ids", id_list(nano.ids), "--trace", trace, "--out", out)
        assert r.rc == 0, r.err
        bad = golden.layer_failures(golden.read(trace), nano.golden)
    else:
        bad = failures(nano, folder, tmp_path)
    assert any(n.endswith(part) for n in bad)


def driver_failures(case, what, tmp_path):
    trace, out = tmp_path / "trace.safetensors", tmp_path / "out.safetensors"
    r = subprocess.run([BUILD / "tests" / "parity_driver", what, CHECKPOINT, id_list(case.ids), case.path, trace, out],
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return golden.layer_failures(golden.read(trace), case.golden)


@pytest.mark.parametrize("what", ["none", "attention"])
def test_driver_without_change(nano, tmp_path, what):  # noqa: F811
    """The driver as such, and its own attention with every rounding in place: all agrees."""
    assert driver_failures(nano, what, tmp_path) == []


@pytest.mark.parametrize("what, part", [
    ("window", "attn.out"), ("latent", "attn.out"), ("probabilities", "attn.out"), ("index", "selected"), ("activations", ".out"),
    ("nearest", ".out"), ("unrotate", "attn.out"), ("gates", "ffn.out")])
def test_inside_operations(nano, tmp_path, what, part):  # noqa: F811
    assert any(n.endswith(part) for n in driver_failures(nano, what, tmp_path))
