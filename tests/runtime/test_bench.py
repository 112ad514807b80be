"""do_bench against a stand-in for a GPU's clock, and the driver calls below it."""

from __future__ import annotations

import pytest

import tilec
from tilec.errors import TilecError
from tilec.runtime import bench, device


class Events:
    """A GPU's clock: each run of the timed function takes the next of `times`, over and over."""

    def __init__(self, monkeypatch, times):
        self.now, self.times, self.runs, self.log = 0.0, times, 0, []
        events = self

        class Event:
            def record(self, stream):
                events.log.append(("event", stream))
                self.at = events.now

            def since(self, earlier):
                return self.at - earlier.at

        class Buffer:
            def __init__(self, nbytes, index):
                self.nbytes, self.pointer = nbytes, 0x7000

            def __enter__(self):
                return self

            def __exit__(self, *exc):
                events.log.append("freed")

        for name, stand_in in {
            "Event": Event, "DeviceBuffer": Buffer, "l2_bytes": lambda index: 1000,
            "current_device": lambda: 0, "current_stream": lambda index: 5,
            "synchronize": lambda index: None, "zero": lambda *a: events.log.append(("flush", *a)),
        }.items():
            monkeypatch.setattr(device, name, stand_in)

    def run(self):
        self.log.append("run")
        self.now += self.times[self.runs % len(self.times)]
        self.runs += 1


def test_do_bench(monkeypatch):
    events = Events(monkeypatch, [2.0, 1.0, 3.0, 2.0, 2.0])
    assert tilec.testing.do_bench is bench.do_bench
    assert tilec.testing.do_bench(events.run, warmup=10, rep=20) == 2.0
    assert events.runs == 1 + 5 + 5 + 10  # once, to estimate, to warm up, measured
    one = [("flush", 0x7000, 2000, 5), ("event", 5), "run", ("event", 5)]
    assert events.log == one * 21 + ["freed"]


@pytest.mark.parametrize("mode, result", [
    ("median", 1.5), ("mean", 2.0), ("min", 1.0), ("max", 4.0), ("all", [1.0, 4.0, 1.0, 2.0]),
])
def test_modes(monkeypatch, mode, result):
    events = Events(monkeypatch, [4.0, 1.0, 2.0, 1.0])
    assert bench.do_bench(events.run, warmup=1, rep=4, return_mode=mode) == result
    assert events.runs == 1 + 5 + 1 + 4


def test_quantiles(monkeypatch):
    events = Events(monkeypatch, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert bench.do_bench(events.run, 1, 15, quantiles=[0.5, 0, 1, 0.125]) == [3.0, 1.0, 5.0, 1.5]
    assert bench.do_bench(events.run, 1, 15, quantiles=[0.5]) == 3.0
    with pytest.raises(TilecError, match="a quantile is 1.5"):
        bench.do_bench(events.run, quantiles=[1.5])
    with pytest.raises(TilecError, match="return_mode is 'median_'.*") as caught:
        bench.do_bench(events.run, return_mode="median_")
    assert "did you mean `median`" in caught.value.advice


def test_work_of_no_time_ends(monkeypatch):
    events = Events(monkeypatch, [0.0])
    monkeypatch.setattr(bench, "MOST_RUNS", 7)
    assert bench.do_bench(events.run) == 0.0 and events.runs == 6 + 14


def test_what_comes_before_is_not_timed(monkeypatch):
    events = Events(monkeypatch, [1.0])
    bench.do_bench(events.run, 1, 1, before=lambda: events.log.append("before"), stream=9)
    assert events.log[:5] == ["before", ("flush", 0x7000, 2000, 9), ("event", 9), "run",
                              ("event", 9)]


def test_the_driver_calls(monkeypatch):
    calls = []
    results = {"cuEventElapsedTime": 1.5, "cuDeviceGetName": b"A GPU\0\0\0", "cuDeviceGet": "dev",
               "cuDeviceGetAttribute": 50 << 20, "cuEventCreate": "event"}

    def call(what, *args):
        calls.append((what, *args))
        return results.get(what)

    class Driver:
        class CUdevice_attribute:
            CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = "l2"

        @staticmethod
        def cuEventDestroy(event):
            calls.append(("cuEventDestroy", event))

    monkeypatch.setattr(device, "_call", call)
    monkeypatch.setattr(device, "driver", lambda: Driver)
    device.copy(16, 32, 8, 5)
    device.copy(16, 32, 0, 5)
    device.zero(16, 8, 5)
    device.zero(16, 0, 5)
    begin, end = device.Event(), device.Event()
    begin.record(5)
    assert end.since(begin) == 1.5
    del begin
    assert calls == [("cuMemcpyDtoDAsync", 16, 32, 8, 5), ("cuMemsetD8Async", 16, 0, 8, 5),
                     ("cuEventCreate", 0), ("cuEventCreate", 0), ("cuEventRecord", "event", 5),
                     ("cuEventElapsedTime", "event", "event"), ("cuEventDestroy", "event")]
    for cached, value in ((device.name_of, "A GPU"), (device.l2_bytes, 50 << 20)):
        cached.cache_clear()
        assert cached(3) == value
        cached.cache_clear()
