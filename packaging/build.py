"""Builds the packages: wheels and source archives for Python, a Debian package, an OCI image. `./dev package` runs it.

One compilation serves all of them. zig links against glibc 2.28, and maturin and cargo are called with the same linker and
compiler, so that cargo compiles every crate once.

What must stay true: a package that was not built is named in the output, with what is missing, and its older file is deleted.
"""

import argparse
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import oci

ROOT = pathlib.Path(__file__).parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
OUT = TARGET / "packages"
# The oldest glibc that the binaries run with: RHEL 8, Debian 10, Ubuntu 20.04 and everything later.
GLIBC = (2, 28)
# By the machine that a package is for: what Rust, Debian and OCI call it.
MACHINES = {
    "x86_64": ("x86_64-unknown-linux-gnu", "amd64", "amd64"),
    "aarch64": ("aarch64-unknown-linux-gnu", "arm64", "arm64"),
}
# No package may be larger.
SIZE_MAX = 15_000_000
# What the image has besides the program. libgcc-s1 is for libcuda, which the container runtime adds where there is a GPU.
BASE = ["base-files", "libc6", "libgcc-s1"]
# The user in the image, and the one that Kubernetes must be told: a number, because images cannot be asked for names.
IMAGE_USER = 65532


def run(*command, **options):
    """Runs a command and prints it first, so that it can be repeated."""
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, cwd=options.pop("cwd", ROOT), **options)


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, cwd=ROOT, capture_output=True, text=True).stdout


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def machines():
    """The machines that can be compiled for here; for the others prints what to install."""
    found = []
    for machine, (triple, *_) in MACHINES.items():
        library = pathlib.Path(output("rustc", "--print", "target-libdir", "--target", triple).strip())
        if any(library.glob("libstd-*.rlib")):
            found.append(machine)
        else:
            print(f"NOT BUILT for {machine}: the Rust standard library is missing. Install it: rustup target add {triple}")
    return found


def fresh(pattern):
    """Deletes what an earlier call left, so that nothing old is taken for new."""
    for file in OUT.glob(pattern):
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def wheels():
    """The wheel for each machine, and the packages of pure Python. Each also as a source archive."""
    fresh("*.whl")
    fresh("*.tar.gz")
    # It checks that the wheel needs no other libraries and no newer symbols than this name allows.
    maturin = ("maturin", "build", "--release", "--compatibility", f"manylinux_{GLIBC[0]}_{GLIBC[1]}")
    for machine in machines():
        target = MACHINES[machine][0]
        run(*maturin, "--target", target, "-m", "crates/python/Cargo.toml", "-o", OUT, env=compilers(machine))
    run("maturin", "sdist", "-m", "crates/python/Cargo.toml", "-o", OUT)
    for folder in ["dropin", "dropin/beside"]:
        # A copy: setuptools writes into the folder that it builds. `build` makes the wheel from the source archive.
        copy = TARGET / "package-work" / folder
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT / folder, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "beside"))
        run(sys.executable, "-m", "build", "--no-isolation", "-o", OUT, copy, stdout=subprocess.DEVNULL)


def compilers(machine):
    """The variables that make cargo compile C and link with zig, against the chosen glibc."""
    triple = MACHINES[machine][0]
    folder = TARGET / "package-work" / machine
    folder.mkdir(parents=True, exist_ok=True)
    tools = {}
    # cargo-zigbuild translates flags of rustc that zig does not know.
    for name, words in {"cc": f"cc -- -g -fno-sanitize=all -target {machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}", "ar": "ar --"}.items():
        tools[name] = folder / f"zig-{name}"
        text = f'#!/bin/sh\nexec cargo-zigbuild zig {words} "$@"\n'
        if not tools[name].exists() or tools[name].read_text() != text:
            tools[name].write_text(text)
            tools[name].chmod(0o755)
    suffix = triple.replace("-", "_")
    return {
        **os.environ,
        f"CARGO_TARGET_{suffix.upper()}_LINKER": str(tools["cc"]),
        f"CC_{suffix}": str(tools["cc"]),
        f"AR_{suffix}": str(tools["ar"]),
        "CARGO_ZIGBUILD_RUSTC_VERSION": output("rustc", "--version").split()[1],
        "CARGO_ZIGBUILD_ZIG_COMMAND": sys.executable,
        "CARGO_ZIGBUILD_ZIG_COMMAND_ARGS": "-m ziglang",
        "CARGO_ZIGBUILD_ZIG_VERSION": importlib.metadata.version("ziglang"),
    }


