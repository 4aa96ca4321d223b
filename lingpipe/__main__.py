"""`python -m lingpipe`: the command `lingpipe`, if it is not on the search path."""

from lingpipe.command_line import command

if __name__ == '__main__':
    command.run()
