"""`train`: scorers from a data set."""

from __future__ import annotations

from torchtraceap.cli.output import note
from torchtraceap.cli.parser import FINE, Command, Options, Parser, add_seed, minutes
from torchtraceap.lab.cli import ENTRIES


def _describe(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="which scorer: structural, fused or v2")
    parser.add_argument("dataset", metavar="DATASET", help="a folder of labelled traces")
    parser.add_argument("out", metavar="OUT", help="folder for weights, figures and logs")
    parser.add_argument("--config", metavar="TOML", help="settings in TOML; docs/training.md")
    add_seed(parser, "of everything that is drawn")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in OUT")
    parser.add_argument(
        "--minutes", type=minutes, metavar="M", help="stop after this time, to be resumed [none]"
    )


def _train(options: Options) -> int:
    from torchtraceap.lab.training import train

    trained = train(
        options.name,
        options.dataset,
        options.out,
        config=options.config,
        seed=options.seed,
        resume=options.resume,
        minutes=options.minutes,
    )
    if trained.weights is not None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in trained.figures.items())
        note(f"wrote {trained.weights} ({figures})")
    if not trained.finished:
        note("time is up; --resume goes on")
    return FINE


COMMANDS = {
    "train": Command(
        ENTRIES["train"].summary,
        _describe,
        _train,
        (
            "train v2 dataset/ out/ --seed 1",
            "train v2 dataset/ out/ --config settings.toml --resume --minutes 10",
        ),
    ),
}
