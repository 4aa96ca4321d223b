from lingpipe import text_tables


def test_numbers_stand_to_the_right_and_text_to_the_left():
    assert text_tables.table(['layer', 'parameters', 'share'], [['dense', 1234567, 0.25], ['batch_norm', 8, 10.0]]) == (
        'layer       parameters  share\n'
        '----------  ----------  -----\n'
        'dense        1,234,567    0.2\n'
        'batch_norm           8   10.0')


def test_mixed_columns_are_text_and_lines_have_no_trailing_blanks():
    assert text_tables.table(['a', 'b'], [[1, '-'], [22, 3]]) == (
        ' a  b\n'
        '--  -\n'
        ' 1  -\n'
        '22  3')


def test_a_table_without_rows_is_its_header():
    assert text_tables.table(['first', 'x'], []) == 'first  x\n-----  -'
