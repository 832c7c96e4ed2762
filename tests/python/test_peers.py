"""The figures and the report of `./dev peers`, without a race."""

import json
import pathlib
import signal
import sys
import time
import xml.etree.ElementTree

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benches" / "peers"))

import doors
import faults
import loops
import peers
import processes
import race
import report
import rows
import sides
import stats
import tiers


def measured(name, **rates):
    """A row as the race notes it: two rounds on each side, one a tenth slower and one a tenth faster."""
    (row,) = [one for one in rows.ROWS if one.name == name]
    sides = {side.replace("_", "-"): rate for side, rate in rates.items()}
    samples = {
        side: [{"calls": rate * part, "seconds": 1.0} for part in (0.9, 1.0, 1.1)]
        for side, rate in sides.items()
    }
    return {**row.__dict__, "samples": samples, "failed": {}, "not offered": []}


def found(*measured_rows):
    return {
        "machine": {
            "cpu": "a processor",
            "cores": 4,
            "memory_gib": 8,
            "kernel": "6",
            "python": "3.11",
            "load_before": 0.1,
        },
        "versions": {"mooncrate": "0.1.0", "Mooncake": "0.3.13"},
        "missing": {"memcached": "no such package"},
        "commit": "abc1234",
        "command": "./dev peers --rows x",
        "date": "2026-01-01",
        "quick": False,
        "sides": ["drop-in", "native", "Mooncake", "Redis"],
        "rounds": 3,
        "seconds": 12.0,
        "rows": list(measured_rows),
    }


def test_the_rows_of_the_goals_are_there_and_names_are_unique():
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    assert len(rows.GOALS) == 12
    for goal in rows.GOALS:
        assert set(goal.rows) <= set(names) and len(goal.rows) == len(goal.factors)
        assert all(goal.name in rows.names(row) for row in rows.ROWS if row.name in goal.rows)


def test_a_figure_is_the_median_with_its_ends():
    figure = stats.Figure((5.0, 1.0, 3.0))
    assert (figure.median, figure.low, figure.high) == (3.0, 1.0, 5.0)
    with pytest.raises(ValueError, match="no figure"):
        stats.rate(0, 1.0)


@pytest.mark.parametrize(
    ("unit", "batch", "size", "shown"),
    [
        ("µs", 1, 4096, 100.0),
        ("calls/s", 1, 0, 1e4),
        ("keys/s", 32, 64, 3.2e5),
        ("GB/s", 2, 1 << 20, 20.97152),
    ],
)
def test_a_rate_is_shown_in_the_unit_of_its_row(unit, batch, size, shown):
    row = {"unit": unit, "batch": batch, "size": size}
    assert stats.shown(1e4, row) == pytest.approx(shown)


def test_a_goal_is_judged_by_each_of_its_rows():
    def seen(ours):
        return {"drop-in": stats.Figure((ours,)), "Mooncake": stats.Figure((100.0,))}

    assert stats.judge((2.0,), [seen(200)]).met is True
    # It would be shown as 2.00.
    assert stats.judge((2.0,), [seen(199.9)]).met is False
    assert stats.judge((2.0, 2.0), [seen(300), seen(150)]).met is False
    assert stats.judge((2.0, 2.0), [seen(300), None]).met is None


def test_losing_rows_are_marked_and_others_are_not():
    lost = measured("get 4 KiB, 8 threads", drop_in=90, native=200, Mooncake=100, Redis=50)
    won = measured("is_exist, 1 thread", drop_in=300, native=400, Mooncake=100)
    assert stats.behind(race.figures(lost)) == [("drop-in", "Mooncake")]
    assert stats.behind(race.figures(won)) == []
    text = report.markdown(found(lost, won), "x.svg")
    lines = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    assert (
        report.MARK in lines["get 4 KiB, 8 threads"] and "drop-in < Mooncake" in lines["get 4 KiB, 8 threads"]
    )
    calls = text[text.index("## Calls") :]
    assert report.MARK not in [line for line in calls.splitlines() if line.startswith("| is_exist, 1")][0]
    assert "in 1 of them" in text


def test_the_head_names_machine_versions_commit_and_command():
    text = report.head(found())
    for words in ("a processor", "4 cores", "0.3.13", "abc1234", "./dev peers --rows x", "without memcached"):
        assert words in text


def test_only_a_whole_race_may_be_published():
    parts = {"first": {}, "memory": {}, "disk": {}, "faults": {}}
    race_ = {**found(*(measured(row.name, drop_in=2, Mooncake=1) for row in rows.ROWS)), **parts}
    assert "not to be published" not in report.head(race_)
    for missing in ({**race_, "quick": True}, {**race_, "rows": race_["rows"][1:]}, found(*race_["rows"])):
        assert "not to be published" in report.head(missing)


