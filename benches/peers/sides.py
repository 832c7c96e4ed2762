"""The sides of the race: how the servers of each are started, and the processes that own memory and call.

Everything listens on loopback. What must stay true: the sides get as much memory, as many processes and as many
threads as each other, and the defaults of their makers otherwise.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

from processes import Process, Silent, Worker, free_port, plain_environment

MIB = 1 << 20
SEGMENT = 2048 * MIB
# With the defaults Mooncake looks every 10 s for what to write, and writes when 256 MB have come together.
OFFLOAD = {
    "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(16 * MIB),
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "16",
    "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(8192 * MIB),
}
# Clusters that were started and not stopped.
LIVE: set["Cluster"] = set()
MASTER = "import sys; from mooncake._master import main; sys.exit(main())"


@dataclass(frozen=True)
class Side:
    """One store as its users use it."""

    name: str
    kind: str
    #: Folders below the environment that Python looks into.
    site: str
    #: Whether memory is lent by processes beside the master.
    owners: bool = True
    #: What is set for it besides.
    variables: tuple[tuple[str, str], ...] = ()
    #: Races in the rows of calls, and in no other part.
    calls_only: bool = False

    @property
    def peer(self) -> str:
        """Whose package this is."""
        return self.name.partition("-")[0] if self.site == "mooncake" else self.name


SIDES = [
    Side("drop-in", "mooncake", "ours"),
    Side("native", "native", "ours"),
    Side("Mooncake", "mooncake", "mooncake"),
    # By default each transfer over TCP has a connection of its own; users of TCP switch the pool on.
    Side(
        "Mooncake-pool",
        "mooncake",
        "mooncake",
        variables=(("MC_TCP_ENABLE_CONNECTION_POOL", "1"),),
        calls_only=True,
    ),
    Side("Redis", "redis", "clients", owners=False),
    Side("memcached", "memcached", "clients", owners=False),
]


# What must work before a peer races: its server and its client, below the folder.
PROBES = {
    "Mooncake": ("mooncake/mooncake/mooncake_master", "import mooncake.store"),
    "Redis": ("bin/redis-server", "import redis, hiredis"),
    "memcached": ("bin/memcached", "import pymemcache"),
}


class Home:
    """The folder with everything that is raced, and what is known about it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        self.about = json.loads((folder / "about.json").read_text())
        #: Of each peer, where its libraries are; empty: the machine has them.
        self.libraries: dict[str, str] = {}
        for side in SIDES:
            if side.name in PROBES and side.peer not in self.about["missing"]:
                self._probe(side)

    def _probe(self, side: Side) -> None:
        """Libraries of the machine itself come first: those that were brought along are of another one."""
        server, client = PROBES[side.name]
        commands = [[self.folder / server, "--version"], [sys.executable, "-c", client]]
        for place in ("", str(self.folder / "lib")):
            self.libraries[side.name] = place
            environment = self.environment(side, self.folder)
            failed = [done for one in commands if (done := _tried(one, environment))]
            if not failed:
                return
        self.about["missing"][side.name] = failed[0]

    def sides(self, wanted: list[str] | None) -> list[Side]:
        missing = self.about["missing"]
        found = [side for side in SIDES if side.peer not in missing]
        return [side for side in found if not wanted or side.peer in wanted or side.site == "ours"]

    def environment(self, side: Side, folder: pathlib.Path, **more: str) -> dict[str, str]:
        found = {"PYTHONPATH": str(self.folder / side.site), "XDG_RUNTIME_DIR": str(folder)}
        found["XDG_STATE_HOME"] = str(folder)
        if self.libraries.get(side.peer):
            found["LD_LIBRARY_PATH"] = self.libraries[side.peer]
        return plain_environment(**found, **dict(side.variables), **more)


