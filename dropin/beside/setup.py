"""What pyproject.toml cannot say: a `.pth` file goes beside the modules, where Python reads it at its start."""

import os

from setuptools import setup
from setuptools.command.build_py import build_py

START = "mooncrate_beside.pth"


class WithStart(build_py):
    """Copies the file along with the modules."""

    def run(self):
        super().run()
        self.copy_file(START, os.path.join(self.build_lib, START))

    def get_outputs(self, include_bytecode=1):
        return [*super().get_outputs(include_bytecode), os.path.join(self.build_lib, START)]


setup(cmdclass={"build_py": WithStart})
