"""Lines and modules of a small project, counted by hand."""

SOURCE = '''"""A module
of two lines."""

# why
def longer():
    """One line."""
    return 1  # also why


async def short(): return "no docstring"
'''


def test_packages_are_summed_beside_the_aims(load_benchmark, tmp_path):
    weight = load_benchmark('weight')
    for package in ('lingpipe', 'lingpipe/inner/deep', 'benchmarks', 'tests'):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / 'module.py').write_text(SOURCE)
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'docs/page.md').write_text('# A page\n\nof six words.\n')
    rows = {row[0]: row[1:] for row in weight.rows(tmp_path)}
    assert rows['lingpipe/inner'][:3] == [10, '', 1]
    assert rows['lingpipe'] == [20, 31_000, 2, 190, '10', '2', '30.0%', '20.0%']
    assert weight.docs_line(tmp_path).startswith('Docs: 6 words (at most 32,000) on 1 pages')
