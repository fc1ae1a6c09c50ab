"""The command line frame: help, wrong usage, exit statuses, standard streams that are full, closed or abandoned."""
import os
import subprocess
import time

import pytest

from conftest import BUILD, DEMO, run

PRINTING = [
    ["--version"], ["--help"], ["convert", "--help"], ["bench", "--help"], ["inspect", DEMO], ["inspect", DEMO, "--json"],
    ["inspect", DEMO, "--check"], ["inspect", DEMO, "--scales"],
    ["inspect", DEMO, "--fit", "hbm=9G"], ["inspect", DEMO, "--fit", "hbm=9G", "--json"],
    ["inspect", DEMO, "--tensor", "norm.weight"], ["inspect", DEMO / "tokenizer.json", "--token-map"], ["verify", DEMO],
    ["convert", DEMO, "OUT", "--to", "bf16"], ["convert", DEMO, "OUT", "--to", "packed", "--dry-run"], ["bucket", DEMO, "OUT", "--json"],
    ["synth", "OUT", "--preset", "nano"], ["generate", DEMO, "--prompt", "a", "--max-tokens", "3"],
    ["logits", DEMO, "--ids", "1", "--out", "OUT", "--json"], ["bench", "scan", "--source", DEMO, "--rounds", "1", "--json"]]


def test_version_and_help():
    assert run("baleen", "--version").out.startswith("baleen ")
    r = run("baleen", "--help")
    assert r.rc == 0 and "COMMAND" in r.out


@pytest.mark.parametrize("args,says", [
    ([], "no command given"), (["frobnicate\n"], "unknown command 'frobnicate\\x0a'"), ([""], "unknown command ''"),
    (["--jobs"], "unknown option '--jobs'"), (["--version", "x"], "--version takes no argument, not 'x'"),
    (["help", "convert"], "help takes no argument")])
def test_no_or_unknown_command_is_usage(args, says):
    r = run("baleen", *args)
    assert r.rc == 2 and r.out == "" and r.err.count("\n") == 1 and says in r.err


def with_streams(args, **how):
    return subprocess.run([BUILD / "tools" / "baleen", *args], stderr=subprocess.PIPE, text=True, **how)


@pytest.mark.parametrize("args", PRINTING, ids=lambda a: " ".join(str(x) for x in a if x is not DEMO)[:50])
def test_output_that_goes_nowhere(args, tmp_path):
    """A full disk, a closed stream, a reader that has gone: one line, status 4, and not a signal."""
    name = "baleen" if args[0].startswith("-") else f"baleen {args[0]}"
    gone, end = os.pipe()
    os.close(gone)
    for n, how in enumerate([dict(stdout=open("/dev/full", "w")), dict(preexec_fn=lambda: os.close(1)), dict(stdout=end)]):
        done = with_streams([str(tmp_path / str(n)) if a == "OUT" else a for a in args], **how)
        assert done.returncode == 4 and done.stderr.count("\n") == 1, (how, done)
        assert done.stderr.startswith(f"{name}: standard output: "), done.stderr
    os.close(end)


def test_closed_streams_are_no_file_of_ours(tmp_path):
    """Otherwise the first files that are opened get their numbers, and what is printed lands in them."""
    def close():
        os.closerange(0, 3)
    done = subprocess.run([BUILD / "tools" / "baleen", "synth", tmp_path / "m", "--preset", "nano"], preexec_fn=close)
    assert done.returncode == 4
    keep = subprocess.Popen([BUILD / "tools" / "baleend", "--port", "0"], preexec_fn=close)
    try:
        wait = time.monotonic() + 30  # for its beginning
        while not all(os.path.lexists(f"/proc/{keep.pid}/fd/{n}") for n in range(4)) and time.monotonic() < wait:
            time.sleep(0.01)
        assert [os.readlink(f"/proc/{keep.pid}/fd/{n}") for n in range(3)] == 3 * ["/dev/null"]
    finally:
        keep.kill()
        keep.wait()
    assert run("baleen", "verify", tmp_path / "m").rc == 0
