"""Writes the tables of docs/results.md from the CSV files that benchmarks wrote into benchmarks/results/.

    python -m benchmarks.speed.bubble --model=decoder --csv=benchmarks/results/bubble.csv
    python -m benchmarks.results_page

The page says where each table goes and which columns it shows; without a list, it shows all::

    <!-- bubble.csv: schedule | step ms -->
    <!-- end -->
"""

import csv
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / 'benchmarks/results'
PAGE = ROOT / 'docs/results.md'
_TABLE = re.compile(r'(<!-- (\w+\.csv)(?:: ([^\n]+))? -->\n).*?(?=<!-- end -->)', re.DOTALL)


def read(path):
    """Return what is above the table of a CSV file, as a dictionary, and its rows, the names of the columns first."""
    lines = path.read_text(encoding='utf-8').splitlines()
    about = dict(line[2:].split(': ', 1) for line in lines if line.startswith('# '))
    return about, list(csv.reader(lines[len(about):]))


def built(page):
    """Return a page with the tables that its comments name."""
    return _TABLE.sub(_section, page)


def _section(match):
    comment, name, columns = match.groups()
    about, rows = read(RESULTS / name)
    shown = [rows[0].index(column) for column in columns.split(' | ')] if columns else range(len(rows[0]))
    lines = [f'| {" | ".join(_text(row[index]) for index in shown)} |' for row in rows]
    lines.insert(1, '|---' * len(shown) + '|')
    table = '\n'.join(lines)
    return (f'{comment}\n`{about["command"]}`\n'
            f'({about["processor"]}; {about["date"]}; [{name}](../benchmarks/results/{name})):\n\n{table}\n\n')


def _text(cell):
    """Return a cell with thousands separators, if it is a number."""
    return re.sub(r'^\d{4,}', lambda match: f'{int(match[0]):,}', cell) if re.fullmatch(r'\d+(\.\d+)?', cell) else cell


def main():
    PAGE.write_text(built(PAGE.read_text(encoding='utf-8')), encoding='utf-8')


if __name__ == '__main__':
    main()
