"""The command line: ``skiptrain COMMAND``. Bad input ends with exit code 2, a failed run with 1."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from skiptrain_plugin import __version__
from skiptrain_plugin.cli.bench import bench
from skiptrain_plugin.cli.data import data
from skiptrain_plugin.cli.doctor import doctor
from skiptrain_plugin.cli.energy import energy
from skiptrain_plugin.cli.figure import figure, table
from skiptrain_plugin.cli.keys import keys
from skiptrain_plugin.cli.launch import launch, merge
from skiptrain_plugin.cli.plan import plan
from skiptrain_plugin.cli.report import report
from skiptrain_plugin.cli.run import run
from skiptrain_plugin.cli.sweep import sweep
from skiptrain_plugin.cli.topology import topology
from skiptrain_plugin.errors import INTERRUPTED_EXIT, SkipTrainError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skiptrain")
def cli() -> None:
    """SkipTrain: energy-aware decentralized learning.

    Nodes alternate training rounds with synchronization rounds, in which they only share and
    average their models: half the energy, better models on non-IID data.
    """


_COMMANDS = (run, plan, figure, table, sweep, report, data, energy, topology, launch, merge, keys, bench, doctor)
for command in _COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program and exits with its code; an expected error is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=arguments, prog_name="skiptrain", standalone_mode=False)
    except click.ClickException as error:
        _say(error.format_message())
        code = 2
    except SkipTrainError as error:
        _say(str(error))
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        code = INTERRUPTED_EXIT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        _say(f"{error.filename or 'a file'}: {error.strerror or error}")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> None:
    print(f"skiptrain: {' '.join(message.split())}", file=sys.stderr)
