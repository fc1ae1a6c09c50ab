"""baleend --plan: what a model takes, for this machine or for a GPU that is not here."""
import json

import pytest
from conftest import DEMO, run


def plan(*args, rc=0):
    r = run("baleend", *args, "--plan", timeout=60)
    assert r.rc == rc, r.err
    return r


def test_json():
    p = json.loads(plan(DEMO, "--device", "cuda", "--memory", "141GB", "--max-requests", "3", "--max-context", "1000", "--json").out)
    assert p["device"] == "cuda" and p["fits"] is True and p["memory"] == 141 * 10**9
    assert p["cache"]["sequences"] == 3 and p["cache"]["context"] == 1000 and p["cache"]["tokens"] == 3000
    assert {"weights", "cache pages", "index scores", "experts", "chunk KV"} <= {line["what"] for line in p["lines"]} and p["reserve"] > 0
    for place, total in p["total"].items():
        assert total == sum(line["bytes"] for line in p["lines"] if line["place"] == place)


def test_text():
    text = plan(DEMO, "--device", "cuda", "--memory", "8GiB", "--cache-tokens", "12345").out
    assert "12345 tokens in 32 sequences" in text and "it fits" in text and "cache pages" in text
    assert "device" not in plan(DEMO, "--device", "cpu").out


def test_memory_means_a_gpu():
    assert plan(DEMO, "--memory", "8GiB").out == plan(DEMO, "--memory", "8GiB", "--device", "cuda").out
    for option in (["--memory", "8GiB"], ["--engram", "host"], ["--cache-tokens", "9"]):
        r = run("baleend", DEMO, "--plan", "--device", "cpu", *option, timeout=60)
        assert r.rc == 2 and r.err.count("\n") == 1 and option[0] in r.err, r.err


def test_too_small():
    r = plan(DEMO, "--device", "cuda", "--memory", "500MB", rc=1)
    assert "it does not fit" in r.out and r.err == ""
    assert json.loads(plan("--device", "cuda", "--memory", "500MB", "--json", rc=1).out)["fits"] is False


def test_tables_that_the_host_has_no_memory_for(baleen, tmp_path):
    assert baleen("synth", tmp_path / "full", "--preset", "full", "--headers").rc == 0
    r = run("baleend", tmp_path / "full", "--plan", "--memory", "900GB", "--engram", "host", "--json", timeout=60)
    p = json.loads(r.out)
    if p["total"]["pinned"] <= p["host_memory"]:
        pytest.skip("this host has memory for all tables: refusing them is NOT tested here (unit test memory_plan does)")
    assert r.rc == 1 and p["fits"] is False
    text = plan(tmp_path / "full", "--memory", "900GB", "--engram", "host", rc=1).out
    assert "pinned memory does not fit" in text and text.endswith("it fits\n")


@pytest.mark.parametrize("args", [["--memory", "8GB"], ["--json"], ["--plan", "--cache-tokens", "-1"]], ids=" ".join)
def test_usage(args):
    r = run("baleend", DEMO, *args, timeout=60)
    assert r.rc == 2 and r.err.count("\n") == 1 and args[-2 if len(args) > 1 else 0] in r.err


def test_bad_model(tmp_path):
    r = run("baleend", tmp_path / "absent", "--plan", timeout=60)
    assert r.rc == 3 and r.err.count("\n") == 1 and "absent" in r.err
