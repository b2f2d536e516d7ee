"""`python -m daypoint` is the command `daypoint`."""

from daypoint.cli import main

main()
