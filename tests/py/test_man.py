"""The manual pages say what --help says, which is the rule: every command has one, with its text and exactly its options."""
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


def words(roff):
    """What a reader of the page sees, and of --help: words. Other pages are named as the medium does."""
    roff = re.sub(r"^\.(TP|PP|RS|RE|nf|fi)\b.*$|^\.(BR?|I) |\\f[BIR]|\\&", "", roff, flags=re.M).replace("\\-", "-")
    return re.sub(r"'baleen (\w+) --help'", r"baleen-\1(1)", re.sub(r"(baleen-\w+) \(1\)", r"\1(1)", roff)).split()


def prose(help_text):
    """The text of --help above its options, without the line of usage."""
    return words(help_text[:help_text.index("\noptions:\n")].split("\n", 2)[2])


def option_texts(roff_or_help):
    found = re.findall(r"^(?:\.TP\n\\fB\\-\\-(\S+?)\\fR.*\n|  --(\S+)(?: \S+)? +)((?:(?!\.[TSP]|  --|\n).*\n?)*)", roff_or_help, re.M)
    return {(a or b).replace("\\-", "-"): words(t) for a, b, t in found}


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


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "bench"] + [None])
def test_text_of_a_page(command):
    page, said = (f"baleen-{command}.1", text("baleen", command)) if command else ("baleend.1", text("baleend"))
    assert words(section(page, "DESCRIPTION")) == prose(said) and "\n\n\n" not in said
    options = option_texts(section(page, "OPTIONS"))
    assert len(options) == len(listed(said)) and options == option_texts(said[said.index("\noptions:\n"):])


@pytest.mark.parametrize("what", names(text("baleen", "bench")))
def test_options_of_a_benchmark(what):
    said, page = text("baleen", "bench", what), section("baleen-bench.1", f"BALEEN BENCH {what.upper()}")
    assert documented("baleen-bench.1", f"BALEEN BENCH {what.upper()}") == listed(said)
    assert option_texts(page) == option_texts(said[said.index("\noptions:\n"):])
    assert words(page[:page.index("\n.TP")].split("\n", 1)[1]) == prose(said)


@pytest.mark.parametrize("page", sorted(p.name for p in PAGES.iterdir()))
def test_pages_are_formatted_without_a_warning(page):
    if not shutil.which("groff"):
        pytest.skip("no groff: the manual pages are NOT formatted")
    r = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8", PAGES / page], capture_output=True, text=True)
    assert (r.returncode, r.stderr) == (0, "")
