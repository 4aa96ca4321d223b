"""The command line of LingPipe in a clone, equal to the command `lingpipe` that an installation brings.

    python run.py --model=params.amoebanet --mode=train --logdir=logs/amoebanet
"""

from lingpipe import __main__

if __name__ == '__main__':
    __main__.run()
