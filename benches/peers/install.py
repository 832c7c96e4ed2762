"""Gathers what is raced into one folder: ours as it was built, the published packages of the peers, their servers.

    install.py FOLDER --ours RELEASE_FOLDER [--python 3.12] [--pack TAR]

Nothing is installed into the system: packages of Python go into folders of their own, Debian packages are
unpacked. A peer that cannot be had is named with the reason, and the race goes on without it. A pack holds the same folder and these
scripts, for a machine without a network; it runs there with that machine's Python of the same minor version.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
CLIENTS = {"Redis": ["redis==8.1.0", "hiredis==3.5.0"], "memcached": ["pymemcache==4.0.0"]}
# Debian's names. Libraries that the peers load, where the machine does not have them, and the servers.
LIBRARIES = {
    "Mooncake": ["libibverbs1", "libnl-3-200", "libnl-route-3-200", "libnuma1", "libcurl4"],
    "Redis": ["libatomic1", "libjemalloc2", "liblzf1"],
    "memcached": ["libevent-2.1-7"],
}
SERVERS = {
    "Redis": ("redis-server", ["redis-tools", "redis-server"]),
    "memcached": ("memcached", ["memcached"]),
}
# Of the published wheel the race uses the store and the master. The rest is large and left out of a pack.
UNUSED = ("transfer_engine_bench", "mooncake_client", "engine.so", "bin")
# Of the C library's family; a machine has its own.
OF_THE_SYSTEM = re.compile(
    r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s)\.so.*|linux-vdso.*)$"
)
PACK_MOST = 60 << 20


def call(*command: object, cwd: pathlib.Path | None = None) -> str:
    """Runs a program; its output, or its complaint as an error."""
    words = [*map(str, command)]
    print("$ " + " ".join(words), file=sys.stderr, flush=True)
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{words[0]}` failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


class Gather:
    """One folder, step by step; what is missing is noted."""

    def __init__(self, folder: pathlib.Path, version: str) -> None:
        self.folder, self.version = folder.resolve(), version
        self.scratch = self.folder.parent / "scratch"
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def ours(self, release: pathlib.Path) -> None:
        root = pathlib.Path(__file__).resolve().parents[2]
        site = self.folder / "ours"
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(root / "crates/python/python/mooncrate", site / "mooncrate", ignore=skip)
        shutil.copytree(root / "dropin/mooncake", site / "mooncake", ignore=skip)
        (self.folder / "bin").mkdir(parents=True, exist_ok=True)
        module, program = site / "mooncrate/_native.abi3.so", self.folder / "bin/mooncrate"
        shutil.copy2(release / "lib_native.so", module)
        shutil.copy2(release / "mooncrate", program)
        call("strip", "--strip-unneeded", module)
        call("strip", program)
        self.versions["mooncrate"] = call(program, "--version").split()[-1]

    def packages(self, site: str, wants: list[str]) -> None:
        """Packages for the Python of the race, which need not be this one."""
        marks = [
            self.folder / site / f"{one.replace('-', '_').replace('==', '-')}.dist-info" for one in wants
        ]
        if all(mark.exists() for mark in marks):
            return
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "--upgrade",
        ]
        command += ["--root-user-action=ignore", "--target", self.folder / site, "--only-binary=:all:"]
        call(*command, "--python-version", self.version, *wants)

    def peer(self, name: str) -> None:
        """A peer with all that it needs, or the reason why not."""
        try:
            if name == "Mooncake":
                self.packages("mooncake", [MOONCAKE])
                self.libraries(name, [self.folder / "mooncake/mooncake/store.so", self._master()])
                self.versions[name] = MOONCAKE.split("==")[1]
            else:
                self.packages("clients", CLIENTS[name])
                self.server(name)
                self.versions |= dict(one.split("==") for one in CLIENTS[name])
        except (RuntimeError, OSError) as error:
            self.missing[name] = str(error)
            print(f"without {name}: {error}", file=sys.stderr)

    def _master(self) -> pathlib.Path:
        found = self.folder / "mooncake/mooncake/mooncake_master"
        found.chmod(0o755)
        return found

    def server(self, name: str) -> None:
        program, packages = SERVERS[name]
        found = shutil.which(program)
        if not found:
            found = self.unpacked(packages) / "usr/bin" / program
        target = self.folder / "bin" / program
        # Redis: one program under several names; the file, not the name.
        shutil.copyfile(pathlib.Path(found).resolve(), target)
        target.chmod(0o755)
        self.libraries(name, [target])
        words = call("env", f"LD_LIBRARY_PATH={self.folder / 'lib'}", target, "--version")
        self.versions[program] = re.search(r"\d+\.\d+\.\d+", words).group(0)

    def unpacked(self, packages: list[str]) -> pathlib.Path:
        """Debian packages, fetched and unpacked; nothing of the system changes."""
        root = self.scratch / "root"
        for package in packages:
            mark = self.scratch / f"{package}.done"
            if mark.exists():
                continue
            self.scratch.mkdir(parents=True, exist_ok=True)
            if not shutil.which("apt-get"):
                raise RuntimeError(f"missing: {package} (Debian's name); install it, and run this again")
            call("apt-get", "download", package, cwd=self.scratch)
            for deb in self.scratch.glob(f"{package}_*.deb"):
                call("dpkg", "-x", deb, root)
            mark.touch()
        return root

    def libraries(self, name: str, programs: list[pathlib.Path]) -> None:
        """What the programs load and a bare machine may not have, beside each other in one folder."""
        lib = self.folder / "lib"
        lib.mkdir(exist_ok=True)
        if any("not found" in self._ldd(program, lib) for program in programs):
            root = self.unpacked(LIBRARIES[name])
            for found in [*root.glob("usr/lib/*/*.so*"), *root.glob("lib/*/*.so*")]:
                if found.is_file():
                    shutil.copyfile(found.resolve(), lib / found.name)
        for program in programs:
            for line in self._ldd(program, lib).splitlines():
                words = line.split()
                if "not found" in line:
                    raise RuntimeError(f"{words[0]} is missing on this machine, and {program.name} needs it")
                if len(words) > 2 and words[1] == "=>" and not OF_THE_SYSTEM.match(words[0]):
                    inside = str(self.folder) in words[2]
                    if not inside and not (lib / words[0]).exists():
                        shutil.copyfile(words[2], lib / words[0])

    @staticmethod
    def _ldd(program: pathlib.Path, lib: pathlib.Path) -> str:
        return call("env", f"LD_LIBRARY_PATH={lib}", "ldd", program)

    def done(self) -> None:
        root = pathlib.Path(__file__).resolve().parents[2]
        try:
            commit = call("git", "describe", "--always", "--dirty", cwd=root).strip()
        except (RuntimeError, OSError):
            commit = "unknown"
        about = {"python": self.version, "commit": commit, "versions": self.versions, "missing": self.missing}
        (self.folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")


def pack(folder: pathlib.Path, target: pathlib.Path) -> None:
    """One tar of the folder and these scripts. Peers are left out, the least important first, until it is small enough."""
    about = json.loads((folder / "about.json").read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    for dropped in ("", "memcached", "Redis"):
        if dropped:
            about["missing"].setdefault(dropped, "the pack would be too large")
            (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
        write_tar(folder, target, set(about["missing"]))
        size = target.stat().st_size
        if size <= PACK_MOST:
            print(
                f"{target}: {size / (1 << 20):.1f} MiB, for Python {about['python']}; without: {', '.join(about['missing']) or 'nothing'}"
            )
            return
    sys.exit(f"{target} has {size / (1 << 20):.1f} MiB, and {PACK_MOST >> 20} MiB are the most")


def write_tar(folder: pathlib.Path, target: pathlib.Path, missing: set[str]) -> None:
    scripts = pathlib.Path(__file__).resolve().parent
    unused = {f"mooncake/mooncake/{name}" for name in UNUSED} | {"mooncake/bin"}
    unused |= {f"bin/{SERVERS[name][0]}" for name in missing if name in SERVERS}
    if {"Redis", "memcached"} <= missing:
        unused.add("clients")

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        inside = entry.name.partition("/")[2]
        if inside in unused or "__pycache__" in inside:
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:xz", preset=2) as tar:
        tar.add(folder, "peers", filter=wanted)
        tar.add(scripts, "peers/scripts", filter=wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="where cargo put the release builds")
    parser.add_argument(
        "--python", default=".".join(map(str, sys.version_info[:2])), help="of the machine that races"
    )
    parser.add_argument("--pack", type=pathlib.Path)
    given = parser.parse_args()
    if not re.fullmatch(r"3\.1[1-9]", given.python):
        sys.exit(f"--python {given.python}: 3.11 or later is wanted, as in 3.12")
    given.folder.mkdir(parents=True, exist_ok=True)
    gather = Gather(given.folder, given.python)
    gather.ours(given.ours)
    for name in ("Mooncake", "Redis", "memcached"):
        gather.peer(name)
    gather.done()
    if given.pack:
        pack(given.folder, given.pack)


if __name__ == "__main__":
    main()
