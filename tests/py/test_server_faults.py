"""A server whose device fails for good, or whose model puts out NaN: one line, /health says it, every request gets its answer at once."""
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BUILD, DEMO
from serving import Server

BODY = {"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": True}


def ask(s, **more):
    status, _, data = s.ask("POST", "/v1/completions", {**BODY, **more}, timeout=30)
    return status, data


def until_broken(s, **more):
    """The first answer that is not whole: how many come before the fault is up to the scheduler. A stream's status is 200 all the same."""
    for _ in range(1000):
        status, data = ask(s, **more)
        if status != 200 or b"error" in data:
            return status, data
    raise AssertionError("1000 whole answers: the fault did not come")


def expect_broken(s, words):
    """From the moment of the fault on, with requests under way."""
    with ThreadPoolExecutor(12) as pool:
        whole = [pool.submit(until_broken, s, seed=i) for i in range(10)]
        stream = pool.submit(until_broken, s, stream=True)
        assert {f.result(60)[0] for f in whole} <= {500, 503}
        assert stream.result(60)[0] in (200, 500, 503)
    status, _, health = s.ask("GET", "/health")
    assert status == 503 and health["status"] == "failed" and words in health["error"], health
    begin = time.monotonic()
    status, data = ask(s)
    assert status == 503 and data["error"]["code"] == "device_failed" and time.monotonic() - begin < 5
    assert s.ask("GET", "/metrics")[0] == 200
    s.stop(rc=4)
    assert len(s.err) == 1 and words in s.err[0], s.err


def test_device_fails():
    with Server("baleend_stub", "--max-requests", 4, env={"STUB_STEP_US": "1000", "STUB_FAULT_AFTER": "60"}) as s:
        expect_broken(s, "the stub is broken")


def test_device_fails_while_idle_requests_wait():
    with Server("baleend_stub", "--max-requests", 1, env={"STUB_STEP_US": "1000", "STUB_FAULT_AFTER": "1"}) as s:
        expect_broken(s, "the stub is broken")


@pytest.mark.skipif(not (BUILD / "tests" / "baleend_gpu_stub").exists(), reason="no nvcc: the server's GPU failures are NOT tested")
@pytest.mark.parametrize("fail", ["cudaStreamSynchronize 60 700", "cudaGraphLaunch 9 719", "cudaLaunchKernel 1000 700",
                                  "cudaMemcpyAsync 1000 700"])
def test_gpu_fails(fail):
    with Server("baleend_gpu_stub", DEMO, "--device", "cuda", "--max-requests", 4, env={**os.environ, "CUDA_STUB_FAIL": fail}) as s:
        expect_broken(s, "illegal memory access" if "700" in fail else "unspecified launch failure")


def test_nan():
    with Server("baleend_stub", env={"STUB_NAN_ID": "77"}) as s:
        for _ in range(2):
            assert ask(s, prompt=[5, 77], seed=2)[0] == 500  # drawn by the device
        assert ask(s, prompt=[5, 77], seed=3)[0] == 500
        assert ask(s, max_tokens=5, seed=1)[0] == 200  # without a seed 77 may be drawn, and put in
        status, _, health = s.ask("GET", "/health")
        assert status == 200 and health == {"status": "ready", "nan_outputs": 3}
        assert b"baleen:nan_outputs_total" in s.ask("GET", "/metrics")[2]
        s.stop()
        assert len(s.err) == 1 and "1 of the model's 305 logits are no numbers (NaN)" in s.err[0], s.err
