"""The entrance of a checkout: `python cli.py solve spec.yaml` is what `apss-cp solve spec.yaml` is once installed.

The commands are in cpsolver/commands, one file a theme; what they do is cpsolver/__init__.py, the library.
"""

from cpsolver.commands.entry import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
