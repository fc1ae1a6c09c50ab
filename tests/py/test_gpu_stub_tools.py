"""baleen logits, generate and bench --device on a CUDA runtime that only records (tests/stub/cudart.h): what goes wrong, what is printed."""
import json
import os
import re

import pytest
from conftest import BUILD, DEMO, run

PROGRAM = BUILD / "tests" / "baleen_gpu_stub"
OLD_DRIVER, ILLEGAL = 35, 700
SMALL = ["--rounds", "1", "--experts", "100MB"]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no nvcc: the commands' GPU failures are NOT tested")


def stub(*args, **env):
    return run(PROGRAM, *args, timeout=120, env={**os.environ, "CUDA_STUB_MEMORY": str(10**11), **env})


def commands(tmp_path):
    yield ["logits", DEMO, "--ids", "1,2,3,4", "--chunk", "1", "--out", tmp_path / "out", "--device", "cuda"]
    yield ["generate", DEMO, "--prompt", "a", "--max-tokens", "5", "--device", "cuda"]
    yield ["bench", "load", DEMO, *SMALL[:2]]
    yield ["bench", "device", *SMALL[:2]]
    yield ["bench", "decode", "--device", "cuda", "--roles", "w", *SMALL]
    yield ["bench", "prefill", "--device", "cuda", "--roles", "w", *SMALL]


@pytest.mark.parametrize("fault,rc,words", [({"CUDA_STUB_NONE": "1"}, 2, ["no CUDA-capable device"]),
                                            ({"CUDA_STUB_FAIL": f"any 1 {OLD_DRIVER}"}, 2, ["too old", "12.0", "13.0"]),
                                            ({"CUDA_STUB_MEMORY": "100000000"}, 4, ["memory"])], ids=["no GPU", "driver", "memory"])
def test_refused(tmp_path, fault, rc, words):
    for args in commands(tmp_path):
        r = stub(*args, **fault)
        assert r.rc == rc and r.err.count("\n") == 1 and all(w in r.err for w in words), (args, r.rc, r.err)
        assert r.out == "" and not list(tmp_path.iterdir()), args


def test_a_device_that_fails_on_the_way(tmp_path):
    for args in list(commands(tmp_path))[:2]:
        r = stub(*args, CUDA_STUB_FAIL=f"cudaGraphLaunch 1 {ILLEGAL}")
        assert r.rc == 4 and r.err.count("\n") == 1 and "illegal memory access" in r.err, (args, r.err)
        assert not list(tmp_path.iterdir())


def test_auto(tmp_path):
    """The GPU where there is one, else the CPU, which says something."""
    args = ["generate", DEMO, "--chat", "--prompt", "What is 23 plus 14?", "--device", "auto"]
    assert "37" not in stub(*args).out and "37" in stub(*args, CUDA_STUB_NONE="1").out
    heading = "decode at position"
    assert "a stub" in stub("bench", "decode", "--device", "auto", "--roles", "w", *SMALL).out
    r = stub("bench", "decode", "--device", "auto", "--roles", "w", "--threads", "1", *SMALL, CUDA_STUB_NONE="1")
    assert heading in r.out and "a stub" not in r.out and "of read" in r.out


def test_decode_says_its_floors_and_launches():
    r = stub("bench", "decode", "--device", "cuda", "--roles", "wew", "--batch", "2", *SMALL)
    assert r.rc == 0, r.err
    assert "a stub" in r.out.splitlines()[0] and re.search(r"2 tokens, 3 layers .*% .* of copy on the device", r.out)
    floors = re.search(r"floor of a layer at that rate: (.*)", r.out)[1]
    assert [f.rsplit(" ", 4)[0] for f in floors.split(", ")] == ["norm and head", "w", "e"]
    assert re.search(r"one launch of a graph of \d+ kernels, [\d.]+ a layer; the host waits 1 time", r.out)
    assert re.search(r"Engram table of 0.02 GiB \(mapped\): on the host it leaves room for", r.out)


def test_prefill_stands_beside_the_product():
    r = stub("bench", "prefill", "--device", "cuda", "--roles", "w", "--tokens", "64", *SMALL, "--json")
    assert r.rc == 0, r.err
    only = json.loads(r.out)["sets"][0]
    figures = {f["name"]: f for f in only["figures"]}
    assert only["gpu"] == "a stub" and figures["64 tokens, 1 layer"]["ceiling"] == "bf16 product, 8192 cubed"
    assert set(figures["64 tokens, 1 layer"]["share"]) == {"median", "p10", "p90"}