def _tried(command: list, environment: dict[str, str]) -> str:
    """Runs something that ends by itself; empty if it ended well, else what it said."""
    try:
        done = subprocess.run(
            [*map(str, command)], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        ""
        if done.returncode == 0
        else (done.stderr or done.stdout).strip()[-200:] or f"exit {done.returncode}"
    )


def stop_all() -> None:
    """Ends what still runs, of all sides; whoever waits for an answer of it is told that there is none."""
    for cluster in [*LIVE]:
        cluster.stop()


@dataclass(eq=False)
class Cluster:
    """The servers of one side: a master, and owners of memory; or the one server that has both."""

    home: Home
    side: Side
    segment: int = SEGMENT
    owners: int = 1
    disk: bool = False
    folder: pathlib.Path = field(init=False)
    ended: bool = False
    processes: list[Process] = field(default_factory=list)
    lenders: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Short: the path of a Unix socket has at most 107 bytes.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="peers-"))
        LIVE.add(self)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.master = Process(f"{self.side.name}-master", self._command(), self.folder, self._environment())
        self.processes.append(self.master)
        self.master.listening(self.port)
        for _ in range(self.owners):
            segment = self.segment if self.side.owners else 0
            self.lenders.append(self.worker(segment=segment, slots=False, disk=self.disk))

    def _environment(self) -> dict[str, str]:
        return self.home.environment(self.side, self.folder, **(OFFLOAD if self.disk else {}))

    def _command(self) -> list:
        bin_ = self.home.folder / "bin"
        if self.side.kind == "mooncake":
            flags = [f"--rpc_port={self.port}", "--rpc_address=127.0.0.1", f"--metrics_port={free_port()}"]
            flags += ["--metrics_host=127.0.0.1"]
            # A value that was just put or read is held for 10 s otherwise, and a pool of such values refuses puts.
            flags += ["--enable_offload=true", "--default_kv_lease_ttl=500"] if self.disk else []
            if self.side.site == "mooncake":
                return [self.home.folder / "mooncake" / "mooncake" / "mooncake_master", *flags]
            return [sys.executable, "-c", MASTER, *flags]
        if self.side.kind == "native":
            doors = ["--master", self.address, "--admin", "127.0.0.1:0", "--grpc", "off"]
            return [bin_ / "mooncrate", "master", *doors]
        if self.side.kind == "redis":
            return [
                bin_ / "redis-server",
                "--port",
                self.port,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ]
        command = [bin_ / "memcached", "-p", self.port, "-l", "127.0.0.1", "-U", 0, "-u", "root"]
        command += ["-m", self.segment // MIB, "-I", "2m" if self.disk else "32m"]
        return [*command, "-o", f"ext_path={self.folder}/extstore:4G"] if self.disk else command

    def worker(self, segment: int = 0, slots: bool = True, disk: bool = False) -> Worker:
        """A process with a store of this cluster, ready to be told what to do."""
        self._not_ended()
        place = self.folder / "disk"
        if disk:
            place.mkdir(exist_ok=True)
        settings = {"kind": self.side.kind, "master": self.address, "segment": segment, "slots": slots}
        settings["disk"] = str(place) if disk else ""
        name = f"{self.side.name}-{len(self.processes)}"
        found = Worker(name, sys.executable, settings, self.folder, self._environment())
        self.processes.append(found)
        found.calls = set(found.ready()["calls"])
        return found

    def restart_master(self) -> None:
        """As whoever supervises it would."""
        self._not_ended()
        self.master.start()
        self.master.listening(self.port)

    def _not_ended(self) -> None:
        """Nothing more is started once all was stopped, from another thread, perhaps."""
        if self.ended:
            raise Silent(f"{self.side.name}: its servers were stopped")

    def stop(self) -> None:
        """Ends every process of the cluster, by its id, whatever state it is in; repeatable."""
        self.ended = True
        for process in self.processes:
            process.strike()
        try:
            for process in reversed(self.processes):
                process.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            LIVE.discard(self)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.stop()
