"""Whole conversions of a checkpoint to BF16: Baleen beside what one would write in Python, and beside copying as many bytes.

    python tests/py/bench_files.py --build BUILD --work DIR [--source CHECKPOINT] [--rounds N] [--cold] [--sha256]
    python tests/py/bench_files.py --build BUILD --work DIR --big 8GB

The Python subjects are the public approach: file by file, whole tensors, through safetensors; the arithmetic is torch's on the CPU or
numpy's. Both write what Baleen writes, and before anything is timed every tensor of every subject is compared by bytes. Then all
take turns, each in a process of its own that begins with the source in the page cache (--cold: without it); written files are
synchronised within the time. "copy" writes the converted files again with copy_file_range turned off and a buffer of 8 MiB: the rate
that the disk takes. Without --source a checkpoint of the released widths is made (3.5 GB). Peers that are not installed are
named as absent. torch comes small from Debian (python3-torch); any newer one is used as it is.

--big measures the memory of a conversion instead: a checkpoint whose one large tensor has that many bytes of (sparse) codes.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

if sys.argv[1:2] == ["--child"]:  # the parent stays small: what it holds counts as the peak of a process that it starts
    import numpy as np

    import ckpt

LEFT_OUT = ("mtp.", "vision.", "aligner.", "image_")
BUFFER = 8 << 20


# ---- the Python approach

def with_numpy():
    def decode(codes, scale):
        fp4, shape = codes.dtype == np.int8, codes.shape
        codes, scale = codes.view(np.uint8), ckpt.E8M0[scale.view(np.uint8)]
        if fp4:
            values = np.stack([ckpt.E2M1[codes & 15], ckpt.E2M1[codes >> 4]], -1).reshape(shape[0], -1)
            values = values.reshape(shape[0], -1, 32) * scale[:, :, None]
        else:
            values = ckpt.E4M3[codes] * np.repeat(np.repeat(scale, 32, 0)[:shape[0]], 32, 1)[:, :shape[1]]
        values = np.ascontiguousarray(values, np.float32).reshape(shape[0], -1)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    return decode


def with_torch():
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    e2m1 = torch.tensor([[ckpt.E2M1[b & 15], ckpt.E2M1[b >> 4]] for b in range(256)]).bfloat16()
    e4m3, e8m0 = torch.from_numpy(ckpt.E4M3).bfloat16(), torch.from_numpy(ckpt.E8M0).bfloat16()

    def look_up(table, codes):
        return table.index_select(0, codes.reshape(-1).int())

    def decode(codes, scale):
        fp4, shape = codes.dtype == np.int8, codes.shape
        codes = torch.from_numpy(codes.view(np.uint8))
        s = look_up(e8m0, torch.from_numpy(scale.view(np.uint8))).reshape(scale.shape)
        if fp4:
            values = look_up(e2m1, codes).reshape(shape[0], -1, 32) * s[:, :, None]
        else:
            f = codes.view(torch.float8_e4m3fn).bfloat16() if hasattr(torch, "float8_e4m3fn") else look_up(e4m3, codes)
            values = f.reshape(shape) * s.repeat_interleave(32, 0)[:shape[0]].repeat_interleave(32, 1)[:, :shape[1]]
        return values.reshape(shape[0], -1).contiguous().view(torch.int16).numpy()

    return decode


def convert(decode, source, out):
    """One file after the other: read all of it, decode every weight that has a scale, write all of it."""
    import ml_dtypes
    from safetensors import deserialize
    from safetensors.numpy import save_file

    types = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F32": np.float32,
             "I8": np.int8, "I64": np.int64}
    out.mkdir()
    where = places(source)

    def scale_of(name, tensors):
        """The scale of a weight; it may be in another file."""
        scale = name[:-len("weight")] + "scale"
        if ".engram.embed." in name or not name.endswith(".weight") or scale not in where:
            return None
        if scale in tensors:
            return tensors[scale]
        other, dtype, shape, begin, end = where[scale]
        return np.fromfile(other, np.uint8, end - begin, offset=begin).view(types[dtype]).reshape(shape)

    for path in sorted(source.glob("*.safetensors")):
        tensors = {n: np.frombuffer(t["data"], np.uint8).view(types[t["dtype"]]).reshape(t["shape"])
                   for n, t in deserialize(path.read_bytes()) if not n.startswith(LEFT_OUT)}
        result = {}
        for name, t in tensors.items():
            if ".engram.embed." not in name and name.endswith(".scale") and name[:-len("scale")] + "weight" in where:
                continue
            scale = scale_of(name, tensors)
            result[name] = t if scale is None else decode(t, scale).view(ml_dtypes.bfloat16)
        if result:
            save_file(result, str(out / path.name), {"format": "pt"})


def copy(source, out):
    out.mkdir()
    buffer = bytearray(BUFFER)
    for path in sorted(source.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as a, open(out / path.name, "wb", buffering=0) as b:
            while n := a.readinto(buffer):
                b.write(memoryview(buffer)[:n])


def places(folder):
    """{name: (file, dtype, shape, first byte, end)}"""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        h, base, _ = ckpt.header(path)
        found.update({n: (path, t["dtype"], t["shape"], *(base + o for o in t["data_offsets"])) for n, t in h.items()})
    return found


def compare(a, b):
    """Every tensor of a against that of b, by bytes."""
    left, right = places(a), places(b)
    if left.keys() != right.keys():
        sys.exit(f"{a} and {b} hold different tensors: {sorted(left.keys() ^ right.keys())[:5]}")
    for name, (path, dtype, shape, begin, end) in left.items():
        other, dtype2, shape2, begin2, end2 = right[name]
        with open(path, "rb") as f, open(other, "rb") as g:
            f.seek(begin)
            g.seek(begin2)
            same = (dtype, shape, end - begin) == (dtype2, shape2, end2 - begin2)
            for at in range(begin, end, BUFFER):
                same = same and f.read(min(BUFFER, end - at)) == g.read(min(BUFFER, end - at))
        if not same:
            sys.exit(f"{name} differs between {a} and {b}")


def make_big(folder, size):
    """An earlier generation's checkpoint whose one fp8 weight of size bytes is a hole in its file."""
    import gens

    items, config = gens.v3(scales="pow2")
    cols = 5120
    rows = int(size) // cols // 128 * 128
    name = next(n for n in items if n.endswith("self_attn.o_proj.weight"))
    items[name + "_scale_inv"] = ("F32", (rows // 128, cols // 128), np.ones(rows // 128 * cols // 128, np.float32).tobytes())
    items.pop(name)
    gens.write(folder, items, config, shards=1)
    path = folder / "model-00001-of-00001.safetensors"
    h, base, meta = ckpt.header(path)
    data = path.read_bytes()[base:]
    h[name] = {"dtype": "F8_E4M3", "shape": [rows, cols], "data_offsets": [len(data), len(data) + rows * cols]}
    text = json.dumps({"__metadata__": meta, **h}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    os.truncate(path, 8 + len(text) + len(data) + rows * cols)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"][name] = path.name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


CHILDREN = {"numpy": lambda a, b: convert(with_numpy(), a, b), "torch": lambda a, b: convert(with_torch(), a, b), "copy": copy,
            "compare": compare, "big": make_big}


# ---- running them

def measured(command):
    """(seconds until it has ended, its peak resident memory in bytes)"""
    begin = time.perf_counter()
    child = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with status {child.returncode}")
    return seconds, usage.ru_maxrss * 1024


def synchronise(folder):
    begin = time.perf_counter()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    return time.perf_counter() - begin


def page_cache(folder, cold):
    """Read the files of a folder, or drop them from the page cache."""
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as f:
            if cold:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                buffer = bytearray(BUFFER)
                while f.readinto(buffer):
                    pass


def subjects(a, source, reference):
    baleen = [a.build / "tools" / "baleen", "convert", source]
    more = ["--to", "bf16"] + ([] if a.sha256 else ["--no-sha256"])
    child = [sys.executable, pathlib.Path(__file__).resolve(), "--child"]
    table = {"baleen, all threads": lambda out: [*baleen, out, *more], "baleen, 1 thread": lambda out: [*baleen, out, *more, "--jobs", 1]}
    for name, module in (("torch", "torch"), ("numpy", "numpy")):
        if subprocess.run([sys.executable, "-c", f"import {module}, ml_dtypes, safetensors"], capture_output=True).returncode == 0:
            table[f"safetensors + {name}"] = lambda out, name=name: [*child, name, source, out]
        else:
            print(f"absent: safetensors + {name}")
    table["copy of as many bytes"] = lambda out: [*child, "copy", reference, out]
    return table


def bench(a):
    source = a.source or a.work / "source"
    if not source.exists():
        measured([a.build / "tools" / "baleen", "synth", source, "--preset", "wide", "n_routed_experts=14"])
    reference, out = a.work / "reference", a.work / "out"
    for folder in (reference, out):
        shutil.rmtree(folder, ignore_errors=True)
    measured([a.build / "tools" / "baleen", "convert", source, reference, "--to", "bf16"])
    size = sum(p.stat().st_size for p in reference.glob("*.safetensors"))
    read = sum(p.stat().st_size for p in source.glob("*.safetensors"))
    table = subjects(a, source, reference)
    for name, command in table.items():
        measured(command(out))
        measured([sys.executable, pathlib.Path(__file__).resolve(), "--child", "compare", reference, out])
        shutil.rmtree(out)
    print(f"all outputs equal; {read / 1e9:.2f} GB read, {size / 1e9:.2f} GB written, source {'cold' if a.cold else 'in the page cache'}, "
          f"{len(os.sched_getaffinity(0))} CPUs, SHA-256 by baleen {'on' if a.sha256 else 'off'}")
    times, memory, names = {n: [] for n in table}, {n: 0 for n in table}, list(table)
    for r in range(a.rounds):
        for i in range(len(names)):
            name = names[(r + i) % len(names)]
            page_cache(reference if name.startswith("copy") else source, a.cold)
            seconds, rss = measured(table[name](out))
            times[name].append(seconds + synchronise(out))
            memory[name] = max(memory[name], rss)
            shutil.rmtree(out)
    best = statistics.median(times[names[0]])
    print(f"load {' '.join(open('/proc/loadavg').read().split()[:3])}; {a.rounds} rounds\n"
          f"  {'':24} {'median s':>9} {'best s':>8} {'GB/s written':>13} {'peak MiB':>9} {'time / ours':>12}")
    for name, t in times.items():
        mid = statistics.median(t)
        print(f"  {name:24} {mid:9.2f} {min(t):8.2f} {size / mid / 1e9:13.3f} {memory[name] / 2**20:9.0f} {mid / best:12.2f}")
    for folder in [reference] + ([source] if not a.source else []):
        shutil.rmtree(folder)


def big(a):
    source, out = a.work / "big", a.work / "out"
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    measured([sys.executable, pathlib.Path(__file__).resolve(), "--child", "big", source, a.big])
    for jobs in (1, 2 * len(os.sched_getaffinity(0))):
        seconds, rss = measured([a.build / "tools" / "baleen", "convert", source, out, "--to", "bf16", "--jobs", jobs])
        print(f"one tensor of {a.big / 1e9:.2f} GB to BF16, {jobs} threads: peak {rss / 2**20:.0f} MiB, {seconds:.1f} s")
        shutil.rmtree(out)
    shutil.rmtree(source)


def size_of(text):
    units = {"MB": 10 ** 6, "GB": 10 ** 9, "MiB": 2 ** 20, "GiB": 2 ** 30}
    for unit, n in units.items():
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * n)
    return int(text)


def main():
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]) if sys.argv[2] != "big" else sys.argv[4])
        return
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="meson build folder")
    p.add_argument("--work", required=True, type=pathlib.Path, help="folder for outputs: its disk is measured")
    p.add_argument("--source", type=pathlib.Path, help="checkpoint in the released form (default: make one)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--cold", action="store_true", help="drop the source from the page cache before each run")
    p.add_argument("--sha256", action="store_true", help="let baleen hash what it writes, which no other subject does")
    p.add_argument("--big", type=size_of, help="measure the peak memory of converting one tensor of this size instead")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    (big if a.big else bench)(a)


if __name__ == "__main__":
    main()
