"""The manual pages agree with --help: every command has one, and it lists exactly the options that the command takes."""
import re
import shutil
import subprocess

import pytest

from conftest import ROOT, run

PAGES = ROOT / "tools" / "man"


def text(*command):
    r = run(*command, "--help")
    assert r.rc == 0, r.err
    return r.out


def listed(help_text):
    """[(option, argument or None)] as --help has them."""
    found = re.findall(r"^  --([a-z0-9-]+)(?: (\S+))? ", help_text[help_text.index("\noptions:\n"):], re.M)
    return [(name, arg or None) for name, arg in found]


def names(help_text):
    return re.findall(r"^  (\w+)  +\S", help_text, re.M)


def section(page, title):
    source = (PAGES / page).read_text()
    assert f"\n.SH {title}\n" in source, f"{page} has no section {title}"
    return source.split(f"\n.SH {title}\n")[1].split("\n.SH ")[0]


def documented(page, title="OPTIONS"):
    found = re.findall(r"^\.TP\n\\fB\\-\\-(\S+)\\fR(?: \\fI(.*)\\fR)?$", section(page, title), re.M)
    return [(name.replace("\\-", "-"), arg.replace("\\-", "-") or None) for name, arg in found]


COMMANDS = names(text("baleen"))


def test_every_command_has_a_page_and_no_page_is_left_over():
    assert {p.name for p in PAGES.iterdir()} == {"baleen.1", "baleend.1"} | {f"baleen-{c}.1" for c in COMMANDS}
    assert re.findall(r"^\.BR baleen\\-(\w+) \(1\)$", section("baleen.1", "COMMANDS"), re.M) == COMMANDS


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "bench"])
def test_options_of_a_command(command):
    assert documented(f"baleen-{command}.1") == listed(text("baleen", command))


def test_options_of_the_server():
    assert documented("baleend.1") == listed(text("baleend"))


@pytest.mark.parametrize("what", names(text("baleen", "bench")))
def test_options_of_a_benchmark(what):
    assert documented("baleen-bench.1", f"BALEEN BENCH {what.upper()}") == listed(text("baleen", "bench", what))


@pytest.mark.parametrize("page", sorted(p.name for p in PAGES.iterdir()))
def test_pages_are_formatted_without_a_warning(page):
    if not shutil.which("groff"):
        pytest.skip("no groff: the manual pages are NOT formatted")
    r = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", PAGES / page], capture_output=True, text=True)
    assert (r.returncode, r.stderr) == (0, "")
