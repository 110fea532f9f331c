"""A plan of an evaluation as lines of text."""

import math

from tts_compress.evaluation import formatting
from tts_compress.evaluation.plan import EvaluationPlan, Need, Offer


def plan_lines(plan: EvaluationPlan) -> list[str]:
    """Return what a claim needs, and which shipped suite suffices."""
    claim = f"{100 * plan.difference:g} points of word error rate"
    lines = [f"To find {claim} in {100 * plan.power:g} % of evaluations:"]
    lines += [f"  {_size(need.texts, need.seeds)}{_time(need)}" for need in plan.needs]
    hint = "" if plan.spread.seed else ", which does not show how far more seeds help"
    lines += [f"Measured: {plan.source}{hint}."]
    lines += [_offer(offer) for offer in plan.offers]
    if plan.suite is None:
        lines.append("No shipped suite suffices as it is.")
    else:
        lines.append(f"Suite {plan.suite} suffices.")
    return lines


def _size(texts: int, seeds: int) -> str:
    return f"{texts} texts with {seeds} seed{'s' if seeds > 1 else ''}"


def _time(need: Need) -> str:
    if need.recognition_s is None:
        return ""
    return f", {math.ceil(need.recognition_s / 60)} min of recognition on this machine"


def _offer(offer: Offer) -> str:
    line = (
        f"{offer.suite} ({_size(offer.texts, offer.seeds)}) finds "
        f"{formatting.points(offer.detectable)}"
    )
    if offer.suffices:
        return line
    if offer.seeds_needed is None:
        return f"{line}; it has too few texts"
    return f"{line}; it would need {offer.seeds_needed} seeds"
