"""What the option `credentialProvider` names in tests: keys that say which process asked for them, and soon expire."""

import itertools
import os
from datetime import UTC, datetime, timedelta

_numbers = itertools.count()


def keys() -> dict[str, object]:
    soon = datetime.now(UTC) + timedelta(seconds=30)
    key = f"P{os.getpid()}N{next(_numbers)}"
    return {"AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": "t", "Expiration": soon}
