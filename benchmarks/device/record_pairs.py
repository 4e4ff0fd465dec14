"""Pairs of labelled traces by `collect`: every form of the eight types that one GPU shows.

`forms.toml` lists 55 pairs, 110 traces, the most different forms first. A call goes on where the
one before it stopped. On a CPU three of them are recorded at the tiny size, and their split is
"cpu".
"""

from __future__ import annotations

import sys
from pathlib import Path

from stage import Stage, run_stage

FORMS = Path(__file__).with_name("forms.toml")
_TINY = ("item_per_layer", "unfused_optimizer", "tiny_buckets")


def record(stage: Stage) -> None:
    from torchtraceap.lab.collection.collect import collect
    from torchtraceap.lab.collection.manifest import read_manifest

    entries = read_manifest(FORMS)
    if stage.tiny:
        entries = [entry for entry in entries if entry.fault.name in _TINY]
    # A process that records gets 20 s beyond its time.
    minutes = 5.0 if stage.tiny else max(0.1, (stage.left_s() - 25) / 60)
    found = collect(stage.out / "traces", entries, minutes=minutes, device=stage.device)
    stage.left_out += [f"{pair}: {reason}" for pair, reason in found.left_out.items()]
    stage.unfinished = found.to_do > 0
    stage.keep(
        pairs=len(entries),
        accepted=found.accepted,
        benign=found.benign,
        decoys=found.decoys,
        left_out_pairs=len(found.left_out),
        to_do=found.to_do,
    )


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, record))
