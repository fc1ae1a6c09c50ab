"""baleend with the CUDA backend on a CUDA runtime that only records (tests/stub/cudart.h): what goes wrong, and what is said."""
import os
import re
import shutil

import pytest
from conftest import BUILD, DEMO, run
from serving import Server
from test_faults import environment

PROGRAM = BUILD / "tests" / "baleend_gpu_stub"
OUT_OF_MEMORY, NO_DEVICE, OLD_DRIVER, ILLEGAL = 2, 100, 35, 700

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no nvcc: the server's GPU failures are NOT tested")


def start(*args, **env):
    return run(PROGRAM, *args, "--device", "cuda", "--port", "0", timeout=60, env={**os.environ, **env})


def refused(*args, rc, words, **env):
    r = start(*args, **env)
    assert r.rc == rc and r.err.count("\n") == 1 and r.err.startswith("baleend: "), (r.rc, r.err)
    for w in words:
        assert w in r.err, r.err


@pytest.mark.parametrize("name,tensor", [("layer-03", "layers.3."), ("engram", "engram.embed"), ("mtp-00", "mtp.0.")])
def test_a_flipped_bit_is_found_on_the_way(demo_packed, tmp_path, name, tensor):
    shutil.copytree(demo_packed, tmp_path / "m")
    file = max((p for p in (tmp_path / "m" / "rank-0000").glob("*.safetensors") if name in p.name), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    refused(tmp_path / "m", "--check", "full", rc=3, words=[file.name, tensor, "differs from its digest"])


@pytest.mark.parametrize("access", ["auto", "pread", "mmap"])
def test_reads_that_fail_or_are_short(demo_packed, access):
    args = [demo_packed, "--access", access, "--check", "full"]
    r = start(*args, **environment("read:60+:EIO", "/rank-0000/"))
    assert r.rc == 4 and r.err.count("\n") == 1 and ".safetensors" in r.err and "Input/output error" in r.err, (r.rc, r.err)
    with Server("baleend_gpu_stub", *args, "--device", "cuda", env=environment("read:/2:SHORT", "/rank-0000/")) as s:
        assert s.alive()  # and every digest was right


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "config.source.json", "rank-0000/manifest.json"])
def test_what_lies_beside_the_weights_is_proven(demo_packed, tmp_path, name):
    shutil.copytree(demo_packed, tmp_path / "m")
    file = tmp_path / "m" / name
    text = file.read_bytes()
    file.write_bytes(text.replace(b" ", b"\t", 1) if b" " in text else text.replace(b"\n", b" ", 1))  # means the same
    assert file.read_bytes() != text
    refused(tmp_path / "m", "--check", "full", rc=3, words=[file.name, "SHA-256 differs"])


def test_cannot_start():
    refused(DEMO, rc=2, words=["no CUDA-capable device"], CUDA_STUB_NONE="1")
    refused(DEMO, rc=2, words=["driver is too old", "12.0", "13.0"], CUDA_STUB_FAIL=f"any 1 {OLD_DRIVER}")
    refused(DEMO, rc=4, words=["does not fit", "are free"], CUDA_STUB_MEMORY=str(5 * 10**8))
    refused(DEMO, rc=4, words=["out of"], CUDA_STUB_FAIL=f"cudaMalloc 2 {OUT_OF_MEMORY}")
    refused(DEMO, rc=4, words=["illegal memory access"], CUDA_STUB_FAIL=f"cudaMemcpyAsync 9 {ILLEGAL}")


@pytest.mark.parametrize("hidden,what", [(256, "laying out weights"), (192, "starting a pass")])
def test_experts_in_whole_tiles_are_laid_out_when_loaded(baleen, tmp_path, hidden, what):
    """By the first kernel that fails."""
    assert baleen("synth", tmp_path / "m", f"hidden_size={hidden}", "moe_intermediate_size=96").rc == 0
    refused(tmp_path / "m", rc=4, words=[f"{what}: an illegal memory access"], CUDA_STUB_FAIL=f"cudaLaunchKernel 1 {ILLEGAL}")


def test_huge_pages_are_counted(baleen, tmp_path):
    assert baleen("synth", tmp_path / "m", "engram_vocab_size=200000").rc == 0
    for where in ("host", "device", "mapped"):
        with Server("baleend_gpu_stub", tmp_path / "m", "--device", "cuda", "--engram", where) as s:
            line = s.line("Engram tables: ")
            m = re.search(f"{where}: as asked for; (\\d+) of (\\d+) MiB in huge pages$", line)
            assert bool(m) == (where == "host"), line
            assert not m or (int(m[1]) <= int(m[2]) and int(m[2]) >= 70), line


def test_auto_is_decided_once():
    """A device that answers now and then: all on one device or the other, and the server says which."""
    for fail, where in (("cudaGetDevice 1 46", "the CPU"), ("cudaGetDeviceProperties 1 46", "the CPU"), ("cudaGetDevice 9 46", "the GPU")):
        with Server("baleend_gpu_stub", "--device", "auto", env={"CUDA_STUB_FAIL": fail}) as s:
            assert s.line("ready in").endswith(f", on {where}")
            if where == "the CPU":
                assert "CUDA: looking for a device: " in s.line("the GPU is not used: ")
            assert s.alive() and (where == "the CPU" or not any("not used" in line for line in s.out))


def test_auto_says_why_a_gpu_is_not_used():
    with Server("baleend_gpu_stub", "--device", "auto", env={"CUDA_STUB_FAIL": f"any 1 {OLD_DRIVER}"}) as s:
        assert s.line("ready in").endswith(", on the CPU")
        assert "the driver is too old: it has CUDA 12.0" in s.line("the GPU is not used: ")
    with Server("baleend_gpu_stub", "--device", "auto", env={"CUDA_STUB_NONE": "1"}) as s:
        assert s.line("ready in").endswith(", on the CPU")
        assert s.alive() and not any("not used" in line for line in s.out)


def test_shapes_that_no_grid_holds(baleen, tmp_path):
    """Passes are as long as the choices of their tokens can be launched together."""
    assert baleen("synth", tmp_path / "m", "num_experts_per_tok=8", "n_routed_experts=16").rc == 0
    with Server("baleend_gpu_stub", tmp_path / "m", "--device", "cuda", "--step-tokens", 10000) as s:
        assert s.complete([5] * 9000, max_tokens=2)["usage"]["completion_tokens"] == 2
    assert baleen("synth", tmp_path / "wide", "q_lora_rank=16416", "--headers").rc == 0
    refused(tmp_path / "wide", rc=2, words=["q_lora_rank", "16384"])
