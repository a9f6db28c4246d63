"""What a service counts, in the text that Prometheus reads. Counted by route and status, never by tenant."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

__all__ = ["Metrics"]

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._received = 0
        self._sent = 0

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        self._requests[method, route, status] += 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(_BOUNDS) + 1)
        buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment] # a Counter adds whatever it is given
        self._received += received
        self._sent += sent

    def text(self, under_way: int) -> str:
        lines = [
            "# HELP clew_requests_total Requests that were answered.",
            "# TYPE clew_requests_total counter",
            *(
                f'clew_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
                for (method, route, status), count in sorted(self._requests.items())
            ),
            "# HELP clew_request_seconds Time from a request to the end of its answer.",
            "# TYPE clew_request_seconds histogram",
        ]
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*map(str, _BOUNDS), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'clew_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'clew_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
            lines.append(f'clew_request_seconds_count{{route="{route}"}} {total}')
        for name, kind, help_text, value in (
            ("clew_requests_under_way", "gauge", "Requests that are being worked on.", under_way),
            ("clew_received_bytes_total", "counter", "Bytes of request bodies.", self._received),
            ("clew_sent_bytes_total", "counter", "Bytes of response bodies.", self._sent),
        ):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"