def program(machine):
    """The stripped program `mooncrate`. Naming the Python package selects the features that its wheel was compiled with."""
    triple = MACHINES[machine][0]
    packages = ("-p", "mooncrate-python", "-p", "mooncrate-cli")
    run("cargo", "build", "--release", "--locked", "--target", triple, *packages, "--bin", "mooncrate", env=compilers(machine))
    stripped = TARGET / "package-work" / machine / "mooncrate"
    # GNU strip knows the machines that it was built for.
    tool = shutil.which("strip") if machine == os.uname().machine else shutil.which(f"{machine}-linux-gnu-strip")
    if tool is None:
        sys.exit(f"missing: {machine}-linux-gnu-strip (Debian: binutils-{machine.replace('_', '-')}-linux-gnu)")
    run(tool, "-o", stripped, TARGET / triple / "release" / "mooncrate")
    needed = glibc(stripped)
    if needed > GLIBC:
        sys.exit(f"{stripped} needs glibc {needed}, more than {GLIBC}")
    return stripped


def glibc(program):
    """The newest version of glibc whose symbols a program uses."""
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)", program.read_bytes())
    return max((int(major), int(minor)) for major, minor in found)


def deb():
    fresh("*.deb")
    for machine in machines():
        debian = MACHINES[machine][1]
        root = TARGET / "package-work" / machine / "deb"
        shutil.rmtree(root, ignore_errors=True)
        sources = ROOT / "packaging" / "deb"
        doc = root / "usr/share/doc/mooncrate"
        place(program(machine), root / "usr/bin/mooncrate", 0o755)
        place(sources / "mooncrate.toml", root / "etc/mooncrate/mooncrate.toml")
        for unit in sources.glob("*.service"):
            place(unit, root / "usr/lib/systemd/system" / unit.name)
        place(sources / "copyright", doc / "copyright")
        run("gzip", "-9n", stdin=(ROOT / "CHANGELOG.md").open(), stdout=(doc / "changelog.gz").open("wb"))
        (doc / "changelog.gz").chmod(0o644)
        control = root / "DEBIAN"
        for script in ["postinst", "prerm", "postrm"]:
            place(sources / script, control / script, 0o755)
        size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
        values = {
            "VERSION": version(),
            "ARCHITECTURE": debian,
            "INSTALLED_SIZE": str(-(-size // 1024)),
            "DEPENDS": f"libc6 (>= {GLIBC[0]}.{GLIBC[1]})",
        }
        text = re.sub("@([A-Z_]+)@", lambda name: values[name[1]], (sources / "control").read_text())
        (control / "control").write_text(text)
        (control / "conffiles").write_text("/etc/mooncrate/mooncrate.toml\n")
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, OUT / f"mooncrate_{version()}_{debian}.deb")


def place(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def image():
    """An image of the program, glibc and nothing else, for the machine that builds it."""
    fresh("mooncrate-*-oci*")
    machine = os.uname().machine
    if not shutil.which("apt-get"):
        print("NOT BUILT: image. Its glibc comes from Debian's packages, and there is no apt-get here.")
        return
    folder = TARGET / "package-work" / machine / "image"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "debs").mkdir(parents=True)
    run("apt-get", "download", "-q", *BASE, cwd=folder / "debs")
    layer = oci.Layer()
    base_tree(folder)
    layer.add_tree(folder / "base")
    layer.add_file("etc/passwd", f"root:x:0:0::/:/sbin/nologin\nmooncrate:x:{IMAGE_USER}:{IMAGE_USER}::/var/lib/mooncrate:/sbin/nologin\n")
    layer.add_file("etc/group", f"root:x:0:\nmooncrate:x:{IMAGE_USER}:\n")
    layer.add_folder("tmp", mode=0o1777)
    for own in ["var/lib/mooncrate", "run/mooncrate"]:
        layer.add_folder(own, mode=0o755, owner=IMAGE_USER)
    layer.add_file("usr/bin/mooncrate", program(machine).read_bytes(), mode=0o755)
    config = {
        "User": f"{IMAGE_USER}:{IMAGE_USER}",
        "Entrypoint": ["/usr/bin/mooncrate"],
        "Cmd": ["serve"],
        "WorkingDir": "/var/lib/mooncrate",
        "Env": ["PATH=/usr/bin", "XDG_RUNTIME_DIR=/run/mooncrate", "XDG_STATE_HOME=/var/lib"],
        "Labels": {
            "org.opencontainers.image.title": "mooncrate",
            "org.opencontainers.image.version": version(),
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.source": "https://github.com/mooncrate/mooncrate",
        },
    }
    name = f"mooncrate-{version()}-{MACHINES[machine][2]}-oci"
    oci.write(OUT / name, layer, config, architecture=MACHINES[machine][2], tag=version())
    oci.archive(OUT / name, OUT / f"{name}.tar")


def base_tree(folder):
    """The files of the base packages, and for each package the note that scanners of images read."""
    base = folder / "base"
    notes = base / "var/lib/dpkg/status.d"
    notes.mkdir(parents=True)
    # Debian's merged /usr: older packages still have files below /lib, which must land below /usr/lib.
    for merged in ["bin", "lib", "lib64", "sbin"]:
        (base / "usr" / merged).mkdir(parents=True)
        (base / merged).symlink_to(f"usr/{merged}")
    for package in sorted((folder / "debs").glob("*.deb")):
        files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        left_out = [f"--exclude={pattern}" for pattern in ["*/changelog*", "./usr/share/lintian", "*/gconv"]]
        unpack = ["tar", "-x", "-C", base, "--keep-directory-symlink", "--no-same-owner", *left_out]
        subprocess.run(unpack, stdin=files.stdout, check=True)
        if files.wait() != 0:
            sys.exit(f"{package} cannot be unpacked")
        (notes / package.name.split("_")[0]).write_text(output("dpkg-deb", "--field", package))


def report():
    """Name and size of all that was built; fails if one is too large."""
    files = sorted(file for file in OUT.iterdir() if file.is_file())
    large = []
    for file in files:
        size = file.stat().st_size
        print(f"{size / 1e6:7.2f} MB  {file.relative_to(TARGET.parent)}")
        if size > SIZE_MAX and file.suffix != ".tar":
            large.append(file.name)
    if large:
        sys.exit(f"larger than {SIZE_MAX / 1e6:.0f} MB: {', '.join(large)}")


PACKAGES = {"wheels": wheels, "deb": deb, "image": image}


def main():
    parser = argparse.ArgumentParser(prog="./dev package", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", nargs="*", metavar="|".join(PACKAGES), help="default: all of them")
    wanted = parser.parse_args().what or list(PACKAGES)
    unknown = [name for name in wanted if name not in PACKAGES]
    if unknown:
        parser.error(f"no such package: {', '.join(unknown)}")
    OUT.mkdir(parents=True, exist_ok=True)
    # Permissions in packages do not depend on who builds them.
    os.umask(0o022)
    for name in wanted:
        PACKAGES[name]()
    report()


if __name__ == "__main__":
    main()
