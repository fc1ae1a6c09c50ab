"""The command line frame: help, wrong usage, exit statuses."""
import re
import subprocess

from conftest import BUILD, ROOT, run


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


def test_man_pages_have_every_option():
    """What --help lists, the page of the command lists."""
    pages = sorted((ROOT / "tools" / "man").glob("baleen-*.1"))
    assert len(pages) >= 9
    for page in pages:
        text = page.read_text().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
        r = run("baleen", page.stem.removeprefix("baleen-"), "--help")
        options = re.findall(r"^  (--[a-z0-9-]+)", r.out, re.M)
        assert r.rc == 0 and (options or "bench" in page.name)
        missing = [o for o in options if not re.search(rf"^{o}\b", text, re.M)]
        assert not missing, (page.name, missing)
