"""The programs as real processes, as their console scripts run them: started, asked, signalled, with an end
to every wait."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

# Generous: the machine may be busy with other things. No test passes or fails by a time.
PATIENCE = 60

SCRIPTS = {
    "mooncake_master": ("mooncake._master", "main"),
    "mooncake_client": ("mooncake._client", "main"),
    "mooncake_http_metadata_server": ("mooncake.http_metadata_server", "main"),
    "mc_store_rest_server": ("mooncake.mooncake_store_service", "sync_main"),
}


def free_ports(count):
    """Ports that nobody has now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


# The programs of the package that the drop-in stands in for, when its own tests are held against it.
THEIRS = os.environ.get("MOONCAKE_MASTER", "")


def command(script, *flags):
    """How a console script is run, or a module by its name."""
    if script not in SCRIPTS:
        return [sys.executable, "-X", "faulthandler", "-m", script, *flags]
    if THEIRS:
        return [str(pathlib.Path(THEIRS).with_name(script)), *flags]
    module, function = SCRIPTS[script]
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, "-X", "faulthandler", "-c", code, *flags]


def environment(folder, **more):
    """Nothing of whoever runs the tests, except where Python is."""
    ours = ("MOONCRATE_", "MC_", "MOONCAKE_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**plain, "XDG_RUNTIME_DIR": str(folder), **more}


class Program:
    """A script that runs until it is stopped."""

    def __init__(self, folder, script, *flags, ports=(), **variables):
        self.name = f"{script}-{time.monotonic_ns()}"
        self.log_path = folder / f"{self.name}.log"
        self.ports = ports
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                command(script, *flags),
                cwd=folder,
                env=environment(folder, **variables),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            for port in ports:
                self.wait_for(port)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def log(self):
        return self.log_path.read_text()

    def wait_for(self, port):
        """Until somebody answers on this port."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.process.poll() is None, f"it ended: {self.log}"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"nobody answers on {port}: {self.log}")

    def stop(self, by=signal.SIGTERM):
        """Ends it by a signal; it must end well, and its ports must be free."""
        try:
            self.process.send_signal(by)
            assert self.process.wait(PATIENCE) == 0 or THEIRS, self.log
            for port in self.ports:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        finally:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


def start_retrying(make):
    """Starts a program on ports that were free a moment ago; somebody may have been faster."""
    for _ in range(4):
        try:
            return make()
        except AssertionError as error:
            if "taken" not in str(error) and "in use" not in str(error):
                raise
            last = error
    raise last


def ended(folder, script, *flags, **variables):
    """Runs a script that ends by itself; its exit code and what it said."""
    done = subprocess.run(
        command(script, *flags),
        cwd=folder,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def listeners(port):
    """Ids of the processes that listen on a port."""
    inodes = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
            inodes.add(f"socket:[{fields[9]}]")
    found = set()
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            files = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue
        for file in files:
            try:
                if os.readlink(f"/proc/{process}/fd/{file}") in inodes:
                    found.add(int(process))
            except OSError:
                continue
    return found


def ask(port, path, verb="GET", body=None, headers=None):
    """Status and body of a request."""
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, data=body, method=verb, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def ask_json(port, path, verb="GET", body=None):
    """The same in JSON."""
    raw = None if body is None else json.dumps(body).encode()
    status, answer = ask(port, path, verb, raw, {"Content-Type": "application/json"})
    return status, json.loads(answer)


def until(what, look):
    """Looks until something is true; what was seen last."""
    end = time.monotonic() + PATIENCE
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


class Cluster:
    """A `mooncake_master` on free ports, and clients that lend memory to it."""

    def __init__(self, folder, *flags, **variables):
        self.folder = folder
        self.clients = []

        def make():
            self.port, self.admin = free_ports(2)
            ports = (self.port, self.admin)
            where = [f"--rpc_port={self.port}", f"--metrics_port={self.admin}"]
            return Program(folder, "mooncake_master", *where, *flags, ports=ports, **variables)

        self.master = start_retrying(make)
        self.address = f"127.0.0.1:{self.port}"

    def lend(self, *flags, size="64MB"):
        """One more client; it answers at `.port`, and its segment is `.segment`."""

        def make():
            port, data = free_ports(2)
            program = Program(
                self.folder,
                "mooncake_client",
                f"--master_server_address={self.address}",
                f"--host=127.0.0.1:{data}",
                f"--port={port}",
                f"--global_segment_size={size}",
                *flags,
                ports=(port, data),
            )
            program.port, program.segment = port, f"127.0.0.1:{data}"
            return program

        client = start_retrying(make)
        self.clients.append(client)
        # Its ports are open before the master knows it.
        until("it is mounted", lambda: client.segment in self.segments())
        return client

    def segments(self):
        """What is mounted now."""
        return ask(self.admin, "/get_all_segments")[1].decode().splitlines()

    def stop(self):
        for client in self.clients:
            if client.process.poll() is None:
                client.stop()
        if self.master.process.poll() is None:
            self.master.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
