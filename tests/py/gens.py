"""Small checkpoints of the generations before V4.1, and what their BF16 cast must be. Independent of the C code."""
import json
import pathlib

import ml_dtypes
import numpy as np

import ckpt


class Maker:
    """Collects tensors. scales: "f32" (any), "pow2" (F32, powers of two) or "e8m0"; suffix of the scales' names."""

    def __init__(self, seed, scales, suffix, block=128):
        self.rng, self.scales, self.suffix, self.block, self.items = np.random.default_rng(seed), scales, suffix, block, {}

    def bf16(self, name, *shape):
        self.items[name] = ("BF16", shape, self.rng.normal(0, 0.05, shape).astype(ml_dtypes.bfloat16).tobytes())

    def f32(self, name, *shape):
        self.items[name] = ("F32", shape, self.rng.normal(0, 0.05, shape).astype(np.float32).tobytes())

    def i64(self, name, high, *shape):
        self.items[name] = ("I64", shape, self.rng.integers(0, high, shape, np.int64).tobytes())

    def scale_of(self, name):
        return name[:-len(".weight")] + self.suffix

    def fp8(self, name, rows, cols):
        codes = self.rng.integers(0, 256, (rows, cols), np.uint8)
        codes[codes & 0x7F == 0x7F] ^= 1
        grid = (-(-rows // self.block), -(-cols // self.block))
        self.items[name] = ("F8_E4M3", (rows, cols), codes.tobytes())
        if self.scales == "e8m0":
            self.items[self.scale_of(name)] = ("F8_E8M0", grid, self.rng.integers(108, 122, grid, np.uint8).tobytes())
            return
        s = np.exp2(self.rng.integers(-18, -6, grid)).astype(np.float32)
        if self.scales == "f32":
            s *= self.rng.uniform(1, 2, grid).astype(np.float32)
        self.items[self.scale_of(name)] = ("F32", grid, s.tobytes())

    def fp4(self, name, rows, cols):
        self.items[name] = ("I8", (rows, cols // 2), self.rng.integers(0, 256, (rows, cols // 2), np.uint8).tobytes())
        grid = (rows, cols // 32)
        self.items[self.scale_of(name)] = ("F8_E8M0", grid, self.rng.integers(112, 122, grid, np.uint8).tobytes())


HIDDEN, INTER, EXPERTS, VOCAB, Q_LORA, KV_LORA, ROPE, HEADS = 320, 160, 4, 64, 192, 64, 32, 2


def v3_layer(m, p, moe, indexer):
    m.bf16(p + "input_layernorm.weight", HIDDEN)
    m.bf16(p + "post_attention_layernorm.weight", HIDDEN)
    a = p + "self_attn."
    m.fp8(a + "q_a_proj.weight", Q_LORA, HIDDEN)
    m.bf16(a + "q_a_layernorm.weight", Q_LORA)
    m.fp8(a + "q_b_proj.weight", HEADS * 96, Q_LORA)
    m.fp8(a + "kv_a_proj_with_mqa.weight", KV_LORA + ROPE, HIDDEN)
    m.bf16(a + "kv_a_layernorm.weight", KV_LORA)
    m.fp8(a + "kv_b_proj.weight", HEADS * 128, KV_LORA)
    m.fp8(a + "o_proj.weight", HIDDEN, HEADS * 64)
    if indexer:
        m.fp8(a + "indexer.wq_b.weight", 4 * 64, Q_LORA)
        m.fp8(a + "indexer.wk.weight", 64, HIDDEN)
        m.bf16(a + "indexer.k_norm.weight", 64)
        m.bf16(a + "indexer.k_norm.bias", 64)
        m.bf16(a + "indexer.weights_proj.weight", 4, HIDDEN)
    mlps = [p + "mlp."]
    if moe:
        m.bf16(p + "mlp.gate.weight", EXPERTS, HIDDEN)
        m.f32(p + "mlp.gate.e_score_correction_bias", EXPERTS)
        mlps = [f"{p}mlp.experts.{e}." for e in range(EXPERTS)] + [p + "mlp.shared_experts."]
    for q in mlps:
        for part in ("gate_proj", "up_proj"):
            m.fp8(f"{q}{part}.weight", INTER, HIDDEN)
        m.fp8(q + "down_proj.weight", HIDDEN, INTER)


def v3(seed=1, scales="f32", indexer=False, prefix="model."):
    m = Maker(seed, scales, ".weight_scale_inv")
    m.bf16(prefix + "embed_tokens.weight", VOCAB, HIDDEN)
    for layer in range(4):
        p = f"{prefix}layers.{layer}."
        v3_layer(m, p, layer > 0, indexer)
        if layer == 3:  # the draft layer
            m.bf16(p + "embed_tokens.weight", VOCAB, HIDDEN)
            for norm in ("enorm", "hnorm"):
                m.bf16(p + norm + ".weight", HIDDEN)
            m.fp8(p + "eh_proj.weight", HIDDEN, 2 * HIDDEN)
            m.bf16(p + "shared_head.norm.weight", HIDDEN)
            m.bf16(p + "shared_head.head.weight", VOCAB, HIDDEN)
    m.bf16(prefix + "norm.weight", HIDDEN)
    m.bf16("lm_head.weight", VOCAB, HIDDEN)
    q = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    if scales == "pow2":
        q["scale_fmt"] = "ue8m0"
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v32" if indexer else "deepseek_v3",
              "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 3, "n_routed_experts": EXPERTS,
              "num_nextn_predict_layers": 1, "rope_scaling": {"type": "yarn", "factor": 40}, "quantization_config": q}
    return m.items, config


def v4_block(m, p, layer, experts):
    for s in ("attn", "ffn"):
        m.bf16(f"{p}{s}_norm.weight", HIDDEN)
        m.f32(f"{p}hc_{s}_fn", 24, 4 * HIDDEN)
        m.f32(f"{p}hc_{s}_base", 24)
        m.f32(f"{p}hc_{s}_scale", 3)
    m.f32(p + "attn.attn_sink", HEADS)
    m.fp8(p + "attn.wq_a.weight", Q_LORA, HIDDEN)
    m.bf16(p + "attn.q_norm.weight", Q_LORA)
    m.fp8(p + "attn.wq_b.weight", HEADS * 128, Q_LORA)
    m.fp8(p + "attn.wkv.weight", 128, HIDDEN)
    m.bf16(p + "attn.kv_norm.weight", 128)
    m.fp8(p + "attn.wo_a.weight", 256, 128)
    m.fp8(p + "attn.wo_b.weight", HIDDEN, 256)
    if layer == 1:
        for c, d in (("compressor.", 128), ("indexer.compressor.", 64)):
            m.f32(f"{p}attn.{c}ape", 4, 2 * d)
            for part in ("wkv", "wgate"):
                m.bf16(f"{p}attn.{c}{part}.weight", 2 * d, HIDDEN)
            m.bf16(f"{p}attn.{c}norm.weight", d)
        m.fp8(p + "attn.indexer.wq_b.weight", 256, Q_LORA)
        m.bf16(p + "attn.indexer.weights_proj.weight", 4, HIDDEN)
    m.bf16(p + "ffn.gate.weight", EXPERTS, HIDDEN)
    if layer == 0:
        m.i64(p + "ffn.gate.tid2eid", EXPERTS, VOCAB, 2)
    else:
        m.f32(p + "ffn.gate.bias", EXPERTS)
    for e in range(EXPERTS):
        for part in (1, 3):
            experts(f"{p}ffn.experts.{e}.w{part}.weight", INTER, HIDDEN)
        experts(f"{p}ffn.experts.{e}.w2.weight", HIDDEN, INTER)
    for part in (1, 3):
        m.fp8(f"{p}ffn.shared_experts.w{part}.weight", INTER, HIDDEN)
    m.fp8(p + "ffn.shared_experts.w2.weight", HIDDEN, INTER)


def v4(seed=2, base=False, prefix=""):
    """base: fp8 experts, and F32 scales that are powers of two."""
    m = Maker(seed, "pow2" if base else "e8m0", ".scale")
    m.bf16(prefix + "embed.weight", VOCAB, HIDDEN)
    for layer in range(2):
        v4_block(m, f"{prefix}layers.{layer}.", layer, m.fp8 if base else m.fp4)
    p = prefix + "mtp.0."
    v4_block(m, p, 2, m.fp8 if base else m.fp4)
    for part in ("e_proj", "h_proj"):
        m.fp8(f"{p}{part}.weight", HIDDEN, HIDDEN)
    for norm in ("enorm", "hnorm", "norm"):
        m.bf16(f"{p}{norm}.weight", HIDDEN)
    for q in (p, prefix):
        m.f32(q + "hc_head_fn", 4, 4 * HIDDEN)
        m.f32(q + "hc_head_base", 4)
        m.f32(q + "hc_head_scale", 1)
    m.bf16(prefix + "norm.weight", HIDDEN)
    m.bf16(prefix + "head.weight", VOCAB, HIDDEN)
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": VOCAB, "hidden_size": HIDDEN,
              "num_hidden_layers": 2, "num_hash_layers": 1, "n_routed_experts": EXPERTS, "num_nextn_predict_layers": 1,
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                      "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}
    if not base:
        config["expert_dtype"] = "fp4"
    return m.items, config


GENERATIONS = {
    "v3": (lambda: v3(), "DeepSeek-V3", False),
    "v3 without prefix": (lambda: v3(prefix=""), "DeepSeek-V3", False),
    "v3.1": (lambda: v3(scales="pow2"), "DeepSeek-V3", True),
    "v3.2": (lambda: v3(scales="pow2", indexer=True), "DeepSeek-V3.2", True),
    "v4": (lambda: v4(), "DeepSeek-V4", True),
    "v4 with prefix": (lambda: v4(prefix="model."), "DeepSeek-V4", True),
    "v4 base": (lambda: v4(base=True), "DeepSeek-V4", True),
}


def write(folder, items, config, shards=2):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    names, where = list(items), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: items[n] for n in names[i::shards]}
        ckpt.write_file(folder / file, part)
        where.update({n: file for n in part})
    index = {"metadata": {"total_size": sum(len(d) for _, _, d in items.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def scale_name(items, name):
    stem = name[:-len("weight")]
    return next((s for s in (stem + "weight_scale_inv", stem + "scale") if s in items), None)


def cast(items, block=128):
    """What --to bf16 makes of them: the float32 product of code and scale, rounded to bf16 by ml_dtypes."""
    out = {}
    for name, (dtype, shape, data) in items.items():
        if name.endswith((".scale", ".weight_scale_inv")):
            continue
        if dtype not in ("F8_E4M3", "I8"):
            out[name] = (dtype, shape, data)
            continue
        sd, grid, sdata = items[scale_name(items, name)]
        scale = np.frombuffer(sdata, np.float32 if sd == "F32" else ml_dtypes.float8_e8m0fnu).astype(np.float32).reshape(grid)
        if dtype == "I8":
            codes = np.frombuffer(data, np.uint8).reshape(shape)
            values = ckpt.E2M1[np.stack([codes & 15, codes >> 4], -1).reshape(shape[0], -1)]
            full = np.repeat(scale, 32, 1)
        else:
            values = np.frombuffer(data, ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(shape)
            full = np.repeat(np.repeat(scale, block, 0), block, 1)
        x = (values * full[:values.shape[0], :values.shape[1]]).astype(np.float32)
        out[name] = ("BF16", values.shape, x.astype(ml_dtypes.bfloat16).tobytes())
    return out
