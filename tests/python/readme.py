"""The commands and programs of the README, and `./dev readme`: a stranger who has nothing but that page.

Clones the repository into a scratch folder, with an empty home directory, and runs what is in the code blocks of the
clone's README, in their order and exactly as it stands there: `./dev up` in one terminal; the other commands, and then
the Python programs under their names, in another one. What the page shows below a command must be printed. `./dev test`
is left out, because it takes far longer than all else, and so is the Rust program, which `./dev test doc` runs.

Needs what the README names, and a package index. Standard library only: it runs before anything is installed.
"""

import argparse
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# What each program prints. Of two ranks one prints.
PRINTS = {
    "store.py": ["[0. 1. 2. 3.] None"],
    "disk.py": ["True True", "True"],
    "paged.py": ["Admitted(blocks=3, cached_tokens=0)", "Admitted(blocks=3, cached_tokens=32) [0, 1, 3]"],
    "nano.py": ["0 b'kv pages'"],
    "ep.py": ["[3 3] True"],
}
# Seconds: the first build of a slow machine, and all else together.
BUILD_MAX, REST_MAX = 3600, 3600


def blocks(language, root=ROOT):
    """The code blocks of the README in a language."""
    page = (root / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def programs(root=ROOT):
    """The Python programs of the README by their names."""
    return {program.removeprefix("# ").split(":")[0]: program for program in blocks("python", root)}


def commands(root=ROOT):
    """The commands of the README, each with the lines that the page shows below it."""
    found = []
    for line in "".join(blocks("console", root)).splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def missing(shown, printed):
    """Those of the shown lines that were not printed. A line of the page may end where the real one goes on."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in shown if not any(have.startswith(" ".join(line.split())) for have in lines)]


def fail(words):
    sys.exit(f"FAILED: {words}")


def start(command, shown, clone, environment, log):
    """Starts what runs on in its own terminal, and waits until it has printed what the page shows."""
    began = time.monotonic()
    print(f"$ {command}", flush=True)
    with log.open("wb") as file:
        running = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=clone, env=environment, stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    while missing(shown, log.read_text()):
        if running.poll() is not None or time.monotonic() - began > BUILD_MAX:
            stop(running)
            fail(f"`{command}` did not print {missing(shown, log.read_text())}:\n{log.read_text()[-4000:]}")
        time.sleep(0.2)
    print(log.read_text()[-900:])
    print(f"({time.monotonic() - began:.0f} s)", flush=True)
    return running


def stop(running):
    """Ctrl-C in that terminal."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGINT)
    running.wait(60)


def follow(clone, environment, folder):
    """Does everything that the page says."""
    log, page = folder / "up.log", commands(clone)
    up, ready = page[0]
    rest = [(command, shown) for command, shown in page[1:] if not command.startswith("./dev test")]
    if not up.startswith("./dev up"):
        fail(f"the page begins with `{up}`, not with `./dev up`")
    running = start(up, ready, clone, environment, log)
    try:
        # One shell for all of them: an environment that a command activates is active for the next one.
        script, expected = ["set -e"], []
        for name, program in programs(clone).items():
            (folder / name).write_text(program)
            rest.append((f"python {folder / name}", PRINTS[name]))
        for number, (command, shown) in enumerate(rest):
            out = folder / f"{number}.out"
            # In the shell itself, with its output in a file: the last command of a pipe would be in another one.
            script.append(f"echo; echo {shlex.quote('$ ' + command)}; began=$SECONDS")
            script.append(f"{{ {command}\n}} >{out} 2>&1 || {{ cat {out}; exit 1; }}")
            script.append(f'tail -n 12 {out}; echo; echo "($((SECONDS - began)) s)"')
            expected.append((command, shown, out))
        whole = ["bash", "-c", "\n".join(script)]
        done = subprocess.run(whole, cwd=clone, env=environment, timeout=REST_MAX, check=False)
        for command, shown, out in expected:
            if not out.exists():
                fail(f"`{command}` was not reached, because the one before it failed")
            if lacks := missing(shown, out.read_text()):
                fail(f"`{command}` did not print {lacks}:\n{out.read_text()}")
        if done.returncode != 0:
            fail(f"a command ended with {done.returncode}")
        if running.poll() is not None:
            fail(f"`{up}` ended by itself:\n{log.read_text()[-4000:]}")
    finally:
        stop(running)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=pathlib.Path, help="a folder with an earlier build, which saves its time")
    target = parser.parse_args().target
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        clone, home = folder / "mooncrate", folder / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        if target:
            target.mkdir(parents=True, exist_ok=True)
            (clone / "target").symlink_to(target.resolve())
        # Nothing of the person who runs this but the Rust that is installed.
        ours = ("MOONCRATE_", "XDG_", "VIRTUAL_ENV", "CARGO_TARGET_DIR")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        for name, usual in {"CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup"}.items():
            environment.setdefault(name, str(pathlib.Path.home() / usual))
        follow(clone, {**environment, "HOME": str(home), "TMPDIR": str(folder)}, folder)
    print("\nThe README holds: the store, put and get from the shell, and every Python program.")


if __name__ == "__main__":
    main()
