"""The programs of the pages do what they say."""

import pathlib
import re

import pytest

from conftest import python

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize("page", ["README.md", "crates/python/README.md"])
def test_the_program_of_the_page_runs(page):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    said = python(program)
    assert said.startswith("[[ 0.  1.  2.  3.]\n [ 4.  5.  6.  7.]\n [ 8.  9. 10. 11.]]\n")
