"""Ctrl-C in a call that waits: what the programs of `test_interrupts.py` run first.

No time decides here. Calls have an hour; one that Ctrl-C does not end lets its program run out of patience.
"""

import itertools
import os
import signal
import threading
import time

import mooncrate

HOUR = 3600


def until_main_waits():
    """Returns when the main thread was found asleep in ten looks: it waits for a peer, not for the GIL, which is free
    meanwhile. Not in a row: a rank sleeps many times a millisecond, and on a busy machine often waits for a core."""
    main, asleep = f"/proc/self/task/{os.getpid()}/stat", 0
    while asleep < 10:
        time.sleep(0.005)
        with open(main) as stat:
            asleep += stat.read().rpartition(")")[2].split()[0] == "S"


def when_main_waits(act):
    """Does something in another thread once the main thread waits."""

    def run():
        until_main_waits()
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(call, *given, **more):
    """Makes a call that waits, and interrupts it. It must be the call that raises."""
    name = getattr(call, "__name__", str(call))
    thread = when_main_waits(interrupt)
    try:
        got = call(*given, **more)
    except KeyboardInterrupt as error:
        # An error of the call itself would be its context: then the call had ended before.
        assert error.__context__ is None, f"{name}: {error.__context__!r}"
    else:
        raise AssertionError(f"{name} was not interrupted: {got!r}")
    thread.join()


def held(pid):
    """Stops a process, and waits until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    while True:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.001)


def goes_on(pid):
    os.kill(pid, signal.SIGCONT)


def still(pid, call, *given, **more):
    """Stops a process, interrupts a call that waits for it, and lets it go on: it stands still as short a time as
    it can, since after some seconds others stop waiting for it by themselves."""
    held(pid)
    try:
        interrupted(call, *given, **more)
    finally:
        goes_on(pid)


def still_or_too_late(pid, call, *given):
    """The same for a call that may end by itself, before Ctrl-C comes on a busy machine; whether it was interrupted."""
    held(pid)
    thread = when_main_waits(interrupt)
    try:
        try:
            got = call(*given)
        except mooncrate.Unavailable:
            while True:
                time.sleep(0.01)  # Ctrl-C comes yet.
    except KeyboardInterrupt as error:
        thread.join()
        return error.__context__ is None
    finally:
        goes_on(pid)
    raise AssertionError(f"not interrupted: {got!r}")


def settled(store):
    """Waits until the owner of a store, which stood still, takes values and gives them."""
    for number in itertools.count():
        key = f"settled/{number}"
        if eventually(store.put, key, bytes(1 << 20)) and eventually(store.get, key) is not None:
            eventually(store.remove, key, force=True)
            return


def eventually(call, *given, **more):
    """What a call gives, after what a process that stood still brings with it; that passes in seconds, or ends by
    the patience of the test."""
    while True:
        try:
            return call(*given, **more)
        except (mooncrate.Busy, mooncrate.Unavailable):
            time.sleep(0.05)
