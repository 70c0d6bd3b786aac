"""What tokens cost. Pure, in whole numbers: a cost is exact or it is unknown."""

import msgspec

from .provider import Usage

MTOK = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """
    One tier of a model's prices, in nano-USD per million tokens (1 USD/MTok = 10**9).

    It holds for a whole request whose prompt is longer than `above_input_tokens`. A cache price
    that the vendor does not name is the input price.
    """

    input_nano_usd_per_mtok: int
    output_nano_usd_per_mtok: int
    cache_read_nano_usd_per_mtok: int | None = None
    cache_write_nano_usd_per_mtok: int | None = None
    above_input_tokens: int = 0


def cost_nano_usd(prices: tuple[Price, ...], usage: Usage) -> int | None:
    """
    Give what `usage` costs, rounded half up once, at the end.

    Returns:
        None when the usage is unmeasured or no price is known: unknown is never 0.
    """
    tiers = [price for price in prices if usage.input_tokens > price.above_input_tokens]
    if not usage.measured or not prices:
        return None
    # A request of no tokens lies above no tier; it is priced like the smallest one.
    price = max(tiers or prices[:1], key=lambda tier: tier.above_input_tokens)
    plain_input = price.input_nano_usd_per_mtok
    read, write = price.cache_read_nano_usd_per_mtok, price.cache_write_nano_usd_per_mtok
    uncached = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    total = (
        max(uncached, 0) * plain_input
        + usage.cache_read_tokens * (plain_input if read is None else read)
        + usage.cache_write_tokens * (plain_input if write is None else write)
        + usage.output_tokens * price.output_nano_usd_per_mtok
    )
    return (total + MTOK // 2) // MTOK
