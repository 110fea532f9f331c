"""A stand-in for a hub: the requests that `huggingface_hub` makes to publish a few files."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Hub:
    """Repositories, and the requests that were made."""

    def __init__(self) -> None:
        self.url = ""
        self.accepted = "hf_owner"
        self.created: dict[str, bool] = {}
        """Repositories by name; True for private ones."""
        self.commits: list[dict[str, Any]] = []
        """Message and files of each commit, by path."""
        self.uploads: dict[str, bytes] = {}
        """Large files by SHA-256."""
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(f"POST {self.path}")
        if self.headers.get("Authorization") != f"Bearer {self.hub.accepted}":
            self._reply(401, {"error": "Invalid credentials in Authorization header"})
        elif self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif self.path == "/api/validate-yaml":
            self._reply(200, {"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            modes = {True: "lfs", False: "regular"}
            files = [
                {
                    "path": one["path"],
                    "uploadMode": modes[one["path"].endswith(".onnx")],
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            self._reply(200, {"files": files})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif self.path.endswith("/commit/main"):
            self._commit(body)
        else:
            self._reply(404, {"error": f"the stand-in has no {self.path}"})

    def do_PUT(self) -> None:
        digest = self.path.rpartition("/")[2]
        self.hub.uploads[digest] = self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(200, {})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the library's name
        """Print nothing."""

    def _create(self, asked: dict[str, Any]) -> None:
        name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        if name in self.hub.created:
            self._reply(409, {"url": f"{self.hub.url}/{name}"})
            return
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.created[name] = private
        self._reply(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = [
            one | {"actions": {"upload": {"href": f"{self.hub.url}/store/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        self._reply(200, {"transfer": "basic", "objects": objects})

    def _commit(self, body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        files: dict[str, bytes] = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
        self.hub.commits.append({"message": header["summary"], "files": files})
        name = self.path.split("/api/models/")[1].split("/commit/")[0]
        self._reply(200, {"commitUrl": f"{self.hub.url}/{name}/commit/abc", "commitOid": "abc"})

    def _reply(self, status: int, document: dict[str, Any]) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serve() -> Iterator[Hub]:
    """Serve a hub on this machine while the block lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
