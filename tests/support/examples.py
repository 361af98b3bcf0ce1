"""The number of examples a property test tries."""

from __future__ import annotations

import hypothesis


def examples(usual: int) -> int:
    """`usual`, or its share under a profile of fewer examples: `quick` tries a fifth of what `repeatable` does."""
    return max(1, usual * hypothesis.settings().max_examples // 100)
