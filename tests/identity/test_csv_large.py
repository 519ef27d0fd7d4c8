"""Large and hostile files are read in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from django.conf import settings

# A process of its own, because memory is measured from its beginning.
READER = dedent("""
    import sys
    from pathlib import Path
    from django.conf import settings
    settings.configure(JIM_IDENTITY_FOLDERS=[Path(sys.argv[1])])
    from identity.connectors.connector import ConnectorError
    from identity.connectors.csv_connector import CsvConnector
    from identity.shape import AttributeShape, TypeShape
    attributes = [AttributeShape(name) for name in ("id", "name", "mail")]
    shape = TypeShape.of("person", *attributes, external_id="id")
    connector = CsvConnector(CsvConnector.clean({"path": "hr.csv", "stable_seconds": 0}))
    objects = problems = 0
    try:
        with connector.open({"person": shape}, page_size=1000) as reading:
            for page in reading.pages():
                objects += len(page.objects)
                problems += len(page.problems)
        print(objects, "objects and", problems, "problems")
    except ConnectorError as error:
        print(error)
    status = Path("/proc/self/status").read_text()
    print(status.partition("VmHWM:")[2].split()[0])
""")


def read_large(folder: Path) -> tuple[str, int]:
    """Return what a reader of hr.csv says, and how much memory it needed at most, in kB."""
    ended = subprocess.run(
        [sys.executable, "-c", READER, str(folder)],
        cwd=settings.BASE_DIR,
        check=True,
        capture_output=True,
        text=True,
    )
    said, memory = ended.stdout.rsplit("\n", 2)[:2]
    return said, int(memory)


def fill(path: Path, beginning: str, piece: str, times: int) -> None:
    with path.open("w") as file:
        file.write(beginning)
        for _ in range(times):
            file.write(piece)


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        ("id,name,mail\n7,", "x" * 2**20),
        ("id,name,mail\n7,", "," * 2**20),
        ("id,name,mail\n7,", "😀" * 2**18),
        ('id,name,mail\n7,"', "line\n" * 200_000),
        ("id,name,mail\n", '7,"x\n",' * 150_000),
    ],
)
@pytest.mark.parametrize("megabytes", [32, pytest.param(1024, marks=pytest.mark.long)])
def test_a_line_or_record_of_any_size_is_refused_in_little_memory(
    tmp_path: Path, beginning: str, piece: str, megabytes: int
) -> None:
    fill(tmp_path / "hr.csv", beginning, piece, megabytes)
    said, memory = read_large(tmp_path)
    assert "hr.csv, line 2" in said
    assert "longer than" in said
    assert memory < 300 * 1024
    (tmp_path / "hr.csv").unlink()


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_records_are_read_in_little_memory(tmp_path: Path, count: int) -> None:
    with (tmp_path / "hr.csv").open("w") as file:
        file.write("id,name,mail\n")
        file.writelines(f"{number:07},Name {number},n{number}@example.org\n" for number in range(count))
    said, memory = read_large(tmp_path)
    assert said == f"{count} objects and 0 problems"
    assert memory < 150 * 1024


@pytest.mark.long
def test_a_million_records_that_all_occur_twice_are_told_in_bounded_memory(tmp_path: Path) -> None:
    with (tmp_path / "hr.csv").open("w") as file:
        file.write("id,name,mail\n")
        for _ in range(2):
            file.writelines(f"{number:07},Name,x\n" for number in range(500_000))
    said, memory = read_large(tmp_path)
    assert said == "0 objects and 1000000 problems"
    assert memory < 300 * 1024
