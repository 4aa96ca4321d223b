from lingpipe import spelling


def test_a_likely_name_is_offered_else_what_there_is():
    assert spelling.did_you_mean('gpip', ['gpipe', '1f1b']) == '; did you mean gpipe?'
    assert spelling.did_you_mean('x', ['gpipe', '1f1b']) == '; there are: 1f1b, gpipe.'
    assert spelling.did_you_mean('x', []) == '; there are none.'
    many = [f'layer_{number}' for number in range(20)]
    assert spelling.did_you_mean('yes', many, prefix='body.', see_all='print(params)').startswith(
        '; the nearest of 20 are: body.layer_')
