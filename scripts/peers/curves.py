"""Draws training curves as an SVG file: two panels, a metric and the training loss over epochs; a line for the mean, a band from the
smallest to the largest value."""
import math
import statistics

COLORS = ("#1b6ca8", "#d1701f", "#3f8f4f")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 420, 300, 48, 30, 36


def ticks(low, high, wanted=5):
    step = 10 ** math.floor(math.log10((high - low) / wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted)
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(int((high - first * step) / step + 1e-9) + 1)]


def panel(x0, title, key, sides):
    values = [row[key] for runs in sides.values() for run in runs for row in run]
    epochs = max(len(run) for runs in sides.values() for run in runs)
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1
    low, high = low - margin, high + margin
    across = lambda epoch: x0 + LEFT + (epoch - 1) / max(1, epochs - 1) * (WIDTH - LEFT - 16)
    up = lambda value: TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)
    parts = [f'<text x="{x0 + LEFT}" y="18" font-weight="bold">{title}</text>']
    for value in ticks(low, high):
        parts.append(f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - 16}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="#ddd"/>'
                     f'<text x="{x0 + LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for epoch in sorted({1, *range(5, epochs + 1, 5), epochs}):
        parts.append(f'<text x="{across(epoch):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{epoch}</text>')
    for number, (name, runs) in enumerate(sides.items()):
        columns = [[run[i][key] for run in runs] for i in range(min(map(len, runs)))]
        color = COLORS[number % len(COLORS)]
        edge = [(i + 1, max(c)) for i, c in enumerate(columns)] + [(i + 1, min(c)) for i, c in reversed(list(enumerate(columns)))]
        points = lambda pairs: " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in pairs)
        parts.append(
            f'<polygon points="{points(edge)}" fill="{color}" fill-opacity="0.15"/>'
            f'<polyline points="{points((i + 1, statistics.fmean(c)) for i, c in enumerate(columns))}" fill="none" stroke="{color}" '
            'stroke-width="1.8"/>'
            f'<text x="{x0 + WIDTH - 130}" y="{HEIGHT / 2 + 18 * number:.0f}" fill="{color}">{name} ({len(runs)})</text>')
    return parts


def draw(path, sides, metric="top1", title="test top-1, % (runs)"):
    """`sides`: name to a list of runs, each a list of rows with the metric and train_loss."""
    parts = panel(0, title, metric, sides) + panel(WIDTH, "training loss, mean of the epoch", "train_loss", sides)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
                    f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")
