"""Shared by the python tests: where the build, the shared material and the demo model are, and how to run the programs."""
import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: workers and programs have the CPUs, and idle threads of it spin

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BL_BUILD", ROOT / "build-test"))
SHARED = pathlib.Path(os.environ.get("BL_SHARED", ROOT.parent / "shared"))
DEMO = ROOT / "tools" / "demo-model"
DEVICE = os.environ.get("BL_DEVICE")  # cuda: forward passes of these tests run there


class Result:
    """Exit status, standard output and error of a finished program."""

    def __init__(self, done):
        self.rc, self.out, self.err = done.returncode, done.stdout, done.stderr


def run(*args, timeout=300, env=None, **kw):
    """Run BUILD/tools/PROGRAM with the rest of the arguments; text in and out."""
    program, *rest = [str(a) for a in args]
    if DEVICE and rest[:1] in (["logits"], ["generate"]) and "--device" not in rest:
        rest += ["--device", DEVICE]
    done = subprocess.run([str(BUILD / "tools" / program), *rest], capture_output=True, text=True, timeout=timeout, env=env, **kw)
    return Result(done)


def without_privilege(*args):
    """Run baleen without the right to read everything, which root has."""
    prefix = []
    if os.geteuid() == 0:
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        if not shutil.which("setpriv") or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            pytest.skip("root without setpriv: files that may not be read are NOT tested")
    return Result(subprocess.run([*prefix, str(BUILD / "tools" / "baleen"), *map(str, args)], capture_output=True, text=True, timeout=60))


def driver(name):
    """The library BUILD/tests/NAME with functions for this interpreter to call; skips where there is none that it can load."""
    path = BUILD / "tests" / name
    if not path.exists():
        pytest.skip(f"{path} is not built: NOT checked against the oracle")
    if b"__asan_init" in path.read_bytes():
        pytest.skip(f"{name} has the address sanitizer, which has to come before this interpreter: NOT checked against the oracle")
    return ctypes.CDLL(str(path))


def peak_memory(*args):
    """Most resident memory of a command that succeeds, in KiB."""
    child = subprocess.Popen([BUILD / "tools" / "baleen", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0  # not ru_maxrss: that remembers this interpreter's size from before the exec
    while child.poll() is None:
        with contextlib.suppress(OSError):
            hwm = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{child.pid}/status").read_text())
            peak = max(peak, int(hwm[1]) if hwm else 0)
        time.sleep(0.005)
    assert child.returncode == 0, child.stderr.read()
    return peak


@pytest.fixture(scope="session")
def baleen():
    """baleen("verify", PATH, ...) -> Result; fails the test when the program is killed by a signal."""

    def call(*args, **kw):
        r = run("baleen", *args, **kw)
        assert r.rc >= 0, f"baleen {args} died of signal {-r.rc}: {r.err[-2000:]}"
        return r

    return call


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    """A small random checkpoint in two shards, without SHA256SUMS. Copy it before changing anything."""
    out = tmp_path_factory.mktemp("nano") / "nano"
    assert run("baleen", "synth", out, "--preset", "nano", "--shards", "2").rc == 0
    return out


@pytest.fixture(scope="session")
def demo_packed(tmp_path_factory):
    """The demo model packed. Copy it before changing anything."""
    out = tmp_path_factory.mktemp("demo") / "packed"
    assert run("baleen", "convert", DEMO, out, "--to", "packed").rc == 0
    return out


@pytest.fixture(scope="session")
def shared():
    """The folder of goldens and the oracle; tests that need it are skipped, loudly, where it is absent."""
    if not (SHARED / "oracle" / "model.py").exists():
        pytest.skip(f"no shared material at {SHARED}: goldens and oracle checks are NOT run")
    if str(SHARED / "oracle") not in sys.path:
        sys.path.insert(0, str(SHARED / "oracle"))
    return SHARED


@pytest.fixture(scope="session")
def make_checkpoint(shared, tmp_path_factory):
    """make_checkpoint("tiny", seed=4, n_routed_experts=6) -> folder, made once per distinct call."""
    made = {}

    def make(preset="tiny", seed=1, shards=3, **overrides):
        key = (preset, seed, shards, tuple(sorted((k, str(v)) for k, v in overrides.items())))
        if key not in made:
            import make_checkpoint as mc

            out = tmp_path_factory.mktemp(preset) / "ckpt"
            mc.build(str(out), preset, seed, shards, overrides)
            made[key] = out
        return made[key]

    return make
