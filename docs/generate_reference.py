"""Write the generated pages of docs/reference from the code: every configuration key, every command.

python docs/generate_reference.py           write them
python docs/generate_reference.py --check   exit 1 if they are not current
"""

from __future__ import annotations

import sys
from pathlib import Path

from generators.commands import cli
from generators.configuration import configuration

REFERENCE = Path(__file__).parent / "reference"
PAGES = {REFERENCE / "configuration.md": configuration, REFERENCE / "cli.md": cli}


def stale() -> list[Path]:
    """Pages that are absent or differ from what the code says."""
    return [
        path
        for path, make in PAGES.items()
        if not path.exists() or path.read_text(encoding="utf-8") != make()
    ]


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` name those that are not current."""
    found = stale()
    if "--check" in arguments:
        for path in found:
            print(f"{path.name} is not current: run python docs/generate_reference.py", file=sys.stderr)
        return 1 if found else 0
    for path in found:
        path.write_text(PAGES[path](), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