def test_parts_of_one_race_are_put_together():
    calls = found(measured("is_exist, 1 thread", drop_in=2), measured("is_exist, 2 threads", drop_in=2))
    again = {
        **found(measured("is_exist, 1 thread", drop_in=5)),
        "faults": {},
        "sides": ["drop-in", "memcached"],
    }
    both = peers.merged(calls, again)
    assert [row["samples"]["drop-in"][1]["calls"] for row in both["rows"]] == [5, 2]
    assert both["sides"] == ["drop-in", "native", "Mooncake", "Redis", "memcached"]
    assert "faults" in both and both["seconds"] == 24.0
    with pytest.raises(SystemExit, match="another commit"):
        peers.merged(calls, {**again, "commit": "def"})
    with pytest.raises(SystemExit, match="another machine"):
        peers.merged(calls, {**again, "machine": {**again["machine"], "cores": 16}})


def test_goals_are_met_or_not_in_the_table():
    text = report.goals(
        found(
            measured("is_exist, 8 threads", drop_in=250, Mooncake=100),
            measured("is_exist, 1 thread", drop_in=150, Mooncake=100),
            measured("put + remove of 128 bytes, 1 thread", drop_in=500, Mooncake=100),
        )
    )
    rows_ = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    assert rows_["is_exist, 8 threads"].endswith("| 2.50 | 2 × | yes |")
    assert rows_["is_exist, 1 thread"].endswith("| 1.50 | 2 × | **no** |")
    assert rows_["put + remove of 128 bytes, 1 / 8 threads"].endswith("| not measured |")


def test_a_row_that_failed_stands_in_the_table():
    row = measured("is_exist, 1 thread", drop_in=300)
    row["failed"]["Mooncake"] = "RuntimeError: answered -1 | -2"
    row["not offered"].append("Redis")
    text = report.calls(found(row))
    assert "failed: RuntimeError: answered -1 / -2" in text and "not offered" in text


def test_what_is_written_can_be_read(tmp_path):
    some = [
        measured(f"get_into 4 KiB, {rows.threads_word(n)}", drop_in=n, native=3 * n, Mooncake=2)
        for n in rows.THREADS
    ]
    report.write(found(*some), tmp_path, "peers-4-cores")
    assert json.loads((tmp_path / "peers-4-cores.json").read_text())["rows"][0]["samples"]["drop-in"]
    chart = xml.etree.ElementTree.parse(tmp_path / "peers-4-cores.svg").getroot()
    said = [element.text for element in chart.iter() if element.text]
    assert "get_into 4 KiB, 8 threads" in said and "get_into 4 KiB, calls/s" in said
    assert "peers-4-cores.svg" in (tmp_path / "peers-4-cores.md").read_text()


def test_rounds_get_shorter_before_the_budget_is_broken():
    assert race.round_seconds(10_000, 150, 0.1) == race.ROUND_MOST
    assert race.round_seconds(-5, 1500, 0.1) == race.ROUND_LEAST
    assert race.round_seconds(450, 1500, 0.1) == pytest.approx(0.2)


def test_the_command_can_be_pasted_and_names_no_folder():
    words = ["--home", "/a", "--rows", "1 thread$", "--out=/b", "--out", "/c", "--quick"]
    assert peers.command("./dev peers", words) == "./dev peers --rows '1 thread$' --quick"
    assert peers.command("./dev peers", []) == "./dev peers"


def test_a_fault_is_counted_from_its_moment():
    watched = {
        "limit": False,
        "ended": 30.0,
        "seen": [
            [9.0, 0.1, "get", "before"],
            [11.0, 0.5, "get", "-704"],
            [12.5, 0.2, "get", "-704"],
            [12.6, 0.1, "put again", ""],
            [13.0, 2.0, "put", "-900"],
        ],
    }
    seen = faults.summary(watched, 10.0)
    assert seen["get"] == {"until": 2.5, "answers": {"-704": 2}, "longest": 0.5}
    assert seen["put"] == {"until": 3.0, "answers": {"-900": 1}, "longest": 2.0}
    assert seen["wrong"] == 0
    watched["seen"].append([14.0, 0.1, "get", "WRONG"])
    assert faults.summary(watched, 10.0)["wrong"] == 1


def test_a_fault_that_has_not_passed_says_so():
    seen = {"limit": True, "ended": 40.0, "seen": [[39.5, 0.1, "put", "-900"], [12.0, 0.1, "get", "-704"]]}
    sides = {"drop-in": faults.summary(seen, 10.0), "Redis": {"not offered": True}}
    sides["drop-in"]["newcomer"] = {"took": [3.0, 1.0, 2.5], "never": 2, "answers": {"get -704": 7}}
    text = report.faults({"master killed": sides})
    assert "| drop-in | 5 | 1.00, 2.50, 3.00 s | 2 | get -704 × 7 |" in text
    assert "| 29.5 s (and on) | -900 × 1 |" in text and "| 2.0 s | -704 × 1 |" in text
    assert "not offered" in text


class Liar(doors.Native):
    """A store that answers a read with the value of another key."""

    def __init__(self, memory, shift):
        self.memory, self.shift = memory, shift
        self.calls = {"get_into": self.lie, "get": self.lie_in_bytes}

    def lie(self, key, target):
        prefix, number = key.split("/")
        target[:] = self.memory.value(prefix, int(number) + self.shift, len(target))
        return len(target)

    def lie_in_bytes(self, key):
        prefix, number = key.split("/")
        return self.memory.value(prefix, int(number) + self.shift, 4096)


