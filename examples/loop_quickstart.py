"""
The example of the loop kernel's document: only the package's name is another one.

Run it, or give it to `rlm-host loop run`, which finds `config`, `step` and `apply` in it.
"""

from rlm_host import LoopConfig, LoopKernel, LoopObservation
from rlm_host.durable_runs import SqliteRunStore


def materialise(artifact_id):
    """Make an artifact live; doing it again changes nothing."""
    print("live:", artifact_id)


config = LoopConfig("tenant-a", "ws-1", max_generations=4, target=0.9)


def step(ctx):
    # generate + evaluate one candidate; PRM / planner / verifier all fit here
    return LoopObservation(reward=0.7, cost=1.0, artifact_id="skill-1")


# apply is called once per accepted generation; make it idempotent for
# (run_id, generation), exactly like step.
def apply_artifact(context, observation):
    materialise(observation.artifact_id)


apply = apply_artifact

if __name__ == "__main__":
    store = SqliteRunStore("runs.sqlite3")
    kernel = LoopKernel(store, config)
    run_id = kernel.submit()
    report = kernel.run(run_id, "worker-1", step, apply=apply_artifact)
    print(report.best_reward, report.stopped_reason, report.generations)
