"""The bench frame: what it prints and refuses. No timings are judged."""
import json
import signal
import subprocess
import sys
import time

from conftest import BUILD, DEMO, ROOT, run


def test_cast_reports_every_subject_beside_its_ceiling():
    r = run("baleen", "bench", "cast", "--rounds", "1", "--size", "16MiB", "--threads", "2", "--json")
    assert r.rc == 0, r.err
    doc = json.loads(r.out)
    assert doc["bench"] == "baleen bench cast"
    memory = doc["sets"][0]
    assert memory["threads"] == 2 and memory["rounds"] == 1
    figures = {f["name"]: f for f in memory["figures"]}
    for name in ("fp4 1x32", "fp8 32x32", "fp8 1x32"):
        f = figures[name]
        assert f["unit"] == "GB/s" and 0 < f["rate"]["p10"] <= f["rate"]["median"] <= f["rate"]["p90"]
        assert f["ceiling"] in figures and f["share"]["median"] > 0
    back = {f["name"]: f for f in doc["sets"][-1]["figures"]}
    assert back["fp8 32x32"]["ceiling"] in back and back["fp4 1x32, compared"]["share"]["median"] > 0


def test_table_names_cpu_load_and_threads():
    r = run("baleen", "bench", "cast", "--rounds", "1", "--size", "1MiB", "--threads", "1", "--cpu", "c")
    assert r.rc == 0 and "level c" in r.out and "load " in r.out and "1 thread" in r.out


def test_disk_ceiling_leaves_nothing_behind(tmp_path):
    r = run("baleen", "bench", "ceilings", "--rounds", "1", "--threads", "1", "--disk", tmp_path, "--size", "4MiB")
    assert r.rc == 0 and "plain writer" in r.out
    assert list(tmp_path.iterdir()) == []


def test_files_beside_python_are_compared_before_they_are_timed(tmp_path):
    script = [sys.executable, ROOT / "tests" / "py" / "bench_files.py", "--build", BUILD, "--work", tmp_path / "w"]
    r = subprocess.run([*script, "--source", DEMO, "--rounds", "1"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "all outputs equal" in r.stdout
    for name in ("baleen, all threads", "baleen, 1 thread", "safetensors + numpy", "copy of as many bytes"):
        assert f"\n  {name} " in r.stdout
    assert list((tmp_path / "w").iterdir()) == []
    r = subprocess.run([*script, "--big", "20MB"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0 and r.stdout.count("peak ") == 2, r.stdout + r.stderr


def test_wrong_usage():
    for args in (["bench"], ["bench", "nothing"], ["bench", "cast", "--rounds", "0"], ["bench", "cast", "--cpu", "sse"],
                 ["bench", "cast", "--threads", "-1"]):
        r = run("baleen", *args)
        assert r.rc == 2 and r.err.count("\n") == 1, args


def test_ops_reports_every_set():
    r = run("baleen", "bench", "ops", "--rounds", "1", "--threads", "1", "--json")
    assert r.rc == 0, r.err
    sets = json.loads(r.out)["sets"]
    assert len(sets) == 3 and all(f["rate"]["median"] > 0 for s in sets for f in s["figures"])


def test_convert_runs_what_is_chosen(tmp_path):
    src, work = tmp_path / "src", tmp_path / "work"
    work.mkdir()
    assert run("baleen", "synth", src, "--preset", "nano").rc == 0
    r = run("baleen", "bench", "convert", work, "--source", src, "--only", "writer,packed,packed-nodigests,verify", "--rounds", "2",
            "--writer-size", "1MiB", "--json")
    assert r.rc == 0, r.err
    packed, verify = json.loads(r.out)["sets"]
    figures = {f["name"]: f for f in packed["figures"]}
    assert set(figures) == {"plain writer, O_DIRECT", "packed without XXH3 digests", "convert --to packed"}
    f = figures["convert --to packed"]
    assert f["runs"] == 2 and f["ceiling"] in figures and f["beside"] in figures and f["cpu_seconds"] > 0
    assert "in the page cache" in packed["title"] and "fsync" in packed["title"]
    assert verify["figures"][1]["rate"]["median"] > 0
    assert list(work.iterdir()) == [] and src.exists()
    for only in ("writer", "packed,nothing", ""):
        r = run("baleen", "bench", "convert", work, "--source", src, "--only", only)
        assert r.rc == 2 and r.err.count("\n") == 1, only


def test_bucket_stands_beside_the_copy_ceiling(tmp_path):
    src, work = tmp_path / "src", tmp_path / "work"
    work.mkdir()
    assert run("baleen", "synth", src, "--preset", "nano").rc == 0
    r = run("baleen", "bench", "bucket", work, "--source", src, "--bucket-size", "256KiB", "--rounds", "1", "--threads", "1", "--json")
    assert r.rc == 0, r.err
    made, verify = json.loads(r.out)["sets"]
    assert "groups" in made["title"] and "buckets" in made["title"]
    figures = {f["name"]: f for f in made["figures"]}
    assert any("copy" in n for n in figures) and figures["bucket"]["rate"]["median"] > 0
    assert figures["bucket --no-sha256"]["ceiling"] in figures and figures["bucket"]["beside"] == "bucket --no-sha256"
    assert verify["figures"][1]["rate"]["median"] > 0
    assert list(work.iterdir()) == [] and src.exists()


def test_convert_interrupted_prints_what_it_has(tmp_path):
    src, work = tmp_path / "src", tmp_path / "work"
    work.mkdir()
    assert run("baleen", "synth", src, "--preset", "nano").rc == 0
    p = subprocess.Popen([str(BUILD / "tools" / "baleen"), "bench", "convert", work, "--source", src, "--only", "packed", "--rounds", "10000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rounds, there, until = 0, False, time.monotonic() + 120
    while rounds < 3 and time.monotonic() < until:  # the output comes and goes
        there, before = any(work.glob("*-out")), there
        rounds += there and not before
        time.sleep(0.005)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode != 0 and err.count("\n") == 1
    assert "convert --to packed" in out and " runs)" in out
    assert list(work.iterdir()) == []


def test_scan(tmp_path):
    r = run("baleen", "bench", "scan", tmp_path, "--rounds", "1", "--json")
    assert r.rc == 0, r.err
    figures = {f["name"]: f for f in json.loads(r.out)["sets"][0]["figures"]}
    assert figures["headers and index"]["share"]["median"] > 0 and "95819 tensors" in json.loads(r.out)["sets"][0]["title"]
    assert list(tmp_path.iterdir()) == []
    r = run("baleen", "bench", "scan", "--source", tmp_path, "--rounds", "1")
    assert r.rc == 3 and r.err.count("\n") == 1
