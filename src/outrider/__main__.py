"""`python -m outrider` is the command `outrider`."""

from outrider.cli.app import main

main()
