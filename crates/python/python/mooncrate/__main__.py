"""`python -m mooncrate`: the command, where the folder of console scripts is not in the path."""

import sys

from mooncrate._cli import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], f"{sys.executable} -m mooncrate"))
