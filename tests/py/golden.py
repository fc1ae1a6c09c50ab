"""Golden files against what `baleen logits` computes: rows of each intermediate, and whole distributions."""
import numpy as np

import ckpt

NP = {"F32": np.float32, "BF16": np.uint16, "I64": np.int64, "I32": np.int32}


def array(tensor):
    """A raw tensor as numpy array, BF16 as float32."""
    dtype, shape, data = tensor
    a = np.frombuffer(data, NP[dtype]).reshape(shape)
    return (a.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else a


def read(path):
    """{name: array} of a file, or of all files of a folder."""
    return {k: array(t) for k, t in ckpt.tensors(path).items()}


def bits(a):
    return a.view(np.uint32)


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


def layer_agrees(name, got, want):
    part = name.split(".", 2)[2]
    if part == "selected":
        return same_selection(got, want) > 0.9
    if part == "engram.rows":
        return bool((got == want).all())
    if part == "ffn.experts":
        return np.mean((np.sort(got, 1) == np.sort(want, 1)).all(1)) > 0.9
    if part in ("pre_in", "pre_out", "ffn.gates"):  # float32, by transcendental functions of another library
        return np.median(row_errors(got, want)) < 1e-6
    return agree(got, want)


def layer_failures(trace, golden):
    """Names of what a traced pass on golden inputs got wrong, layer by layer; empty when all agrees."""
    names = [n for n in golden if n.startswith("layers.")]
    return [n for n in names if n not in trace or not layer_agrees(n, trace[n], golden[n])]
