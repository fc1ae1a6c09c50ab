"""Folders of sparse shards: the headers of a whole model, no bytes of weights."""
import json
import os
import pathlib
import struct

BITS = {"F8_E4M3": 8, "F8_E8M0": 8, "I8": 8, "BF16": 16, "F32": 32}


def released(inventory):
    """[(shard, name, dtype, shape)] of the released model's 48 shards, from a list of name patterns."""
    rows = []
    for t in json.loads(pathlib.Path(inventory).read_text())["tensors"]:
        name, draft = t["name"], t["name"].startswith("mtp.")
        for layer in t["layers"] or [None]:
            inner = ["{e}", "{b}"]["{b}" in name]
            count = t["count"] // max(1, len(t["layers"])) if inner in name else 1
            for i in range(count):
                full = name.replace("{L}", str(layer)).replace(inner, str(i))
                rows.append((released_shard(full, layer, draft), full, t["dtype"], t["shape"]))
    return rows


def released_shard(name, layer, draft):
    if layer is None:
        return 1 if name.startswith(("vision", "aligner")) else 2 if name.startswith(("embed", "image")) else 43
    return 44 + layer if draft else {1: 47, 14: 48}[layer] if ".engram." in name else 3 + layer


def v3(layers=61, experts=256, hidden=7168, inter=2048):
    """[(shard, name, dtype, shape)] with the names of DeepSeek-V3: F32 scales of 128x128 blocks."""
    rows = []

    def put(shard, name, *shape, dtype="F8_E4M3"):
        rows.append((shard, name + ".weight", dtype, list(shape)))
        if dtype == "F8_E4M3":
            rows.append((shard, name + ".weight_scale_inv", "F32", [-(-n // 128) for n in shape]))

    put(1, "model.embed_tokens", 129280, hidden, dtype="BF16")
    for n in range(layers + 1):
        p, shard = f"model.layers.{n}.", 2 + n
        for norm in ("input_layernorm", "post_attention_layernorm"):
            put(shard, p + norm, hidden, dtype="BF16")
        a = p + "self_attn."
        put(shard, a + "q_a_proj", 1536, hidden)
        put(shard, a + "q_a_layernorm", 1536, dtype="BF16")
        put(shard, a + "q_b_proj", 24576, 1536)
        put(shard, a + "kv_a_proj_with_mqa", 576, hidden)
        put(shard, a + "kv_a_layernorm", 512, dtype="BF16")
        put(shard, a + "kv_b_proj", 32768, 512)
        put(shard, a + "o_proj", hidden, 16384)
        mlps = [p + "mlp."]
        if n > 2:
            put(shard, p + "mlp.gate", experts, hidden, dtype="BF16")
            rows.append((shard, p + "mlp.gate.e_score_correction_bias", "F32", [experts]))
            mlps = [f"{p}mlp.experts.{e}." for e in range(experts)] + [p + "mlp.shared_experts."]
        for q in mlps:
            put(shard, q + "gate_proj", inter, hidden)
            put(shard, q + "up_proj", inter, hidden)
            put(shard, q + "down_proj", hidden, inter)
        if n == layers:
            put(shard, p + "embed_tokens", 129280, hidden, dtype="BF16")
            put(shard, p + "shared_head.head", 129280, hidden, dtype="BF16")
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                put(shard, p + norm, hidden, dtype="BF16")
            put(shard, p + "eh_proj", hidden, 2 * hidden)
    put(layers + 3, "model.norm", hidden, dtype="BF16")
    put(layers + 3, "lm_head", 129280, hidden, dtype="BF16")
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": hidden,
              "num_hidden_layers": layers, "n_routed_experts": experts, "num_nextn_predict_layers": 1,
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
    return rows, config


def write_folder(folder, rows, config, shards=True):
    """Sparse shards (shards=False: none), index and config; returns the bytes of all tensors."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    files, where, total = {}, {}, 0
    for shard, name, dtype, shape in rows:
        files.setdefault(shard, []).append((name, dtype, shape))
    for i, shard in enumerate(sorted(files)):
        file = f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
        h, at = {"__metadata__": {"format": "pt"}}, 0
        for name, dtype, shape in files[shard]:
            n = BITS[dtype] // 8
            for d in shape:
                n *= d
            h[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n
            where[name] = file
        total += at
        text = json.dumps(h, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if shards:
            (folder / file).write_bytes(struct.pack("<Q", len(text)) + text)
            os.truncate(folder / file, 8 + len(text) + at)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return total
