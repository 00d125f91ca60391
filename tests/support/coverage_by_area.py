"""Print the coverage of each area of the package: `python -m tests.support.coverage_by_area`."""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run(
            [sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(report)], check=True
        )
        files: dict[str, Any] = json.loads(report.read_text())["files"]
    areas: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path, found in files.items():
        parts = PurePosixPath(path).parts
        inside = parts[parts.index("headwater") + 1 :]
        area = inside[0] if len(inside) > 1 else "(top level)"
        if area == "storage" and len(inside) > 2:
            area = f"storage/{inside[1]}"
        summary = found["summary"]
        for row in (areas[area], areas["all"]):
            row[0] += summary["num_statements"] + summary["num_branches"]
            row[1] += summary["covered_lines"] + summary["covered_branches"]
            row[2] += 1
    write = sys.stdout.write
    write(f"{'area':<20}{'files':>6}{'lines and branches':>20}{'covered':>9}\n")
    for area, (whole, covered, count) in sorted(areas.items(), key=lambda item: item[0] == "all"):
        percent = 100 * covered / whole if whole else 100.0
        write(f"{area:<20}{count:>6}{whole:>20}{percent:>8.1f}%\n")


if __name__ == "__main__":
    main()
