"""The rule of how a packed model is spread over ranks, written again in numpy: independent of the C code."""
import json
import pathlib
import re

import numpy as np

import ckpt

CUT_ROWS = ("attn.attn_sink", "attn.wq_b", "attn.wo_a", "ffn.shared_experts.w1", "ffn.shared_experts.w3", "embed", "head")
CUT_COLS = ("attn.wo_b", "ffn.shared_experts.w2")
WIDTH = {"F32": 4, "BF16": 2}


def array(tensor):
    """A tensor as bytes: [rows, bytes of a row]."""
    dtype, shape, data = tensor
    rows = shape[0] if shape else 1
    return np.frombuffer(data, np.uint8).reshape(rows, -1)


def stage_layers(layers, pp, given=None):
    return given or [layers // pp + (pp - i <= layers % pp) for i in range(pp)]


class Layout:
    def __init__(self, folder, tp=1, ep=1, pp=1, pp_layers=None, pad_vocab=0, shared=False, drafts=True, split=None):
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.c = {**config, **config.get("text_config", {})}
        self.tp, self.ep, self.pp, self.pad, self.shared, self.split = tp, ep, pp, pad_vocab, shared, split
        if split == "pad" and not pad_vocab and tp > 1 and self.c["vocab_size"] % (32 * tp):
            self.pad = 32
        self.w = max(tp, ep)
        self.stages, self.given = stage_layers(self.c["num_hidden_layers"], pp, pp_layers), pp_layers is not None
        self.drafts = drafts and self.c.get("num_nextn_predict_layers", 0) > 0

    def options(self):
        out = ["--tp", self.tp, "--ep", self.ep, "--pp-layers", ",".join(map(str, self.stages))]
        out += ["--pad-vocab", self.pad] if self.pad else []
        out += ["--split", self.split] if self.split else []
        return out + ["--engram", "shared"] if self.shared else out

    def inside(self, rel):
        """Does tp cut a weight of this name inside a scale block?"""
        lengths = {"attn.wo_a": self.c["o_groups"] * self.c["o_lora_rank"], "attn.wo_b": self.c["o_groups"] * self.c["o_lora_rank"]}
        lengths |= {f"ffn.shared_experts.w{i}": self.c["moe_intermediate_size"] for i in (1, 2, 3)}
        return rel in lengths and lengths[rel] % (32 * self.tp) != 0

    def treat(self, tensors):
        """Tensors as they are before they are cut, and what is kept aside."""
        out, kept = dict(tensors), {}
        for name, (dtype, shape, data) in tensors.items():
            rel = re.sub(r"^(layers|mtp)\.\d+\.", "", name)
            if not rel.endswith(".weight") or dtype != "F8_E4M3" or not self.inside(rel[:-len(".weight")]) or self.split == "pad":
                continue
            scale = name[:-len("weight")] + "scale"
            sd, ss, sdata = tensors[scale]
            if self.split == "expand1x32" and rel[:-len(".weight")] in CUT_ROWS:
                grid = np.repeat(np.frombuffer(sdata, np.uint8).reshape(ss), 32, 0)[:shape[0]]
                out[scale] = (sd, grid.shape, grid.tobytes())
            else:
                out[name] = ("BF16", shape, ckpt.decode(name, tensors))
                kept[scale] = out.pop(scale)
        return out, kept

    def on_stage(self, name, stage):
        first, last = stage == 0, stage == self.pp - 1
        m = re.match(r"layers\.(\d+)\.", name)
        if m:
            return sum(self.stages[:stage]) <= int(m[1]) < sum(self.stages[:stage + 1])
        if name.startswith("embed."):
            return first or (last and self.drafts)
        return first if name.startswith(("vision.", "aligner.", "image_")) else last

    def part(self, name, tensor, rank):
        """(shape, start, global shape, bytes) of rank's part, None when it has none. Experts come singly."""
        stage, r = divmod(rank, self.w)
        if not self.on_stage(name, stage):
            return None
        dtype, shape, data = tensor
        stem, kind = name.rsplit(".", 1) if name.endswith((".weight", ".scale")) else (name, "")
        rel = re.sub(r"^(layers|mtp)\.\d+\.", "", stem)
        a, t, tp = array(tensor), r % self.tp, self.tp
        start, whole = [0] * len(shape), list(shape)
        if rel.startswith("ffn.experts."):
            total = self.c["dspark_n_routed_experts" if name.startswith("mtp.") else "n_routed_experts"]
            n, e = total // self.ep, int(rel.split(".")[2])
            if e // n != r * self.ep // self.w:
                return None
        elif rel == "engram.embed":
            if self.shared:
                return None if r else (list(shape), start, whole, data)
            per = -(-shape[0] // self.w)
            whole[0], start[0] = per * self.w, per * r
            a = pad(a[per * r:per * (r + 1)], per, 127 if kind == "scale" else 0)
        elif self.split == "pad" and self.inside(rel):
            block = 32 if kind == "scale" else 1
            per, value = -(-self.c["moe_intermediate_size"] // (32 * tp)) * 32 // block, 127 if kind == "scale" else 0
            if rel in CUT_ROWS:
                whole[0], start[0] = per * tp, per * t
                a = pad(a[per * t:per * (t + 1)], per, value)
            else:
                size = WIDTH.get(dtype, 1)
                whole[1], start[1] = per * tp, per * t
                a = pad(a[:, per * t * size:per * (t + 1) * size].T, per * size, value).T
        elif rel in CUT_ROWS:
            rows = shape[0]
            if self.pad and rel in ("embed", "head"):
                rows = -(-rows // (self.pad * tp)) * self.pad * tp
            per = rows // tp
            assert per * tp == rows
            whole[0], start[0] = rows, per * t
            a = pad(a[per * t:per * (t + 1)], per, 0)
        elif rel in CUT_COLS:
            per = a.shape[1] // tp
            start[1] = shape[1] // tp * t
            a = a[:, per * t:per * (t + 1)]
        shape = [a.shape[0]] + [a.shape[1] // WIDTH.get(dtype, 1)] * (len(shape) - 1)
        return shape, start, whole, a.tobytes()

    def ranks(self):
        return self.w * self.pp

    def expected(self, tensors, rank):
        """{name: (dtype, shape, start, global shape, bytes)} with experts stacked."""
        out = {}
        for name, t in tensors.items():
            p = self.part(name, t, rank)
            if p is None:
                continue
            m = re.match(r"(.*\.ffn\.experts\.)(\d+)\.(.*)$", name)
            if not m:
                out[name] = (t[0], *p)
                continue
            out.setdefault(m[1] + m[3], {})[int(m[2])] = (t[0], p)
        for name, v in out.items():
            if isinstance(v, dict):
                total = self.c["dspark_n_routed_experts" if name.startswith("mtp.") else "n_routed_experts"]
                ids = sorted(v)
                assert ids == list(range(ids[0], ids[0] + total // self.ep))
                shape = v[ids[0]][1][0]
                out[name] = (v[ids[0]][0], [len(ids), *shape], [ids[0], 0, 0], [total, *shape], b"".join(v[e][1][3] for e in ids))
        return out


def pad(a, rows, value):
    missing = rows - a.shape[0]
    return np.concatenate([a, np.full((missing, a.shape[1]), value, np.uint8)]) if missing else a


def manifest(folder, rank):
    return json.loads((pathlib.Path(folder) / f"rank-{rank:04d}" / "manifest.json").read_text())


def held(folder, rank):
    """{name: (dtype, shape, start, global shape, bytes)} by a rank's manifest and files, its own ones."""
    m, out = manifest(folder, rank), {}
    for t in m["tensors"]:
        file = m["files"][t["file"]]
        if "rank" in file:
            continue
        path = pathlib.Path(folder) / f"rank-{rank:04d}" / file["name"]
        h, base, _ = ckpt.header(path)
        e = h[t["name"]]
        a, b = e["data_offsets"]
        assert base + a == t["offset"] and e["shape"] == t["shape"] and e["dtype"] == t["dtype"]
        with open(path, "rb") as f:
            f.seek(base + a)
            out[t["name"]] = (t["dtype"], t["shape"], t["start"], t["global_shape"], f.read(b - a))
    return out


def value_sums(folder, ranks):
    """{name: (class, shape, sum)} over the distinct parts that ranks record; experts under their own names."""
    seen, out = {}, {}
    for rank in range(ranks):
        for t in manifest(folder, rank)["tensors"]:
            if not t["value"]:
                continue
            for i, digest in enumerate(t["value"]["digests"]):
                name = t["name"]
                if ".ffn.experts." in name:
                    name = name.replace(".ffn.experts.", f".ffn.experts.{t['start'][0] + i}.")
                key = (name, tuple(t["start"]), tuple(t["shape"]))
                assert seen.setdefault(key, digest) == digest, key
                out.setdefault(name, {})[key] = (t["value"]["class"], tuple(t["value"]["shape"]), int(digest, 16))
    return {n: (*next(iter(p.values()))[:2], sum(v[2] for v in p.values()) % 2 ** 128) for n, p in out.items()}
