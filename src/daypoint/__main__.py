"""`python -m daypoint` is the command `daypoint`."""

from daypoint.cli.app import main

main()
