"""Small SVG line charts: a series a contender, direct labels, both axes may be logarithmic. Standard library only."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 70, 150, 46, 52
# Told apart by those who see few colours, and by their dashes.
STYLES = {"quire": ("#0b5fa5", ""), "quire-avx2": ("#4a9ad4", "6 3"), "llama.cpp": ("#c4511b", "6 3"),
          "llama.cpp-native": ("#8f3410", ""), "openvino": ("#3f7d3a", "2 3")}
OTHER_STYLE = ("#666666", "4 2 1 2")


def ticks_of(low, high, log):
    if log:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [m * 10.0 ** e for e in exponents for m in ((1,) if high / low > 300 else (1, 2, 5))]
        return [m for m in marks if low * 0.999 <= m <= high * 1.001]
    step = 10.0 ** math.floor(math.log10(high / 4))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if high / (step * m) <= 5)
    return [step * i for i in range(int(high / step) + 1)]


def number(value):
    return "%g" % round(value, 3)


def line_chart(title, x_label, y_label, series, log_y=False):
    """series: {name: [(x, y)]}; x on a scale of powers of two. Returns SVG text."""
    points = [p for line in series.values() for p in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = max(y for _, y in points) * 1.05
    y_low = min(y for _, y in points) / 1.1 if log_y else 0

    def at_x(x):
        span = math.log2(x_high / x_low) or 1
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(x / x_low) / span

    def at_y(y):
        share = math.log(y / y_low) / math.log(y_high / y_low) if log_y else y / y_high
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">' % (
        WIDTH, HEIGHT), '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<text x="%d" y="22" font-size="15">%s</text>' % (LEFT, escape(title)),
        '<text x="%d" y="%d" text-anchor="middle">%s</text>' % (
            (LEFT + WIDTH - RIGHT) // 2, HEIGHT - 12, escape(x_label)),
        '<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>' % (
            (TOP + HEIGHT - BOTTOM) // 2, escape(y_label))]
    for y in ticks_of(y_low, y_high, log_y):
        out.append('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#dddddd"/>' % (
            LEFT, at_y(y), WIDTH - RIGHT, at_y(y)))
        out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (LEFT - 6, at_y(y) + 4, number(y)))
    for x in sorted({x for x, _ in points}):
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (at_x(x), HEIGHT - BOTTOM + 18, number(x)))
    out += draw_series(series, at_x, at_y)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def draw_series(series, at_x, at_y):
    out, labels = [], []
    for name, line in series.items():
        colour, dashes = STYLES.get(name, OTHER_STYLE)
        path = " ".join("%.1f,%.1f" % (at_x(x), at_y(y)) for x, y in line)
        out.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>' % (
            path, colour, ' stroke-dasharray="%s"' % dashes if dashes else ""))
        out += ['<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"><title>%s: %s at %s</title></circle>' % (
            at_x(x), at_y(y), colour, escape(name), number(y), number(x)) for x, y in line]
        labels.append([at_y(line[-1][1]), name, colour])
    labels.sort()
    for above, below in zip(labels, labels[1:]):       # no label upon another
        below[0] = max(below[0], above[0] + 14)
    for y, name, colour in labels:
        out.append('<text x="%d" y="%.1f" fill="%s">%s</text>' % (WIDTH - RIGHT + 8, y + 4, colour, escape(name)))
    return out
