"""A checkpoint for the python tests: raw tensors in, raw tensors out, damage in between. Independent of the C code."""
import json
import pathlib
import shutil
import struct

import numpy as np

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3_table():
    t = np.zeros(256, np.float32)
    for c in range(256):
        e, m = c >> 3 & 15, c & 7
        v = np.nan if (e, m) == (15, 7) else m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        t[c] = -v if c & 128 else v
    return t


E4M3 = e4m3_table()
E8M0 = np.array([2.0 ** (b - 127) for b in range(255)] + [np.nan]).astype(np.float32)


def header(path):
    """(header dict without metadata, offset of the data, metadata)"""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        h = json.loads(f.read(n))
    meta = h.pop("__metadata__", None)
    return h, 8 + n, meta


def tensors(path):
    """{name: (dtype, shape, bytes)} of a file, or of all *.safetensors of a folder."""
    path = pathlib.Path(path)
    out = {}
    for f in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        h, base, _ = header(f)
        data = f.read_bytes()
        for name, t in h.items():
            a, b = t["data_offsets"]
            assert name not in out
            out[name] = (t["dtype"], tuple(t["shape"]), data[base + a:base + b])
    return out


def write_file(path, items):
    """items: {name: (dtype, shape, bytes)} in data order."""
    h, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in items.items():
        h[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(h, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in items.values():
            f.write(data)


def write_folder(folder, items, source, shards=2, edit=None):
    """A checkpoint folder of items with the small files of source; edit(config) may change the config."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for f in pathlib.Path(source).iterdir():
        if f.suffix == ".json" and "index" not in f.name:
            shutil.copy(f, folder)
    names, where = list(items), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: items[n] for n in names[i::shards]}
        write_file(folder / file, part)
        where.update({n: file for n in part})
    total = sum(len(d) for _, _, d in items.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    if edit:
        config = json.loads((folder / "config.json").read_text())
        edit(config)
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def decode(name, items):
    """bf16 bytes of a weight as the released formats define them."""
    dtype, shape, data = items[name]
    if dtype == "BF16":
        return data
    sd, ss, sdata = items[name[:-len("weight")] + "scale"]
    scale = E8M0[np.frombuffer(sdata, np.uint8).reshape(ss)]
    codes = np.frombuffer(data, np.uint8).reshape(shape)
    if dtype == "I8":
        values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(shape[0], -1)
        full = np.repeat(scale, 32, 1)
    else:
        values = E4M3[codes]
        full = np.repeat(np.repeat(scale, 32, 0), 32, 1)
    x = values * full[:values.shape[0], :values.shape[1]]
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "not exact in bf16"
    return (bits >> 16).astype(np.uint16).tobytes()
