"""What the programs for a real GPU share. They are called `gpu_*.py`, and `./dev gpu` runs each of them.

Such a program needs torch with CUDA and the package `mooncrate` beside it. It says of each check whether it held. Its
last line is a row for the table of `./dev gpu`: `what was checked | how it ended`. It ends with 0, with 1 if a check
failed, and with 77 if this machine cannot run it; then the row says SKIPPED and why. Processes that share a GPU do so
under MPS, which `under_mps` starts if nobody has: without it their kernels take turns of milliseconds, and that looks
like a hang.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

PATIENCE = 120


def torch_or_skip(row):
    """torch, if it is there and finds a GPU."""
    try:
        import torch
    except ImportError as error:
        print(f"{row} | SKIPPED: {error}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print(f"{row} | SKIPPED: torch finds no GPU")
        sys.exit(77)
    return torch


def run_checks(row, checks):
    """Runs each check, whatever the one before said, and ends the program."""
    failed, began = [], time.perf_counter()
    for work in checks:
        start = time.perf_counter()
        try:
            work()
            print(f"ok      {work.__name__}  {time.perf_counter() - start:.1f} s", flush=True)
        except BaseException:
            failed.append(work.__name__)
            print(f"FAILED  {work.__name__}\n{traceback.format_exc()}", flush=True)
    words = f"{len(checks) - len(failed)} passed, {len(failed)} failed in {time.perf_counter() - began:.0f} s"
    print(f"{row} | {words}" + (f": {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


def has_mps():
    """Whether a daemon of MPS listens where the driver of this process looks for one."""
    folder = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if not (folder / "control").exists():
        return False
    try:
        number = int((folder / "nvidia-cuda-mps-control.pid").read_text())
    except (OSError, ValueError):
        return True
    # A daemon that was killed leaves its files behind.
    return pathlib.Path(f"/proc/{number}").exists()


@contextlib.contextmanager
def under_mps():
    """The environment for processes that share a GPU: with the daemon that is there, or with one of our own."""
    if has_mps():
        yield dict(os.environ)
        return
    # The daemon may still write its log while it ends.
    with tempfile.TemporaryDirectory(prefix="mooncrate-mps-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=PATIENCE)
        try:
            yield environment
        finally:
            subprocess.run(
                ["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, check=False,
                timeout=PATIENCE, stdout=subprocess.DEVNULL,
            )  # fmt: skip


def run_ranks(program, world, *arguments, patience=PATIENCE):
    """Runs `program PATH RANK WORLD …` once for each rank, under MPS; what each printed. All must end well."""
    with under_mps() as environment, tempfile.TemporaryDirectory(prefix="mooncrate-ranks-") as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(program), os.path.join(folder, "meet"), str(rank), str(world), *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
            )
            for rank in range(world)
        ]  # fmt: skip
        until, said = time.monotonic() + patience, []
        try:
            for rank in ranks:
                try:
                    said.append(rank.communicate(timeout=max(0, until - time.monotonic()))[0])
                except subprocess.TimeoutExpired:
                    rank.kill()
                    said.append(f"{rank.communicate()[0]}\nno end after {patience} s")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        codes = [rank.returncode for rank in ranks]
        assert codes == [0] * world, "\n".join(f"rank {n} ended with {codes[n]}:\n{one}" for n, one in enumerate(said))
        return said


def main():
    """Runs a command under MPS: `python3 rig.py COMMAND …`."""
    with under_mps() as environment:
        sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
