"""Shapes that nobody listed, against the numpy oracle; and the same model in each of its stored forms."""
import numpy as np
import pytest

import golden
from conftest import DEMO
from test_golden import NANO, id_list

SHAPES = {
    "odd heads and experts": dict(num_attention_heads=5, o_groups=1, n_routed_experts=5, num_experts_per_tok=3, index_n_heads=3),
    "groups of partial blocks": dict(num_attention_heads=3, head_dim=96, o_groups=4, o_lora_rank=24, qk_rope_head_dim=32),
    "dims of 32": dict(hidden_size=160, moe_intermediate_size=96, head_dim=32, q_lora_rank=32, index_head_dim=32, qk_rope_head_dim=8),
    "wide rope": dict(head_dim=64, index_head_dim=64, qk_rope_head_dim=64),
    "window of 1": dict(sliding_window=1, index_topk=1),
    "window longer than the text": dict(sliding_window=200, index_topk=100),
    "one source": dict(kv_source_layer_ids=[2], index_source_layer_ids=[2, 3], compress_ratios=[0, 0, 1, 1, 1, 1, 1, 1],
                       candidate_source_layer_id=2, candidate_topk_blocks=2, candidate_block_size=7),
    "pairs only": dict(compress_ratios=[2] * 8, kv_source_layer_ids=[0, 4], index_source_layer_ids=[0, 1, 4, 6],
                       candidate_source_layer_id=4, candidate_block_size=1, candidate_topk_blocks=5),
    "window only": dict(compress_ratios=[0] * 8, kv_source_layer_ids=[], index_source_layer_ids=[], candidate_source_layer_id=-1),
    "no candidates": dict(candidate_source_layer_id=-1, index_topk=13),
    "filter smaller than the choice": dict(candidate_topk_blocks=1, candidate_block_size=3, index_topk=8),
    "blocks across pages": dict(candidate_block_size=24, candidate_topk_blocks=2, index_topk=40),
    "no engram": dict(engram_layer_ids=[]),
    "one engram layer, first": dict(engram_layer_ids=[0], engram_n_heads=3, engram_head_dim=96),
    "no drafts": dict(num_nextn_predict_layers=0, dspark_target_layer_ids=[]),
    "one expert each, tight clamp": dict(num_experts_per_tok=1, swiglu_limit=0.25),
    "no clamp, gates not normalised": dict(swiglu_limit=0.0, norm_topk_prob=False, routed_scaling_factor=0.7),
    "one layer": dict(num_hidden_layers=1, compress_ratios=[1], kv_source_layer_ids=[0], index_source_layer_ids=[0],
                      candidate_source_layer_id=0, engram_layer_ids=[0], dspark_target_layer_ids=[0]),
}


def run(baleen, folder, ids, out, *args):
    r = baleen("logits", folder, "--ids", id_list(ids), "--out", out, *args)
    assert r.rc == 0, r.err
    return golden.read(out)["logits"]


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_against_oracle(baleen, make_checkpoint, tmp_path, shape):
    folder = make_checkpoint("tiny", seed=len(shape), **SHAPES[shape])
    import model
    oracle = model.Model(str(folder))
    ids = np.random.default_rng(5).integers(0, oracle.cfg.vocab, 100)
    want = oracle.forward(ids.tolist())[0]
    out = tmp_path / "logits.safetensors"
    got = run(baleen, folder, ids, out)
    kl, gap, top = golden.distance(got, want)
    assert kl < 3e-3 and gap < 0.05 and top > 0.9
    for args in (["--chunk", 1], ["--chunk", 37, "--cpu", "c"]):
        assert (golden.bits(run(baleen, folder, ids, out, *args)) == golden.bits(got)).all()


@pytest.mark.parametrize("source", [NANO / "checkpoint", DEMO], ids=["nano", "demo"])
def test_packed_gives_the_same_bits(baleen, tmp_path, source):
    assert baleen("convert", source, tmp_path / "packed", "--to", "packed").rc == 0
    ids = np.random.default_rng(6).integers(0, 512, 100)
    want = run(baleen, source, ids, tmp_path / "a.safetensors")
    got = run(baleen, tmp_path / "packed", ids, tmp_path / "b.safetensors")
    assert (golden.bits(got) == golden.bits(want)).all()


def test_bf16_cast_against_oracle(baleen, shared, tmp_path):
    """BF16 weights take unrounded activations: another function than the released one, and the oracle's."""
    cast = tmp_path / "cast"
    assert baleen("convert", NANO / "checkpoint", cast, "--to", "bf16").rc == 0
    import model
    ids = np.random.default_rng(7).integers(0, 512, 100)
    want = model.Model(str(cast)).forward(ids.tolist())[0]
    got = run(baleen, cast, ids, tmp_path / "a.safetensors")
    assert golden.distance(got, want)[0] < 1.5e-4
    released = run(baleen, NANO / "checkpoint", ids, tmp_path / "b.safetensors")
    assert golden.distance(got, released)[0] > 10 * golden.distance(got, want)[0]
