"""How much memory there is, by the system and by a container's limit."""

import os
from pathlib import Path

import pytest

from arcaps import memory

GB = 10**9


def write(folder: Path, **files: str) -> None:
    """Files with these contents; two underscores stand for a point."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def test_files_that_a_container_has_read_do_not_count_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = memory.available_memory()
    if there is None or there < GB // 10:
        pytest.skip("the system does not tell its memory, or has none")
    monkeypatch.setattr(memory, "CONTROL", tmp_path)
    limit, used, free = f"{GB}\n", f"{GB - 1000}\n", 1000
    write(tmp_path, memory__max=limit, memory__current=used)
    assert memory.available_memory() == free
    write(tmp_path, memory__stat="anon 500\nfile 60000\ninactive_file 50000\n")
    assert memory.available_memory() == free + 50000
    write(tmp_path, memory__max="max\n")
    assert memory.available_memory() != free + 50000
    first = {"memory__limit_in_bytes": limit, "memory__usage_in_bytes": used}
    write(tmp_path / "memory", **first, memory__stat="inactive_file 5\ntotal_inactive_file 2000\n")
    assert memory.available_memory() == free + 2000


def test_a_system_that_does_not_tell_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTROL", tmp_path)
    monkeypatch.setattr(memory, "SYSTEM", tmp_path / "meminfo")
    monkeypatch.delattr(os, "sysconf_names")
    assert memory.available_memory() is None
