"""A web server for a page that measures voices and sends back what it found."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any


class Server:
    """A running server.

    Args:
        address: Its URL.
        results: What pages sent.
    """

    def __init__(self, address: str, results: "Queue[Any]") -> None:
        self.address = address
        self._results = results

    def result(self, timeout_s: float) -> Any:
        """Return what a page sent; None where none did in time."""
        try:
            return self._results.get(timeout=timeout_s)
        except Empty:
            return None


@contextmanager
def served(root: Path, voices: Path) -> Iterator[Server]:
    """Serve a folder, and another one as `/voices/`, on a free port of this machine."""
    results: Queue[Any] = Queue()
    handler = partial(_Handler, directory=str(root), voices=voices, results=results)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield Server(f"http://127.0.0.1:{http.server_port}", results)
        finally:
            http.shutdown()


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(self, *given: Any, voices: Path, results: "Queue[Any]", **more: Any) -> None:
        self._voices, self._results = voices, results
        super().__init__(*given, **more)

    def translate_path(self, path: str) -> str:
        name = path.partition("/voices/")[2]
        return str(self._voices / Path(name).name) if name else super().translate_path(path)

    def do_POST(self) -> None:
        """Take what a page found."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self._results.put(json.loads(body))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
