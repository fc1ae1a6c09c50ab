"""What every option of every command accepts: one line that names the option, the value and the limits for all else."""
import re

import pytest

from conftest import DEMO, run
from test_man import COMMANDS, listed, names, text

BENCHES = names(text("baleen", "bench"))
PROGRAMS = [("baleen", c) for c in COMMANDS if c != "bench"] + [("baleen", "bench", b) for b in BENCHES] + [("baleend",)]
NUMBERS = {"N", "K", "T", "P", "SIZE", "BYTES", "SECONDS"}
# Options with words or a syntax of their own: a value that each takes.
WORDS = {"to": "bf16", "keep": "dspark", "drop": "vision", "split": "pad", "engram": "host", "experts": "fp4", "fp8-block": "1x32",
         "fp4-ties": "even", "oversize": "alone", "host-owned": "none", "encoding": "xor", "device": "cpu", "access": "mmap",
         "check": "fast", "thinking": "on"}
ZERO = {"port", "max-queue", "drain", "spill", "rank", "level", "top-k", "min-p", "temperature", "seed", "tokens", "prefill", "length"}
REPEATED = {"stop", "ids", "ids-file"}


def program(p):
    return " ".join(p)


def options(p):
    return [(n, a) for n, a in listed(text(*p)) if n != "help"]


def refused(p, *args):
    r = run(*p, *args, timeout=60)
    assert r.rc == 2 and r.out == "" and r.err.count("\n") == 1 and r.err.startswith(program(p) + ": "), (args, r.rc, r.out[:200], r.err)
    return r.err


def valid(p, name, arg):
    if name == "engram" and p[-1] == "convert":
        return "shared"
    return "0.5" if arg == "P" else "c" if name == "cpu" else "2" if arg in NUMBERS else WORDS.get(name, "2")


@pytest.mark.parametrize("p", PROGRAMS, ids=program)
def test_numbers_out_of_range(p):
    for name, arg in options(p):
        if arg not in NUMBERS:
            continue
        bad = ["-1", str(2**64 - 1)] + ([] if name in ZERO else ["0"])
        bad += ["+1", "1e400", "0x1", "x", "2 ", "", "-9223372036854775808", "9" * 30] if name in ("port", "jobs", "size", "top-p") else []
        for value in bad:
            err = refused(p, f"--{name}", value)
            assert re.search(rf"--{name} takes .*\d+.* (to .*\d+.*|or more), not '{re.escape(value)}'", err), err


@pytest.mark.parametrize("p", PROGRAMS, ids=program)
def test_words_and_texts(p):
    for name, arg in options(p):
        if arg is None:
            assert f"--{name} takes no value" in refused(p, f"--{name}=1")
            continue
        assert f"--{name} needs a value" in refused(p, f"--{name}")
        if arg not in NUMBERS and (name in WORDS or name == "cpu"):
            for value in (valid(p, name, arg).upper(), "\u00fcber"):
                err = refused(p, f"--{name}", value)
                assert f"--{name} takes" in err and f"'{value}'" in err, err
        if arg not in NUMBERS and name != "prompt":
            assert f"--{name}" in refused(p, f"--{name}", "")


@pytest.mark.parametrize("p", PROGRAMS, ids=program)
def test_given_once_and_in_full(p):
    for name, arg in options(p):
        once = [f"--{name}"] if arg is None else [f"--{name}", valid(p, name, arg)]
        if name not in REPEATED:
            assert f"--{name} given twice" in refused(p, *once, *once)
    assert f"unknown option --{name[:-1]}" in refused(p, f"--{name[:-1]}")


@pytest.mark.parametrize("odd", ["-h", "-1", "---", "--=", "--help=1", "--\u00fc\n"])
def test_unknown_options(odd):
    assert "unknown option -" in refused(("baleen", "verify"), odd)


def test_options_and_arguments_mix(baleen):
    whole = baleen("inspect", DEMO, "--json").out
    assert baleen("inspect", "--json", DEMO).out == baleen("inspect", "--json", "--", DEMO).out == whole
    r = baleen("generate", DEMO, "--prompt=a", "--stop=--json", "--stop", "b", "--max-tokens", 1)
    assert r.rc == 0, r.err
    assert "--stop needs a value, not the option --json" in refused(("baleen", "generate"), "--prompt", "a", "--stop", "--json")
    r = baleen("inspect", "--", "--json")
    assert r.rc == 3 and r.err.startswith("baleen inspect: --json: ")


