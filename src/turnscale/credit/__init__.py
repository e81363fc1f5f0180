"""Credit assignment: pure functions ``f(batch, **conventions) -> Credit``, one file per family."""
