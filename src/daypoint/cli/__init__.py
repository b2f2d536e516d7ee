"""The command `daypoint`: it reads the command line, asks the wings below, and prints.

It computes nothing about a run itself; what is printed is made in `reading`, `again` and `models`. Typer is imported only here.
Start with `app`, the list of the commands.
"""
