"""The Python files that README shows, for tests that run them as they stand."""

import re
from pathlib import Path

from tools.processes import PROJECT

FILES = [
    *("shop/tools.py", "shop/agents.py", "shop/mailbox.py", "shop/answers.py"),
    *("script.py", "test_shop.py"),
]


def write_examples(folder: Path) -> None:
    files = re.findall(
        r"^```python\n# (\S+\.py)\n(.*?)^```", (PROJECT / "README.md").read_text(), re.M | re.S
    )
    assert [name for name, _ in files] == FILES
    (folder / "shop").mkdir(parents=True)
    for name, code in files:
        (folder / name).write_text(code)
