"""Downloads from a server on this machine against wget and curl; secrets against detect-secrets; licence notices.

    python benchmarks/downloads.py --peer PYTHON          # a Python with detect-secrets and requests

Files to download are random bytes, with their SHA-256 in the list. Secrets and licences are looked for in the sources of the
standard library of the running Python, which has keys for its own tests. CPU seconds are those of the client alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tamis.text.licenses import detect  # noqa: E402
from tamis.text.secrets import find_secrets  # noqa: E402

REQUESTS = """
import hashlib, sys, requests
with requests.Session() as session:
    for line in open(sys.argv[1]):
        url, checksum = line.split()
        seen = hashlib.sha256()
        with session.get(url, stream=True) as reply, open(f"{sys.argv[2]}/{url.rpartition('/')[2]}", "wb") as file:
            for chunk in reply.iter_content(2**20):
                seen.update(chunk)
                file.write(chunk)
        assert seen.hexdigest() == checksum.partition(":")[2]
"""

SECRETS = """
import json, sys, time
from detect_secrets import SecretsCollection
from detect_secrets.settings import default_settings
paths = json.load(open(sys.argv[1]))
found = {}
began = time.process_time()
with default_settings():
    for path in paths:
        secrets = SecretsCollection()
        secrets.scan_file(path)
        found[path] = sorted({(each.type, each.line_number) for _, each in secrets})
print(json.dumps({"seconds": time.process_time() - began, "found": found}))
"""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the files of a folder, whole or from a byte on."""

    protocol_version = "HTTP/1.1"
    folder: Path
    sent = 0

    def do_GET(self) -> None:
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        ranged = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(ranged[1]) if ranged else 0
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", f'"{path.name}"')
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        with path.open("rb") as file:
            at = start
            while at < size:
                try:
                    count = os.sendfile(self.connection.fileno(), file.fileno(), at, 2**20)
                except OSError:
                    break
                at += count
                Handler.sent += count

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # of a client that was killed
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


