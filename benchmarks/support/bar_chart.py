"""Horizontal bars in groups, as a picture."""

import io

from PIL import Image, ImageDraw, ImageFont

_COLOURS = ('#7fb2e5', '#6cc08b', '#f4c266', '#b9a3e3')
_INK = '#202020'
_MARGIN, _ROW, _GAP, _TITLE = 12, 22, 6, 30
_FONT_SIZE = 13


def png(groups, unit, width=760):
    """Draws one bar a value, all on one scale that starts at zero.

    Args:
        groups: dictionary from the title of a group to a dictionary from name to value.
        unit: what the values are, such as 'images/s'.
        width: pixels.

    Returns:
        Bytes of a PNG file.
    """
    font = ImageFont.load_default(_FONT_SIZE)
    bars = [bar for group in groups.values() for bar in group.items()]
    largest = max(value for _, value in bars)
    left = 2 * _MARGIN + round(max(font.getlength(name) for name, _ in bars))
    right = width - 2 * _MARGIN - round(font.getlength(_label(largest, unit)))
    height = 2 * _MARGIN + len(groups) * _TITLE + len(bars) * (_ROW + _GAP)
    image = Image.new('RGB', (width, height), 'white')
    draw, y = ImageDraw.Draw(image), _MARGIN
    for colour, (title, group) in zip(_COLOURS, groups.items(), strict=False):
        draw.text((_MARGIN, y + _TITLE / 2), title, _INK, font, anchor='lm')
        y += _TITLE
        for name, value in group.items():
            end = left + round((right - left) * value / largest)
            draw.text((left - _MARGIN / 2, y + _ROW / 2), name, _INK, font, anchor='rm')
            draw.rectangle([left, y, end, y + _ROW - 1], colour)
            draw.text((end + _MARGIN / 2, y + _ROW / 2), _label(value, unit), _INK, font, anchor='lm')
            y += _ROW + _GAP
    file = io.BytesIO()
    image.quantize(64).save(file, 'PNG', optimize=True)
    return file.getvalue()


def _label(value, unit):
    return f'{value:,.0f} {unit}'
