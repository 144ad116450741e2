"""`python -m fastio`: the command line, as torchrun starts it (torchrun -m fastio train ...)."""

from __future__ import annotations

from fastio.cli import main

if __name__ == "__main__":
    main()
