"""The command line: `dsv41-l2pf`, or `python -m dsv41_l2pf`. One file a command."""

import typer

from .bench import bench
from .calibrate import calibrate
from .demo import demo
from .doctor import doctor
from .predict import predict
from .report import report
from .status import status
from .trace import trace

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Hides weight loading behind collectives. Exit status: 0 fine, 1 a finding, 2 wrong usage.",
)
for command in (doctor, calibrate, predict, bench, demo, status, report, trace):
    app.command()(command)
