"""Golden files against what `baleen logits` computes: rows of each intermediate, and whole distributions."""
import json
import struct

import numpy as np

NP = {"F32": np.float32, "BF16": np.uint16, "I64": np.int64, "I32": np.int32}


def read(path):
    """{name: array}, BF16 as float32; and the metadata."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    meta, out = header.pop("__metadata__", {}), {}
    for name, t in header.items():
        a = np.frombuffer(data[slice(*t["data_offsets"])], NP[t["dtype"]]).reshape(t["shape"])
        out[name] = (a.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else a
    return out, meta


def log_softmax(a):
    a = a - a.max(-1, keepdims=True)
    return a - np.log(np.exp(a).sum(-1, keepdims=True))


def distance(got, want):
    """Of logits: (KL, mean |dlogp|, share of rows with the same best token)."""
    a, b = log_softmax(got), log_softmax(want)
    return (np.exp(b) * (b - a)).sum(1).mean(), np.abs(a - b).mean(), (a.argmax(1) == b.argmax(1)).mean()


def row_errors(got, want):
    g, w = got.reshape(len(got), -1), want.reshape(len(want), -1)
    return np.linalg.norm(g - w, axis=1) / np.maximum(np.linalg.norm(w, axis=1), 1e-9)


def agree(got, want):
    """Nearly every row equal to the bit: the median error 0, nine in ten under 1e-2."""
    e = row_errors(got, want)
    return np.median(e) < 1e-6 and np.quantile(e, .9) < 1e-2


def same_selection(got, want):
    """Share of rows that chose the same entries (lists may be padded to different lengths)."""
    return np.mean([[v for v in a if v >= 0] == [v for v in b if v >= 0] for a, b in zip(got.tolist(), want.tolist())])


def layer_failures(trace, golden):
    """Names of what a traced pass on golden inputs got wrong, layer by layer; empty when all agrees."""
    bad = []
    for name, want in golden.items():
        part = name.split(".", 2)[-1]
        if not name.startswith("layers.") or name not in trace:
            continue
        got = trace[name]
        if part == "selected":
            ok = same_selection(got, want) > 0.9
        elif part == "engram.rows":
            ok = (got == want).all()
        elif part == "ffn.experts":
            ok = np.mean(np.sort(got, 1) == np.sort(want, 1)) > 0.9
        elif part in ("attn.in", "ffn.in", "attn.out", "ffn.out", "in", "out"):
            ok = agree(got, want)
        else:  # float32 coefficients
            ok = np.median(np.abs(got - want)) < 1e-5
        if not ok:
            bad.append(name)
    return bad
