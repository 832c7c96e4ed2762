"""Scenarios 11 and 12: owners and clients that end something, and what the other side still holds."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import mooncrate
from harness import KIB, MIB, PATIENCE, Scene, Server, attempt, milliseconds, until, value
from mooncrate._native import Lender

# How long the hurried writers of scenario 11 write, at least, and how many views must have been looked at.
HURRIED_SECONDS, VIEWS = 15.0, 100
# Until what a link held is free after its end was told.
FREE_SECONDS = 3.0


def failing_owner(scene: Scene) -> None:
    """Batches of 16 begins with a few milliseconds each, at an owner that loses its core again and again."""
    master = scene.start("master")
    node = scene.node(master, "x", size="96MiB")
    hurried = [_hurried_client(scene, master) for _ in range(3)]
    store = scene.client(master, timeout=10.0)
    over = threading.Event()
    counts = {"stored": 0, "failed": 0, "read": 0, "wrong": 0}

    def hurry(client: mooncrate.Store, mine: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            items = {f"hurried/{mine}/{number}/{n}": b"\xff" * (128 * KIB) for n in range(16)}
            answers = attempt(lambda items=items: client.put_batch(items))
            stored = answers.count(True) if isinstance(answers, list) else 0
            counts["stored"] += stored
            counts["failed"] += 16 - stored
            if not stored:
                # Else the room of puts that were planned while their writer gave up fills the pool, for 30 s.
                over.wait(0.02)

    def stop_and_go() -> None:
        draw = random.Random(11)
        while not over.is_set():
            node.signal(signal.SIGSTOP)
            time.sleep(draw.uniform(0.001, 0.006))
            node.signal(signal.SIGCONT)
            time.sleep(draw.uniform(0.001, 0.010))

    threads = [threading.Thread(target=hurry, args=one) for one in zip(hurried, range(3), strict=True)]
    threads.append(threading.Thread(target=stop_and_go))
    for thread in threads:
        thread.start()
    began, number = time.monotonic(), 0
    while (took := time.monotonic() - began) < HURRIED_SECONDS or (counts["read"] < VIEWS and took < PATIENCE):
        number += 1
        name, what = f"neighbour/{number}", value("neighbour", number, 128 * KIB)
        if attempt(lambda name=name, what=what: store.put(name, what)) is not True:
            continue
        view = attempt(lambda name=name: store.view(name))
        if isinstance(view, mooncrate.View):
            for _ in range(3):
                counts["read"] += 1
                counts["wrong"] += bytes(view) != what
                time.sleep(0.002)
            view.release()
        attempt(lambda name=name: store.remove(name, force=True))
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    scene.say(f"{counts['stored']} hurried values stored, {counts['failed']} not")
    scene.check(
        "views of values beside puts whose owner fails",
        seen=f"{counts['wrong']} wrong of {counts['read']}",
        goal="0 wrong",
        holds=counts["wrong"] == 0 and counts["read"] >= VIEWS and counts["failed"] > VIEWS,
    )
    for client in hurried:
        client.close()
    took, free = until(30, lambda: _is_empty(store), step=0.1)
    seen = f"free after {milliseconds(took)}" if free else "not free after 30 s"
    scene.check("what hurried writers held", seen=seen, goal="free in 30 s", holds=bool(free))


def _hurried_client(scene: Scene, master: Server) -> mooncrate.Store:
    """A client with little time for its calls. To open it may take longer than that."""
    _, client = until(PATIENCE, lambda: _or_none(lambda: scene.client(master, timeout=0.004)))
    assert isinstance(client, mooncrate.Store)
    return client


def _is_empty(store: mooncrate.Store) -> bool:
    """Removes everything; whether nothing is left in the segments."""
    attempt(lambda: store.remove_prefix("", force=True))
    stats = attempt(store.stats)
    if isinstance(stats, mooncrate.Error):
        return False
    return bool(stats["used_bytes"] + stats["quarantined_bytes"] == 0)


def unheard_ends(scene: Scene) -> None:
    """Hang-ups, failed starts and unmounts, which are told once; and a second mapping that is refused."""
    master = scene.start("master")
    scene.node(master, "x", size="2GiB")
    _forked(scene, master)
    _little_address_space(scene, master)
    _not_taken(scene, master)
    _unmounted(scene, master)


def _forked(scene: Scene, master: Server) -> None:
    """A put session is given up by a process that has a forked child."""
    script = """
        import mooncrate, os, sys, time
        store = mooncrate.Store(master=sys.argv[1])
        session = store.put_session("forked", 8 << 20)
        session.write(0, b"x" * (1 << 20))
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        session.revoke()
        print(child, flush=True)
        sys.stdin.read()
        store.close()
    """
    process = _python(scene, script, master.said["master"])
    assert process.stdout is not None
    child = int(process.stdout.readline())
    store = scene.client(master)
    took, free = until(10, lambda: _is_empty(store))
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    seen = f"free after {milliseconds(took)}" if free else "not free while the child lives"
    scene.check(
        "a range given up by a process with a forked child",
        seen=seen,
        goal=f"free in {FREE_SECONDS:.0f} s",
        holds=bool(free) and took <= FREE_SECONDS,
    )


def _little_address_space(scene: Scene, master: Server) -> None:
    """A client that can map the segment of 2 GiB once, and not twice."""
    script = """
        import json, mooncrate, sys
        store = mooncrate.Store(master=sys.argv[1])
        found = {}
        for size in (20_000, 40_000, 4 << 20):
            try:
                stored = store.put(f"small/{size}", b"x" * size)
                found[size] = bool(stored) and store.get(f"small/{size}") == b"x" * size
            except mooncrate.Error as error:
                found[size] = str(error)
        print(json.dumps(found))
    """
    process = _python(scene, script, master.said["master"], address_space=4_000_000 * KIB)
    out, _ = process.communicate(timeout=PATIENCE)
    found = json.loads(out) if out else {"": f"it ended with {process.returncode}"}
    good = all(one is True for one in found.values())
    seen = f"{len(found)} sizes stored" if good else str(found)
    scene.check("puts with `ulimit -v`, segment of 2 GiB", seen=seen, goal="all stored", holds=good)


def _not_taken(scene: Scene, master: Server) -> None:
    """A store lends memory while its master stands still, and again when it goes on."""
    store = scene.client(master, timeout=3.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    master.signal(signal.SIGSTOP)
    first = attempt(lambda: _lend(store, master, port))
    master.signal(signal.SIGCONT)
    took, second = until(10, lambda: _or_none(lambda: _lend(store, master, port)), step=0.2)
    seen = "the first one was taken"
    if isinstance(first, mooncrate.Error):
        seen = f"the same port after {milliseconds(took)}" if second else "the port stays taken"
    holds = isinstance(first, mooncrate.Error) and second is not None
    holds = holds and second.endpoint == f"127.0.0.1:{port}"
    scene.check("lending after a start that failed", seen=seen, goal="the same port", holds=holds)
    for lender in (first, second):
        if isinstance(lender, Lender):
            lender.close()


def _unmounted(scene: Scene, master: Server) -> None:
    """A segment is unmounted while the master stands still."""
    store = scene.client(master, timeout=3.0)
    lender = _lend(store, master, 0)
    before = store.stats()["capacity_bytes"]
    lender.mount(1, 32 * MIB)
    assert store.stats()["capacity_bytes"] == before + 32 * MIB
    master.signal(signal.SIGSTOP)
    unheard = attempt(lambda: lender.unmount(1))
    master.signal(signal.SIGCONT)
    took, told = until(20, lambda: _or_none(lambda: store.stats()["capacity_bytes"] == before))
    lender.close()
    seen = f"gone after {milliseconds(took)}" if told else "still listed after 20 s"
    if not isinstance(unheard, mooncrate.Error):
        seen += ", and it was heard at once"
    scene.check(
        "a segment unmounted while the master stands still", seen=seen, goal="gone", holds=bool(told)
    )


def _lend(store: mooncrate.Store, master: Server, port: int) -> Lender:
    return Lender(
        store,
        master=master.said["master"],
        name="lender",
        listen=f"127.0.0.1:{port}",
        segment_size=32 * MIB,
    )


def _or_none(call: Callable[[], Any]) -> Any:
    """The answer of a call, or None where it fails."""
    answer = attempt(call)
    return None if isinstance(answer, mooncrate.Error) else answer


def _python(
    scene: Scene, script: str, *arguments: str, address_space: int = 0
) -> "subprocess.Popen[str]":
    """Python in a process of its own, with little address space where that is asked for."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=scene.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=limit if address_space else None,
    )