@pytest.mark.parametrize("keys,says", [
    ("hbm=9G,cards=8", "no key 'cards'; it takes tp=N, "), ("", "--fit takes LIST, not ''"),
    ("hbm=9G,,", "no key ''"), ("hbm=9G,HBM=9G", "no key 'HBM'"),
    ("hbm=9G,hbm=9G", "--fit: hbm given twice"), ("tp=1,hbm=9G,tp=1", "--fit: tp given twice"), ("hbm=9G,tp", "--fit: tp needs a value"),
    ("hbm=0", "--fit: hbm takes a size such as 5GB or 512MiB, from 1 byte to 1PiB, not '0'"), ("hbm=9E", "1 byte to 1PiB, not '9E'"),
    ("hbm=9G,tp=0", "--fit: tp takes 1 to 4096, not '0'"), ("hbm=9G,ep=9999", "--fit: ep takes 1 to 4096, not '9999'"),
    ("hbm=9G,pp=8B", "--fit: pp takes 1 to 4096, not '8B'"), ("hbm=9G,context=8KB", "--fit: context takes 1 to 1000000000, not '8KB'"),
    ("hbm=9G,context=18446744073709551615", "--fit: context takes 1 to 1000000000"),
    ("hbm=9G,batch=", "--fit: batch takes 1 to 1000000, not ''"),
    ("hbm=9G,reserve=-1", "--fit: reserve takes"), ("hbm=9G,engram=disk", "--fit: engram takes host or device, not 'disk'"),
    ("hbm=9G,drop=", "--fit: drop takes dspark, vision or dspark+vision, not ''"), ("tp=8", "--fit needs hbm=SIZE")])
def test_keys_of_fit(keys, says):
    assert says in refused(("baleen", "inspect"), DEMO, "--fit", keys)


@pytest.mark.parametrize("args,says", [
    (["bucket", "a", "b", "--align", "3"], "--align takes a power of two up to 4096, not 3"),
    (["bucket", "a", "b", "--host-owned", "none,engram"], "--host-owned takes none or some of the others"),
    (["bucket", "a", "b", "--apply", "c", "--cpu", "c"], "with --apply go"),
    (["convert", "a", "b"], "--to bf16, released or packed is needed"),
    (["convert", "a", "b", "--to", "packed", "--shard-size", "1GB"], "--shard-size goes with"),
    (["convert", "a", "b", "--to", "bf16", "--keep", "dspark,dspark"], "--keep takes dspark and vision, each at most once"),
    (["convert", "a", "b", "--to", "bf16", "--keep", "dspark,"], "--keep takes"),
    (["convert", "a", "b", "--to", "bf16", "--layers", "9999"], "--layers takes numbers up to"),
    (["convert", "a", "b", "--to", "packed", "--pp-layers", "4,"], "--pp-layers takes numbers of layers such as 20,20, not '4,'"),
    (["inspect", "a", "--jobs", "2"], "--jobs goes with --check and --scales"),
    (["generate", "--prompt", "a", "--effort", "2"], "--effort needs --thinking"),
    (["bench", "convert", "x", "--only", "y"], "--only"), (["bench", "decode", "--roles", "wx"], "--roles"),
    (["bench", "prefill", "--roles", "\u00e9"], "--roles"), (["bench", "x\u2028y"], "unknown benchmark")])
def test_what_does_not_go_together(args, says):
    r = run("baleen", *args)
    assert r.rc == 2 and r.out == "" and r.err.count("\n") == 1 and says in r.err, (r.rc, r.err)


@pytest.mark.parametrize("args", [["convert", "SRC", "DST", "--to", "bf16"], ["convert", "SRC", "DST", "--to", "packed", "--tp", "2"],
                                  ["merge", "SRC", "DST"], ["bucket", "SRC", "DST"], ["bucket", "SRC", "DST", "--base", "SRC"],
                                  ["bucket", "--apply", "SRC", "SRC", "DST"]])
def test_a_destination_is_looked_at_first(tmp_path, args):
    """Before a source is read, which takes hours where it is a compressed archive."""
    (tmp_path / "file").write_text("x")
    for place, rc, says in (("file", 2, "already exists"), (".", 2, "already exists"), ("none/x", 4, "no folder to create it in")):
        r = run("baleen", *[{"SRC": tmp_path / "no-source", "DST": tmp_path / place}.get(a, a) for a in args])
        assert r.rc == rc and r.err.count("\n") == 1 and says in r.err, r.err
    (tmp_path / "loop").symlink_to("loop")
    if "--apply" not in args:  # nor is a plan printed that cannot be meant
        r = run("baleen", *[{"SRC": DEMO, "DST": tmp_path / "loop"}.get(a, a) for a in args], "--dry-run")
        assert (r.rc, r.out) == (2, "") and "symbolic link" in r.err
