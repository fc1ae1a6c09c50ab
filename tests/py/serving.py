"""A baleend process and ways to talk to it, well-behaved and not."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from conftest import BUILD

JSON = {"Content-Type": "application/json"}


class Server:
    """with Server("baleend_stub", "--port", ...) as s: ...  Ready on entry unless wait=False; stopped, and checked for sanitizer
    reports, on exit. before: a command that runs the program, such as prlimit."""

    def __init__(self, program, *args, env=None, wait=True, before=()):
        folder = "tests" if program.endswith("_stub") else "tools"
        self.process = subprocess.Popen(
            [*before, str(BUILD / folder / program), *map(str, args), "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.out, self.err = [], []
        self.readers = [threading.Thread(target=self._read, args=a, daemon=True)
                        for a in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for t in self.readers:
            t.start()
        line = self.line("listening on")
        self.port = int(re.search(r":(\d+)$", line).group(1))
        if wait:
            self.line("ready in")

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def line(self, text, seconds=60):
        """The first line of output that holds text."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in list(self.out):
                if text in line:
                    return line
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err}"
            time.sleep(0.01)
        raise AssertionError(f"no line with {text!r}: {self.out} {self.err}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.stop()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        """Exit status; nothing a sanitizer says may be on stderr."""
        rc = self.process.wait(timeout=seconds)
        for t in self.readers:
            t.join(5)
        text = "\n".join(self.err)
        assert "Sanitizer" not in text and "runtime error" not in text, text
        return rc

    def stop(self, rc=0):
        self.signal()
        assert self.wait() == rc, self.err

    # ---- requests

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body): the body parsed when it is JSON."""
        c = self.connect(timeout)
        try:
            raw = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            c.request(method, path, raw, {**(JSON if raw is not None else {}), **(headers or {})})
            r = c.getresponse()
            data = r.read()
            if "json" in r.getheader("Content-Type", "") and data:
                data = json.loads(data)
            return r.status, r, data
        finally:
            c.close()

    def post(self, path, body, **kw):
        status, _, data = self.ask("POST", path, body, **kw)
        assert status == 200, (status, data)
        return data

    def complete(self, prompt, **kw):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **kw})

    def chat(self, content, **kw):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **kw})

    def stream(self, path, body, timeout=60):
        """The events of a stream, parsed; checks the frame: 200, event-stream, [DONE] at the end and nothing behind it."""
        c = self.connect(timeout)
        try:
            c.request("POST", path, json.dumps({"stream": True, **body}), JSON)
            r = c.getresponse()
            data = r.read()
            assert r.status == 200, (r.status, data)
            assert r.getheader("Content-Type") == "text/event-stream"
        finally:
            c.close()
        return events(data)

    def open_stream(self, path, body, timeout=60):
        """A connection whose stream has begun, and its response."""
        c = self.connect(timeout)
        c.request("POST", path, json.dumps({"stream": True, **body}), JSON)
        return c, c.getresponse()

    def raw(self, data, seconds=10, half_close=False, read=True):
        """Send bytes, return what comes back until the server closes or is silent."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        got = b""
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            while read:
                piece = s.recv(65536)
                if not piece:
                    break
                got += piece
        except (TimeoutError, ConnectionError):
            pass
        finally:
            s.close()
        return got

    # ---- what the server says about itself

    def metrics(self):
        status, _, text = self.ask("GET", "/metrics")
        assert status == 200
        return {m.group(1): float(m.group(2)) for m in re.finditer(r"^([a-z0-9_:]+)\{model_name=\"[^\"]*\"\} (\S+)$", text.decode(), re.M)}

    def metric(self, name):
        return self.metrics()["sglang:" + name]

    def until(self, test, seconds=30):
        """Wait until test(metrics) holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = self.metrics()
            if test(m):
                return m
            time.sleep(0.02)
        raise AssertionError(f"did not come true: {self.metrics()}")

    def idle(self):
        return self.until(lambda m: m["sglang:num_running_reqs"] == 0 and m["sglang:num_queue_reqs"] == 0
                          and m["sglang:num_used_tokens"] == 0)

    def alive(self):
        status, _, _ = self.ask("GET", "/health", timeout=20)
        return status == 200 and self.process.poll() is None


def events(data):
    blocks = data.decode().split("\n\n")
    assert blocks[-1] == "" and blocks[-2] == "data: [DONE]", blocks[-3:]
    lines = [b for b in blocks[:-2] if not b.startswith(":")]
    assert all(b.startswith("data: ") and "\n" not in b for b in lines), lines
    return [json.loads(b[6:]) for b in lines]


def joined(chunks, index=0):
    """(text, reasoning, calls, finish_reason) of one choice of a stream."""
    text, reasoning, calls, finish = "", "", [], None
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            assert finish is None, "something came behind the end of a choice"
            delta = choice.get("delta", {"content": choice.get("text")})
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
            finish = choice["finish_reason"]
    return text, reasoning, calls, finish


def together(jobs):
    """Run functions in threads; their results in order."""
    results = [None] * len(jobs)

    def run(i):
        try:
            results[i] = jobs[i]()
        except BaseException as e:  # noqa: BLE001 - handed to the caller
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, BaseException):
            raise r
    return results
