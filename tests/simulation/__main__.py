"""`python -m tests.simulation --seed 7` replays a seed; `--seeds 2000` tries that many.

Prints the seed, the step and the trace of a failure, and ends with 1 if there was one. With
`--scripts` it prints which seeds call each script instead.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict

from tests.simulation.recording import recorded, scripts_of
from tests.simulation.run import Result, run
from tests.simulation.world import Equipment

SHOWN_STEPS = 400


def main() -> int:
    """Exit status."""
    options = _options()
    first = options.first if options.seed is None else options.seed
    seeds = range(first, first + (options.seeds if options.seed is None else 1))
    started_s = time.process_time()
    equipment = Equipment()
    if options.scripts:
        _list_scripts(seeds, equipment)
        return 0
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for seed in seeds:
        result = run(seed, equipment)
        totals["calls"] += result.calls
        totals.update(result.counts)
        totals.update({f"late: {what}": n for what, n in result.late_effects.items()})
        totals.update({f"answer: {what}": n for what, n in result.answers.items()})
        if result.failure or (
            options.strict and any("lost" in what for what in result.late_effects)
        ):
            failed.append(seed)
            _report(result, options.steps)
            if not options.keep_going:
                break
    _summarise(len(seeds), failed, totals, time.process_time() - started_s)
    return 1 if failed else 0


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--seeds", type=int, default=100, help="how many to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=SHOWN_STEPS, help="steps shown of a failure")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument(
        "--strict", action="store_true", help="an effect after an answer without one is a failure"
    )
    parser.add_argument(
        "--scripts", action="store_true", help="print which seeds call each of the Lua scripts"
    )
    return parser.parse_args()


def _list_scripts(seeds: range, equipment: Equipment) -> None:
    """The first of each as it is found, and in the end all, the rarest script first."""
    callers: dict[str, list[int]] = defaultdict(list)
    for seed in seeds:
        names = scripts_of(recorded(seed, equipment))
        if found := sorted(names - callers.keys()):
            _print(f"{seed:6} {' '.join(found)}")
        for name in names:
            callers[name].append(seed)
    for name, of in sorted(callers.items(), key=lambda item: len(item[1])):
        _print(f"{name:12} {' '.join(map(str, of))}")


def _report(result: Result, steps: int) -> None:
    _print(*result.trace.lines(steps))
    what = result.failure or f"late effects: {dict(result.late_effects)}"
    _print(f"seed {result.seed} failed at step {len(result.trace)}: {what}")


def _summarise(seeds: int, failed: list[int], totals: Counter[str], cpu_s: float) -> None:
    counts = {name: count for name, count in sorted(totals.items()) if name != "calls"}
    _print(*(f"{count:9,} {name}" for name, count in counts.items()))
    verdict = f"FAILED: {failed}" if failed else "all promises kept"
    _print(f"{seeds:,} seeds, {totals['calls']:,} calls, {cpu_s:.1f} s of CPU: {verdict}")


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
