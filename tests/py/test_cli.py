"""The command line frame: help, wrong usage, exit statuses."""
import subprocess

from conftest import BUILD, run


def test_version_and_help():
    assert run("baleen", "--version").out.startswith("baleen ")
    r = run("baleen", "--help")
    assert r.rc == 0 and "COMMAND" in r.out


def test_no_or_unknown_command_is_usage():
    assert run("baleen").rc == 2
    r = run("baleen", "frobnicate\n")
    assert r.rc == 2 and r.err.count("\n") <= 2


def test_full_stdout_is_an_error():
    done = subprocess.run([BUILD / "tools" / "baleen", "--help"], stdout=open("/dev/full", "w"), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4 and done.stderr.count("\n") == 1
