"""Seeds of generations. Pure."""

import hashlib


def step_seed(seed: int, seed_root: str, generation: int) -> int:
    """
    Give the seed of a generation: 53 bits, exact in every JSON client.

    It depends on the configuration's seed, the run's seed root and the generation, and on nothing
    else: not on attempt, worker or time, so a repeated step sees the same seed.
    """
    text = f"loop.seed.v1\0{seed}\0{seed_root}\0{generation}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11
