"""The list of behaviours that a client of Mooncake counts on, and which of them the tests have shown.

    ./dev checks

A test carries the numbers of what it shows: `@pytest.mark.check(7)`. With `--checks` a run ends with one
line per number. A number without a test, or with a failed one, fails the run; one whose tests were all
skipped is named as skipped.
"""

import importlib.util

TEXTS = {
    1: "setup over tcp ignores a device that is not there; the name has a port of 12300 to 14300",
    2: "a name with a port is kept; six arguments and unknown keywords are a TypeError",
    3: "setup by dictionary: sizes as text and number, bad ones are -600",
    4: "both spellings of master and device; an unknown key warns and names the nearest one",
    5: "close any time, health 1, 0, 1, and the same object set up again",
    6: "every method before setup and after close gives its error value",
    7: "put, then get, get_size, is_exist",
    8: "a second put keeps the first value",
    9: "empty values and empty keys are -600",
    10: "keys with any bytes, up to 5,000 of them",
    11: "buffers of all kinds are values; text, numbers and config=None are a TypeError",
    12: "all bytes of a buffer, in C order",
    13: "put_parts joins its parts, and refuses what is no row of bytes",
    14: "put_batch gives one number, and stores all or nothing of a bad batch",
    15: "what a missing key gives",
    16: "batches of reads, and of nothing",
    17: "remove right after put",
    18: "remove of what was just read or looked up is -706, unless forced or later",
    19: "batch_remove of held, missing and free keys",
    20: "remove_all leaves what is held, unless forced",
    21: "remove_by_regex",
    22: "register_buffer and unregister_buffer",
    23: "get_into larger, smaller and unregistered buffers",
    24: "put_from of nothing, and of unregistered memory",
    25: "batch_put_from, each key for itself",
    26: "a key twice in a batch: the first value",
    27: "batch_get_into: found, missing, too small, twice",
    28: "batch_put_from_multi_buffers joins fragments",
    29: "batch_get_into_multi_buffers: exact, misfits, missing, over 2 GiB",
    30: "put_from_with_metadata",
    31: "get_into_ranges, nested results",
    32: "put sessions: hidden until their end",
    33: "get sessions, and their leases",
    34: "upsert in all its forms",
    35: "soft pins",
    36: "ReplicateConfig: defaults, refusals, text",
    37: "two replicas with one segment and with two",
    38: "preferred_segment",
    39: "prefer_alloc_in_same_node",
    40: "group_ids",
    41: "batch_replica_clear",
    42: "copy and move tasks",
    43: "BufferHandle: a writable private copy",
    44: "pure clients, and stores without a local buffer",
    45: "values larger than the local buffer",
    46: "a closed store takes its values along",
    47: "a full segment makes room, and keeps hard pins",
    48: "polling stops no put",
    49: "eight threads, and the interpreter runs on",
    50: "a killed master, and its return",
    51: "dummy stores",
    52: "BufferPool",
    53: "tensors of every dtype and shape, and what is none",
    54: "tensor-parallel shards",
    55: "parallel layouts, manifests, shards cut anew",
    56: "tensors into and from raw buffers",
    57: "safetensors files; the store for asyncio",
    58: "the HTTP of the master",
    59: "the metadata servers",
    60: "the programs and their flags",
    61: "the calls of LMCache and SGLang, from end to end",
}


# Shown by modules that are passed over as a whole where torch is missing.
NEED_TORCH = frozenset((53, 54, 55, 56))


class Checks:
    """Counts, by number, how the tests ended."""

    def __init__(self):
        self.numbers = {}
        self.ended = {number: [] for number in TEXTS}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            marks = item.iter_markers("check")
            self.numbers[item.nodeid] = sorted({number for mark in marks for number in mark.args})

    def pytest_runtest_logreport(self, report):
        # A test that ran is told by its call; one that did not, by its set-up.
        if report.when == "call" or report.outcome != "passed":
            for number in self.numbers.get(report.nodeid, ()):
                self.ended[number].append(report.outcome)

    def state(self, number):
        ended = self.ended[number]
        if not ended and number in NEED_TORCH and importlib.util.find_spec("torch") is None:
            return "skipped"
        if not ended:
            return "NO TEST"
        if "failed" in ended:
            return "FAILED"
        return "ok" if "passed" in ended else "skipped"

    def pytest_sessionfinish(self, session):
        if any(self.state(number) in ("NO TEST", "FAILED") for number in TEXTS):
            session.exitstatus = session.exitstatus or 1

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        terminalreporter.section("checks")
        states = {number: self.state(number) for number in TEXTS}
        for number, text in TEXTS.items():
            tests = len(self.ended[number])
            write(f"{number:3} {states[number]:8} {tests:3} {'test ' if tests == 1 else 'tests'}  {text}")
        good = sum(state == "ok" for state in states.values())
        tests = sum(bool(numbers) for numbers in self.numbers.values())
        write(f"{good} of {len(TEXTS)} checks shown by {tests} tests")
        for word in ("skipped", "FAILED", "NO TEST"):
            named = [number for number, state in states.items() if state == word]
            if named:
                write(f"{word}: {', '.join(map(str, named))}")
            if word == "skipped" and not NEED_TORCH.isdisjoint(named):
                write("torch is not installed: `./dev test --torch` does that, then run this again")
