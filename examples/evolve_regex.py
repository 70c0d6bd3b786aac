"""
Evolve a regular expression that tells order numbers from other words.

Run it, kill it at any moment, run it again: it goes on where it was, and ends with what it would
have ended with. `evolve_regex.sqlite3` keeps every decision; delete it to begin anew. Or give it
to `rlm-host loop run`, which finds `config`, `step` and `gates` in it, with a `--store` of yours.
"""

import random
import re

from rlm_host import LoopConfig, LoopKernel, LoopObservation, SqliteRunStore, Verdict

LABELLED = {
    "AB-1234": True, "ZX-0001": True, "QQ-9876": True, "KM-4711": True, "AA-0000": True,
    "AB1234": False, "ab-1234": False, "AB-12345": False, "A-1234": False, "AB-12c4": False,
    "1234-AB": False, "AB-": False, "hello": False, "AB_1234": False, "ABC-1234": False,
}  # fmt: skip
PIECES = ["[A-Z]", "[a-z]", "[0-9]", "-", "_", ".", "[A-Z]{2}", "[0-9]{4}", "[0-9]+", "[A-Z]+"]


def pieces_of(pattern):
    """Split a pattern into the pieces that it was made of; they are kept apart by `(?:)`."""
    return pattern.split("(?:)") if pattern else []


def mutate(pieces, dice):
    """Give a copy with one piece added, dropped, replaced or moved."""
    changed, at = list(pieces), dice.randrange(len(pieces) + 1)
    kind = dice.choice(["add", "drop", "replace", "swap"])
    if kind == "add" or not pieces:
        changed.insert(at, dice.choice(PIECES))
    elif kind == "drop":
        changed.pop(at % len(pieces))
    elif kind == "replace":
        changed[at % len(pieces)] = dice.choice(PIECES)
    else:
        one, other = dice.randrange(len(pieces)), dice.randrange(len(pieces))
        changed[one], changed[other] = changed[other], changed[one]
    return changed


def fitness(pattern):
    """Give how well a pattern tells the lines apart: 1 is perfect, short ones are a bit better."""
    compiled = re.compile(pattern)
    found = {line: bool(compiled.fullmatch(line)) for line in LABELLED}
    hit = sum(found[line] for line, label in LABELLED.items() if label)
    spared = sum(not found[line] for line, label in LABELLED.items() if not label)
    positives = sum(LABELLED.values())
    balanced = (hit / positives + spared / (len(LABELLED) - positives)) / 2
    # Something to climb on before the first whole line matches.
    begun = sum(_longest(compiled, line) for line, label in LABELLED.items() if label)
    return 0.8 * balanced + 0.2 * begun / positives - 0.001 * len(pieces_of(pattern))


def _longest(compiled, line):
    found = compiled.match(line)
    return (found.end() if found else 0) / len(line)


def step(context):
    """Try a few mutants of the live pattern and offer the best one."""
    dice = random.Random(context.seed)
    live = pieces_of(context.accepted.artifact_id if context.accepted else "")
    mutants = []
    for _ in range(max(1, round(40 * context.budget_scale))):
        mutant = mutate(live, dice)
        mutants.append("(?:)".join(mutate(mutant, dice) if dice.random() < 0.5 else mutant))
    best = max(mutants, key=fitness)
    return LoopObservation(reward=fitness(best), cost=len(mutants), artifact_id=best)


def not_everything(context, observation):
    """Deny a pattern that matches any text at all: it would look good on few lines."""
    matches_all = re.fullmatch(observation.artifact_id, "anything, really")
    return Verdict("deny" if matches_all else "allow")


config = LoopConfig("examples", "regex", max_generations=200, target=0.99, patience=60, seed=3)
gates = [not_everything]


def main():
    kernel = LoopKernel(SqliteRunStore("evolve_regex.sqlite3"), config, gates=gates)
    run_id = kernel.submit("evolve-regex")
    report = kernel.run(run_id, "example", step)
    for generation in report.generations:
        if generation.action == "accept":
            shown = generation.artifact_id.replace("(?:)", "")
            print(f"{generation.generation:3}  {generation.reward:.3f}  {shown}")
    print(report.stopped_reason, f"{report.best_reward:.3f}", "in", len(report.generations))


if __name__ == "__main__":
    main()
