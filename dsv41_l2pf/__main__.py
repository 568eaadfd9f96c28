"""`python -m dsv41_l2pf`."""

from .cli import app

if __name__ == "__main__":
    app(prog_name="python -m dsv41_l2pf")
