"""Times work in the process of a peer."""
import json
import resource
import time


def timed(run, seconds, least=10, most=400):
    """Milliseconds of each run, after a warm-up of three runs and half a second."""
    begin = time.perf_counter()
    warm = 0
    while warm < 3 or time.perf_counter() - begin < 0.5:
        run()
        warm += 1
    times = []
    begin = time.perf_counter()
    while len(times) < least or (time.perf_counter() - begin < seconds and len(times) < most):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def report(times, version, **more):
    print(
        json.dumps({"times_ms": times, "version": version, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                    **more}))
