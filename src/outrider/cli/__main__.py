"""`python -m outrider.cli` is the command `outrider`."""

from outrider.cli.app import main

main()
