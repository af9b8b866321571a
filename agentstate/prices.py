"""What models cost: AGENTSTATE_PRICES, such as ``gpt-5-mini=0.25/2``: prices per million tokens, in and out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens that the model reads, and that it writes."""

    prompt: Decimal
    completion: Decimal

    def of(self, prompt_tokens: int, completion_tokens: int) -> Decimal:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / MILLION


def read_prices(entries: Iterable[str]) -> dict[str, Price]:
    """:raises ValueError: naming the entry, for one that is not ``MODEL=IN/OUT``."""
    prices = {}
    for entry in entries:
        model, _, numbers = entry.rpartition("=")
        try:
            prompt, completion = (Decimal(number.strip()) for number in numbers.split("/"))
        except (ValueError, InvalidOperation):
            prompt = completion = Decimal("NaN")
        if not model.strip() or not (
            prompt.is_finite() and completion.is_finite() and min(prompt, completion) >= 0
        ):
            raise ValueError(
                f"it must be MODEL=IN/OUT, the prices of a million tokens in and of a million out, not {entry!r}."
            )
        prices[model.strip()] = Price(prompt, completion)
    return prices


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of the model, or of the longest name that its own begins with: providers add dates to names."""
    names = [
        name for name in prices if model == name or model.startswith((f"{name}-", f"{name}@", f"{name}:"))
    ]
    return prices[max(names, key=len)] if names else None
