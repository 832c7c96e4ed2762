"""A root file system of its own for a program: its own processes, network and mounts. Needs root.

The program sees nothing of the machine but its kernel, so a file that the package forgot is missed here as on a fresh machine.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import time

# Longest wait for a start or an end, on a machine that compiles meanwhile.
PATIENCE = 60


def missing(*tools):
    """What a chamber lacks here, in words, or nothing."""
    if os.geteuid() != 0:
        return "chroot needs root"
    absent = [tool for tool in ("unshare", "nsenter", "setpriv", "ip", *tools) if not shutil.which(tool)]
    return f"{', '.join(absent)} is not installed" if absent else ""


class Chamber:
    """Runs programs below `root`. The first process keeps the namespaces alive; its end ends everything in them."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "run").mkdir(exist_ok=True)
        keep = 'ip link set lo up && mount -t proc proc "$0/proc" && echo ready && exec sleep infinity'
        flags = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        self.keeper = subprocess.Popen(["unshare", *flags, "bash", "-c", keep, self.root], stdout=subprocess.PIPE, text=True)
        assert self.keeper.stdout.readline() == "ready\n"
        (self.first,) = pathlib.Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.settimeout(PATIENCE)
        path = self.root / "run/notify"
        path.unlink(missing_ok=True)
        self.notify.bind(str(path))
        path.chmod(0o777)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.keeper.kill()
        self.keeper.wait()
        self.notify.close()

    def command(self, *command, user=None, environment=None):
        spaces = ["--mount", "--net", "--pid", "--ipc", "--uts"]
        as_user = [f"--userspec={user}", "--groups="] if user else []
        # By their paths: PATH is that of the program.
        nsenter, chroot = shutil.which("nsenter"), shutil.which("chroot")
        enter = [nsenter, "--target", self.first, *spaces, chroot, *as_user, str(self.root)]
        given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": "/run/notify", **(environment or {})}
        return {"args": [*enter, *command], "env": given}

    def run(self, *command, **options):
        """Runs a command to its end; what it printed."""
        done = subprocess.run(
            **self.command(*command, **options), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command, log, **options):
        """Starts a server, and waits until it tells the service manager that it is ready."""
        with open(log, "w") as out:
            server = subprocess.Popen(**self.command(*command, **options), stdout=out, stderr=out)
        self.told("READY=1", server, log)
        return server

    def stop(self, server, log):
        """Asks a server to stop, as systemd and container runtimes do."""
        # nsenter forks to enter the processes' namespace; the program is its child.
        (child,) = pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(child), 15)
        self.told("STOPPING=1", server, log)
        assert server.wait(PATIENCE) == 0, pathlib.Path(log).read_text()

    def told(self, message, server, log):
        end = time.monotonic() + PATIENCE
        self.notify.settimeout(1)
        while True:
            try:
                assert self.notify.recv(64).decode() == message
                return
            except TimeoutError:
                assert server.poll() is None and time.monotonic() < end, pathlib.Path(log).read_text()
