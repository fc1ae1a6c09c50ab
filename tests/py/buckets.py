"""Weight-sync buckets as a receiver would read them, in Python: by tensor from the files, and from both forms of flattened metadata.
Independent of the C code."""
import ctypes
import json
import pathlib
import re

import numpy as np
from safetensors import deserialize

TORCH = {"BF16": "bfloat16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "I8": "int8", "I64": "int64",
         "I32": "int32"}
WIDTH = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e8m0fnu": 1, "int8": 1, "uint8": 1, "int64": 8, "int32": 4}


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


LIB = ctypes.CDLL("libxxhash.so.0")
LIB.XXH3_128bits.restype = Hash128
LIB.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3(data):
    """XXH3-128 by the library itself."""
    h = LIB.XXH3_128bits(data, len(data))
    return f"{h.high:016x}{h.low:016x}"


def read(folder):
    return json.loads((pathlib.Path(folder) / "buckets.json").read_text())


def joined(parts):
    """{name: (dtype, shape, bytes)} of [(name, dtype, shape, bytes, slice)]: slices put together."""
    out, slices = {}, {}
    for name, dtype, shape, data, cut in parts:
        if cut is None:
            assert name not in out
            out[name] = (dtype, tuple(shape), data)
        else:
            assert name == f"{cut['of']}[{cut['row']}:{cut['row'] + shape[0]}]"
            slices.setdefault(cut["of"], []).append((cut["row"], cut["rows"], dtype, tuple(shape), data))
    for name, list_ in slices.items():
        list_.sort()
        at, rows, dtype, shape = 0, *list_[0][1:4]
        for row, all_, d, s, _ in list_:
            assert (row, all_, d, s[1:]) == (at, rows, dtype, shape[1:]), name
            at += s[0]
        assert at == rows and name not in out and len(list_) > 1, name
        out[name] = (dtype, (rows, *shape[1:]), b"".join(p[4] for p in list_))
    return out


def by_name(folder):
    """Through safetensors, every file whole; checks what buckets.json says of it."""
    folder, about, parts = pathlib.Path(folder), read(folder), []
    files = {f.name for f in folder.glob("*.safetensors")}
    assert files == {b["name"] for b in about["buckets"]}
    for b in about["buckets"]:
        raw = (folder / b["name"]).read_bytes()
        have = {n: (t["dtype"], t["shape"], bytes(t["data"])) for n, t in deserialize(raw)}
        data = raw[b["data_offset"]:]
        assert len(data) == b["nbytes"] and xxh3(data) == b["xxh3"] and b["data_offset"] % 4096 == 0
        pads = [n for n in have if n.startswith("__pad__.")]
        assert sorted(pads, key=lambda n: int(n[8:])) == [f"__pad__.{i}" for i in range(len(pads))]
        for n in pads:
            dtype, _, zeros = have.pop(n)
            assert dtype == "U8" and not any(zeros) and 0 < len(zeros) < about["align"]
        assert set(have) == {t["name"] for t in b["tensors"]}
        for t in b["tensors"]:
            assert have[t["name"]][:2] == (t["dtype"], t["shape"])
            assert data[t["offset"]:t["offset"] + t["nbytes"]] == have[t["name"]][2] and xxh3(have[t["name"]][2]) == t["xxh3"]
            assert t["offset"] % max(about["align"], WIDTH[TORCH[t["dtype"]]]) == 0
            parts.append((t["name"], *have[t["name"]], t.get("slice")))
    return joined(parts)


def flattened(folder, unit):
    """From one of the flattened forms alone, as a serving engine takes views of a buffer."""
    folder, parts = pathlib.Path(folder), []
    about = json.loads((folder / f"flattened.{unit}.json").read_text())
    assert about["index_unit"] == unit and about["supports_multi_dtypes"] is (unit == "bytes")
    names = {v: k for k, v in TORCH.items()}
    for b in about["buckets"]:
        raw = np.fromfile(folder / b["file"], np.uint8)
        width = 1 if unit == "bytes" else WIDTH[b["dtype"]]
        buffer = raw[b["data_offset"]:b["data_offset"] + b["numel"] * width]
        assert len(buffer) == b["numel"] * width and (b["dtype"] == "uint8") == (unit == "bytes")
        for m in b["metadata"]:
            assert unit == "bytes" or m["dtype"] == b["dtype"]
            assert m["end_idx"] - m["start_idx"] == m["numel"] == int(np.prod(m["shape"])) * WIDTH[m["dtype"]] // width
            view = buffer[m["start_idx"] * width:m["end_idx"] * width]
            parts.append((m["name"], names[m["dtype"]], m["shape"], view.tobytes(), m.get("slice")))
    return joined(parts)


def group_of(name):
    """What a tensor travels with, said a second time."""
    stem = re.sub(r"\.(weight|scale|weight_scale_inv)$", "", re.sub(r"\[\d+:\d+\]$", "", name))
    stem = re.sub(r"(\.indexer\.compressor)\..*", r"\1", stem)
    stem = re.sub(r"\.attn\.wkv$", ".attn.wq_a", stem)
    stem = re.sub(r"(\.compressor)\.wgate$", r"\1.wkv", stem)
    return re.sub(r"\.kv_a_proj_with_mqa$", ".q_a_proj", stem)


def check_groups(folder):
    """No group is in two buckets, and the numbers say what the names say; rows of a slice travel with their scales."""
    where, numbers = {}, {}
    for i, b in enumerate(read(folder)["buckets"]):
        inside = {}
        for t in b["tensors"]:
            inside.setdefault(t["group"], []).append(t)
            assert where.setdefault(t["group"], i) == i
            if "slice" not in t:
                assert numbers.setdefault(group_of(t["name"]), t["group"]) == t["group"], t["name"]
        for list_ in inside.values():
            assert len({group_of(t["name"]) for t in list_}) == 1
            cut = [t for t in list_ if "slice" in t]
            assert len(cut) in (0, len(list_))
            for t in cut:
                whole = next(u for u in cut if not re.search(r"scale(_inv)?\[", u["name"]))
                share = whole["slice"]["row"] * t["slice"]["rows"] / whole["slice"]["rows"]
                assert abs(t["slice"]["row"] - share) < 1
    assert len(set(numbers.values())) == len(numbers)
