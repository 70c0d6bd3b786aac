"""
`.rlm-contract.json`: what a child was asked and what it gave back, one document for each child.

Who is a child, and what it is doing, stands in its parent's journal. This document is what makes a
result count: bytes in `results/` that it does not name were never submitted. It is written for
every child, by the host only, and never enters a model's context (seed: rlm-runtime, Python API).
Everything here blocks; run it in a thread, one call at a time for each child.
"""

import hashlib
import logging
from pathlib import Path, PurePosixPath

import msgspec

from rlm_protocol.child import ChildAdmitted, ContractDocument, StoredResult, Task
from rlm_protocol.errors import ResultConflict, ResultInvalid, ResultMissing

from ..paths import Directory

NAME = ".rlm-contract.json"
RESULTS = "results"

log = logging.getLogger(__name__)


def result_file(generation: int) -> str:
    """Give where the result of a task lies, relative to the child's directory."""
    return f"{RESULTS}/{generation}.json"


class ContractJournal:
    """
    One child's document, as it is on the disk. Made by `create` or `load`.

    Every method that changes it raises OSError when the disk does not take it; the document and
    the object are then as they were.
    """

    def __init__(self, path: Path, document: ContractDocument) -> None:
        self._path = path
        self.document = document

    @classmethod
    def create(cls, path: Path, admitted: ChildAdmitted, *, now_ms: int) -> "ContractJournal":
        """Write the document of a child whose first task is about to be admitted."""
        journal = cls(path, _new(admitted))
        journal.give(1, now_ms=now_ms)
        return journal

    @classmethod
    def load(
        cls, path: Path, admitted: ChildAdmitted, *, generation: int, now_ms: int
    ) -> "ContractJournal":
        """
        Read the document of a child; `admitted` and `generation` are what its parent knows of it.

        A document that is missing, damaged or of another child is set aside as `.corrupt` and made
        anew; the results that still lie there are taken into it, for their bytes are held to the
        contract at every reading.
        """
        with Directory.open(path) as directory:
            try:
                document = msgspec.json.decode(directory.read(NAME), type=ContractDocument)
                if document.child_id == admitted.child_id and document.version == 1:
                    return cls(path, document)
                reason: object = "it belongs to another child, or to a newer host"
            except FileNotFoundError:
                reason = "it is missing"
            except (msgspec.DecodeError, UnicodeDecodeError) as why:
                reason = why
            if directory.exists(NAME):
                directory.rename(NAME, f"{NAME}.corrupt")
        log.warning("%s was made anew: %s", path / NAME, reason)
        journal = cls(path, _new(admitted))
        journal._write(_adopted(path, journal.document, generation, now_ms))
        return journal

    def task(self, generation: int) -> Task | None:
        """Give a task."""
        return next((t for t in self.document.tasks if t.generation == generation), None)

    def newest_result(self) -> Task | None:
        """Give the newest task that has a stored result."""
        return next((t for t in reversed(self.document.tasks) if t.result is not None), None)

    def give(self, generation: int, *, now_ms: int) -> None:
        """Open the next task; one that is open already stays as it is."""
        if self.task(generation) is None:
            task = Task(generation=generation, given_at_ms=now_ms)
            tasks = (*self.document.tasks, task)
            self._write(msgspec.structs.replace(self.document, tasks=tasks))

    def note(self, generation: int, **changes: object) -> None:
        """Set fields of a task, and write only if that changes something."""
        task = self.task(generation)
        if task is not None:
            self._change(task, msgspec.structs.replace(task, **changes))

    def store(self, generation: int, data: bytes, *, now_ms: int) -> StoredResult:
        """
        Make a result the result of a task: its bytes first, then the document that counts.

        The same bytes again are fine; the sink, if there is one, holds the newest result.

        Raises:
            ResultConflict: other bytes were stored for this task. Nothing changed.
        """
        task = self.task(generation)
        assert task is not None, "a result belongs to a task that was given"
        sha256 = hashlib.sha256(data).hexdigest()
        stored = task.result or StoredResult(
            file=result_file(generation), sha256=sha256, size_bytes=len(data), stored_at_ms=now_ms
        )
        if stored.sha256 != sha256:
            raise ResultConflict(
                f"Task {generation} has another result already; it was kept.",
                generation=generation,
            )
        if task.result is None:
            write_below(self._path, stored.file, data)
            self._change(task, msgspec.structs.replace(task, result=stored))
        if (contract := self.document.contract) is not None and contract.sink is not None:
            write_below(self._path, contract.sink, data)
        return stored

    def read(self, generation: int | None) -> tuple[int, bytes]:
        """
        Give a task's number and the bytes of its result; None means the newest that has one.

        Raises:
            ResultMissing: that task has none.
            ResultInvalid: the bytes are not those that were submitted.
        """
        task = self.newest_result() if generation is None else self.task(generation)
        if task is None or task.result is None:
            raise ResultMissing(generation=generation)
        try:
            with Directory.open(self._path) as directory, directory.sub(RESULTS) as results:
                data = results.read(PurePosixPath(task.result.file).name)
        except OSError as why:
            raise ResultInvalid(f"The stored result cannot be read: {why}") from why
        if hashlib.sha256(data).hexdigest() != task.result.sha256:
            raise ResultInvalid("The stored result was changed after it was submitted.")
        return task.generation, data

    def _change(self, task: Task, changed: Task) -> None:
        if changed != task:
            tasks = tuple(changed if t is task else t for t in self.document.tasks)
            self._write(msgspec.structs.replace(self.document, tasks=tasks))

    def _write(self, document: ContractDocument) -> None:
        with Directory.open(self._path) as directory:
            directory.write(NAME, msgspec.json.format(msgspec.json.encode(document), indent=1))
        self.document = document


def write_below(path: Path, relative: str, data: bytes) -> None:
    """Write a file below a directory, atomically, through no link. Raises OSError."""
    *folders, name = PurePosixPath(relative).parts
    directory = Directory.open(path)
    try:
        for folder in folders:
            inner = directory.sub(folder)
            directory.close()
            directory = inner
        directory.write(name, data)
    finally:
        directory.close()


def _new(admitted: ChildAdmitted) -> ContractDocument:
    return ContractDocument(
        child_id=admitted.child_id,
        session_id=admitted.session_id,
        parent_id=admitted.parent_id,
        contract=admitted.contract,
        context=admitted.context,
    )


def _adopted(
    path: Path, document: ContractDocument, generation: int, now_ms: int
) -> ContractDocument:
    tasks = []
    with Directory.open(path) as directory, directory.sub(RESULTS) as results:
        for number in range(1, generation + 1):
            stored = None
            if results.exists(f"{number}.json"):
                data = results.read(f"{number}.json")
                stored = StoredResult(
                    file=result_file(number),
                    sha256=hashlib.sha256(data).hexdigest(),
                    size_bytes=len(data),
                    stored_at_ms=now_ms,
                )
            tasks.append(Task(generation=number, given_at_ms=now_ms, result=stored))
    return msgspec.structs.replace(document, tasks=tuple(tasks))