def timed(command: list[str], *, stop_at: tuple[Path, int] | None = None) -> dict[str, float]:
    """Wall and CPU seconds and peak memory of a command, which is killed when a folder holds that many bytes."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0.0
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        peak = max(peak, int(found[1]) / 1e3 if found else 0.0)
        if stop_at is not None:
            held = sum(path.stat().st_size for path in stop_at[0].rglob("*") if path.is_file())
            if held >= stop_at[1]:
                process.send_signal(signal.SIGKILL)
                stop_at = None
        time.sleep(0.02)
    if status not in (0, signal.SIGKILL):
        raise RuntimeError(f"{command[0]} ended with {status}")
    return {"wall": time.perf_counter() - began, "cpu": used.ru_utime + used.ru_stime, "rss": peak}


def compare_downloads(work: Path, peer: str | None, count: int, size: int) -> None:
    shutil.rmtree(work, ignore_errors=True)
    served = work / "served"
    served.mkdir(parents=True)
    draw = random.Random(0)
    Handler.folder = served
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    lines = []
    for number in range(count):
        data = draw.randbytes(size)
        (served / f"{number:03}.bin").write_bytes(data)
        lines.append(f"{base}/{number:03}.bin  sha256:{hashlib.sha256(data).hexdigest()}")
    urls = work / "urls.txt"
    urls.write_text("\n".join(lines) + "\n")
    plain = work / "plain.txt"
    plain.write_text("\n".join(line.split()[0] for line in lines) + "\n")
    out = work / "out"

    def ours(folder: Path) -> list[str]:
        arguments = ["--output", str(folder), "--allow-private", "--per-host", "4"]
        return [sys.executable, "-m", "tamis", "download", "urls", str(urls), *arguments]

    commands = {
        "tamis": ours(out),
        "wget": ["wget", "-q", "-i", str(plain), "-P", str(out)],
        "curl": ["curl", "-s", "--parallel", "--parallel-max", "4", "--remote-name-all", "--output-dir", str(out)]
        + [line.split()[0] for line in lines],
    }
    if peer:
        commands["requests"] = [peer, "-c", REQUESTS, str(urls), str(out)]
    say(f"{count} files of {size / 1e6:.0f} MB, best of three turns")
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(3):
        for name, command in commands.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            results.setdefault(name, []).append(timed(command))
            assert len(list(out.glob("*.bin"))) == count, name
    total = count * size / 1e6
    for name, turns in results.items():
        wall, cpu = min(each["wall"] for each in turns), min(each["cpu"] for each in turns)
        rss = max(each["rss"] for each in turns)
        say(f"{name:9} {wall:6.2f} s  {total / wall:6.0f} MB/s  {cpu:6.2f} CPU s  peak {rss:4.0f} MB")
    shutil.rmtree(out)
    Handler.sent = 0
    out.mkdir()
    timed(ours(out), stop_at=(out, count * size // 2))
    timed(ours(out))
    again, same = Handler.sent / 1e6 - total, True
    for path in served.iterdir():
        same &= (out / path.name).read_bytes() == path.read_bytes()
    say(f"killed in the middle and resumed: {again:.1f} MB sent twice, files equal: {same}")
    before = Handler.sent
    say(f"third run: {timed(ours(out))['wall']:.2f} s, {Handler.sent - before} bytes")
    server.shutdown()


def compare_secrets(work: Path, peer: str | None, share: int) -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    suffixes = {".py", ".pem", ".txt", ".cfg", ".json", ".c", ".h", ".sh"}
    paths = sorted(
        path
        for path in root.rglob("*")
        if path.suffix in suffixes and path.is_file() and "site-packages" not in path.parts
    )
    paths = paths[::share]
    texts = {str(path): path.read_text(encoding="utf-8", errors="replace") for path in paths}
    size = sum(map(len, texts.values())) / 1e6
    began = time.process_time()
    found = {path: find_secrets(text) for path, text in texts.items()}
    seconds = time.process_time() - began
    say(f"\n{len(texts):,} files of the standard library (each {share}th), {size:.1f} MB")
    have = {path for path, each in found.items() if each}
    say(
        f"secrets: tamis {seconds:.2f} CPU s, {size / seconds:.1f} MB/s, {sum(map(len, found.values()))} in {len(have)} files"
    )
    if peer:
        work.mkdir(parents=True, exist_ok=True)
        (work / "paths.json").write_text(json.dumps([str(path) for path in paths]))
        command = [peer, "-c", SECRETS, str(work / "paths.json")]
        done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        theirs = {path for path, each in done["found"].items() if each}
        count, other = sum(map(len, done["found"].values())), done["seconds"]
        say(f"secrets: detect-secrets {other:.2f} CPU s, {size / other:.1f} MB/s, {count} in {len(theirs)} files")
        kinds: dict[str, int] = {}
        for path in theirs - have:
            for kind, _ in done["found"][path]:
                kinds[kind] = kinds.get(kind, 0) + 1
        keys = {path for path, each in done["found"].items() if any(kind == "Private Key" for kind, _ in each)}
        say(
            f"files that both report: {len(theirs & have)}; only tamis: {sorted(Path(path).name for path in have - theirs)}"
        )
        say(f"findings in files that only detect-secrets reports: {kinds}")
        say(f"files with private keys by detect-secrets that tamis does not report: {sorted(keys - have)}")
    began = time.process_time()
    licences = [detect(text) for text in texts.values()]
    seconds = time.process_time() - began
    say(
        f"licences: {seconds:.2f} CPU s, {size / seconds:.1f} MB/s, {sum(each is not None for each in licences)} files with one"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a Python that has detect-secrets and requests")
    parser.add_argument("--work", type=Path, default=Path("/tmp/tamis-downloads"))
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--share", type=int, default=8, help="look for secrets in every n-th file")
    parser.add_argument("--size", type=int, default=32_000_000)
    options = parser.parse_args()
    compare_downloads(options.work, options.peer, options.files, options.size)
    compare_secrets(options.work, options.peer, options.share)
    shutil.rmtree(options.work)


if __name__ == "__main__":
    main()