@pytest.fixture(scope="module")
def memory():
    return doors.Memory(4 << 20)


@pytest.mark.parametrize("call", ["get", "get_into"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_value_that_is_read_is_compared(call, threads, memory, monkeypatch):
    monkeypatch.setattr(loops, "SLOTS", 4 << 20)
    row = rows.Row("x", call, 4096, 1, threads)
    assert loops.Bench(Liar(memory, 0), memory).round(row, "key", 100, 0.01)["calls"] > 0
    with pytest.raises(loops.WrongBytes):
        loops.Bench(Liar(memory, 1), memory).round(row, "key", 100, 0.01)


@pytest.mark.parametrize("answer", [None, b""], ids=["None", "empty"])
def test_a_miss_is_no_wrong_byte(answer, memory):
    """A peer that is a cache may forget; it was told to have given wrong bytes, and the race ended."""
    forgetful = Liar(memory, 0)
    forgetful.calls["get"] = lambda key: answer
    forgetful.calls["get_batch"] = lambda keys: [answer] * len(keys)
    for call, batch in (("get", 1), ("get_batch", 4)):
        with pytest.raises(RuntimeError, match=f"{call} answered"):
            loops.Bench(forgetful, memory).round(rows.Row("x", call, 4096, batch, 1), "key", 100, 0.01)


def test_ours_are_held_against_mooncake_at_its_best():
    row = measured("is_exist, 8 threads", drop_in=250, native=300)
    assert stats.ratio(race.figures(row), "drop-in") is None
    for plain, pooled, wanted in ((100, 200, 1.25), (200, 100, 1.25), (125, 1, 2.0)):
        row = measured("is_exist, 8 threads", drop_in=250, Mooncake=plain, Mooncake_pool=pooled)
        assert stats.ratio(race.figures(row), "drop-in") == pytest.approx(wanted)
        text = report.goals(found(row))
        assert f"| {max(plain, pooled)} calls/s | 250 calls/s | {wanted:.2f} |" in text


def test_the_pool_of_mooncake_is_switched_on_for_one_side_and_no_other(tmp_path):
    (tmp_path / "about.json").write_text('{"missing": {"Mooncake": "x", "Redis": "x", "memcached": "x"}}')
    home = sides.Home(tmp_path)
    assert [side.name for side in home.sides(None)] == ["drop-in", "native"]
    home.about["missing"].clear()
    assert [side.name for side in home.sides(["Mooncake"])] == ["drop-in", "native", "Mooncake", "Mooncake-pool"]
    for side in sides.SIDES:
        there = "MC_TCP_ENABLE_CONNECTION_POOL" in home.environment(side, tmp_path)
        assert there is (side.name == "Mooncake-pool")


def test_wrong_bytes_stand_at_the_head_of_what_was_measured():
    parts = {"first": {}, "memory": {}, "disk": {}, "faults": {}}
    race_ = {**found(*(measured(row.name, drop_in=2, Mooncake=1) for row in rows.ROWS)), **parts}
    text = report.head({**race_, "wrong": "key/1: other bytes than were put"})
    assert "WRONG BYTES" in text and "key/1" in text and "not to be published" in text


def test_of_nothing_there_is_no_rate():
    nothing = {
        "stored": {"stored": 0, "seconds": 5.0, "refused": {"-200": 9}},
        "oldest": {"there": 0, "missing": {"-704": 3}, "seconds": 0.5},
        "newest": {"there": 0, "missing": {}, "seconds": 0.0},
    }
    text = report.disk({"values": 4, "memory": 1 << 20, "size": 1 << 20, "sides": {"drop-in": nothing}})
    assert "| drop-in | 0 | -200 × 9 | – | 0, -704 × 3 | – | 0, none |" in text


class Home:
    """A place to start processes in, without anything that races."""

    folder = pathlib.Path("/nowhere")

    def environment(self, side, folder, **more):
        return processes.plain_environment(**more)


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_an_interrupted_race_leaves_nothing_behind(monkeypatch):
    """The threads of a part wait for their servers; an interrupt waited for the threads, for minutes."""
    clusters = []
    monkeypatch.setattr(sides.Cluster, "_command", lambda self: SLEEPER)
    monkeypatch.setattr(processes.Process, "listening", lambda self, port: None)

    def work(side):
        with sides.Cluster(Home(), side, owners=0) as cluster:
            clusters.append(cluster)
            cluster.master.process.wait()
            cluster.restart_master()

    def interrupted(name, one):
        while len(clusters) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(tiers, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiers.at_once(sides.SIDES[:2], work)
    assert not sides.LIVE
    for cluster in clusters:
        assert cluster.master.process.returncode == -signal.SIGKILL and not cluster.folder.exists()


def test_a_worker_that_is_dead_is_silent(tmp_path):
    worker = processes.Worker("dead", "false", {}, tmp_path, processes.plain_environment())
    worker.process.wait()
    with pytest.raises(processes.Silent, match="exit 1"):
        for _ in range(2):
            worker.ask("clear")
    worker.kill()
