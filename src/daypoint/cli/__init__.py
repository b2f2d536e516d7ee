"""The command `daypoint`: it reads the command line, calls the wings below and prints their answers.

It computes nothing about a run itself; what is printed is made in `reading`, `again` and `models`. Typer is imported only here.
Start with `app`, the list of the commands.
"""
