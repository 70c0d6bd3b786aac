"""Starting a host costs what it needs to answer, and nothing that may never be used."""

from pathlib import Path

from support.early_imports import loaded_early


def test_models_sessions_adapters_and_commands_are_loaded_when_they_are_used(
    tmp_path: Path,
) -> None:
    assert loaded_early(tmp_path / "rlm") == set()
