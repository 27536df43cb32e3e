"""Choose the span of parts that a new node should host."""

from swarm.ids import Span


def choose_span(hosted: list[Span], n_parts: int, capacity: int) -> Span:
    """The window of at most `capacity` parts that helps the swarm's weakest parts most.

    `hosted` are the spans of the other live nodes. Windows are compared by how often their least covered parts are
    covered (Petals' rule of block selection, on counts instead of throughputs); ties go to the lower parts.
    """
    length = max(1, min(capacity, n_parts))
    count = [sum(part in span for span in hosted) for part in range(n_parts)]
    starts = range(n_parts - length + 1)
    best = min(starts, key=lambda start: (sorted(count[start : start + length]), start))
    return Span(best, best + length)
