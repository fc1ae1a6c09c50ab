"""baleen convert --device: the options, failures on a CUDA runtime that only records (tests/stub/cudart.h), bytes where there is a GPU."""
import os

import pytest
from conftest import BUILD, run

PROGRAM = BUILD / "tests" / "baleen_gpu_stub"
NO_DEVICE, OLD_DRIVER, ILLEGAL = 100, 35, 700


@pytest.fixture(scope="module")
def source(baleen, tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "source"
    assert baleen("synth", path, "--preset", "tiny").rc == 0
    return path


def one_line(r, rc, *words):
    assert r.rc == rc and r.err.count("\n") == 1 and r.err.startswith("baleen convert: "), (r.rc, r.err)
    for w in words:
        assert w in r.err, r.err


def test_options(baleen, source, tmp_path):
    out = tmp_path / "out"
    one_line(baleen("convert", source, out, "--to", "packed", "--device", "cpu"), 2, "--device goes with --to bf16")
    one_line(baleen("convert", source, out, "--to", "bf16", "--device", "gpu"), 2, "cpu or cuda", "'gpu'")
    assert not list(tmp_path.iterdir())
    assert baleen("convert", source, tmp_path / "cpu", "--to", "bf16", "--device", "cpu").rc == 0
    assert baleen("convert", source, tmp_path / "none", "--to", "bf16").rc == 0
    assert (tmp_path / "cpu" / "SHA256SUMS").read_bytes() == (tmp_path / "none" / "SHA256SUMS").read_bytes()


def test_without_a_gpu(baleen, source, tmp_path):
    r = baleen("convert", source, tmp_path / "out", "--to", "bf16", "--device", "cuda", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    one_line(r, 2, "CUDA")
    assert not list(tmp_path.iterdir())


def test_bytes_on_a_gpu(baleen, source, tmp_path):
    r = baleen("convert", source, tmp_path / "gpu", "--to", "bf16", "--device", "cuda")
    if r.rc == 2:
        pytest.skip(f"no GPU here: the bytes of casts on a GPU are NOT compared ({r.err.strip()})")
    assert r.rc == 0, r.err
    assert baleen("convert", source, tmp_path / "cpu", "--to", "bf16").rc == 0
    assert (tmp_path / "gpu" / "SHA256SUMS").read_bytes() == (tmp_path / "cpu" / "SHA256SUMS").read_bytes()
    assert baleen("verify", tmp_path / "gpu").rc == 0


def stub(source, out, **env):
    return run(PROGRAM, "convert", source, out, "--to", "bf16", "--device", "cuda", env={**os.environ, **env})


@pytest.mark.skipif(not PROGRAM.exists(), reason="no nvcc: failures of casts on a GPU are NOT tested")
def test_failures(source, tmp_path):
    cases = [({"CUDA_STUB_NONE": "1"}, 2, "no CUDA-capable device"),
             ({"CUDA_STUB_FAIL": f"any 1 {OLD_DRIVER}"}, 2, "driver is too old"),
             ({"CUDA_STUB_FAIL": "cudaHostRegister 1 1"}, 4, "pinning buffers"),
             ({"CUDA_STUB_MEMORY": "1000"}, 4, "out of memory"),
             ({"CUDA_STUB_FAIL": f"cudaMemcpyAsync 50 {ILLEGAL}"}, 4, "casting weights: an illegal memory access"),
             ({"CUDA_STUB_FAIL": f"cudaLaunchKernel 9 {ILLEGAL}"}, 4, "illegal memory access"),
             ({"CUDA_STUB_FAIL": f"cudaStreamSynchronize 20 {ILLEGAL}"}, 4, "illegal memory access")]
    for env, rc, words in cases:
        one_line(stub(source, tmp_path / "out", **env), rc, words)
        assert not list(tmp_path.iterdir()), env


@pytest.mark.skipif(not PROGRAM.exists(), reason="no nvcc: the order of casts on a GPU is NOT tested")
def test_the_rest_is_as_on_the_cpu(baleen, source, tmp_path):
    """Kernels of the stub do nothing: files and headers are the same, and so is all that is not cast."""
    assert stub(source, tmp_path / "gpu").rc == 0
    assert baleen("convert", source, tmp_path / "cpu", "--to", "bf16").rc == 0
    same = differ = 0
    for a in sorted((tmp_path / "cpu").iterdir()):
        b = tmp_path / "gpu" / a.name
        assert b.stat().st_size == a.stat().st_size or a.suffix != ".safetensors"
        if a.read_bytes() == b.read_bytes():
            same += 1
        else:
            differ += 1
            assert a.suffix == ".safetensors" or a.name == "SHA256SUMS", a
    assert same > 2 and differ > 1
