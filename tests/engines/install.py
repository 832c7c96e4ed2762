"""Installs the engines' published wheels into a folder: `install.py FOLDER`.

The engines and torch come without what only a GPU runs, which would be several gigabytes. The torch of the package
index is built for CUDA and wants NVIDIA's libraries when it is loaded, although without a GPU it calls none of
them; in their place are empty libraries of the same names, and functions are looked for when they are called. A
call to one would end the process with an error that names it. The Python code of the engines, and all of torch
that runs on a CPU, is as it was published.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
LISTS = (HERE / "wheels.txt", HERE / "requirements.txt")
# What only a GPU runs, and what only a compiler needs.
LEFT_OUT = re.compile(
    r"torch/(include|test)/|torch/lib/libtorch_cuda_linalg"
    r"|triton/backends/(nvidia/(bin|lib/cupti)|amd/lib/.*\.so)|triton/instrumentation/"
    r"|vllm/(vllm-rs$|third_party/|vllm_flash_attn/.*\.so$|_\w*C\w*\.abi3\.so$)"
    r"|lmcache/cuda_ops"
)
# NVIDIA's libraries by name. Not the driver: the runtime, which is the real one, looks whether there is one.
FOREIGN = re.compile(r"lib(cu(?!da\.so)|nccl|nv)[\w.]*$")


def run(*command):
    print("$", *command, flush=True)
    return subprocess.run(command, check=False).returncode == 0


def pip(python, *arguments):
    return run(python, "-m", "pip", *arguments)


def named(path):
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def unpack(wheel, site):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not LEFT_OUT.match(entry.filename):
                archive.extract(entry, site)
    wheel.unlink()


def empty_libraries(site):
    """A library without a function for each that torch names and that is not here."""
    libraries = site / "torch" / "lib"
    here = {path.name for path in [*libraries.iterdir(), *(site / "nvidia").rglob("*.so*")]}
    said = subprocess.run(
        ["readelf", "-d", *map(str, libraries.glob("*.so"))], capture_output=True, text=True, check=True
    )
    wanted = set(re.findall(r"\(NEEDED\).*\[(.*)\]", said.stdout))
    for name in sorted(one for one in wanted - here if FOREIGN.match(one)):
        command = ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", str(libraries / name)]
        subprocess.run([*command, "-x", "c", os.devnull], check=True)
        print(f"empty: {name}")


def main():
    folder = pathlib.Path(sys.argv[1])
    stamp = folder / "installed.txt"
    wanted = "\n".join(path.read_text() for path in LISTS)
    if stamp.is_file() and stamp.read_text() == wanted:
        return 0
    venv.create(folder, clear=True, with_pip=True)
    python = str(folder / "bin" / "python")
    (site,) = folder.glob("lib/python3*/site-packages")
    quiet = ("-q", "--disable-pip-version-check", "--no-cache-dir")
    complete = pip(python, "install", *quiet, "-r", str(LISTS[1]))
    for wheel in named(LISTS[0]):
        there = folder / "wheels"
        fetched = pip(python, "download", *quiet, "--no-deps", "--only-binary=:all:", "-d", str(there), wheel)
        if not fetched:
            print(f"NOT HAD: {wheel}: there is no wheel of it for this machine and this Python")
            complete = False
        for path in there.glob("*.whl"):
            unpack(path, site)
    shutil.rmtree(folder / "wheels", ignore_errors=True)
    if (site / "torch").is_dir():
        empty_libraries(site)
    (site / "engines.pth").write_text("import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n")
    # What is missing today may be there tomorrow.
    if complete:
        stamp.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
