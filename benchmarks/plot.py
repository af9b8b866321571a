"""A small line chart as SVG, both axes logarithmic."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 60, 40, 290, 40
COLOURS = ("#0f766e", "#6b7280", "#b45309", "#1d4ed8", "#9333ea", "#be123c", "#111827")

Points = Sequence[tuple[float, float]]


def line_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Points]) -> str:
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    low_x, high_x = math.log10(min(xs)), math.log10(max(xs))
    low_y, high_y = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def across(x: float) -> float:
        share = (math.log10(x) - low_x) / ((high_x - low_x) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        share = (math.log10(y) - low_y) / ((high_y - low_y) or 1)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        '<g font-family="system-ui, sans-serif" font-size="12" fill="#111827">',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{escape(x_label)}</text>',
        f'<text x="8" y="{TOP - 6}">{escape(y_label)}</text>',
    ]
    for power in range(low_y, high_y + 1):
        y = down(10**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    parts += [
        f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:,.0f}</text>'
        for x in sorted(set(xs))
    ]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 10 + 20 * number
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 8}" width="12" height="4" fill="{colour}"/>'
            f'<text x="{WIDTH - RIGHT + 32}" y="{y}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</g>", "</svg>", ""])
