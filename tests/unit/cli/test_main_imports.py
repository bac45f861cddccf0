"""What a command loads before it knows what it is asked for: its help comes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ASSEMBLED = """
import sys
from include.cli.main import COMMANDS, GROUPS, assemble
heavy = {"airflow", "alembic", "boto3", "botocore", "cryptography", "obstore", "requests", "sqlalchemy", "starlette"}
for name in (*GROUPS, *COMMANDS):
    assemble([name, "--help"])
    print(name, *sorted(heavy & set(sys.modules)))
"""


def test_no_command_loads_databases_stores_or_servers_to_show_its_help() -> None:
    done = subprocess.run([sys.executable, "-c", ASSEMBLED], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert len(loaded) > 10
    assert {name: modules for name, modules in loaded.items() if modules} == {}
