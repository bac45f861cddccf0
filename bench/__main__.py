"""Benchmarks of Nightshift: `python -m bench NAME [OPTION]...`; `python -m bench NAME --help` lists the options."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent
NAMES = sorted(file.stem.replace("_", "-") for file in BENCH.glob("[a-z]*.py") if "\ndef main(" in file.read_text())


def main() -> int:
    """Runs a benchmark in this process; lists them where no name is given, or none of theirs."""
    name, *options = sys.argv[1:] or ["--help"]
    module = name.replace("-", "_")
    if name.replace("_", "-") in NAMES:
        os.chdir(BENCH.parent)
        os.execv(sys.executable, [sys.executable, "-m", f"bench.{module}", *options])
    print(__doc__, end="\n\n")
    for found in NAMES:
        about = ast.get_docstring(ast.parse((BENCH / f"{found.replace('-', '_')}.py").read_bytes())) or ""
        print(f"  {found:13} {about.partition(chr(10))[0]}")
    if name in ("-h", "--help"):
        return 0
    print(f"\nthere is no benchmark {name!r}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
