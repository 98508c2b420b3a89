"""The wire server with inference jobs. Two workers answer the rows in turn and in order; empty lines are skipped."""

import json
from itertools import islice
from typing import Any

from tasks.inference.duplicates import settled
from tasks.inference.rows import output_row
from tasks.inference.statistics import Statistics
from tests.support.wire_server import Stored, WireServer, _Handler


class InferenceWire(WireServer):
    def __init__(self, token: str = "") -> None:
        super().__init__(token)
        self.RequestHandlerClass = _InferenceHandler
        self.specs: dict[str, dict[str, Any]] = {}
        self.lists["devices"] = [{"queue": f"gpu.node1.{n}", "state": "ready"} for n in range(2)]

    def settle(self, stored: Stored, count: int | None = None) -> None:
        """Give outcomes as for any job, then fill the rows of an inference job as a model would."""
        with self.changed:
            super().settle(stored, count)
            if stored.view["kind"] != "inference":
                return
            workers: dict[str, dict[str, float]] = {}
            for row in stored.rows:
                item = stored.items[row["index"]]
                row |= _answered(item) if not item.get("embed") else _embedded(item)
                row["worker"] = f"gpu.node1.{row['index'] % 2}"
                share = workers.setdefault(row["worker"], {"items": 0, "seconds": 0.0})
                share["items"] += 1
                share["seconds"] += 0.5
            failed = [row["error"]["type"] for row in stored.rows if row["error"]]
            stored.view |= {"ok": len(stored.rows) - len(failed), "failed": len(failed), "workers": workers}
            stored.view["reasons"] = {name: failed.count(name) for name in sorted(set(failed))}
            self.changed.notify_all()


def _answered(item: dict[str, Any]) -> dict[str, Any]:
    query = (item | item.get("answered_as", {})).get("query") or ""
    if item.get("success") is False:
        return _failed("context_failed", str(item.get("error")))
    if "fail" in query:
        return _failed("device_out_of_memory", "it does not fit.")
    value = {"answers": [query.upper()], "tokens": {"prompt": 3, "completion": 5}, "inference_time": 0.5}
    return {"status": "ok", "valid": True, "score": None, "value": value, "error": None}


def _embedded(item: dict[str, Any]) -> dict[str, Any]:
    vector = [float(item["query"].lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]
    value = {"embedding": vector, "tokens": {"prompt": 3, "completion": 0}}
    return {"status": "ok", "valid": True, "score": None, "value": value, "error": None}


def _failed(kind: str, message: str) -> dict[str, Any]:
    error = {"type": kind, "message": message, "retryable": False}
    return {"status": "failed", "valid": False, "score": None, "value": None, "error": error}


class _InferenceHandler(_Handler):
    server: InferenceWire

    def _request(self, body: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if self.headers["Content-Type"] != "application/x-ndjson":
            if b'"items_url"' in body:
                raise ValueError("items_url: this server reads no URLs.")
            return super()._request(body)
        spec, items = json.loads(self.query.get("spec", "{}")), []
        for number, line in enumerate(body.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            if line.strip():
                try:
                    item = json.loads(line)
                except ValueError:
                    raise ValueError(f"Line {number}: is not JSON.") from None
                if not item.get("query") and item.get("success") is not False:
                    raise ValueError(f"Line {number}: `query`: is missing: give the row `query` or `messages`.")
                items.append(item | ({"embed": True} if spec.get("task") == "embed" else {}))
        if not items:
            raise ValueError("There are no items: send one JSON object per line.")
        limits = [spec.get("limit"), (spec.get("max_samples_per_worker") or 0) * len(self.server.lists["devices"])]
        return self.query, list(settled(islice(items, min((limit for limit in limits if limit), default=None))))

    def _job(self, stored: Stored, rest: str, to: Any) -> None:
        with self.server.changed:  # not while rows are being settled
            view, rows = dict(stored.view), list(stored.rows)
        if rest == "output":
            self._output(stored, rows)
        elif rest == "statistics":
            told = Statistics()
            for row in rows:
                told.add(row)
            busy_s = {name: share["seconds"] for name, share in view.get("workers", {}).items()}
            to._json(200, told.as_json(busy_s, 10.0))
        elif rest == "" and self.command == "GET":
            to._json(200, view)
        else:
            super()._job(stored, rest, to)

    def _output(self, stored: Stored, rows: list[dict[str, Any]]) -> None:
        start = int(self.query.get("start", 0))
        fault = self.server.fault_for(f"GET /v1/jobs/{stored.view['id']}/output", ("cut", "end"))
        with self._stream("application/x-ndjson") as stream:
            for number, row in enumerate(rows[start:]):
                line = json.dumps(output_row(stored.items[row["index"]], row, "local")).encode() + b"\n"
                if fault and number == fault.rows:
                    if fault.kind == "cut":
                        stream.write(line[: len(line) // 2])
                        self._hang_up()
                    return
                stream.write(line)
