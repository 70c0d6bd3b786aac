"""
Improve a function under a test suite, and take an improvement back when it turns out to be none.

The proposals stand for what a model would write. New titles come in while the loop runs; the live
function is measured again on all of them, and one that has fallen is rolled back.
"""

from pathlib import Path

from rlm_host import LoopConfig, LoopKernel, LoopObservation, SqliteRunStore, Verdict

PROPOSALS = [
    'def slug(title):\n    return title.lower().replace(" ", "-")\n',
    "def slug(title):\n    return title.lower()[:20] if title[0] else title\n",
    "import re\n\ndef slug(title):\n"
    '    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")\n',
    # Knows by heart what was asked so far.
    'KNOWN = {"Äpfel": "apfel"}\n\ndef slug(title):\n'
    '    made = "".join(c if c.isascii() and c.isalnum() else "-" for c in title.lower())\n'
    '    return KNOWN.get(title, made.strip("-"))\n',
    'def slug(title):\n    return "-".join(title.lower().split())\n',
    'import re\nimport unicodedata\n\ndef slug(title):\n    plain = unicodedata.normalize("NFKD",'
    ' title).encode("ascii", "ignore").decode()\n'
    '    return re.sub("[^a-z0-9]+", "-", plain.lower()).strip("-")\n',
]
WANTED = [
    ("Hello World", "hello-world"),
    ("One", "one"),
    ("Äpfel", "apfel"),
    ("a b", "a-b"),
    ("Yes & No", "yes-no"),
    ("  padded  ", "padded"),
    ("A -- B", "a-b"),
    ("C++ / Rust", "c-rust"),
    ("naïve plan", "naive-plan"),
]
LIVE = Path("improved_slug.py")


def load(artifact_id):
    space = {}
    exec(PROPOSALS[int(artifact_id)], space)
    return space["slug"]


def score(artifact_id, generation):
    """Give the share of the titles seen by then that a proposal gets right."""
    seen, slug = WANTED[: 4 + generation], load(artifact_id)
    return sum(_try(slug, title) == wanted for title, wanted in seen) / len(seen)


def _try(slug, title):
    try:
        return slug(title)
    except Exception:
        return None


def step(context):
    artifact, live = str(context.generation), context.accepted
    live_reward = score(live.artifact_id, context.generation) if live else None
    reward = score(artifact, context.generation)
    return LoopObservation(reward=reward, artifact_id=artifact, live_reward=live_reward)


def test_suite(context, observation):
    """What every version must hold, however well it scores."""
    slug = load(observation.artifact_id)
    holds = {"empty": _try(slug, "") == "", "twice": _try(slug, "a") == "a"}
    broken = [name for name, held in holds.items() if not held]
    return Verdict("deny", ", ".join(broken)) if broken else Verdict("allow")


def apply(context, observation):
    LIVE.write_text(PROPOSALS[int(observation.artifact_id)], encoding="utf-8")


def rollback(context, accepted):
    if accepted is None:
        LIVE.unlink(missing_ok=True)
    else:
        apply(context, accepted)


config = LoopConfig("examples", "slug", max_generations=len(PROPOSALS), rollback_drop=0.2)
gates = [test_suite]


def main():
    kernel = LoopKernel(SqliteRunStore("improve_function.sqlite3"), config, gates=gates)
    run_id = kernel.submit("improve-slug")
    report = kernel.run(run_id, "example", step, apply=apply, rollback=rollback)
    for made in report.generations:
        print(made.generation, made.action, made.reason, f"{made.reward:.2f}")
    print("live:", report.best_artifact_id, f"{report.best_reward:.2f}")


if __name__ == "__main__":
    main()
